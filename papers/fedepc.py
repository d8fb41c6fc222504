"""Tables 2 to 4 and figures 3 to 5 of "FedEPC", section 4: 50 devices, three data sets, Dir(1) to Dir(.05).

What the paper leaves open is settled as follows. Every method has the same devices, rounds, epochs and learning rate,
which was chosen on FedAvg's column alone; docs/reproduction/fedepc.md says how. Each trains a fifth of the devices a
round. FedEPC's panels get models beyond that, to measure them. The paper's CNN is not described, so ``lenet`` stands
for it. A device has about 200 training samples. In ``mnist-mlp`` and ``fashion_mnist-mlp`` the model is 784-200-100-10,
so that a CPU suffices. The paper draws each device's label proportions from Dir(alpha): that is ``hsu:10 ALPHA`` here,
since ``hsu`` takes the concentration of all ten classes together. ``dirichlet:ALPHA`` spreads each class over the
devices instead. Latency is read off the virtual clock of the fleet ``mixed``, with the set-up. The paper does not say
whether its test accuracy is that of each device's model on the whole test set (``global``) or on test data of the
device's own distribution (``local``), so both stand beside its number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from coterie.reproductions.study import Cell, Curve, Item, Row, by_cell, named, percent, spread
from coterie.runs.config import RunConfig
from papers.plots import accuracy_panels

CLIENTS, SAMPLES, WINDOW = 50, 10_500, 5
MODEL = {
    "mnist": ("lenet", 50),
    "fashion_mnist": ("lenet", 50),
    "cifar10": ("lenet", 60),
    "mnist-mlp": ("mlp", 30),
    "fashion_mnist-mlp": ("mlp", 30),
}
"""Model and rounds, by data set as the cells name it; what follows a hyphen there is the model."""
ALPHAS = (1.0, 0.5, 0.1, 0.05)
FORMS = ("hsu", "dirichlet")
TARGETS = (0.25, 0.5, 0.75, 0.8, 0.85, 0.9)

METHODS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "fedavg": ("fedavg", {}),
    "haccs": ("haccs", {}),
    "flacc": ("flacc", {}),
    "clsm_fl": ("clsm_fl", {}),
    "fedepc": ("fedepc", {"converged": 0.0}),  # all rounds, as the others
    "fedprox": ("fedprox", {}),
    "ifca": ("ifca", {}),
    "oort": ("oort", {}),
    "local": ("local", {"participation": 1.0}),
}
PRINTED = ("fedavg", "haccs", "flacc", "clsm_fl", "fedepc")
"""The methods of the paper, in the order of its tables."""

GROUPS = ("rotate:4", "permute:4", "labelsets:5", "iid")
"""Partitions with groups that are known, and one without any, beside the paper's own."""

TABLE_2 = {  # merge and split threshold: accuracy in percent, seconds to 90 %
    (0.10, 0.12): (89.23, 135.46),
    (0.10, 0.25): (88.65, 153.97),
    (0.15, 0.12): (91.37, 122.82),
    (0.15, 0.18): (92.59, 112.74),
    (0.20, 0.18): (91.28, 126.49),
    (0.15, 0.25): (90.16, 138.13),
    (0.20, 0.25): (90.81, 144.06),
}
TABLE_3 = {  # seconds to each target, in the order of PRINTED
    0.25: (37.62, 12.13, 12.51, 10.61, 10.85),
    0.5: (92.31, 29.29, 30.59, 27.78, 28.21),
    0.75: (198.66, 45.32, 42.35, 43.92, 43.21),
    0.8: (242.99, 59.44, 56.48, 56.93, 56.22),
    0.85: (358.73, 86.91, 83.92, 84.35, 83.47),
    0.9: (654.4, 115.33, 112.97, 114.64, 112.74),
}
TABLE_4 = {  # accuracy in percent by alpha, in the order of PRINTED
    "mnist": {
        1.0: (91.62, 92.23, 93.74, 94.37, 94.22),
        0.5: (90.33, 90.98, 92.21, 93.11, 93.58),
        0.1: (88.15, 89.89, 91.40, 92.39, 92.59),
        0.05: (88.10, 89.40, 90.97, 92.13, 92.53),
    },
    "fashion_mnist": {
        1.0: (83.16, 85.16, 86.68, 86.86, 86.70),
        0.5: (81.82, 82.44, 84.03, 83.92, 84.48),
        0.1: (79.39, 80.14, 81.73, 82.25, 82.78),
        0.05: (79.01, 79.99, 81.57, 81.96, 82.5),
    },
    "cifar10": {
        1.0: (45.53, 47.56, 49.72, 51.03, 51.34),
        0.5: (44.55, 46.83, 48.08, 48.15, 48.52),
        0.1: (42.85, 42.98, 44.91, 44.58, 46.23),
        0.05: (42.30, 42.65, 44.31, 44.57, 45.92),
    },
}


