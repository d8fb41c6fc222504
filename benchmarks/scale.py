"""What very many clients cost, and what it costs to send trainings to workers: the tables of docs/scale.md.

``clients``: whole jobs, each a command of its own. ``workers``: the same trainings in this process and on a Ray cluster
on this machine, one after the other, so that both see the same machine.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.jobs import timed
from coterie.protocol.effects import Fit
from coterie.record.provenance import write_record
from coterie.runs import RunConfig, experiment
from coterie.runs.on_data import Here
from coterie.training.solvers import Sgd

RUNS = ((100, 100), (10_000, 100), (1_000, 1_000), (100_000, 1_000))
"""How many clients there are, and how many a round asks and scores."""
ROUNDS = 10


def command(clients: int, asked: int, folder: Path) -> list[str]:
    """As its user writes it, with all that a run leaves. As many are scored as are asked, in every run."""
    options = {"data": "synthetic:64x10", "clients": clients, "evaluated": asked, "rounds": ROUNDS}
    named = [part for key, value in options.items() for part in (f"--{key}", str(value))]
    words = [*named, "--set", f"participation={asked / clients}", "--out", str(folder / "run")]
    return [sys.executable, "-m", "coterie", "run", "fedavg", *words, "--checkpoint-every", "1", "--quiet"]


def ran(clients: int, asked: int) -> dict[str, Any]:
    """One job, from start to exit. Processor seconds are those of all its threads: other work adds little to them."""
    quick = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory() as home:
        found = timed(command(clients, asked, Path(home)), quick)
        out = Path(home) / "run"
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        files = [path for path in out.rglob("*") if path.is_file()]
        return {
            "clients": clients,
            "asked": asked,
            "job_processor_s": found["cpu_seconds"],
            "job_s": found["seconds"],
            "peak_mb": found["peak_mb"],
            "folder_mb": sum(path.stat().st_size for path in files) / 1e6,
            "files": len(files),
            "global_accuracy": lines[-1]["global_accuracy"],
        }


def clients(repeats: int = 2) -> dict[str, Any]:
    """Every job, in turns; of each the one with the fewest processor seconds."""
    load = os.getloadavg()
    turns = [[ran(*one) for one in RUNS] for _ in range(repeats)]
    runs = [min(found, key=lambda one: float(one["job_processor_s"])) for found in zip(*turns, strict=True)]
    of = {(one["clients"], one["asked"]): one["job_processor_s"] for one in runs}
    ratios = {f"{many:,} of which {n} are asked": of[many, n] / of[n, n] for many, n in RUNS if many > n}
    how = {"rounds": ROUNDS, "repeats": repeats, "cores": os.cpu_count(), "load": load}
    return {**how, "over_all": ratios, "runs": runs}


def fastest(runs: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """The fewest seconds of each call, made in turn: what else a machine does can only add to them."""
    found = dict.fromkeys(runs, inf)
    for _ in range(repeats):
        for name, call in runs.items():
            started = time.perf_counter()
            call()
            found[name] = min(found[name], time.perf_counter() - started)
    return found


def workers(repeats: int = 9, parties: int = 100, samples: int = 600) -> dict[str, Any]:
    """Trainings of 784-200-100-10 networks, and one short training, in this process and at one worker and at two."""
    torch.set_num_threads(1)
    plain = RunConfig("fedavg", data="synthetic:784x10", model="mlp", clients=parties, partition="iid", rounds=1)
    plain = replace(plain, samples=parties * samples, evaluated=1)
    found: dict[str, Any] = {"parties": parties, "samples": samples, "repeats": repeats, "cores": os.cpu_count()}
    same = True
    for count in (1, 2):
        started = time.perf_counter()
        made = experiment.build(replace(plain, workers=f"ray:{count}"))
        start_s = time.perf_counter() - started
        try:
            here = Here(made.model, made.data, made.effects.how)
            there, start = made.effects.workers, made.common.initial
            many = [(f"client/{i}", Fit(start, Sgd(0.1, 50), 2, i)) for i in range(parties)]
            short = [("client/0", Fit(start, Sgd(0.1, 600), 1, 0))]
            pairs = zip(here.run(many), there.run(many), strict=True)  # data are made, libraries loaded
            same &= all(np.array_equal(a.weights, b.weights) for a, b in pairs)
            found[f"ray:{count}"] = {
                "start_s": start_s,
                "chunk": fastest({"here_s": partial(here.run, many), "there_s": partial(there.run, many)}, repeats),
                "one": fastest({"here_s": partial(here.run, short), "there_s": partial(there.run, short)}, 9 * repeats),
            }
        finally:
            made.close()
    found["weights_mb"] = parties * made.model.spec.size * 4 / 1e6
    found["same_models"] = same
    for kind in ("chunk", "one"):
        of = found["ray:1"][kind]
        found[f"overhead_of_{kind}_s"] = of["there_s"] - of["here_s"]
    return found


def main() -> None:
    """Write the record of one of the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("table", choices=["clients", "workers"])
    parser.add_argument("file", type=Path, help="where the record is written, as JSON")
    given = parser.parse_args()
    record = clients() if given.table == "clients" else workers()
    words = f"python -m benchmarks.scale {given.table} {given.file.as_posix()}"
    write_record(given.file, words, rounded(record, 4))


def rounded(record: Mapping[str, Any], digits: int) -> dict[str, Any]:
    """All floats to so many significant digits."""
    found: dict[str, Any] = json.loads(json.dumps(record), parse_float=lambda text: float(f"{float(text):.{digits}g}"))
    return found


if __name__ == "__main__":
    main()
