"""The label-residual signature (``clustering/signature.py``): which groups it finds, and what accuracy comes of them.

Not in a paper. ``signatures/groups`` needs no training: it makes the signatures of all clients and finds groups in
them, on groups of many kinds and on data without any. ``signatures/evidence`` does the same by the evidence of pairs
(``clustering/evidence.py``), in the clear; on shares the steps are the same. ``signatures/accuracy`` trains
FedCAPrivacy with signatures beside other methods, where tasks differ and labels are skewed, and where there are no
groups. Digits are used whole, with 24 clients. MNIST and Fashion-MNIST lend 32 clients 6,400 training samples, and
2,000 test samples, so that a run takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score

from benchmarks.items import main
from coterie.clustering import evidence
from coterie.clustering.correlation import RESTARTS, grouped, in_the_clear, labelled
from coterie.clustering.signature import (
    SMALLEST,
    FoundGroups,
    find_groups,
    halves,
    mapped,
    placed,
    reference,
    signature,
    statistics,
)
from coterie.crypto.sketch import project
from coterie.data import Dataset, Task, deal, from_arrays, load
from coterie.data.partition import hold_out
from coterie.protocol.errors import UserError
from coterie.protocols.masked_sums import FEWEST
from coterie.protocols.shared_groups import MOST
from coterie.protocols.signatures import DIMENSION
from coterie.reproductions.study import Calculation, Cell, Curve, Item, by_cell, percent
from coterie.runs.config import RunConfig

CLIENTS = {"digits": 24, "mnist": 32, "fashion_mnist": 32}
TRAIN, TEST = 6_400, 2_000
HELD = 0.2  # as runs hold out for fine-tuning
FOLDER = Path("reproduction/signatures")

Floats = NDArray[np.float64]
Samples = tuple[Floats, NDArray[np.int64]]
Seen = Callable[[int, Floats], Floats]


@lru_cache
def small(name: str) -> Dataset:
    """The data set; of all but digits TRAIN and TEST samples, drawn once for all."""
    whole = load(name)
    if name == "digits":
        return whole
    draw = np.random.default_rng(0)
    train = np.sort(draw.choice(len(whole.y_train), TRAIN, replace=False))
    test = np.sort(draw.choice(len(whole.y_test), TEST, replace=False))
    arrays = whole.x_train[train], whole.y_train[train], whole.x_test[test], whole.y_test[test]
    return from_arrays(name, *arrays, classes=whole.classes, kind="image")


def name_of(data: str) -> str:
    """The same for a run: a known name, or the path of the file that ``written`` writes."""
    return data if data == "digits" else f"./{FOLDER / f'{data}-{TRAIN}.npz'}"


def written(*names: str) -> None:
    """Write the files of these data sets that are not there."""
    for data in names:
        path = Path(name_of(data))
        if data != "digits" and not path.exists():
            one = small(data)
            path.parent.mkdir(parents=True, exist_ok=True)
            arrays = {"x_train": one.x_train, "y_train": one.y_train, "x_test": one.x_test, "y_test": one.y_test}
            np.savez(path, allow_pickle=False, kind=np.array("image"), **arrays)


# ------------------------------------------------------------------------------------------------- groups, untrained


def clients_of(
    data: Dataset,
    form: str,
    clients: int,
    seed: int,
    sizes: Sequence[int] = (),
    seen: Seen = lambda _, x: mapped(x),
    without: float = 0.0,
) -> tuple[list[Samples], Any]:
    """Samples and labels of every client, and its group, (clients,). sizes: of the groups; by default alike.

    seen: a client's number and samples -> (n, FEATURES).  without: this share, which is held out.
    """
    split, tasks = deal(form, data, clients, seed)
    split = hold_out(split, without) if without else split
    groups = np.zeros(clients, np.int64) if split.groups is None or len(tasks) == 1 else split.groups
    if sizes:
        groups = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    truth = split.groups if split.groups is not None else groups
    own: list[Task] = [tasks[k] for k in groups]
    samples = [
        (seen(at, np.asarray(task.inputs(rows))), task.labels(rows))
        for at, (task, rows) in enumerate(zip(own, split.train, strict=True))
    ]
    return samples, groups if sizes else truth


def rows_of(samples: Sequence[Samples], told: Sequence[Samples], classes: int, seed: int) -> Floats:
    """Projected halves (n, 2 x DIMENSION) of the samples' signatures, against the sums over ``told``."""
    kept = np.sum([np.bincount(y, minlength=classes) > 0 for _, y in told], axis=0) >= FEWEST
    to = reference(np.sum([statistics(x, y, kept) for x, y in told], axis=0), kept)
    draw, secret, rows = np.random.default_rng([seed, 1]), np.random.default_rng([seed, 2]).bytes(32), []
    for x, y in samples:
        first = halves(y, draw)
        both = (signature(x[half], y[half], to) for half in (first, ~first))
        rows.append(np.concatenate([project(one, DIMENSION, secret) for one in both]))
    return np.stack(rows)


