"""Accuracy over epsilon: noise on each upload, noise on the opened sum by those who make it, and noise by the server.

All three protect a whole client, over ten rounds, at delta 1e-5. ``python -m benchmarks.noise_on_sums dp/epsilon``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.items import crossed, main, mean
from coterie.reproductions.study import Item, Row, named
from coterie.runs.config import RunConfig
from coterie.runs.runner import run

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
CLIENTS = (100,)


def accuracy(way: str, clients: int, epsilon: float | None, seed: int) -> float:
    """The global model's, on the whole test set. Data and partition are the same for every way."""
    system, settings = WAYS[way]
    noise = {"noise": LITTLE} if epsilon is None else {"epsilon": epsilon, "private_rounds": ROUNDS}
    with TemporaryDirectory() as out:
        config = RunConfig(
            system,
            data="digits",
            model="linear",
            clients=clients,
            partition="iid",
            rounds=ROUNDS,
            crypto="emulated" if system == "ofl" else "real",
            seed=seed,
            out=out,
            settings={**TRAINING, **settings, **noise},
        )
        return float(run(config).summary["global_accuracy"])


def _rows(outcomes: Mapping[str, Sequence[float]]) -> list[Row]:
    """A row for each number of clients and epsilon."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for name, found in outcomes.items():
        way, clients, epsilon = name.split("/")
        row = rows.setdefault((clients, epsilon), {"clients": clients, "epsilon": epsilon})
        row[f"{way} %"] = mean([100 * one for one in found], 1)
    return list(rows.values())


ITEMS: Mapping[str, Item[Any]] = named(
    Item(
        "dp/epsilon",
        "Accuracy over epsilon: noise on each upload, on the opened sum, and by a trusted server "
        "(digits, iid; mean, 95 % interval)",
        crossed(
            accuracy,
            lambda way, *_: {"system": WAYS[way][0], **TRAINING, **WAYS[way][1], "delta": DELTA},
            [*WAYS],
            CLIENTS,
            EPSILONS,
        ),
        _rows,
        command="python -m benchmarks.noise_on_sums",
    )
)

if __name__ == "__main__":
    main(ITEMS)
