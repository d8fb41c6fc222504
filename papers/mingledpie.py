"""The tables of "MingledPie", section VI and appendix C, that take training: 120 clients, k = 5, p = 1/2, T = 2.

What the paper leaves open is settled as follows. All of a data set is dealt out. A "local iteration" is one gradient
step on all of a client's data, as in the authors' artifact (which takes 2 of them where the paper prints 5; here 5).
The server "initialises by prior knowledge": one epoch of mini-batches on all data of each group, or a random start
beside it. Accuracies are means over the clients of the model of their cluster, on test data in the proportions of
their own training data (``local``, which is the paper's "average cluster model accuracy") and on the whole test set
(``global``). Location-30 stands in for Texas100 and Purchase100, whose cells want the user's data.

Figure 3 is in ``mingledpie_law.py``; the times of tables 4 and 9 are in ``mingledpie_costs.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from coterie.clustering.identity_law import Counts, IdentityLaw
from coterie.privacy.attacks.identity import cluster_posterior, expected_accuracy, identity_accuracy
from coterie.reproductions.study import Cell, Curve, Item, Row, by_cell, last_rounds, named, percent
from coterie.runs.config import RunConfig
from papers.plots import curves_picture

CLIENTS = 120
GROUPS = 5
ALL_AT_ONCE = 100_000  # more samples than any client has: every step is on all of them
ROUNDS = {"cifar10": 240, "location30": 300, "texas100": 300, "purchase100": 300}  # else 100
LR = {"cifar10": 0.1, "location30": 0.1, "texas100": 0.1}  # else 0.01
MODEL = {"cifar10": "lenet"}  # else fcnn
IMAGES = ("mnist", "fashion_mnist", "cifar10")
TABLES = ("location30", "texas100", "purchase100")
HETEROGENEOUS = {
    **dict.fromkeys(IMAGES, "labelsets:5:1-3"),
    "location30": "labelsets:5:3-9",
    **dict.fromkeys(TABLES[1:], "labelsets:10:5-20"),
}
SETTINGS = {"hom": dict.fromkeys((*IMAGES, *TABLES), "labelsets:5"), "het": HETEROGENEOUS}
ABLATION: Mapping[str, tuple[str, Mapping[str, Any]]] = {  # the steps of table 5
    "1": ("ifca", {}),
    "1+2": ("mingledpie", {"rebuild": "none"}),
    "1+2+3": ("mingledpie", {"rebuild": "ideal"}),
    "1+2+4": ("mingledpie", {}),
}
STARTS: Mapping[str, Mapping[str, Any]] = {
    "epoch": {"start": "pretrained"},
    "step": {"start": "pretrained", "pretrain_batch": 0},
    "random": {"start": "random"},
}
"""Of the cluster models: an epoch of mini-batches, or one gradient step, on all data of each group; or nothing."""
LAWS = {counts: IdentityLaw(GROUPS, 0.5, 2, counts) for counts in get_args(Counts)}
"""Of the identity sets, by what the threshold counts."""
IID_RATES = ("0", "0.2", "0.4", "0.6")
ATTACKED = (1, 3, 5)
HARDENED_ROUNDS: Mapping[Literal["emulated", "real"], int] = {"emulated": 5, "real": 1}
PARTNERS = ("mingledpie", "ifca", "fedprox", "fedem")

TABLE_2 = {  # attack accuracy in rounds 1, 3, 5, percent: MingledPie (the same in all three), IFCA
    "mnist": ("27.8", "60.3, 97.2, 100.0"),
    "fashion_mnist": ("28.8", "86.7, 100.0, 100.0"),
    "cifar10": ("29.0", "98.8, 100.0, 100.0"),
    "texas100": ("30.1", "90.8, 100.0, 100.0"),
    "purchase100": ("29.0", "79.2, 100.0, 100.0"),
}
TABLE_3 = {  # in the order of PARTNERS: homogeneous, heterogeneous
    "mnist": ((97.51, 95.81), (97.49, 95.86), (81.11, 81.11), (87.14, 87.14)),
    "fashion_mnist": ((98.14, 96.14), (98.49, 96.15), (67.53, 67.53), (79.33, 79.33)),
    "cifar10": ((94.76, 87.30), (95.27, 90.62), (61.11, 61.11), (83.10, 83.10)),
    "texas100": ((81.14, 75.15), (81.88, 76.39), (61.22, 61.22), (48.72, 48.72)),
    "purchase100": ((88.83, 77.72), (88.99, 80.96), (84.98, 84.98), (67.36, 67.36)),
}
TABLE_5 = {  # train and test, in the order of ABLATION
    "mnist": ((97.38, 97.47), (52.07, 52.13), (39.63, 37.94), (97.38, 97.46)),
    "fashion_mnist": ((98.52, 98.49), (66.12, 65.82), (70.46, 70.16), (98.46, 98.18)),
    "cifar10": ((97.64, 95.27), (65.90, 66.11), (51.39, 51.45), (96.84, 94.13)),
    "texas100": ((83.67, 78.95), (27.78, 28.00), (18.42, 18.39), (82.60, 78.13)),
}
TABLE_7 = {"0": (98.14, 98.49), "0.2": (83.98, 88.52), "0.4": (76.77, 82.46), "0.6": (72.29, 77.71)}
TABLE_8 = {"0": (97.35, 97.47), "0.2": (88.92, 97.40), "0.4": (80.54, 97.37), "0.6": (72.14, 97.22)}


def config(system: str, data: str, partition: str = f"labelsets:{GROUPS}", **settings: Any) -> RunConfig:
    """A run at the paper's scale, the cipher emulated. Cluster models start from an epoch, if nothing else is said."""
    if system in ("mingledpie", "ifca"):
        sets = partition.partition(",")[0].split(":")[1]
        settings = {"clusters": int(sets), **STARTS["epoch"], **settings}
    common = {"lr": LR.get(data, 0.01), "batch_size": ALL_AT_ONCE, "max_epochs": 5, "slowest": 1.0}
    return RunConfig(
        system,
        data,
        clients=CLIENTS,
        rounds=ROUNDS.get(data, 100),
        partition=partition,
        model=MODEL.get(data, "fcnn"),
        crypto="emulated",
        settings={**common, **settings},
    )


