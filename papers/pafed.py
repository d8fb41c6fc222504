"""Table V and figures 5 to 8 of "PAFed", section VII: 100 clients, 10 a round, 10 epochs, batches of 50, 100 rounds.

What the paper leaves open is settled as follows. A delayed client answers 1 to 5 rounds late, all equally often. Its
FedAvg, FedProx and FedADMM drop what is late (section VII-A: "the dropped customers"); each also stands here in a form
that uses it, so that PAFed is not credited with what any use of late updates gives. Every method moves its model by
one schedule of server steps: ``constant``, 0.8 as printed, or ``decaying``, 0.8 / (1 + r / 20). Three exceptions:
FedADMM sends twice the change of its model (eq. 16), so that 0.4 is the others' step; in its authors' form
(``fedadmm_own``) any other step than 1 leaves out what is never sent again; FedAsync mixes in one model after the
other, 0.2 of each.

Pixels lie between 0 and 1 (``scaling = unit``). The paper doesn't say how it scales them; where their mean is 0 and
their standard deviation 1, some trainings of its CNN diverge on Fashion-MNIST at its learning rate in the first round.

Accuracies are the global model's on the whole test set. "Average best accuracy" is, so the text, "the mean of the
highest accuracies recorded in each of the final 10 training rounds": the best so far, averaged over the last ten
rounds, or plainly their mean; both stand here. For machines without a GPU, ``fashion_mnist-mlp`` has the model
784-200-100-10 in the place of the paper's CNN, and ``fashion_mnist-bf16`` trains that CNN in bfloat16.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate
from math import isnan, nan
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from coterie.reproductions.study import Cell, Curve, Item, Row, by_cell, named, percent, spread
from coterie.runs.config import RunConfig
from papers.plots import accuracy_panels

CLIENTS, ROUNDS, WINDOW = 100, 100, 10
MODEL: Mapping[str, tuple[str, Literal["fp32", "bf16"]]] = {
    "mnist": ("cnn", "fp32"),
    "fashion_mnist": ("cnn", "fp32"),
    "fashion_mnist-bf16": ("cnn", "bf16"),
    "fashion_mnist-mlp": ("mlp", "fp32"),
    "cifar10": ("cnn_256", "fp32"),
    "cifar100": ("cnn_bn", "fp32"),
}
"""Model and precision of its training, by data set as the cells name it; what follows a hyphen there is theirs."""
DELTAS = ("0", "0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7")
SETTINGS = ("iid", *DELTAS)
"""IID without delays (the paper's delta' = 0), or two shards a client with this share of delayed clients."""
SCHEDULES = {"decaying": 0.05, "constant": 0.0}
"""server_decay."""
METHODS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "pafed": ("pafed", {}),
    "fedadmm_drop": ("fedadmm", {"reference": "received", "server_lr": 0.4, "max_staleness": 0}),
    "fedavg_drop": ("fedavg_drop", {}),
    "fedprox_drop": ("fedprox_drop", {}),
    "fedadmm_late": ("fedadmm", {"reference": "received", "server_lr": 0.4}),
    "fedadmm_own": ("fedadmm", {"server_lr": 1.0, "server_decay": 0.0}),
    "fedavg_stale": ("fedavg_stale", {}),
    "fedprox_stale": ("fedprox_stale", {}),
    "fedavg_late": ("fedavg_late", {}),
    "time_weighted": ("time_weighted", {}),
    "fedasync": ("fedasync", {"server_lr": 0.2}),
}
PRINTED = ("fedadmm_drop", "fedavg_drop", "fedprox_drop", "pafed")
"""The columns of table V."""
WITHOUT_DELAYS = (*PRINTED, "fedadmm_own", "fedasync")
"""Where nothing is late, all others are one of these."""
PARTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "admm_average": ("pafed", {"project": "none"}),
    "admm_printed": ("pafed", {"project": "printed"}),
    "admm_drop": ("pafed", {"max_staleness": 0}),
    "admm_drop_twice": ("pafed", {"max_staleness": 0, "server_lr": 1.6}),
    "admm_length": ("pafed", {"clip": 10.0, "server_lr": 0.4}),
    "admm_third": ("pafed", {"server_lr": 0.27}),
    "admm_thrice": ("pafed", {"server_lr": 2.4}),
    "sgd_turn": ("pafed", {"local": "sgd"}),
    "sgd_average": ("pafed", {"local": "sgd", "project": "none"}),
    "sgd_drop": ("pafed", {"local": "sgd", "max_staleness": 0}),
}
"""PAFed with parts left out: plain SGD; late updates averaged as they come, added to the step, or dropped.

