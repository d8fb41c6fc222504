"""The learning rate of every method on Cora, from one grid on a seed that no table has. ``docs/reproduction/ofl.md``.

    python -m benchmarks.rates docs/ofl/rates.json
    python -m benchmarks.rates docs/ofl/rates.json --show         # its table

Each method of table 3 makes the same runs: those of ``papers.ofl`` with another rate and fewer rounds.
Its rate is the one with the best mean accuracy of the clients' models over the last evaluations.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.markdown import grid
from coterie.protocol.errors import RunError
from coterie.record.folder import METRICS, read_lines
from coterie.record.provenance import write_record
from coterie.runs.failures import is_divergence
from coterie.runs.runner import run
from papers.ofl import config

TASK = "cora"
METHODS = ("fedavg", "cfl", "rfl_ha", "ofl", "ofl@hardened")
RATES = (0.1, 0.3, 1.0, 3.0)
SEED, ROUNDS, EVERY, LAST = 100, 20, 2, 3
"""Accuracy is the mean of the last three evaluations, in rounds 16, 18 and 20."""


def accuracy(method: str, rate: float, seed: int, data_dir: str | None) -> float:
    """Mean global accuracy at the end; that of guessing nothing, 0, where the training diverged."""
    made = config(method, TASK, lr=rate)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        made = replace(
            made, seed=seed, rounds=ROUNDS, eval_every=EVERY, evaluate="all", fine_tune="no", data_dir=data_dir
        )
        try:
            run(replace(made, out=str(out)))
        except RunError as error:
            if not is_divergence(error):
                raise
            return 0.0
        found = [line.get("global_accuracy") for line in read_lines(out / METRICS)]
    return fmean([value for value in found if value is not None][-LAST:])


def chosen(content: Mapping[str, Any]) -> dict[str, float]:
    """The rate of each method: the best one, the smaller of two that are as good."""
    return {method: max(RATES, key=lambda rate: (row[f"{rate:g}"], -rate)) for method, row in content["found"].items()}


def table(content: Mapping[str, Any]) -> str:
    """Methods and rates, in percent; the chosen one in bold."""
    best = chosen(content)
    rows = []
    for method, row in content["found"].items():
        cells = [f"{100 * row[f'{rate:g}']:.1f}" for rate in RATES]
        bold = [f"**{cell}**" if rate == best[method] else cell for rate, cell in zip(RATES, cells, strict=True)]
        rows.append([method, *bold])
    return grid(["method", *(f"{rate:g}" for rate in RATES)], rows)


def main(arguments: list[str] | None = None) -> None:
    """Measure, write the JSON and show the table; or show that of a JSON that is there."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rates", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--show", action="store_true", help="measure nothing, and show the table of the file")
    parser.add_argument("--data-dir")
    given = parser.parse_args(arguments)
    if not given.show:
        found: dict[str, dict[str, float]] = {}
        for rate in RATES:
            for method in METHODS:
                found.setdefault(method, {})[f"{rate:g}"] = round(accuracy(method, rate, SEED, given.data_dir), 4)
                sys.stderr.write(f"{method}, rate {rate:g}: {found[method][f'{rate:g}']}\n")
        command = shlex.join(["python", "-m", "benchmarks.rates", given.out.as_posix()])
        write_record(given.out, command, {"task": TASK, "seeds": [SEED], "rounds": ROUNDS, "found": found})
    sys.stdout.write(table(json.loads(given.out.read_text())))


if __name__ == "__main__":
    main()
