"""FedEPC's sparsity vectors: what each way to send them tells, and how well devices are grouped by what was sent.

50 MNIST devices. The extractor is the MLP, pre-trained on the hub's public samples (5 % of all). These are also what
the attacker knows. Descriptions, noise and clusters are the package's own; nothing else of a round takes part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score

import coterie.method as fl
from benchmarks.items import crossed, main, mean
from coterie.clustering.isomorphic import cluster
from coterie.data.partition import label_counts, partition
from coterie.data.sources import load
from coterie.dp.gaussian import noise_multiplier
from coterie.privacy.attacks.labels import (
    by_cluster,
    class_means,
    label_entropy,
    pair_correlation,
    rank_correlation,
    shares_by_nnls,
    similar_pairs,
    top_label_hit_rate,
    total_variation,
    unnamed_total_variation,
)
from coterie.privacy.attacks.result import AttackResult
from coterie.protocols.sparsity import Described, Noise, bounded, class_directions, describe, pretraining
from coterie.reproductions.study import Item, Row, by_cell, named
from coterie.training.engine import fit_many
from coterie.training.jobs import Job
from coterie.training.model import Model
from coterie.training.models import build
from coterie.training.sparsity import sparsities

DEVICES, DELTA, PUBLIC = 50, 1e-5, 0.05
PARTITIONS = ("labelsets:5", "dirichlet:0.1", "iid")
SAMPLES = (200, 1000)
"""Of a device, on average."""
EPSILONS = (8.0, 4.0, 1.0)
"""Of one description, for one sample of a device."""
CLEAR = "clear"
WAYS = (CLEAR, *(f"epsilon {epsilon:g}{of}" for of in ("", ", along classes") for epsilon in EPSILONS))
"""Noise in all channels, or along the directions in which the public samples' classes differ."""


class Device(fl.Party, role="device"):
    """Only what ``describe`` needs."""


@dataclass(frozen=True, eq=False)
class Fleet:
    """Devices with their data, and the hub's public samples, as sparsity vectors and labels.

    groups: the data's own, (devices,), or None.  x: of each device.  counts: (devices, classes).
    """

    model: Model
    weights: NDArray[np.float32]
    x: tuple[NDArray[np.float32], ...]
    counts: NDArray[np.int64]
    groups: NDArray[np.int64] | None
    public: NDArray[np.float32]
    public_labels: NDArray[np.int64]


@lru_cache(maxsize=1)  # of hundreds of MB
def fleet(form: str, samples: int, seed: int) -> Fleet:
    """Devices of one seed; the public samples are taken away before the data are dealt."""
    data = load("mnist")
    x, y = data.inputs(), data.labels().astype(np.int64)
    order = fl.rng(seed, "", "privacy study").permutation(len(y))
    hold = round(DEVICES * samples * PUBLIC / (1 - PUBLIC))
    own, others = order[:hold], order[hold : hold + DEVICES * samples]
    model = build("mlp", data.input_shape, data.classes)
    fit = pretraining(model.initial(seed), hold, seed)
    job = Job(fit.weights, fit.solver, fit.epochs, fit.seed, torch.from_numpy(x[own]), torch.from_numpy(y[own]))
    weights = fit_many(model, [job])[0].weights
    split = partition(form, y[others], data.labels(split="test"), DEVICES, seed)
    return Fleet(
        model,
        weights,
        tuple(x[others][rows] for rows in split.train),
        label_counts(split, y[others], data.classes),
        split.groups,
        sparsities(model, weights, x[own]),
        y[own],
    )


@dataclass(frozen=True, eq=False)
class Told:
    """What devices sent, with the scores of grouping and attacks.

    ari: against the data's groups.  same: against the clusters that descriptions in the clear give.
    """

    multiplier: float
    clusters: int
    ari: float | None
    same: float
    named: AttackResult
    top: AttackResult
    unnamed: AttackResult
    pairs: AttackResult | None
    within: AttackResult
    top_within: AttackResult
    floors: AttackResult | None