``admm_drop_twice`` steps as far as ``admm_average``, which adds the mean of the late to that of those in time.
``admm_length`` scales its step by the updates' mean length (10 at most), which eq. 16 doubles.
``admm_third``: eq. 17 adds up three steps, one of those in time and two of the late, so a third of the others' each;
``admm_thrice`` for the opposite.
"""
COMPARISONS = (
    ("ADMM", "fedavg_drop", "fedadmm_drop"),
    ("ADMM", "fedavg_late", "fedadmm_late"),
    ("ADMM", "sgd_drop", "admm_drop"),
    ("ADMM", "sgd_average", "admm_average"),
    ("ADMM", "sgd_turn", "pafed"),
    ("late updates", "fedavg_drop", "fedavg_stale"),
    ("late updates", "fedavg_drop", "fedavg_late"),
    ("late updates", "fedadmm_drop", "fedadmm_late"),
    ("late updates", "sgd_drop", "sgd_average"),
    ("late updates", "admm_drop", "admm_average"),
    ("late updates", "admm_drop_twice", "admm_average"),
    ("projection", "sgd_average", "sgd_turn"),
    ("projection", "admm_average", "pafed"),
    ("projection", "admm_printed", "pafed"),
    ("unit length", "fedavg_drop", "sgd_drop"),
    ("unit length", "fedavg_late", "sgd_average"),
    ("unit length", "admm_length", "pafed"),
    ("a third of the step", "pafed", "admm_third"),
    ("three times the step", "pafed", "admm_thrice"),
    ("all of PAFed", "fedavg_drop", "pafed"),
    ("all of PAFed", "fedadmm_drop", "pafed"),
    ("all of PAFed", "fedavg_late", "pafed"),
)
"""What is tried, without it, with it."""

TABLE_5 = {  # percent, by setting in the order of PRINTED
    "mnist": {
        "iid": (99.0473, 98.9264, 98.9291, 99.0145),
        "0": (98.4509, 97.8973, 97.8891, 98.4918),
        "0.1": (98.4073, 97.4291, 97.7264, 98.36),
        "0.2": (98.2358, 97.4067, 97.535, 98.3567),
        "0.3": (97.2509, 97.3555, 97.0836, 98.3545),
        "0.4": (98.1427, 97.2964, 96.8773, 98.29),
        "0.5": (97.9455, 96.7591, 96.3509, 98.3918),
        "0.6": (97.7173, 96.3764, 96.0782, 98.2609),
        "0.7": (97.3327, 94.6845, 94.9818, 97.6918),
    },
    "fashion_mnist": {
        "iid": (90.5864, 89.9118, 89.8036, 90.5055),
        "0": (84.2264, 83.5291, 83.5818, 86.7282),
        "0.1": (84.0536, 82.6382, 82.8691, 87.4289),
        "0.2": (84.0425, 81.9, 82.3355, 87.1273),
        "0.3": (83.2653, 81.1727, 81.2382, 87.1589),
        "0.4": (82.3685, 79.6909, 80.1527, 86.6727),
        "0.5": (81.222, 78.6509, 80.1527, 86.6622),
        "0.6": (79.8987, 77.0927, 76.9182, 85.5789),
        "0.7": (78.0927, 73.2355, 74.1073, 83.9551),
    },
    "cifar10": {
        "iid": (63.3473, 60.6273, 60.1227, 63.65),
        "0": (55.6409, 51.5364, 51.2473, 57.9036),
        "0.1": (53.6769, 50.8245, 51.1881818, 58.7304),
        "0.2": (53.3565, 49.6036, 49.8927, 58.9371),
        "0.3": (52.0966, 49.287, 49.345, 58.7706),
        "0.4": (50.8752, 47.598, 47.562, 57.8112),
        "0.5": (48.6669, 45.2309, 45.7945, 56.9251),
        "0.6": (45.718, 44.4036, 44.3982, 55.9191),
        "0.7": (41.4106, 41.387, 41.936, 52.6318),
    },
    "cifar100": {
        "iid": (51.46, 50.06, 50.46, 51.92),
        "0": (44.89, 40.0, 41.75, 46.17),
        "0.1": (44.19, 39.76, 40.42, 46.62),
        "0.2": (44.02, 38.93, 40.83, 45.06),
        "0.3": (43.0, 37.8, 39.99, 43.61),
        "0.4": (41.59, 36.62, 38.27, 44.36),
        "0.5": (39.32, 35.09, 35.86, 42.4),
        "0.6": (34.79, 32.52, 34.61, 38.62),
        "0.7": (24.77, 30.19, 31.22, 34.91),
    },
}


def config(method: str, data: str, setting: str, schedule: str = "decaying") -> RunConfig:
    """A run at the paper's scale (table III) with the emulated cipher. method: of METHODS or PARTS."""
    system, own = {**METHODS, **PARTS}[method]
    model, precision = MODEL[data]
    settings = {
        "lr": 0.1,
        "momentum": 0.5,
        "batch_size": 50,
        "max_epochs": 10,
        "slowest": 1.0,
        "participation": 0.1,
        "server_lr": 0.8,
        "server_decay": SCHEDULES[schedule],
    }
    return RunConfig(
        system,
        data.partition("-")[0],
        clients=CLIENTS,
        rounds=ROUNDS,
        partition="iid" if setting == "iid" else "shards:2",
        model=model,
        crypto="emulated",
        delta=0.0 if setting == "iid" else float(setting),
        precision=precision,
        scaling="unit",
        settings={**settings, **own},
    )


