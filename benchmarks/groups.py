"""FedCAPrivacy where groups are real: tasks that differ by group, with label skew and without, and data without groups.

Not in the paper, whose data have label skew alone. Small on purpose: 24 clients share the 1,437 training samples of
digits with the settings of any run on them (batches of 10, a learning rate of .1, E_i in 1 to 5), so that ten seeds
take minutes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.items import main
from coterie.reproductions.study import Cell, Curve, Item, Row, by_cell, percent, spread
from coterie.runs.config import RunConfig

CLIENTS, ROUNDS, GROUPS = 24, 10, 4
SHOWN = (1, 2, 3, 5, 10)  # rounds whose adjusted Rand index the table has
PARTITIONS = ("permute:4", "rotate:4", "permute:4+dirichlet:0.5", "rotate:4+dirichlet:0.3", "dirichlet:0.3", "iid")
METHODS: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "paper, 4 clusters": ("fedcaprivacy", "paper", {"clusters": GROUPS}),
    "paper, auto": ("fedcaprivacy", "paper", {"clusters": "auto"}),
    "hardened, 4 clusters": ("fedcaprivacy", "hardened", {"descriptor": "model", "clusters": GROUPS}),
    "hardened, auto": ("fedcaprivacy", "hardened", {"descriptor": "model", "clusters": "auto"}),
    "IFCA": ("ifca", "paper", {"clusters": GROUPS}),
    "MingledPie": ("mingledpie", "paper", {"clusters": GROUPS}),
    "FedEM": ("fedem", "paper", {"components": GROUPS}),
    "FedAvg": ("fedavg", "paper", {}),
    "local alone": ("local", "paper", {}),
}


def config(partition: str, method: str) -> RunConfig:
    """One method on one partition."""
    system, mode, settings = METHODS[method]
    return RunConfig(
        system,
        clients=CLIENTS,
        rounds=ROUNDS,
        partition=partition,
        mode=mode,
        crypto="emulated",
        settings=settings,
    )


def _indices(found: Sequence[Curve], r: int) -> list[float]:
    """Adjusted Rand indices in round r, one a seed that has one."""
    rows = [curve.grouping[r - 1] for curve in found if len(curve.grouping) >= r]
    return [row["ari"] for row in rows if row and row["ari"] is not None]


@by_cell
def _table(name: str, found: Sequence[Curve]) -> Row:
    partition, _, method = name.partition("/")
    row: dict[str, Any] = {"partition": partition, "method": method, "seeds": len(found)}
    for r in SHOWN:
        known = _indices(found, r)
        row[f"ARI, round {r}"] = round(spread(known)[0], 2) + 0.0 if known else None  # no minus zero
    last = _indices(found, len(found[0].grouping))
    row["by seed"] = ", ".join(f"{index:.2f}" for index in last) or None
    ends = [curve.grouping[-1] for curve in found if curve.grouping and curve.grouping[-1]]
    row["clusters"] = ", ".join(str(end["clusters"]) for end in ends if end) or None
    for measure in ("local_accuracy", "global_accuracy"):
        row[f"{measure.partition('_')[0]} %"] = percent([curve.last(measure, window=1) for curve in found])
    return row


def _draw(curves: Mapping[str, Sequence[Curve]], path: Path) -> None:
    """The adjusted Rand index over the rounds, a panel a partition: the mean over the seeds and their range."""
    panels: dict[str, dict[str, Sequence[Curve]]] = {}
    for name, found in curves.items():
        partition, _, method = name.partition("/")
        if any(_indices(found, r) for r in range(1, ROUNDS + 1)):
            panels.setdefault(partition, {})[method] = found
    figure = Figure(figsize=(11, 3.2 * -(-max(len(panels), 1) // 2) + 0.8), layout="constrained")
    axes = list(figure.subplots(-(-max(len(panels), 1) // 2), 2, squeeze=False, sharex=True, sharey=True).flat)
    styles = {method: {"color": f"C{i}", "ls": ("-", "--")[i >= 4]} for i, method in enumerate(METHODS)}
    for axis, (partition, lines) in zip(axes, panels.items(), strict=False):
        for method, found in lines.items():
            rounds = [r for r in range(1, len(found[0].grouping) + 1) if _indices(found, r)]
            values = [np.array(_indices(found, r)) for r in rounds]
            axis.plot(rounds, [value.mean() for value in values], label=method, **styles[method])
            low, high = [value.min() for value in values], [value.max() for value in values]
            axis.fill_between(rounds, low, high, color=styles[method]["color"], alpha=0.08, lw=0)
        axis.set(title=partition, xlabel="round", ylabel="adjusted Rand index", ylim=(-0.15, 1.05))
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[len(panels) :]:
        axis.remove()
    handles = {line.get_label(): line for axis in axes[: len(panels)] for line in axis.get_lines()}
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path)


_ITEM = Item(
    "fedcaprivacy/groups",
    "FedCAPrivacy where groups are real (digits, 24 clients, 4 groups, 10 rounds)",
    tuple(Cell(f"{partition}/{method}", config(partition, method)) for partition in PARTITIONS for method in METHODS),
    _table,
    _draw,
    command="python -m benchmarks.groups",
)
ITEMS: Mapping[str, Item[Curve]] = {_ITEM.name: _ITEM}

if __name__ == "__main__":
    main(ITEMS)