def indices(name: str, form: str, clients: int, sizes: Sequence[int], seed: int) -> dict[str, Any]:
    """The adjusted Rand index and the number of groups found, of one seed."""
    data = small(name)
    samples, truth = clients_of(data, form, clients, seed, sizes)
    found = find_groups(rows_of(samples, samples, data.classes, seed), np.random.default_rng(seed))
    return {"ari": adjusted_rand_score(truth, found.labels), "groups": found.number, "q": found.quality}


def newcomers(name: str, form: str, clients: int, seed: int) -> dict[str, Any]:
    """As ``indices``, of the last quarter of the clients, which are placed in the groups that the others made."""
    data = small(name)
    samples, truth = clients_of(data, form, clients, seed)
    founders = samples[: clients - clients // 4]
    rows = rows_of(samples, founders, data.classes, seed)
    found: FoundGroups = find_groups(rows[: len(founders)], np.random.default_rng(seed))
    labels = np.concatenate([found.labels, placed(rows[len(founders) :], found)])
    right = fmean(
        labels[i] == np.bincount(found.labels[truth[: len(founders)] == truth[i]]).argmax()
        for i in range(len(founders), clients)
    )
    return {"ari": adjusted_rand_score(truth, labels), "groups": found.number, "q": found.quality, "right": right}


def shifted(name: str, form: str, clients: int, seed: int) -> dict[str, Any]:
    """As ``indices``, without groups: every client sees its samples with a gain and an offset of its own."""
    data, draw = small(name), np.random.default_rng([seed, 3])
    samples, truth = clients_of(data, form, clients, seed)
    gains, offsets = draw.normal(1, 0.2, clients), draw.normal(0, 0.2, clients)
    moved = [(gain * x + offset, y) for (x, y), gain, offset in zip(samples, gains, offsets, strict=True)]
    found = find_groups(rows_of(moved, moved, data.classes, seed), np.random.default_rng(seed))
    return {"ari": adjusted_rand_score(truth, found.labels), "groups": found.number, "q": found.quality}


def poisoned(name: str, form: str, clients: int, size: float, seed: int) -> dict[str, Any]:
    """As ``indices``, where one client adds noise of this size to its term of the statistics."""
    data = small(name)
    samples, truth = clients_of(data, form, clients, seed)
    kept = np.ones(data.classes, bool)
    noise = size * np.random.default_rng(seed).normal(size=len(statistics(*samples[0], kept)))
    try:
        to = reference(np.sum([statistics(x, y, kept) for x, y in samples], axis=0) + noise, kept)
    except UserError:  # then no client sends a signature, and all are in one group
        return {"ari": adjusted_rand_score(truth, np.zeros(clients)), "groups": 1, "q": float("nan")}
    draw, rows = np.random.default_rng([seed, 1]), []
    for x, y in samples:
        first = halves(y, draw)
        rows.append(np.concatenate([signature(x[half], y[half], to) for half in (first, ~first)]))
    found = find_groups(np.stack(rows), np.random.default_rng(seed))
    return {"ari": adjusted_rand_score(truth, found.labels), "groups": found.number, "q": found.quality}


def evident(name: str, form: str, clients: int, sizes: Sequence[int], seed: int, change: str = "") -> dict[str, Any]:
    """As ``indices``, by the evidence of pairs. change: what else differs between groups or clients, or "held out"."""
    data, draw = small(name), np.random.default_rng([seed, 3])
    gains, offsets = draw.normal(1, 0.2, clients), draw.normal(0, 0.2, clients)

    def shifting(at: int, x: Floats) -> Floats:
        return evidence.features(gains[at] * x + offsets[at])

    seen: Seen = shifting if change == "gain and offset" else lambda _, x: evidence.features(x)
    samples, truth = clients_of(data, form, clients, seed, sizes, seen, HELD if change == "held out" else 0.0)
    if change == "cycles":
        truth = np.random.default_rng([seed, 4]).permutation(np.arange(clients) % 4)
        samples = [(x, _cycled(y, int(k))) for (x, y), k in zip(samples, truth, strict=True)]
    labels = evident_groups(samples, data.classes, seed)
    return {"ari": adjusted_rand_score(truth, labels), "groups": int(labels.max()) + 1}


def evident_groups(samples: Sequence[Samples], classes: int, seed: int) -> NDArray[np.int64]:
    """(clients,) the groups that correlation clustering makes of the gains of all pairs."""
    kept = np.sum([np.bincount(y, minlength=classes) > 0 for _, y in samples], axis=0) >= FEWEST
    to = reference(np.sum([statistics(x, y, kept) for x, y in samples], axis=0), kept)
    draw = np.random.default_rng([seed, 1])
    terms = []
    for x, y in samples:
        first = halves(y, draw)
        one, other = (evidence.residuals(x[half], y[half], to) for half in (first, ~first))
        terms.append(evidence.spread_terms((one, other), to.kept))
    of = evidence.spread(np.sum(terms, axis=0), to.kept)
    rows = np.stack([evidence.row(*evidence.residuals(x, y, to), of) for x, y in samples])
    gains, count = rows @ evidence.twisted(rows).T + evidence.BONUS, len(rows)
    orders = [draw.permutation(count).tolist() for _ in range(RESTARTS)]
    return labelled(in_the_clear(grouped(orders, min(MOST, count // SMALLEST + 2), SMALLEST), gains), count)


def _cycled(y: NDArray[np.int64], group: int) -> NDArray[np.int64]:
    """Three labels pass on their names in a cycle: other three in each group, and none in group 0."""
    names = np.arange(max(int(y.max()) + 1, 10))
    if group:
        first = 3 * (group - 1)
        names[first : first + 3] = np.roll(names[first : first + 3], 1)
    return np.asarray(names[y], np.int64)


FORMS: Mapping[str, tuple[str, int, Sequence[int]]] = {
    "permute:4": ("permute:4", 0, ()),
    "rotate:4": ("rotate:4", 0, ()),
    "permute:4+dirichlet:0.5": ("permute:4+dirichlet:0.5", 0, ()),
    "rotate:4+dirichlet:0.3": ("rotate:4+dirichlet:0.3", 0, ()),
    "permute:4+dirichlet:0.1": ("permute:4+dirichlet:0.1", 0, ()),
    "rotate:4+dirichlet:0.1": ("rotate:4+dirichlet:0.1", 0, ()),
    "swap:4": ("swap:4", 0, ()),
    "swap:4+dirichlet:0.5": ("swap:4+dirichlet:0.5", 0, ()),
    "six groups of five, permute:6+dirichlet:0.5": ("permute:6+dirichlet:0.5", 30, ()),
    "half, a quarter and two eighths, permute:4+dirichlet:0.5": ("permute:4+dirichlet:0.5", 32, (16, 8, 4, 4)),
    "half, a quarter and two eighths, rotate:4+dirichlet:0.3": ("rotate:4+dirichlet:0.3", 32, (16, 8, 4, 4)),
    "labelsets:4": ("labelsets:4", 0, ()),
    "no groups, iid": ("iid", 0, ()),
    "no groups, dirichlet:0.3": ("dirichlet:0.3", 0, ()),
    "no groups, dirichlet:0.1": ("dirichlet:0.1", 0, ()),
    "no groups, shards:2": ("shards:2", 0, ()),
}
"""By name: the partition, the clients (0: as many as the data set's), the sizes of the groups (none: alike)."""


def _groups_row(name: str, found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    data, _, form = name.partition("/")
    aris = [one["ari"] for one in found]
    row = {
        "data": data,
        "groups": form,
        "seeds": len(found),
        "ARI": round(fmean(aris), 2),
        "worst": round(min(aris), 2),
        "right": f"{sum(ari == 1 for ari in aris)} of {len(aris)}",
        "found": ", ".join(str(one["groups"]) for one in found),
    }
    if "right" in found[0]:
        row["newcomers right %"] = round(100 * fmean(one["right"] for one in found), 1)
    return row


def _calculations() -> tuple[Calculation[Any], ...]:
    cells: list[Calculation[Any]] = []
    for data, usual in CLIENTS.items():
        for name, (form, clients, sizes) in FORMS.items():
            compute: Callable[[int], Any] = partial(indices, data, form, clients or usual, sizes)
            cells.append(Calculation(f"{data}/{name}", compute, {"clients": clients or usual}))
        own = partial(shifted, data, "dirichlet:0.3", usual)
        cells.append(Calculation(f"{data}/no groups, a gain and an offset of each client's own, dirichlet:0.3", own))
        for form in ("permute:4+dirichlet:0.5", "rotate:4+dirichlet:0.3"):
            late = partial(newcomers, data, form, usual)
            cells.append(Calculation(f"{data}/a quarter joins later, {form}", late, {"clients": usual}))
            for size in (0.03, 0.3):
                spoilt = partial(poisoned, data, form, usual, size)
                cells.append(Calculation(f"{data}/one client adds noise of {size:g} to its statistics, {form}", spoilt))
    return tuple(cells)


GROUPS = Item(
    "signatures/groups",
    "Groups that the label-residual signature finds, without any training",
    _calculations(),
    by_cell(_groups_row),
    command="python -m benchmarks.signatures",
)

UNEQUAL = "20, 3 and 3 clients, permute:3+dirichlet:0.5", "permute:3+dirichlet:0.5", 26, (20, 3, 3)


def _evident_calculations() -> tuple[Calculation[Any], ...]:
    cells: list[Calculation[Any]] = []
    for data, usual in CLIENTS.items():
        for name, (form, clients, sizes) in {**FORMS, UNEQUAL[0]: UNEQUAL[1:]}.items():
            compute: Callable[[int], Any] = partial(evident, data, form, clients or usual, sizes)
            cells.append(Calculation(f"{data}/{name}", compute, {"clients": clients or usual}))
        for form in ("permute:4+dirichlet:0.1", "swap:4+dirichlet:0.5"):
            held = partial(evident, data, form, usual, (), change="held out")
            cells.append(Calculation(f"{data}/a fifth held out, {form}", held, {"clients": usual}))
        cycles = partial(evident, data, "dirichlet:0.5", usual, (), change="cycles")
        cells.append(Calculation(f"{data}/three labels in a cycle, other ones in each group, dirichlet:0.5", cycles))
        own = partial(evident, data, "dirichlet:0.3", usual, (), change="gain and offset")
        cells.append(Calculation(f"{data}/no groups, a gain and an offset of each client's own, dirichlet:0.3", own))
    return tuple(cells)


EVIDENCE = Item(
    "signatures/evidence",
    "Groups that the evidence of pairs finds, as on shares of two servers",
    _evident_calculations(),
    by_cell(_groups_row),
    command="python -m benchmarks.signatures",
)

# ----------------------------------------------------------------------------------------------------------- accuracy

PARTITIONS = ("permute:4+dirichlet:0.5", "rotate:4+dirichlet:0.3", "dirichlet:0.3")
ROUNDS = 10
METHODS: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "signature, auto": ("fedcaprivacy", "hardened", {"descriptor": "signature", "clusters": "auto"}),
    "sketch, auto": ("fedcaprivacy", "hardened", {"descriptor": "model", "clusters": "auto"}),
    "sketch, 4 clusters": ("fedcaprivacy", "hardened", {"descriptor": "model", "clusters": 4}),
    "IFCA, 4 clusters": ("ifca", "paper", {"clusters": 4}),
    "FedAvg": ("fedavg", "paper", {}),
    "local alone": ("local", "paper", {}),
}


class Lent(Cell):
    """A cell whose record names the data set, and not where its samples lie."""

    @property
    def settings(self) -> Mapping[str, Any]:
        data = self.name.partition("/")[0]
        return {**super().settings, "data": data, "samples": "all" if data == "digits" else TRAIN}


def config(data: str, form: str, method: str) -> RunConfig:
    """One method on one partition, with a fifth of every client's samples held out for fine-tuning."""
    system, mode, settings = METHODS[method]
    return RunConfig(
        system,
        data=name_of(data),
        clients=CLIENTS[data],
        rounds=ROUNDS,
        partition=form,
        mode=mode,
        crypto="emulated",
        fine_tune="held_out",
        model="mlp_small",
        settings={"lr": 0.1, "batch_size": 10, **settings},
    )


def _accuracy_table(curves: Mapping[str, Sequence[Curve]]) -> list[dict[str, Any]]:
    rows = []
    for name, found in curves.items():
        data, form, method = name.split("/")
        lead = curves.get(f"{data}/{form}/signature, auto", ())
        row: dict[str, Any] = {"data": data, "partition": form, "method": method, "seeds": len(found)}
        ends = [curve.grouping[-1] if curve.grouping else None for curve in found]
        aris = [end["ari"] for end in ends if end and end["ari"] is not None]
        row["ARI"] = f"{fmean(aris):.2f} ({min(aris):.2f})" if aris else None
        row["clusters"] = ", ".join(str(end["clusters"]) for end in ends if end) or None
        for label, measure in (("local %", "local_accuracy"), ("tuned %", "fine_tuned_local_accuracy")):
            values = [curve.summary[measure] for curve in found]
            row[label] = percent(values)
            row[f"{label}, by seed"] = [round(100 * value, 2) for value in values]
            if lead and method != "signature, auto":
                row[f"lead of signature, {label}"] = percent(
                    [one.summary[measure] - other for one, other in zip(lead, values, strict=True)]
                )
        rows.append(row)
    return rows


ACCURACY = Item(
    "signatures/accuracy",
    "Accuracy with the label-residual signature beside other methods (10 rounds)",
    tuple(
        Lent(f"{data}/{form}/{method}", config(data, form, method))
        for data in CLIENTS
        for form in PARTITIONS
        for method in METHODS
    ),
    _accuracy_table,
    command="python -m benchmarks.signatures",
)
ITEMS: Mapping[str, Item[Any]] = {item.name: item for item in (GROUPS, EVIDENCE, ACCURACY)}

if __name__ == "__main__":
    main(ITEMS, before=partial(written, *CLIENTS))