def cells(data: Sequence[str], settings: Sequence[str], methods: Sequence[str]) -> tuple[Cell, ...]:
    """``data/setting/schedule/method``, for each of them under both schedules."""
    return tuple(
        Cell(f"{d}/{setting}/{schedule}/{method}", config(method, d, setting, schedule))
        for d in data
        for setting in settings
        for schedule in SCHEDULES
        for method in methods
    )


def best_so_far(curve: Curve) -> float:
    """The best accuracy up to each of the last ten rounds, averaged over them; NaN if the training diverged."""
    if curve.diverged:
        return nan
    return fmean(list(accumulate((v for v in curve.global_accuracy if v is not None), max))[-WINDOW:])


def mean_of_last(curve: Curve) -> float:
    """The mean accuracy of the last ten rounds; NaN if the training diverged."""
    return curve.last("global_accuracy", WINDOW)


def late_share(curve: Curve) -> float:
    """How many of the updates that the server used came late."""
    ages = [note["staleness"] for note in curve.notes]  # used, by rounds late
    used = sum(sum(age) for age in ages)
    return sum(sum(age[1:]) for age in ages) / used if used else 0.0


def _range(found: Sequence[Curve]) -> str:
    """Of the last ten rounds of all seeds, percent: a wide one has not settled."""
    last = [v for curve in found for v in curve.global_accuracy[-WINDOW:] if v is not None]
    return f"{100 * min(last):.1f} to {100 * max(last):.1f}" if last else "diverged"


@by_cell
def _table_5(name: str, found: Sequence[Curve]) -> Row:
    data, setting, schedule, method = name.split("/")
    printed = TABLE_5[data.partition("-")[0]][setting]
    return {
        "data": data,
        "delta": setting,
        "server step": schedule,
        "method": method,
        "paper %": printed[PRINTED.index(method)] if method in PRINTED else None,
        "ours: best so far %": percent([best_so_far(curve) for curve in found]),
        "ours: mean %": percent([mean_of_last(curve) for curve in found]),
        "last 10 rounds": _range(found),
        "late of all used %": round(100 * fmean(late_share(curve) for curve in found), 1),
        "seeds": len(found),
    }