def told(form: str, samples: int, way: str, seed: int) -> Told:
    """One way to send, for one seed."""
    devices = fleet(form, samples, seed)
    labels, sent = grouped(form, samples, way, seed)
    clear, _ = grouped(form, samples, CLEAR, seed)
    noise, auxiliary = noise_of(devices, way), devices.public.astype(np.float64)
    if noise is not None:
        auxiliary = bounded(auxiliary, noise.centre, noise.clip, noise.basis)  # as devices do
    classes, counts = devices.counts.shape[1], devices.counts
    prior = np.bincount(devices.public_labels, minlength=classes)
    estimate = shares_by_nnls(
        np.stack([one.vector for one in sent]), class_means(auxiliary, devices.public_labels, classes)
    )
    within = by_cluster(estimate, labels)
    floors = np.array([one.floor for one in sent]) * counts.sum(axis=1)
    return Told(
        0.0 if noise is None else noise.multiplier,
        len(np.unique(labels)),
        None if devices.groups is None else float(adjusted_rand_score(devices.groups, labels)),
        float(adjusted_rand_score(clear, labels)),
        total_variation(estimate, counts, prior),
        top_label_hit_rate(estimate, counts),
        unnamed_total_variation(estimate, counts, prior),
        _if_any(lambda: pair_correlation(similar_pairs(labels[:, None] == np.unique(labels)), counts)),
        total_variation(within, counts, prior),
        top_label_hit_rate(within, counts),
        _if_any(lambda: rank_correlation(floors, label_entropy(counts), "label entropy")),
    )


def _if_any(score: Any) -> AttackResult | None:
    try:
        return score()  # type: ignore[no-any-return]
    except fl.UserError:
        return None


def noise_of(devices: Fleet, way: str) -> Noise | None:
    """FedEPC's: about the public mean, clipped to the median norm of the public samples."""
    if way == CLEAR:
        return None
    epsilon, _, along = way.removeprefix("epsilon ").partition(",")
    centre = devices.public.mean(axis=0)
    apart = (devices.public - centre).astype(np.float64)
    basis = class_directions(apart, devices.public_labels) if along else None
    lengths = np.linalg.norm(apart if basis is None else apart @ basis.T, axis=1)
    return Noise(float(np.median(lengths)), noise_multiplier(float(epsilon), DELTA), centre, basis)


@lru_cache(maxsize=2 * len(WAYS))
def grouped(form: str, samples: int, way: str, seed: int) -> tuple[NDArray[np.int64], tuple[Described, ...]]:
    """The clusters of the devices by what they sent, and what that was."""
    devices = fleet(form, samples, seed)
    noise = noise_of(devices, way)
    names = [f"device/{i}" for i in range(DEVICES)]
    sent = tuple(description(devices, name, x, seed, noise) for name, x in zip(names, devices.x, strict=True))
    groups, _ = cluster(names, np.stack([one.vector for one in sent]), [one.floor for one in sent])
    return groups.labels, sent


def description(devices: Fleet, name: str, x: NDArray[np.float32], seed: int, noise: Noise | None) -> Described:
    """What a device with these samples sends."""
    work = describe(Device(fl.Own(name, fl.Randomness(seed, True))), devices.weights, "auto", noise=noise)
    effect = next(work)
    assert isinstance(effect, fl.Local)
    try:
        work.send(effect.registered(fl.OwnData(x, np.zeros(len(x), np.int64), devices.model), *effect.arguments))
    except StopIteration as stopped:
        return stopped.value  # type: ignore[no-any-return]
    raise AssertionError("a description takes one effect")


@by_cell
def _rows(name: str, found: Sequence[Told]) -> Row:
    form, samples, way = name.split("/")
    return {
        "partition": form,
        "samples a device": int(samples),
        "sent": way,
        "noise multiplier": round(found[0].multiplier, 2) or None,
        "ARI": mean([one.ari for one in found]),
        "clusters": ", ".join(str(one.clusters) for one in found),
        "same clusters as in the clear (ARI)": mean([one.same for one in found]),
        "by name: total variation": mean([one.named.value for one in found]),
        "prior": mean([one.named.chance for one in found]),
        "by name: top label %": mean([100 * one.top.value for one in found]),
        "luck %": mean([100 * one.top.chance for one in found]),
        "helper, no names: total variation": mean([one.unnamed.value for one in found]),
        "luck": mean([one.unnamed.chance for one in found]),
        "hub: pairs, by clusters": mean([_value(one.pairs) for one in found]),
        "vectors with clusters by name: total variation": mean([one.within.value for one in found]),
        "vectors with clusters by name: top label %": mean([100 * one.top_within.value for one in found]),
        "variety, by floors": mean([_value(one.floors) for one in found]),
        "luck of variety": mean([one.floors.chance if one.floors else None for one in found]),
    }


def _value(result: AttackResult | None) -> float | None:
    return None if result is None else result.value


ITEMS: Mapping[str, Item[Any]] = named(
    Item(
        "fedepc/privacy",
        "FedEPC's sparsity vectors by how they are sent: grouping and attacks (MNIST, 50 devices; mean, 95 % interval)",
        crossed(told, lambda *_: {"delta": DELTA, "public": PUBLIC}, [*PARTITIONS], SAMPLES, [*WAYS]),
        _rows,
        command="python -m benchmarks.privacy",
    )
)

if __name__ == "__main__":
    main(ITEMS)
