"""Adaptive isomorphic clustering: planted groups, updates, thresholds, liars, 10,000 devices, and where merging starts.

Only the last of these has real data, and their features. All other devices are made up:
their samples resemble images in a network's dense layer of 512 units: each class has a probability for each unit
to be zero, samples of a class vary along eight common directions, some units are dead and some are never zero. The
classes are as far apart as those of MNIST in a dense layer of a small network that saw 3,000 images: in units of 20
noise floors, .3 to .4 between two groups of five classes each, and .6 to 1 between five groups of two.
"""

from __future__ import annotations

import resource
from collections.abc import Mapping, Sequence
from functools import cache, partial
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.metrics import adjusted_rand_score

from benchmarks import features
from benchmarks.items import main
from coterie.clustering.density import THIRD, radii
from coterie.clustering.divergence import calibrated, divergence_to, modified_divergence, noise_floor
from coterie.clustering.isomorphic import Aidc, Groups, cluster, update
from coterie.protocol.randomness import rng
from coterie.reproductions.study import Calculation, Item, Row, by_cell, named
from coterie.runs.intervals import mean_and_interval
from coterie.training.models import build
from coterie.training.sparsity import Extractor
from papers.mingledpie_costs import timed

CLASSES, CHANNELS, DIRECTIONS = 10, 512, 8
DEVICES = 50
TABLE_2 = ((0.10, 0.12), (0.10, 0.25), (0.15, 0.12), (0.15, 0.18), (0.20, 0.18), (0.15, 0.25), (0.20, 0.25))
"""Merge and split thresholds of table 2, in its order."""

Floats = NDArray[np.float64]
Described = tuple[Floats, Floats]
"""Sparsity vectors (n, C) and noise floors (n,)."""


# -- devices -----------------------------------------------------------------------------------------------------------


