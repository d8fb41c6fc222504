"""By how many deviations a leader's cosine may lie below the median before it counts nothing. ``docs/detection.md``.

    python -m benchmarks.detection_choice docs/detection/choice.json
    python -m benchmarks.detection_choice docs/detection/choice.json --show        # its table

The leaders, attacks and pairs are those of ``benchmarks.detection``, the seeds others: 200 to 211. What was asked of
the multiple before: without an attack, in no setting more than 5 % of the leaders are as good as left out. The smallest
multiple that does so is ``aggregation.detection.OUTLYING``.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from benchmarks.detection import ATTACKS, LEADERS, LOW, SETTINGS, ground, pairs
from benchmarks.markdown import grid
from coterie.aggregation import detection
from coterie.record.provenance import write_record

Floats = NDArray[np.float64]

MULTIPLES = (2.0, 2.5, 3.0, 3.5)
FIRST, SEEDS, MOST = 200, 12, 0.05
COUNTED = tuple(attack for attack in ATTACKS if attack != "adaptive")
"""The adaptive attacker is built to look honest: no multiple tells it."""


def weights(gram: Floats, multiple: float) -> Floats:
    """a_i c_i ``(k,)`` of updates with these dot products ``(k, k)``."""
    squares = np.diag(gram)
    factors, lengths = detection.cut(squares), np.sqrt(squares)
    cosines = detection.others_cosines(squares, gram @ factors, factors)
    shorter = np.minimum(1, detection.lower_median(lengths) / lengths)
    return np.asarray(detection.agreements(cosines, outlying=multiple) * shorter)


def judged(gram: Floats, multiple: float) -> dict[str, float]:
    """Of one seed. gram: of the honest updates, then of each attack's, (leaders (1 + attacks),) squared."""
    honest = weights(gram[:LEADERS, :LEADERS], multiple)
    found = {"left out": float((honest <= LOW * honest.max()).mean())}
    areas, kept = [], []
    for number in range(1, 1 + len(COUNTED)):
        for pair in pairs():
            bad = np.isin(np.arange(LEADERS), pair)
            of = np.arange(LEADERS) + LEADERS * number * bad
            w = weights(gram[np.ix_(of, of)], multiple)
            areas.append(float(roc_auc_score(bad, 1 - w)))
            kept.append(float(w[bad].sum() / w.sum()))
    return found | {"auroc": float(np.mean(areas)), "share": float(np.mean(kept))}


def chosen(content: Mapping[str, Any]) -> float:
    """The smallest multiple that leaves out few enough in every setting."""
    return min(
        multiple
        for multiple in MULTIPLES
        if all(float(np.mean(cells[f"{multiple:g}"]["left out"])) <= MOST for cells in content["data"].values())
    )


def table(content: Mapping[str, Any]) -> str:
    """In percent: leaders left out without an attack, the mean area, and the poisoned leaders' mean share."""
    rows = []
    for name, cells in content["data"].items():
        of = [cells[f"{multiple:g}"] for multiple in MULTIPLES]
        keys = ("left out", "auroc", "share")
        rows.append([name, *(" / ".join(f"{100 * np.mean(one[key]):.1f}" for key in keys) for one in of)])
    return grid(["setting", *(f"{multiple:g} sd" for multiple in MULTIPLES)], rows)


def main(arguments: list[str] | None = None) -> None:
    """Measure, write the JSON and show the table; or show that of a JSON that is there."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.detection_choice", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--show", action="store_true", help="measure nothing, and show the table of the file")
    parser.add_argument("--data-dir")
    given = parser.parse_args(arguments)
    if not given.show:
        data: dict[str, dict[str, dict[str, list[float]]]] = {}
        for name in SETTINGS:
            for seed in range(FIRST, FIRST + SEEDS):
                found = ground(name, seed, given.data_dir)
                rows = np.concatenate([found.honest, *(found.poisoned[attack] for attack in COUNTED)])
                updates = rows.astype(np.float64) - found.start
                gram = updates @ updates.T
                for multiple in MULTIPLES:
                    cell = data.setdefault(name, {}).setdefault(f"{multiple:g}", {})
                    for key, value in judged(gram, multiple).items():
                        cell.setdefault(key, []).append(round(value, 4))
                sys.stderr.write(f"{name}, seed {seed}\n")
        command = shlex.join(["python", "-m", "benchmarks.detection_choice", given.out.as_posix()])
        write_record(given.out, command, {"seeds": [*range(FIRST, FIRST + SEEDS)], "data": data}, indent=None)
    sys.stdout.write(table(json.loads(given.out.read_text())))


if __name__ == "__main__":
    main()
