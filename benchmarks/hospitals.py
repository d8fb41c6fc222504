"""Four hospitals, alone, together and pooled: ``python -m benchmarks.hospitals --seeds 10``.

Pooled is FedAvg with one step of the full batch in each round: a step on the pooled loss, exactly. Every gain is paired
by patients (``runs/benefit.py``), over the models alone, and over pooled ones, as they are. A seed is a fold, so ten
seeds test every patient twice.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import coterie
from benchmarks.markdown import grid
from coterie.record.provenance import write_record
from coterie.runs import benefit
from coterie.runs.metrics import METRICS

METHODS = ("coterie", "fedavg")
FOLDS = 5
POOLED: Mapping[str, Any] = {"rounds": 200, "lr": 0.3, "batch_size": 1000, "max_epochs": 1, "slowest": 1.0}


def read(race: Any, method: str) -> benefit.Runs:
    return {one.summary["seed"]: benefit.read(one.folder, "classes") for one in race.results[method]}


def as_it_is(runs: benefit.Runs) -> benefit.Runs:
    """The same with the models as they are in the place of tuned ones."""
    return {
        seed: {name: replace(one, scores=dict.fromkeys(one.scores, one.scores[""])) for name, one in of.items()}
        for seed, of in runs.items()
    }


def gains(against: str, reference: benefit.Runs, others: Mapping[str, benefit.Runs], race: Any) -> list[dict[str, Any]]:
    """A row for each method, form of models and hospital."""
    names = {f"client/{i}": one["name"] for i, one in enumerate(race.benefits[0]["clients"])}
    reference = as_it_is(reference)
    return [
        {
            "hospital": one.name,
            "patients": one.samples,
            "method": found.method,
            "tuned": found.tuned,
            "against": against,
            "reference": one.alone,
            "auroc": one.together,
            "gain": one.gain,
            "low": one.low,
            "high": one.high,
            "verdict": one.verdict,
        }
        for found in benefit.benefits(METRICS["classes"]["auroc"], reference, others, names)
        for one in found.clients
    ]


def measured(seeds: int, folder: Path, methods: Sequence[str] = METHODS, pooled: Mapping[str, Any] = POOLED) -> Any:
    """The record: rows of gains over training alone, and over pooling."""
    common: dict[str, Any] = {"data": "heart", "seeds": seeds, "crypto": "emulated", "eval_every": 1000}
    race = coterie.compare(methods, out=str(folder / "race"), **common)
    whole = coterie.compare(["fedavg"], out=str(folder / "pooled"), **common, **pooled)
    runs, together = {method: read(race, method) for method in methods}, read(whole, "fedavg")
    alone = read(race, "local")
    rows = gains("alone", alone, {**runs, "pooled": together}, race) + gains("pooled", together, runs, race)
    first = {
        method: {seed: own[seed] for seed in list(own)[:FOLDS]} for method, own in {"alone": alone, **runs}.items()
    }
    once = gains("alone", first.pop("alone"), first, race)
    return {"seeds": seeds, "budget": race.content["budget"], "pooled": dict(pooled), "rows": rows, "first folds": once}


def table(record: Mapping[str, Any]) -> str:
    """AUROC in percent alone, pooled and with Coterie, and paired gains of its forms in points."""
    of = {(row["hospital"], row["method"], row["tuned"], row["against"]): row for row in record["rows"]}

    def gain(row: Mapping[str, Any]) -> str:
        low, high = (f"{100 * row[key]:+.1f}" for key in ("low", "high"))
        return f"{100 * row['gain']:+.1f} [{low}, {high}]".replace("-", "−")

    found = []
    for hospital in dict.fromkeys(row["hospital"] for row in record["rows"]):
        own, tuned = (of[hospital, "coterie", form, "alone"] for form in (False, True))
        pooled = of[hospital, "pooled", False, "alone"]
        values = [own["reference"], *(row["auroc"] for row in (pooled, own, tuned))]
        gains = [own, *(of[hospital, "coterie", True, against] for against in ("alone", "pooled"))]
        found.append([hospital, *(f"{100 * value:.1f}" for value in values), *map(gain, gains)])
    head = ["hospital", "alone", "pooled", "`coterie`", "tuned"]
    return grid([*head, "`coterie` over alone", "tuned over alone", "tuned over pooled"], found)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hospitals")
    parser.add_argument("--seeds", type=int, default=10, help="folds: five test every patient once")
    parser.add_argument("--out", type=Path, default=Path("docs/comparisons/heart.json"))
    given = parser.parse_args()
    with TemporaryDirectory() as folder:
        found = measured(given.seeds, Path(folder))
    write_record(given.out, f"python -m benchmarks.hospitals --seeds {given.seeds}", found)
    sys.stdout.write(f"Written: {given.out}\n")


if __name__ == "__main__":
    main()