class World:
    """The classes of one seed, and what devices with such data send."""

    def __init__(self, seed: int, channels: int = CHANNELS) -> None:
        draw = rng(seed, "clustering", "world")
        kinds = draw.permutation(channels)
        dead, never = kinds[: channels // 5], kinds[channels // 5 : channels // 5 + 2]
        self.logits = draw.normal(-0.5, 1.2, channels) + draw.normal(0, 2, (CLASSES, channels))
        self.logits[:, dead], self.logits[:, never] = np.inf, -np.inf
        self.directions = draw.normal(0, 0.35, (DIRECTIONS, channels))

    def device(self, labels: NDArray[np.int64], draw: np.random.Generator) -> tuple[Floats, float]:
        """Sparsity vector and noise floor of a device with samples of these classes (at least two)."""
        style = draw.normal(size=(len(labels), DIRECTIONS)) @ self.directions
        zero = draw.random(style.shape) < expit(self.logits[labels] + style)
        first, second = (half.mean(axis=0) for half in np.array_split(zero[draw.permutation(len(zero))], 2))
        return (first + second) / 2, noise_floor(first, second)

    def devices(self, mixtures: Floats, samples: Sequence[int], draw: np.random.Generator) -> Described:
        """Those of devices with these shares of classes (n, 10) and numbers of samples (n,)."""
        sent = [
            self.device(draw.choice(CLASSES, size, p=own), draw) for own, size in zip(mixtures, samples, strict=True)
        ]
        return np.array([s for s, _ in sent]), np.array([h for _, h in sent])

    def many(self, mixtures: Floats, samples: Sequence[int], draw: np.random.Generator) -> Described:
        """The same by the normal approximation of means over samples, for thousands of devices."""
        shift = np.sqrt(1 + np.pi / 8 * np.square(self.directions).sum(axis=0))
        mean = mixtures @ expit(self.logits / shift)
        deviation = np.sqrt(mean * (1 - mean) / (np.asarray(samples)[:, None] // 2))
        first, second = (np.clip(mean + deviation * draw.normal(size=mean.shape), 0, 1) for _ in range(2))
        floors = [noise_floor(a, b) for a, b in zip(first, second, strict=True)]
        return (first + second) / 2, np.array(floors)


def planted(groups: int, even: bool, draw: np.random.Generator, n: int = DEVICES) -> tuple[NDArray[np.int64], Floats]:
    """Groups of n devices and their shares of classes (n, 10): each group holds its own classes, as many as the others.

    Not even: group g has a number of devices in proportion to g + 1.
    """
    shares = np.zeros((groups, CLASSES))
    for g, own in enumerate(np.array_split(draw.permutation(CLASSES), groups)):
        shares[g, own] = 1 / len(own)
    weight = np.ones(groups) if even else np.arange(1, groups + 1)
    bounds = np.round(np.cumsum(weight) / weight.sum() * n)
    labels = np.searchsorted(bounds, np.arange(n), side="right")
    return labels, shares[labels]


def population(kind: str, seed: int, n: int = DEVICES) -> tuple[NDArray[np.int64], Floats, Described]:
    """Groups, shares of classes, and what devices send. kind: ``2 even``, ``5 uneven`` ..., or ``dirichlet 0.1``.

    Devices of uneven groups have 60 to 400 samples each, others 200; with ``dirichlet`` each device is its own group.
    """
    draw = rng(seed, "clustering", kind)
    what, how = kind.split()
    if what == "dirichlet":
        labels, mixtures = np.arange(n), draw.dirichlet(np.full(CLASSES, float(how)), n)
    else:
        labels, mixtures = planted(int(what), how == "even", draw, n)
    samples = draw.integers(60, 400, n) if how == "uneven" else np.full(n, 200)
    return labels, mixtures, World(seed).devices(mixtures, samples.tolist(), draw)


def names(n: int, first: int = 0) -> list[str]:
    return [f"device/{i}" for i in range(first, first + n)]


def agreement(one: Sequence[int] | NDArray[Any], two: Sequence[int] | NDArray[Any]) -> float:
    """The adjusted Rand index."""
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(one, two))


# -- planted groups ----------------------------------------------------------------------------------------------------

POPULATIONS = ("1 even", "1 uneven", *(f"{k} {how}" for k in (2, 5, 10) for how in ("even", "uneven")))
READINGS: Mapping[str, Aidc] = {
    "default": Aidc(),
    "eq. (8) without i = j": Aidc(diagonal=False),
    "literal": Aidc(literal=True),
    "reference": Aidc(reference=True),
}


def grouped(kind: str, seed: int) -> Row:
    """The adjusted Rand index against the planted groups in each reading, and the number of clusters found."""
    labels, _, (s, h) = population(kind, seed)
    found = {name: cluster(names(len(s)), s, h, settings)[0].labels for name, settings in READINGS.items()}
    rand = {name: agreement(labels, own) for name, own in found.items()}
    return {**rand, "right": len(set(found["default"].tolist())) == int(kind.split()[0])}


@by_cell
def _groups_table(kind: str, seeds: Sequence[Row]) -> Row:
    row: dict[str, Any] = {"groups": kind, "right number": f"{sum(s['right'] for s in seeds)} of {len(seeds)}"}
    row["lowest ARI"] = round(min(s["default"] for s in seeds), 3)
    row |= {f"ARI, {name}": round(fmean(s[name] for s in seeds), 3) for name in READINGS}
    return row


# -- samples -----------------------------------------------------------------------------------------------------------

SCALES = (5.0, 10.0, 20.0)
SAMPLES = (25, 50, 100, 200)


def sampled(samples: int, seed: int) -> Row:
    """Whether devices with so many samples are grouped rightly, in one group and in two, for each floors_per_scale."""
    found: dict[str, bool] = {}
    for groups in (1, 2):
        draw = rng(seed, "clustering", f"samples, {groups}", samples)
        labels, mixtures = planted(groups, True, draw)
        s, h = World(seed).devices(mixtures, [samples] * DEVICES, draw)
        for scale in SCALES:
            own = cluster(names(DEVICES), s, h, Aidc(floors_per_scale=scale))[0].labels
            found[f"{groups}, {scale:g}"] = agreement(labels, own) >= 0.95
    return found


@by_cell
def _samples_table(name: str, seeds: Sequence[Row]) -> Row:
    row = {f"{key} floors": f"{sum(s[key] for s in seeds)} of {len(seeds)}" for key in seeds[0]}
    return {"samples": name, **row}


# -- thresholds --------------------------------------------------------------------------------------------------------


def thresholds(theta_merge: float, theta_split: float, seed: int) -> Row:
    """Clusters under Dir(.1), and how different their devices' shares of classes are (total variation)."""
    _, mixtures, (s, h) = population("dirichlet 0.1", seed)
    settings = Aidc(theta_merge=theta_merge, theta_split=theta_split, force_thresholds=True)
    labels = cluster(names(len(s)), s, h, settings)[0].labels
    apart = np.abs(mixtures[:, None] - mixtures).sum(axis=2) / 2
    pairs = ~np.eye(len(s), dtype=bool)
    within = (labels[:, None] == labels) & pairs
    return {
        "clusters": len(set(labels.tolist())),
        "alone": int((np.bincount(labels) == 1).sum()),
        "within": float(apart[within].mean()),
        "all": float(apart[pairs].mean()),
    }


@by_cell
def _thresholds_table(name: str, seeds: Sequence[Row]) -> Row:
    mean = {key: fmean(s[key] for s in seeds) for key in seeds[0]}
    row: dict[str, Any] = {"merge / split": name, "clusters": round(mean["clusters"], 1)}
    row |= {"devices alone": round(mean["alone"], 1), "total variation within": round(mean["within"], 2)}
    return {**row, "of all pairs": round(mean["all"], 2)}


# -- updates -----------------------------------------------------------------------------------------------------------

SEQUENCES = ("1 even", "5 even", "5 uneven", "10 uneven", "dirichlet 0.1", "dirichlet 0.5")
STEPS = 12


def updated(kind: str, seed: int) -> Row:
    """A random sequence of updates, each beside clustering from scratch: the agreement, and the pairs computed."""
    draw = rng(seed, "clustering", f"updates, {kind}")
    _, _, (s, h) = population(kind, seed, 3 * DEVICES)
    order = draw.permutation(len(s))  # so that what joins is of all groups
    s, h = s[order], h[order]
    known = names(len(s))
    groups, _ = cluster(known[:DEVICES], s[:DEVICES], h[:DEVICES])
    rand, computed, every = [], 0, 0
    for _ in range(STEPS):
        groups, touched = _one_update(groups, known, s, h, draw)
        rand.append(agreement(groups.labels, cluster(groups.names, groups.features, groups.floors)[0].labels))
        n = len(groups.names)
        computed, every = computed + touched * n, every + n * (n - 1) // 2
    return {"lowest": min(rand), "mean": fmean(rand), "computed": computed / every}


def _one_update(
    groups: Groups, known: Sequence[str], s: Floats, h: Floats, draw: np.random.Generator
) -> tuple[Groups, int]:
    """Some devices join, some leave, and some have the data of another device from now on."""
    there = list(groups.names)
    left = draw.choice(there, int(draw.integers(0, 4)), replace=False).tolist()
    stays = [name for name in there if name not in left]
    drifts = draw.choice(stays, int(draw.integers(0, 4)), replace=False).tolist()
    absent = [name for name in known if name not in there]
    joins = draw.choice(absent, int(draw.integers(0, 4)), replace=False).tolist() if len(absent) > 4 else []
    changed = {name: (s[i], h[i]) for name in drifts for i in [int(draw.integers(len(s)))]}
    changed |= {name: (s[known.index(name)], h[known.index(name)]) for name in joins}
    return update(groups, changed, left)[0], len(changed)


def _updates_table(found: Mapping[str, Sequence[Row]]) -> list[Row]:
    return [
        {
            "devices": kind,
            "updates": STEPS * len(seeds),
            "lowest ARI": round(min(s["lowest"] for s in seeds), 3),
            "mean ARI": round(fmean(s["mean"] for s in seeds), 3),
            "share of the pairs computed": round(fmean(s["computed"] for s in seeds), 3),
        }
        for kind, seeds in found.items()
    ]


# -- liars -------------------------------------------------------------------------------------------------------------

LIES = ("random", "zeros", "ones", "bits", "one channel", "mean of all", "copy", "half way", "nearly half way")
LIED_TO = ("2 even", "5 uneven", "10 even")


def lie(kind: str, s: Floats, own: int, other: int, draw: np.random.Generator) -> Floats:
    """What a device sends instead of its row ``own``; ``other`` is a device of another group."""
    channels = s.shape[1]
    sent: dict[str, Floats] = {
        "random": draw.random((channels,)),
        "zeros": np.zeros(channels),
        "ones": np.ones(channels),
        "bits": draw.integers(0, 2, channels).astype(float),
        "one channel": np.eye(channels)[0],
        "mean of all": s.mean(axis=0),
        "copy": s[other],
        "half way": (s[own] + s[other]) / 2,
        "nearly half way": 0.6 * s[own] + 0.4 * s[other],
    }
    return sent[kind]


def lied(kind: str, seed: int) -> Row:
    """How the clusters of the honest devices change when one sends this, with no, its true, or a huge noise floor."""
    draw, rand, changed = rng(seed, "clustering", f"liars, {kind}"), [], []
    for devices in LIED_TO:
        labels, _, (s, h) = population(devices, seed)
        own = int(draw.integers(len(s)))
        other = int(draw.choice(np.flatnonzero(labels != labels[own])))
        honest = np.arange(len(s)) != own
        before = cluster(names(len(s)), s, h)[0].labels[honest]
        for floor in (0.0, h[own], 1e6):
            lies, floors = s.copy(), h.copy()
            lies[own], floors[own] = lie(kind, s, own, other, draw), floor
            after = cluster(names(len(s)), lies, floors)[0].labels
            rand.append(agreement(before, after[honest]))
            changed.append(len(parts(before) - parts(after[honest])))
    return {"lowest": min(rand), "mean": fmean(rand), "changed": max(changed), "cases": len(rand)}


def parts(labels: NDArray[np.int64]) -> set[frozenset[int]]:
    """Clusters as sets of rows."""
    return {frozenset(np.flatnonzero(labels == k).tolist()) for k in set(labels.tolist())}


def _liars_table(found: Mapping[str, Sequence[Row]]) -> list[Row]:
    return [
        {
            "lie": kind,
            "cases": sum(s["cases"] for s in seeds),
            "most clusters changed": max(s["changed"] for s in seeds),
            "lowest ARI": round(min(s["lowest"] for s in seeds), 3),
            "mean ARI": round(fmean(s["mean"] for s in seeds), 4),
        }
        for kind, seeds in found.items()
    ]


# -- many devices ------------------------------------------------------------------------------------------------------

SIZES = (1000, 3000, 10_000)
CHECKED = 200  # rows that are compared with the exact form


def large(n: int, seed: int, groups: int = 10) -> Row:
    """CPU seconds and memory of clustering n devices of 512 channels, and of an update of ten."""
    draw = rng(seed, "clustering", "large", n)
    labels, mixtures = planted(groups, False, draw, n)
    s, h = World(seed).many(mixtures, draw.integers(60, 400, n).tolist(), draw)
    whole_s, (made, _) = timed(lambda: cluster(names(n), s, h))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # GiB, where the unit is KiB, as on Linux
    divergence_s, mjs = timed(lambda: modified_divergence(s, exact=False))
    some = draw.choice(n, min(CHECKED, n), replace=False)
    exact, pairs = divergence_to(s[some], s[some]), np.triu_indices(len(some), 1)
    wrong = np.abs(mjs[np.ix_(some, some)] - exact)[pairs]
    update_s, _ = timed(lambda: update(made, {f"device/{i}": (s[i + 10], h[i + 10]) for i in range(10)}))
    return {
        "cluster": whole_s,
        "divergence": divergence_s,
        "update": update_s,
        "peak": peak,
        "ari": agreement(labels, made.labels),
        "error": float(wrong.max()),
        "relative": float((wrong / exact[pairs]).max()),
    }


@by_cell
def _large_table(name: str, seeds: Sequence[Row]) -> Row:
    worst = {key: max(s[key] for s in seeds) for key in seeds[0]}
    row: dict[str, Any] = {"devices": name, "CPU s": round(worst["cluster"], 1)}
    row |= {"of these divergences": round(worst["divergence"], 1), "update of 10": round(worst["update"], 1)}
    row |= {"GiB": round(worst["peak"], 2), "ARI": round(min(s["ari"] for s in seeds), 3)}
    return {**row, "largest error": worst["error"], "largest relative error": worst["relative"]}


# -- where merging starts ----------------------------------------------------------------------------------------------


DATA = ("mnist", "fashion_mnist")
DEALT = ("iid", "sets:2", "sets:5", "sets:5:uneven", "sets:10", "pairs", "shares:70")
FROM_PARTS = Aidc(singles_to=0)


@cache
def extracted(data: str, seed: int) -> tuple[features.Ground, NDArray[np.float32]]:
    """A data set, and its private samples in the dense layer of ``mlp``, pre-trained on the public ones."""
    ground = features.ground(data, seed)
    model = build("mlp", ground.private.input_shape, ground.private.classes)
    weights = features.extractor_weights(ground, model, "pretrained", seed)
    return ground, Extractor(model, weights, "dense")(ground.private.inputs())


def started(data: str, dealt: str, seed: int) -> Row:
    """The adjusted Rand index of merging from single devices and from the parts of eq. (5) and (6).

    third: the share of the devices whose radius is their third neighbour's divergence, and not that of eq. (5).
    """
    ground, vectors = extracted(data, seed)
    fleet = features.fleet(dealt, ground.private, seed)
    s, h = features.describe_all([vectors[own] for own in fleet.devices], seed)
    assert fleet.groups is not None
    names = [f"device/{i}" for i in range(len(s))]
    singles, parts_ = (cluster(names, s, h, settings)[0].labels for settings in (Aidc(), FROM_PARTS))
    d, _ = calibrated(modified_divergence(s), h)
    third = np.sort(d, axis=1)[:, THIRD]  # with the device itself
    return {
        "singles": adjusted_rand_score(fleet.groups, singles),
        "parts": adjusted_rand_score(fleet.groups, parts_),
        "same": adjusted_rand_score(singles, parts_) == 1,
        "third": float((radii(d, FROM_PARTS.neighbours) <= third).mean()),
    }


@by_cell
def _starts_table(name: str, seeds: Sequence[Row]) -> Row:
    """A row for each population, over the seeds."""
    mean, half = mean_and_interval([s["singles"] - s["parts"] for s in seeds])
    row: dict[str, Any] = {"devices": name}
    row |= {f"ARI from {start}": round(fmean(s[start] for s in seeds), 2) for start in ("singles", "parts")}
    row["difference"] = f"{mean:.2f}" + ("" if half is None else f" ± {half:.2f}")
    row["same partition"] = f"{sum(s['same'] for s in seeds)} of {len(seeds)}"
    return {**row, "radius of the third neighbour": round(fmean(s["third"] for s in seeds), 2)}


# -- items -------------------------------------------------------------------------------------------------------------


def _item(name: str, title: str, cells: tuple[Calculation[Row], ...], table: Any) -> Item[Row]:
    return Item(f"clustering/{name}", title, cells, table, command="python -m benchmarks.clustering")


ITEMS: Mapping[str, Item[Row]] = named(
    _item(
        "groups",
        "AIDC: 50 devices in planted groups",
        tuple(Calculation(kind, partial(grouped, kind)) for kind in POPULATIONS),
        _groups_table,
    ),
    _item(
        "samples",
        "AIDC: 50 devices with few samples, in one group and in two",
        tuple(Calculation(str(n), partial(sampled, n)) for n in SAMPLES),
        _samples_table,
    ),
    _item(
        "thresholds",
        "AIDC: 50 devices under Dir(.1), the thresholds of table 2",
        tuple(Calculation(f"{m:.2f} / {s:.2f}", partial(thresholds, m, s)) for m, s in TABLE_2),
        _thresholds_table,
    ),
    _item(
        "updates",
        "AIDC: updates beside clustering from scratch",
        tuple(Calculation(kind, partial(updated, kind)) for kind in SEQUENCES),
        _updates_table,
    ),
    _item(
        "liars",
        "AIDC: one of 50 devices lies",
        tuple(Calculation(kind, partial(lied, kind)) for kind in LIES),
        _liars_table,
    ),
    _item(
        "large",
        "AIDC: many devices of 512 channels",
        tuple(Calculation(f"{n:,}", partial(large, n)) for n in SIZES),
        _large_table,
    ),
    _item(
        "starts",
        "AIDC on real data: merging from single devices, and from the parts of eq. (5) and (6)",
        tuple(Calculation(f"{data} {dealt}", partial(started, data, dealt)) for data in DATA for dealt in DEALT),
        _starts_table,
    ),
)


if __name__ == "__main__":
    main(ITEMS)