def _points(without: Sequence[float], with_it: Sequence[float]) -> str:
    """Mean and deviation over the seeds of the difference within a seed, in points of a percent."""
    gains = [100 * (b - a) for a, b in zip(without, with_it, strict=True)]
    if any(map(isnan, gains)):
        return "diverged"
    mean, sd = spread(gains)
    return f"{mean:+.2f}" + ("" if sd is None else f" ± {sd:.2f}")


def _parts(curves: Mapping[str, Sequence[Curve]]) -> list[Row]:
    """What each part gives: the same seeds with and without it, under one schedule."""
    rows: list[Row] = []
    for case in dict.fromkeys(name.rpartition("/")[0] for name in curves):
        data, setting, schedule = case.split("/")
        for part, *pair in COMPARISONS:
            found = [curves.get(f"{case}/{method}", ()) for method in pair]
            if not all(found):
                continue
            means, bests = ([[of(c) for c in one] for one in found] for of in (mean_of_last, best_so_far))
            row: dict[str, Any] = {"data": data, "delta": setting, "server step": schedule, "part": part}
            row |= dict(zip(("without", "with"), pair, strict=True))
            row |= {f"{way}: mean %": percent(a) for way, a in zip(("without", "with"), means, strict=True)}
            row |= {"gain: mean, points": _points(*means), "gain: best so far, points": _points(*bests)}
            rows.append(row | {"seeds": len(found[0])})
    return rows


def _draw(title: str, curves: Mapping[str, Sequence[Curve]], path: Path) -> None:
    """A panel for each data set, setting and schedule; one more, the last rounds over delta, if there are several."""
    panels: dict[str, dict[str, Sequence[Curve]]] = {}
    ends: dict[str, dict[str, dict[float, float]]] = {}
    for name, found in curves.items():
        data, setting, schedule, method = name.split("/")
        where = "IID" if setting == "iid" else f"δ = {setting}"
        panels.setdefault(f"{data}, {where}, {schedule} step", {})[method] = found
        if setting != "iid":
            end = ends.setdefault(f"{data}, last ten rounds, {schedule} step", {}).setdefault(method, {})
            end[float(setting)] = fmean(mean_of_last(curve) for curve in found)
    several = {case: lines for case, lines in ends.items() if max(map(len, lines.values())) > 1}
    accuracy_panels(panels, several, title).savefig(path)


_TABLE_5_CELLS = tuple(
    cell
    for data in MODEL
    for setting in SETTINGS
    for cell in cells((data,), (setting,), WITHOUT_DELAYS if setting in ("iid", "0") else tuple(METHODS))
)
_PARTS_CELLS = (
    *cells(("fashion_mnist-mlp", "fashion_mnist"), ("0",), ("fedavg_drop", "fedadmm_drop", "pafed", "sgd_drop")),
    *cells(
        ("fashion_mnist-mlp", "fashion_mnist"),
        ("0.5", "0.7"),
        tuple(dict.fromkeys(method for _, *pair in COMPARISONS for method in pair)),
    ),
)
ITEMS = named(
    Item("pafed/table5", "PAFed, table V: accuracy by share of delayed clients", _TABLE_5_CELLS, _table_5),
    Item("pafed/parts", "PAFed: what ADMM, late updates and projection give", _PARTS_CELLS, _parts),
    Item(
        "pafed/fig5",
        "PAFed, figure 5: nobody late, IID and two shards a client",
        cells(tuple(MODEL), ("iid", "0"), PRINTED),
        _table_5,
        partial(_draw, "Nobody is late"),
    ),
    *(
        Item(
            f"pafed/fig{number}",
            f"PAFed, figure {number}: clients that are late ({words}, two shards a client)",
            cells(data, DELTAS[1:], (*PRINTED, "fedavg_late")),
            _table_5,
            partial(_draw, f"Clients that are late: {words}"),
        )
        for number, words, data in (
            (6, "Fashion-MNIST", ("fashion_mnist", "fashion_mnist-bf16", "fashion_mnist-mlp")),
            (7, "CIFAR-10", ("cifar10",)),
            (8, "CIFAR-100", ("cifar100",)),
        )
    ),
)
