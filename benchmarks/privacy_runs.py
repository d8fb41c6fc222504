"""FedEPC's runs by how descriptions are sent: what that costs in accuracy and groups, and what the attacks still find.

Whole runs with the audit of the package (``privacy/audits/fedepc.py``).
``benchmarks/privacy.py`` has descriptions alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

from benchmarks.items import main, mean
from coterie.privacy.audits import Finding
from coterie.privacy.audits.fedepc import passive
from coterie.privacy.plain import plain_findings
from coterie.reproductions.study import Calculation, Item, Row, by_cell, named
from coterie.runs import RunConfig
from coterie.runs.recorded import record

GROUNDS: Mapping[str, Mapping[str, Any]] = {
    "digits": {"data": "digits", "clients": 20, "rounds": 20},
    "mnist": {"data": "mnist", "clients": 25, "samples": 5000, "rounds": 15},
}
"""MNIST with 190 samples a device."""
PARTITIONS = ("labelsets:5", "dirichlet:0.1")
WAYS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "clear": ("paper", {}),
    "epsilon 8": ("paper", {"send": "noise", "epsilon": 8.0}),
    "epsilon 4": ("paper", {"send": "noise", "epsilon": 4.0}),
    "epsilon 1": ("paper", {"send": "noise", "epsilon": 1.0}),
    "epsilon 4, all channels": ("paper", {"send": "noise", "epsilon": 4.0, "noise_along": "all"}),
    "hardened": ("hardened", {}),
    "hardened, epsilon 4": ("hardened", {"send": "noise", "epsilon": 4.0}),
}
"""Mode and settings. Noise is along the directions of the classes unless all channels are named."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """Of one run: accuracies and groups in the end, and what the attacks found, by name."""

    local: float
    tuned: float
    ari: float | None
    clusters: int
    found: Mapping[str, Finding]


def outcome(ground: str, form: str, way: str, seed: int) -> Outcome:
    """One run of one seed; its data and its partition are the same for every way to send."""
    mode, settings = WAYS[way]
    config = RunConfig(
        "fedepc",
        mode=mode,
        model="mlp",
        partition=form,
        min_samples=5,
        crypto="emulated",
        fine_tune="own_epochs",
        seed=seed,
        record=True,
        record_mib=4096,
        evaluate="all",
        settings={**settings, "converged": 0.0},
        **GROUNDS[ground],
    )
    run = record(config)
    last = run.lines[-1]
    found = {one.name: one for one in (*passive(run), *plain_findings(run)[0]) if one.results}
    grouping = last["grouping"]
    return Outcome(
        last["local_accuracy"], last["fine_tuned_local_accuracy"], grouping["ari"], grouping["clusters"], found
    )


MEASURES = {
    "vectors by name: total variation": (
        "server, by vectors: label shares",
        "server with the helper, by vectors: label shares",
    ),
    "vectors without names: total variation": ("helper: label shares of unnamed clients",),
    "pairs, by clusters": ("server: which pairs have similar labels, by cluster",),
    "label shares, by models": ("server: label shares", "server with the helper, by models: label shares"),
    "samples, by selections": ("server: number of samples, by selections",),
    "variety, by selections": ("server: variety of labels, by selections",),
    "variety, by losses": ("server: variety of labels, by losses",),
}
"""The columns of attacks: the findings that they hold, of which a run has one at most."""


@by_cell
def _rows(name: str, runs: Sequence[Outcome]) -> Row:
    form, way = name.split("/")
    row: dict[str, Any] = {
        "partition": form,
        "sent": way,
        "local accuracy %": mean([100 * one.local for one in runs]),
        "tuned %": mean([100 * one.tuned for one in runs]),
        "ARI": mean([one.ari for one in runs]),
        "clusters": ", ".join(str(one.clusters) for one in runs),
    }
    for column, names in MEASURES.items():
        found = [_first(one, names) for one in runs]
        values = [None if of is None else fmean(r.value for r in of.results) for of in found]
        chances = [None if of is None else fmean(r.chance for r in of.results) for of in found]
        row[column], row[f"{column}, by luck"] = mean(values), mean(chances)
    return row


def _first(one: Outcome, names: Sequence[str]) -> Finding | None:
    return next((one.found[name] for name in names if name in one.found), None)


ITEMS: Mapping[str, Item[Any]] = named(
    *(
        Item(
            f"fedepc/privacy_{ground}",
            "FedEPC by how descriptions are sent: accuracy, groups and attacks of whole runs "
            f"({ground}; mean, 95 % interval)",
            tuple(
                Calculation(f"{form}/{way}", partial(outcome, ground, form, way), {**options, "public": 0.05})
                for form in PARTITIONS
                for way in WAYS
            ),
            _rows,
            command="python -m benchmarks.privacy_runs",
        )
        for ground, options in GROUNDS.items()
    )
)

if __name__ == "__main__":
    main(ITEMS)