def partition(form: str, alpha: float) -> str:
    """The partition that stands for the paper's Dir(alpha)."""
    return f"hsu:{10 * alpha:g}" if form == "hsu" else f"dirichlet:{alpha:g}"


def config(method: str, data: str, dealt: str, **settings: Any) -> RunConfig:
    """A run at the scale stated above. dealt: the partition."""
    system, own = METHODS[method]
    shared = {"lr": 0.1, "batch_size": 20, "momentum": 0.0, "max_epochs": 5, "slowest": 1.0, "participation": 0.2}
    model, rounds = MODEL[data]
    return RunConfig(
        system,
        data.partition("-")[0],
        clients=CLIENTS,
        rounds=rounds,
        partition=dealt,
        model=model,
        samples=SAMPLES,
        public=0.05,
        devices="mixed",
        fine_tune="own_epochs",
        settings={**shared, **own, **settings},
    )


def _thresholds() -> tuple[Cell, ...]:
    cells = []
    for data in ("mnist", "mnist-mlp"):
        for merge, split in TABLE_2:
            forced = {"force_thresholds": True} if split < merge else {}
            own = {"theta_merge": merge, "theta_split": split, **forced}
            cells.append(Cell(f"{data}/{merge:.2f}/{split:.2f}", config("fedepc", data, partition("hsu", 0.1), **own)))
    return tuple(cells)


def _latency() -> tuple[Cell, ...]:
    return tuple(
        Cell(f"{data}/{form}/{method}", config(method, data, partition(form, 0.1)))
        for data in ("mnist", "mnist-mlp")
        for form in FORMS
        for method in METHODS
    )


def _accuracy(data: Sequence[str]) -> tuple[Cell, ...]:
    return tuple(
        Cell(f"{d}/{form}/{alpha:g}/{method}", config(method, d, partition(form, alpha)))
        for form in FORMS
        for d in data
        for alpha in ALPHAS
        for method in METHODS
    )


def clock(found: Sequence[Curve], target: float, measure: str) -> str | None:
    """Virtual seconds until the first round that reaches the target, mean and standard deviation over the seeds.

    Where some seeds never reach it: how many do, of how many. None where none does.
    """
    times = [curve.seconds_to(target, measure) for curve in found]
    known = [t for t in times if t is not None]
    if not known:
        return None
    mean, sd = spread(known)
    of = "" if len(known) == len(times) else f" ({len(known)} of {len(times)} seeds)"
    return f"{mean:.4g}" + ("" if sd is None else f" ± {sd:.3g}") + of


def _clusters(found: Sequence[Curve]) -> str | None:
    counts = [curve.grouping[-1]["clusters"] for curve in found if curve.grouping and curve.grouping[-1]]
    return None if not counts else ", ".join(map(str, counts))


def _ari(found: Sequence[Curve]) -> str | None:
    values = [curve.grouping[-1]["ari"] for curve in found if curve.grouping and curve.grouping[-1]]
    known = [value for value in values if value is not None]
    if not known:
        return None
    mean, sd = spread(known)
    return f"{mean:.2f}" + ("" if sd is None else f" ± {sd:.2f}")


def _measured(found: Sequence[Curve]) -> Row:
    """What every table tells of a cell's runs: accuracies over the last rounds, and after each device's own tuning."""
    return {
        "global %": percent([curve.last("global_accuracy", WINDOW) for curve in found]),
        "local %": percent([curve.last("local_accuracy", WINDOW) for curve in found]),
        "local %, tuned": percent([curve.summary.get("fine_tuned_local_accuracy") for curve in found]),
        "clusters": _clusters(found),
    }