def mixing(rate: str, first: int | None = None) -> str:
    """The partition whose clients (from number ``first`` on) have this share of their data from all labels."""
    if float(rate) == 0 and first is None:
        return f"labelsets:{GROUPS}"
    return f"labelsets:{GROUPS},iid={rate}" + ("" if first is None else f"@{first}")


def joining(rate: str) -> RunConfig:
    """Appendix C.3: 120 clients at first, 10 more every 10 rounds, these with data of the IID rate."""
    run = config("mingledpie", "mnist", mixing(rate, CLIENTS), founders=CLIENTS, newcomers=10, join_every=10)
    return replace(run, clients=CLIENTS + 90)


def accuracies(found: Sequence[Curve]) -> Row:
    """What stands in every table: the last ten rounds, and how many there were."""
    return {**last_rounds(found, "ours: {} %", ("local", "global")), "rounds": len(found[0].local_accuracy)}


def train_accuracy(found: Sequence[Curve]) -> str | None:
    """On the clients' own training data, after the last round."""
    return percent([curve.summary.get("train_accuracy") for curve in found])


def identity_sets(curve: Curve, r: int) -> NDArray[np.bool_]:
    """What the server sees in round r: (clients, k) bool, which clusters each client names."""
    membership = curve.notes[r - 1]["membership"]
    sets = np.zeros((len(membership), max(curve.groups) + 1), bool)
    for row, own in zip(sets, membership, strict=True):
        row[own] = True
    return sets


