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

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from coterie.clustering.identity_law import Counts, IdentityLaw
from coterie.privacy.attacks.identity import cluster_posterior, expected_accuracy, identity_accuracy
from coterie.reproductions.study import Curve, Row, percent
from papers import tables

CLIENTS = 120
LAWS = {counts: IdentityLaw(5, 0.5, 2, counts) for counts in get_args(Counts)}
"""Of the identity sets, by what the threshold counts."""
LAST = 5
"""The last round in which the server attacks."""


def options(words: Mapping[str, Any], found: dict[str, Any]) -> None:
    """The partition, and as many models as it has groups. Models start from an epoch if nothing else is said."""
    if words.get("dealt") == "het":
        found["partition"] = words["het"]
    if "sets" in words:
        found["partition"] = found["partition"].replace("labelsets:5", f"labelsets:{words['sets']}")
    found["clients"] = words["clients"]
    found["settings"] = {**found["settings"], **{key: words[key] for key in ("p", "threshold") if key in words}}
    if words.get("rate") or "first" in words:  # clients (from number first on) have this share of all labels
        found["partition"] += f",iid={words['rate']:g}" + (f"@{words['first']}" if "first" in words else "")
    if words["system"] in ("mingledpie", "ifca"):
        sets = found["partition"].partition(",")[0].split(":")[1]
        found["settings"] = {"clusters": int(sets), "start": "pretrained", **found["settings"]}
    found["system"] = words["system"]


def train_accuracy(found: Sequence[Curve], cell: tables.Entry) -> str | None:
    """On the clients' own training data, after the last round."""
    return percent([curve.summary.get("train_accuracy") for curve in found])


def spread_of_last(found: Sequence[Curve], cell: tables.Entry) -> str:
    last = [v for curve in found for v in curve.local_accuracy[-10:] if v is not None]
    return f"{100 * min(last):.2f} to {100 * max(last):.2f}"


# ---- the attack of table 2


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


def guessed(found: Sequence[Curve], cell: tables.Entry, r: str) -> str | None:
    return percent([attack(curve, int(r), cell["variant"] == "random") for curve in found])


def beside_closed_form(found: Sequence[Curve], cell: tables.Entry) -> Row:
    """The closed form of the attack, with three standard errors of 120 clients (of all seeds together)."""
    if cell["system"] != "mingledpie":
        return dict.fromkeys(("within its set %", "closed form %", "off, standard errors"))
    sizes = [float((1 / identity_sets(curve, LAST).sum(axis=1)).mean()) for curve in found]
    expected = expected_accuracy(LAWS[cell["variant"]])
    error = expected.standard_error(len(found[0].groups) * len(found))
    return {
        "within its set %": percent(sizes),
        "closed form %": f"{100 * expected.accuracy:.2f} ± {300 * error:.2f}",
        "off, standard errors": f"{(fmean(sizes) - expected.accuracy) / error:+.1f}",
    }


# ---- table 8 and mode hardened


def founders_accuracy(curve: Curve) -> float | None:
    """Mean over the first clients, whose test data are of their cluster's labels alone."""
    own = curve.scores.get("local_accuracy")
    return fmean(own[:CLIENTS]) if own else None


def of_founders(found: Sequence[Curve], cell: tables.Entry) -> str | None:
    return percent([founders_accuracy(curve) for curve in found])


def by_group(found: Sequence[Curve], cell: tables.Entry) -> Row:
    """The mean local accuracy of each group's clients after the last round."""
    values: dict[str, list[float]] = {}
    for curve in found:
        own = list(zip(curve.groups, curve.scores.get("local_accuracy", ()), strict=False))
        for group in sorted({group for group, _ in own}):
            values.setdefault(f"group {group} %", []).append(fmean(value for of, value in own if of == group))
    return {name: percent(of) for name, of in values.items()}


def count_clients(found: Sequence[Curve], cell: tables.Entry) -> int | None:
    return len(found[0].scores.get("clients", ())) or None


def a_round(found: Sequence[Curve], cell: tables.Entry, key: str) -> float:
    """Of a run's total, which may be of more rounds than were asked for."""
    return fmean(curve.summary[key] / curve.summary["rounds"] for curve in found)


def megabytes(found: Sequence[Curve], cell: tables.Entry, key: str) -> float:
    """Of one client in a round."""
    wholes = [curve.summary for curve in found]
    return fmean(whole[key]["client"] / whole["rounds"] / CLIENTS for whole in wholes) / 1e6


ITEMS = tables.items("mingledpie", globals())