def _table_2(name: str, found: Sequence[Curve]) -> Row:
    data, *thresholds = name.split("/")
    merge, split = map(float, thresholds)
    accuracy, seconds = TABLE_2[merge, split]
    return {
        "data": data,
        "merge": merge,
        "split": split,
        "paper %": accuracy,
        "paper, s to 90 %": seconds,
        **_measured(found),
        "virtual s to 90 % local": clock(found, 0.9, "local_accuracy"),
        "to 80 % global": clock(found, 0.8, "global_accuracy"),
    }


def _table_3(name: str, found: Sequence[Curve]) -> Row:
    data, form, method = name.split("/")
    row: dict[str, Any] = {"data": data, "partition": partition(form, 0.1), "method": method}
    for target in TARGETS:
        printed = TABLE_3[target][PRINTED.index(method)] if method in PRINTED else None
        row |= {
            f"paper, {target:.0%}": printed,
            f"{target:.0%} global": clock(found, target, "global_accuracy"),
            f"{target:.0%} local": clock(found, target, "local_accuracy"),
        }
    return row


def _table_4(name: str, found: Sequence[Curve]) -> Row:
    data, form, alpha, method = name.split("/")
    printed = TABLE_4[data.partition("-")[0]][float(alpha)][PRINTED.index(method)] if method in PRINTED else None
    return {
        "data": data,
        "partition": partition(form, float(alpha)),
        "paper's alpha": float(alpha),
        "method": method,
        "paper %": printed,
        **_measured(found),
    }


def _planted(name: str, found: Sequence[Curve]) -> Row:
    data, dealt, method = name.split("/")
    return {"data": data, "partition": dealt, "method": method, **_measured(found), "ari": _ari(found)}


def _figure(number: int, *data: str) -> Item[Curve]:
    return Item(
        f"fedepc/fig{number}",
        f"FedEPC, figure {number}: accuracy over the rounds on {data[0]}",
        tuple(cell for cell in _accuracy(data) if cell.name.rpartition("/")[2] in PRINTED),
        by_cell(_table_4),
        partial(_draw, f"FedEPC, figure {number}: {data[0]}"),
    )


def _draw(title: str, curves: Mapping[str, Sequence[Curve]], path: Path) -> None:
    """A panel for each partition and accuracy, a line for each method."""
    panels: dict[str, dict[str, Sequence[Curve]]] = {}
    measures = {}
    for side in ("global", "local"):
        for name, found in curves.items():
            data, form, alpha, method = name.split("/")
            case = f"{data}, {partition(form, float(alpha))}, {side}"
            panels.setdefault(case, {})[method] = found
            measures[case] = f"{side}_accuracy"
    accuracy_panels(panels, {}, title, measures).savefig(path)


ITEMS: Mapping[str, Item[Curve]] = named(
    Item(
        "fedepc/table2",
        "FedEPC, table 2: merge and split thresholds, MNIST, Dir(0.1)",
        _thresholds(),
        by_cell(_table_2),
    ),
    Item(
        "fedepc/table3",
        "FedEPC, table 3: virtual seconds to each accuracy, MNIST, Dir(0.1)",
        _latency(),
        by_cell(_table_3),
    ),
    Item(
        "fedepc/table4",
        "FedEPC, table 4: accuracy by data set and Dir(alpha)",
        _accuracy(list(MODEL)),
        by_cell(_table_4),
    ),
    _figure(3, "mnist", "mnist-mlp"),
    _figure(4, "fashion_mnist", "fashion_mnist-mlp"),
    _figure(5, "cifar10"),
    Item(
        "fedepc/groups",
        "FedEPC where groups are known: rotated images, permuted labels, sets of labels, and no groups",
        tuple(
            Cell(f"{data}/{dealt}/{method}", config(method, data, dealt))
            for data in ("mnist-mlp", "fashion_mnist-mlp")
            for dealt in GROUPS
            for method in METHODS
        ),
        by_cell(_planted),
    ),
)
"""By name, as ``coterie reproduce`` takes them."""