def attack(curve: Curve, r: int, matched: bool) -> float:
    """How often the server guesses a client's group from the clusters that it names in round r.

    It knows which cluster is whose, as the paper assumes. matched: where the models start at random nothing says so in
    advance; it is then given the best matching of clusters and groups, more than it can know.
    """
    sets, groups = identity_sets(curve, r), np.array(curve.groups)
    if matched:
        k = sets.shape[1]
        hits = np.array([sets[groups == g].sum(axis=0) for g in range(k)])
        _, cluster_of = linear_sum_assignment(-hits)
        sets = sets[:, cluster_of]
    return identity_accuracy(cluster_posterior(sets), groups).value


@by_cell
def _table_2(name: str, found: Sequence[Curve]) -> Row:
    """The attack beside its closed form; three standard errors of 120 clients (of all seeds together) beside that."""
    data, system, variant = name.split("/")
    mingled = system == "mingledpie"
    printed = TABLE_2.get(data)
    row: dict[str, Any] = {"data": data, "system": system, "T counts, or start": variant}
    row["paper: rounds 1, 3, 5 %"] = printed and printed[0 if mingled else 1]
    for r in ATTACKED:
        row[f"ours: round {r} %"] = percent([attack(curve, r, variant == "random") for curve in found])
    row["within its set %"] = row["closed form %"] = row["off, standard errors"] = None
    if mingled:
        sizes = [float((1 / identity_sets(curve, ATTACKED[-1]).sum(axis=1)).mean()) for curve in found]
        expected = expected_accuracy(LAWS[variant])
        error = expected.standard_error(len(found[0].groups) * len(found))
        row["within its set %"] = percent(sizes)
        row["closed form %"] = f"{100 * expected.accuracy:.2f} ± {300 * error:.2f}"
        row["off, standard errors"] = f"{(fmean(sizes) - expected.accuracy) / error:+.1f}"
    return row


@by_cell
def _table_3(name: str, found: Sequence[Curve]) -> Row:
    data, setting, system = name.split("/")
    printed = data in TABLE_3 and TABLE_3[data][PARTNERS.index(system)][list(SETTINGS).index(setting)]
    return {"data": data, "clusters": setting, "system": system, "paper %": printed or None, **accuracies(found)}


@by_cell
def _table_5(name: str, found: Sequence[Curve]) -> Row:
    data, start, step = name.split("/")
    train, test = TABLE_5[data][list(ABLATION).index(step)] if data in TABLE_5 else (None, None)
    last = [v for curve in found for v in curve.local_accuracy[-10:] if v is not None]
    return {
        "data": data,
        "start": start,
        "step": step,
        "paper: train %": train,
        "ours: train %": train_accuracy(found),
        "paper: test %": test,
        **accuracies(found),
        "local, last 10 rounds": f"{100 * min(last):.2f} to {100 * max(last):.2f}",
    }


@by_cell
def _table_7(name: str, found: Sequence[Curve]) -> Row:
    rate, _, system = name.removeprefix("iid=").partition("/")
    printed = TABLE_7[rate][("mingledpie", "ifca").index(system)]
    return {"IID rate": float(rate), "system": system, "paper %": printed, **accuracies(found)}


def founders_accuracy(curve: Curve) -> float | None:
    """Mean over the first clients, whose test data are of their cluster's labels alone."""
    own = curve.scores.get("local_accuracy")
    return fmean(own[:CLIENTS]) if own else None


@by_cell
def _table_8(name: str, found: Sequence[Curve]) -> Row:
    rate = name.removeprefix("iid=")
    train, test = TABLE_8[rate]
    return {
        "IID rate": float(rate),
        "paper: train %": train,
        "ours: train %": train_accuracy(found),
        "paper: test %": test,
        "ours: test of the first 120 %": percent([founders_accuracy(curve) for curve in found]),
        **accuracies(found),
        "clients": len(found[0].scores.get("clients", ())) or None,
    }


