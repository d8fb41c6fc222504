"""Accuracy over epsilon: noise on each upload, noise on the opened sum by those who make it, and noise by the server.

All three protect a whole client, over ten rounds, at delta 1e-5. ``python -m benchmarks.noise_on_sums dp/epsilon``,
with ``--only digits --only mnist/100`` and so on; what has run is kept.

``dp/mnist`` is MNIST with 1,000 clients over twenty rounds. Its step and rounds were chosen by a simulation, with
Gaussian noise, whose clients trained on 50,000 of the training images and which was scored on the other 10,000. The
clip of ``coterie`` was chosen of 0.5, 1, 1.5 and 2 on such images, by one run each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.items import main, mean
from coterie.report.drawing import new_figure
from coterie.reproductions.study import Cell, Curve, Item, Row, named
from coterie.runs.config import RunConfig
from coterie.runs.intervals import mean_and_interval

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
CLIENTS: Mapping[str, tuple[int, ...]] = {
    "digits": (16, 100),
    "mnist": (100, 1_000, 10_000),
    "fashion_mnist": (100, 1_000, 10_000),
}
"""By data set."""


def _cell(data: str, clients: int, way: str, epsilon: float | None) -> Cell:
    """So many clients with a linear model. Data and partition are the same for every way."""
    system, settings = WAYS[way]
    noise = {"noise": LITTLE} if epsilon is None else {"epsilon": epsilon, "private_rounds": ROUNDS}
    config = RunConfig(
        system,
        data=data,
        model="linear",
        clients=clients,
        partition="iid",
        rounds=ROUNDS,
        eval_every=ROUNDS,
        crypto="emulated" if system == "ofl" else "real",
        settings={**TRAINING, **settings, **noise},
    )
    return Cell(f"{data}/{clients}/{way}/{_word(epsilon)}", config)


CLAIMS = ("claimed", "claimed_epsilon"), ("proved, at least", "lower_bound")
"""Of one upload or sum: columns, and what they are called in ``result.json``. The server's noise is not audited."""


def _rows(outcomes: Mapping[str, Sequence[Curve]]) -> list[Row]:
    """A row for each data set, number of clients and epsilon: accuracies, and what an audit says of one release.

    A round is skipped if noise has brought the models beyond the range of the ciphers. Then clients keep their own.
    """
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    for name, curves in outcomes.items():
        data, clients, way, epsilon = name.split("/")
        row = rows.setdefault((data, clients, epsilon), {"data": data, "clients": clients, "epsilon": epsilon, **EMPTY})
        row[f"{way} %"] = mean(_percent(curves), 1)
        row[f"{way}: rounds skipped"] = mean([sum("skipped" in note for note in curve.notes) for curve in curves], 1)
        if way != "central":
            row |= {f"{way}: {column}": _audited(curves, key) for column, key in CLAIMS}
    return list(rows.values())


EMPTY: Row = dict.fromkeys(
    [
        *(f"{way} %" for way in WAYS),
        *(f"{way}: rounds skipped" for way in WAYS),
        *(f"{way}: {column}" for way in ("local", "distributed") for column, _ in CLAIMS),
    ]
)


STYLES: Mapping[str, Mapping[str, Any]] = {
    "local": {"marker": "s", "linestyle": ":", "color": "0.55"},
    "distributed": {"marker": "o", "linestyle": "-", "color": "0.0"},
    "central": {"marker": "^", "linestyle": "--", "color": "0.3"},
}
"""Of the curves: they differ without colour, too."""


def _draw(outcomes: Mapping[str, Sequence[Curve]], path: Path) -> None:
    """A panel for each data set and number of clients: accuracy over epsilon, mean and 95 % interval of the seeds."""
    panels = dict.fromkeys(name.rpartition("/")[0].rpartition("/")[0] for name in outcomes)
    columns = min(len(panels), 3)
    rows = -(-len(panels) // columns)
    figure = new_figure(3 * columns + 0.4, 2.9 * rows + 0.4)
    places = list(figure.subplots(rows, columns, squeeze=False, sharey=True).flat)
    for axes, panel in zip(places, panels, strict=False):
        for (way, style), shift in zip(STYLES.items(), (-0.06, 0.0, 0.06), strict=True):
            found = [(at, outcomes.get(f"{panel}/{way}/{word}")) for at, word in enumerate(map(_word, EPSILONS))]
            points = [(at + shift, *mean_and_interval(_percent(curves))) for at, curves in found if curves]
            if points:
                at, middle, half = zip(*points, strict=True)
                axes.errorbar(at, middle, [one or 0.0 for one in half], label=way, capsize=2, markersize=4, **style)
        data, _, clients = panel.partition("/")
        axes.set_title(f"{data}, {int(clients):,} clients", fontsize=10)
        axes.set_xticks(range(len(EPSILONS)), ["1", "2", "4", "8", "none"])
        axes.set_xlabel("epsilon")
        axes.set(xlim=(-0.2, len(EPSILONS) - 0.8), ylim=(0, 100))
        axes.spines[["top", "right"]].set_visible(False)
    for axes in places[: len(panels) : columns]:
        axes.set_ylabel("accuracy, %")
    for axes in places[len(panels) :]:
        axes.remove()
    figure.legend(*places[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)
    figure.savefig(path)


def _word(epsilon: float | None) -> str:
    return "none" if epsilon is None else f"{epsilon:g}"


def _percent(curves: Sequence[Curve]) -> list[float]:
    """Of each seed, the global model's accuracy on the whole test set after the last round."""
    return [100 * curve.last("global_accuracy", 1) for curve in curves]


MANY = 20
"""Rounds of the runs with MNIST."""
MNIST: Mapping[str, Mapping[str, Any]] = {
    "ofl": {"mechanism": "distributed"},
    "coterie": {"clusters": 1, "clip": 1.0, "max_epochs": 5, "slowest": 1.0},
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
        "(a linear model, iid; mean, 95 % interval)",
        tuple(
            _cell(data, clients, way, epsilon)
            for data, many in CLIENTS.items()
            for clients, way, epsilon in product(many, WAYS, EPSILONS)
        ),
        _rows,
        _draw,
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
