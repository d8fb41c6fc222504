"""Accuracy over epsilon: noise on each upload, noise on the opened sum by those who make it, and noise by the server.

All three protect a whole client, over ten rounds, at delta 1e-5. ``python -m benchmarks.noise_on_sums dp/epsilon``.

``dp/mnist`` is MNIST with 1,000 clients over twenty rounds. Its step and rounds were chosen by a simulation, with
Gaussian noise, whose clients trained on 50,000 of the training images and which was scored on the other 10,000. The
clip of ``coterie`` was chosen between 0.5 and 0.25 on such images, by one run each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from benchmarks.items import main, mean
from coterie.reproductions.study import Cell, Curve, Item, Row, named
from coterie.runs.config import RunConfig

ROUNDS, DELTA = 10, 1e-5
TRAINING: Mapping[str, Any] = {"lr": 1.0, "slowest": 1.0}
WAYS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "local": ("ofl", {"mechanism": "standard", "detection": "none"}),
    "distributed": ("ofl", {"mechanism": "distributed"}),
    "central": ("dp_fedavg", {}),
}
"""System and settings."""
EPSILONS = (1.0, 2.0, 4.0, 8.0, None)
LITTLE = 0.01
"""The noise without an epsilon, over the sensitivity. It protects nobody."""
CLIENTS = (16, 100)


def _cell(way: str, clients: int, epsilon: float | None) -> Cell:
    """Digits among so many clients. Data and partition are the same for every way."""
    system, settings = WAYS[way]
    noise = {"noise": LITTLE} if epsilon is None else {"epsilon": epsilon, "private_rounds": ROUNDS}
    config = RunConfig(
        system,
        data="digits",
        model="linear",
        clients=clients,
        partition="iid",
        rounds=ROUNDS,
        eval_every=ROUNDS,
        crypto="emulated" if system == "ofl" else "real",
        settings={**TRAINING, **settings, **noise},
    )
    return Cell(f"{way}/{clients}/{'none' if epsilon is None else f'{epsilon:g}'}", config)


def _rows(outcomes: Mapping[str, Sequence[Curve]]) -> list[Row]:
    """A row for each number of clients and epsilon."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for name, curves in outcomes.items():
        way, clients, epsilon = name.split("/")
        row = rows.setdefault((clients, epsilon), {"clients": clients, "epsilon": epsilon})
        row[f"{way} %"] = mean(_percent(curves), 1)
    return list(rows.values())


def _percent(curves: Sequence[Curve]) -> list[float]:
    """Of each seed, the global model's accuracy on the whole test set after the last round."""
    return [100 * curve.last("global_accuracy", 1) for curve in curves]


MANY = 20
"""Rounds of the runs with MNIST."""
MNIST: Mapping[str, Mapping[str, Any]] = {
    "ofl": {"mechanism": "distributed"},
    "coterie": {"clusters": 1, "clip": 0.5, "max_epochs": 5, "slowest": 1.0},
}


def _many(system: str, settings: Mapping[str, Any]) -> Cell:
    """MNIST among 1,000 clients, with an epsilon of 8 for each."""
    common = {"lr": 0.3, "epsilon": 8.0, "private_rounds": MANY}
    config = RunConfig(
        system,
        data="mnist",
        model="mlp_small",
        clients=1000,
        partition="iid",
        rounds=MANY,
        eval_every=MANY,
        crypto="emulated",
        settings={**common, **settings},
    )
    return Cell(system, config)


def _audited(curves: Sequence[Curve], key: str) -> str | None:
    """Of the runs' audits of their noise, by a test on neighbouring data."""
    return mean([one[key] for curve in curves for one in curve.summary.get("dp_audit") or ()] or [None], 2)


def _accuracies(outcomes: Mapping[str, Sequence[Curve]]) -> list[Row]:
    return [
        {
            "system": name,
            "clients": 1000,
            "epsilon": 8,
            "accuracy, %": mean(_percent(curves), 1),
            "each seed": ", ".join(f"{one:.1f}" for one in _percent(curves)),
            "one sum: claimed": _audited(curves, "claimed_epsilon"),
            "one sum: proved, at least": _audited(curves, "lower_bound"),
        }
        for name, curves in outcomes.items()
    ]


ITEMS: Mapping[str, Item[Any]] = named(
    Item(
        "dp/epsilon",
        "Accuracy over epsilon: noise on each upload, on the opened sum, and by a trusted server "
        "(digits, iid; mean, 95 % interval)",
        tuple(_cell(way, clients, epsilon) for way, clients, epsilon in product(WAYS, CLIENTS, EPSILONS)),
        _rows,
        command="python -m benchmarks.noise_on_sums",
    ),
    Item(
        "dp/mnist",
        "MNIST among 1,000 clients, epsilon 8 for a whole client (iid; mean, 95 % interval)",
        tuple(_many(system, settings) for system, settings in MNIST.items()),
        _accuracies,
        command="python -m benchmarks.noise_on_sums",
    ),
)

if __name__ == "__main__":
    main(ITEMS)