@by_cell
def _hardened(name: str, found: Sequence[Curve]) -> Row:
    """Exact sums beside the rebuild: accuracy, bytes and time of a client's round."""
    crypto, _, form = name.partition("/")
    wholes = [curve.summary for curve in found]  # of as many rounds as there are, perhaps more than asked for

    def a_round(of: Callable[[Row], float], share: int = 1) -> float:
        return fmean(of(whole) / whole["rounds"] / share for whole in wholes)

    return {
        "cipher": crypto,
        "form": form,
        **accuracies(found),
        "MB up, a client, a round": a_round(lambda whole: whole["bytes_up_by_role"]["client"], CLIENTS) / 1e6,
        "MB down, a client, a round": a_round(lambda whole: whole["bytes_down_by_role"]["client"], CLIENTS) / 1e6,
        "nominal seconds, a round": a_round(lambda whole: whole["virtual_seconds"]),
        "seconds, a round": a_round(lambda whole: whole["seconds"]),
    }


_FORMS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "rebuild": ("paper", {}),
    "uploads": ("hardened", {"hardening": "uploads"}),
    "products": ("hardened", {"hardening": "products"}),
}
_table_2_cells = tuple(
    cell
    for data in (*IMAGES, *TABLES)
    for cell in (
        *(Cell(f"{data}/mingledpie/{c}", config("mingledpie", data, threshold_counts=c)) for c in LAWS),
        *(Cell(f"{data}/ifca/{start}", config("ifca", data, **STARTS[start])) for start in STARTS),
    )
)
_table_3_cells = tuple(
    Cell(f"{data}/{setting}/{system}", config(system, data, partitions[data]))
    for data in (*IMAGES, *TABLES)
    for setting, partitions in SETTINGS.items()
    for system in PARTNERS
)
_table_5_cells = tuple(
    Cell(f"{data}/{start}/{step}", config(system, data, **STARTS[start], **settings))
    for data in (*IMAGES, "location30", "texas100")
    for start in ("epoch", "random")
    for step, (system, settings) in ABLATION.items()
)
_table_7_cells = tuple(
    Cell(f"iid={rate}/{system}", config(system, "fashion_mnist", mixing(rate)))
    for rate in IID_RATES
    for system in ("mingledpie", "ifca")
)
_hardened_cells = tuple(
    Cell(
        f"{crypto}/{name}",
        replace(config("mingledpie", "mnist", **settings), mode=mode, crypto=crypto, rounds=HARDENED_ROUNDS[crypto]),
    )
    for crypto in HARDENED_ROUNDS
    for name, (mode, settings) in _FORMS.items()
)

ITEMS = named(
    Item(
        "mingledpie/table2",
        "MingledPie, table II: what the server guesses of a client's group",
        tuple(Cell(c.name, replace(c.config, rounds=ATTACKED[-1])) for c in _table_2_cells),
        _table_2,
    ),
    Item(
        "mingledpie/table3",
        "MingledPie, table III: homogeneous and heterogeneous clusters",
        _table_3_cells,
        _table_3,
        curves_picture("Homogeneous and heterogeneous clusters"),
    ),
    Item(
        "mingledpie/table5",
        "MingledPie, table V: what mingling costs and rebuilding gives back",
        _table_5_cells,
        _table_5,
        curves_picture("What mingling costs and rebuilding gives back"),
    ),
    Item(
        "mingledpie/table7",
        "MingledPie, table VII: clients that share data of all labels (Fashion-MNIST)",
        _table_7_cells,
        _table_7,
    ),
    Item(
        "mingledpie/table8",
        "MingledPie, table VIII: ten more clients every ten rounds (MNIST)",
        tuple(Cell(f"iid={rate}", joining(rate)) for rate in IID_RATES),
        _table_8,
    ),
    Item(
        "mingledpie/hardened",
        "MingledPie: exact sums without identities beside the rebuild (MNIST)",
        _hardened_cells,
        _hardened,
    ),
)
