"""A device describes its data by a sparsity vector: "FedEPC: An Efficient and Privacy-Enhancing Clustering Federated
Learning Method for Sensing-Computing Fusion Scenarios" (Tang et al., CMC 2025), section 3.2, algorithm 1.

    description = yield from describe(self, weights, layer)

The device averages eq. (2) over its samples (``training/sparsity.py``). Not in the paper: for two random halves of its
data, whose divergence measures chance variation (h_i, ``clustering/divergence.py: noise_floor``). With ``Noise`` both
halves together are one release with its multiplier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any, NamedTuple

import numpy as np

import coterie.protocol.core as fl
from coterie.clustering.divergence import noise_floor
from coterie.dp.gaussian import clipped, mean_sensitivity, noised
from coterie.training.solvers import Sgd


class Described(NamedTuple):
    """vector: (C,) float64 in [0, 1], the mean of eq. (2).  floor: h_i >= 0, the halves' divergence."""

    vector: fl.Doubles
    floor: float


class Halves(NamedTuple):
    """means: (h, C) float64, of each half of the samples; h is 1 for one sample, else 2.  counts: of samples."""

    means: fl.Doubles
    counts: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Noise:
    """Gaussian noise on a description. Raises UserError unless clip and multiplier are positive and finite.

    clip: L2 norm that no sample's vector minus the centre exceeds.  multiplier: std of the noise over the sensitivity.
    centre: (C,) in [0, 1], public.  basis: (B, C), public, orthonormal rows: only components along it are clipped,
    noised and sent.
    """

    clip: float
    multiplier: float
    centre: fl.Vector
    basis: fl.Array | None = None

    def __post_init__(self) -> None:
        for name in ("clip", "multiplier"):
            if not (isfinite(value := getattr(self, name)) and value > 0):
                raise fl.UserError(f"the {name} of noise on sparsity features must be positive and finite, not {value}")


class Public(NamedTuple):
    """Of public samples. mean: (C,) float32 of eq. (2).  norms: (n,) float32, L2 norm of each vector minus the mean.

    basis: (B, C) float32, orthonormal directions in which the classes' means differ.  lengths: (n,) float32, L2 norm
    along these.
    """

    mean: fl.Vector
    norms: fl.Vector
    basis: fl.Vector
    lengths: fl.Vector


STEPS = 150
"""Of pre-training. Four times as many group devices no better (docs/features.md)."""


def pretraining(weights: fl.Vector, samples: int, seed: int, steps: int = STEPS) -> fl.Fit:
    """The effect by which a hub trains an extractor on its public samples for at least so many steps.

    weights: (d,) float32 start. Raises UserError without a sample or a step.
    """
    if samples < 1 or steps < 1:
        raise fl.UserError(
            f"an extractor is trained on 1 public sample or more, for 1 step or more, not {samples}, {steps}"
        )
    # With momentum, convolutions separate groups less well.
    solver = Sgd(lr=0.1, batch_size=50)
    return fl.Fit(weights, solver, epochs=-(-steps // -(-samples // solver.batch_size)), seed=seed)


def describe(
    party: fl.Party, weights: fl.Vector, layer: str, *, gamma: float = 1.0, round: int = 0, noise: Noise | None = None
) -> fl.Work[Described]:
    """weights: (d,) float32 of the common extractor.  layer: as in ``training/sparsity.py: relu_layer``.  round: a
    repeated one repeats its halves and noise. Raises PeerError for an extractor, a layer or a centre that does not fit.
    """
    seed = int(party.rng("sparsity halves", round).integers(1 << 62))
    clipping = () if noise is None else (noise.centre, noise.clip, noise.basis)
    found: Halves = yield fl.Local(halves, (weights, layer, seed, *clipping))
    if noise is None:
        return described(found, gamma)
    basis = b"" if noise.basis is None else np.ascontiguousarray(noise.basis).tobytes()
    of = repr((noise.multiplier, noise.clip, found.counts)).encode() + found.means.tobytes() + basis
    source, means = party.kept("sparsity noise", of, round), []
    for mean, count in zip(found.means, found.counts, strict=True):
        along = np.zeros(len(mean) if noise.basis is None else len(noise.basis))
        # Replacing one sample moves the mean of its half of n samples by at most 2 clip / n.
        drawn = noised(along, noise.multiplier, mean_sensitivity(noise.clip, count), source.normal)
        means.append(mean + (drawn if noise.basis is None else drawn @ noise.basis))
    return described(Halves(np.clip(means, 0.0, 1.0), found.counts), gamma)


def described(found: Halves, gamma: float = 1.0) -> Described:
    vector = np.average(found.means, axis=0, weights=found.counts)
    floor = noise_floor(found.means[0], found.means[1], gamma) if len(found.means) == 2 else 0.0
    return Described(vector, floor)


@fl.local("sparsity")
def halves(
    own: fl.OwnData,
    weights: fl.Vector,
    layer: str,
    seed: int,
    centre: fl.Vector | None = None,
    clip: float = inf,
    basis: fl.Array | None = None,
) -> Halves:
    """Means of the sparsity vectors of two random halves, which ``seed`` draws. centre, clip, basis: as in
    ``bounded``. Raises PeerError if something does not fit.
    """
    return _many([own], [(weights, layer, seed, centre, clip, basis)])[0]


@halves.batched
def _many(data: Sequence[fl.OwnData], arguments: Sequence[tuple[Any, ...]]) -> list[Halves]:
    extractor: _Shared | None = None
    found = []
    for own, (weights, layer, seed, *clipping) in zip(data, arguments, strict=True):
        if extractor is None or not extractor.serves(own, weights, layer):
            extractor = _Shared(own, weights, layer)
        vectors: fl.Vector | fl.Doubles = extractor(own)
        if clipping and clipping[0] is not None:
            vectors = bounded(vectors, *clipping)
        found.append(split(vectors, seed))
    return found


def split(vectors: fl.Vector | fl.Doubles, seed: int) -> Halves:
    """Of vectors (n, C)."""
    order = fl.rng(seed, "", "halves").permutation(len(vectors))
    parts = [part for part in np.array_split(order, 2) if len(part)]
    means = np.stack([vectors[part].mean(axis=0, dtype=np.float64) for part in parts])
    return Halves(means, tuple(map(len, parts)))


@fl.local("public sparsity")
def public(own: fl.OwnData, weights: fl.Vector, layer: str) -> Public:
    vectors = _Shared(own, weights, layer)(own)
    mean = vectors.mean(axis=0, dtype=np.float64).astype(np.float32)
    apart = (vectors - mean).astype(np.float64)
    basis = class_directions(apart, np.asarray(own.y))
    lengths = np.linalg.norm(apart @ basis.T, axis=1)
    return Public(*(one.astype(np.float32) for one in (mean, np.linalg.norm(apart, axis=1), basis, lengths)))


def class_directions(apart: fl.Doubles, labels: fl.Array) -> fl.Doubles:
    """(B, C): orthonormal directions that the classes' means span, of vectors (n, C) minus their mean, labels (n,).

    B is below the number of classes; 0 where labels are no classes.
    """
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        return np.zeros((0, apart.shape[1]))
    classes, counts = np.unique(labels, return_counts=True)
    means = np.stack([apart[labels == k].mean(axis=0) for k in classes]) * np.sqrt(counts / counts.sum())[:, None]
    _, sizes, directions = np.linalg.svd(means, full_matrices=False)
    least = 1e-5 * np.linalg.norm(apart, axis=1).max()
    return np.asarray(directions[: len(classes) - 1][sizes[: len(classes) - 1] > least])


class _Shared:
    def __init__(self, own: fl.OwnData, weights: fl.Vector, layer: str) -> None:
        from coterie.training.sparsity import Extractor  # imports torch, which no list of systems needs

        self._model, self._weights, self._layer, self._accelerator = own.model, weights, layer, own.accelerator
        self._extractor = _or_peer_error(Extractor, own.model, weights, layer, own.accelerator)

    def serves(self, own: fl.OwnData, weights: fl.Vector, layer: str) -> bool:
        same = own.model is self._model and layer == self._layer and own.accelerator == self._accelerator
        return same and (weights is self._weights or np.array_equal(weights, self._weights))

    def __call__(self, own: fl.OwnData) -> fl.Vector:
        return np.asarray(_or_peer_error(self._extractor, own.x))


def _or_peer_error(function: Any, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except fl.UserError as error:
        raise fl.PeerError(str(error)) from error


def bounded(
    vectors: fl.Vector | fl.Doubles, centre: fl.Vector, clip: float, basis: fl.Array | None = None
) -> fl.Doubles:
    """The vectors (n, C) clipped to ``clip`` in L2 from the centre (C,), after a projection on the basis (B, C) if any.
    Raises PeerError if one does not fit.
    """
    if np.shape(centre) != vectors.shape[1:] or not np.isfinite(centre).all():
        raise fl.PeerError(f"a centre of shape {np.shape(centre)} for {vectors.shape[1]} channels, or not finite")
    if basis is not None:
        directions = np.asarray(basis, np.float64)
        if directions.ndim != 2 or directions.shape[1:] != vectors.shape[1:] or not np.isfinite(directions).all():
            raise fl.PeerError(f"a basis of shape {np.shape(basis)} for {vectors.shape[1]} channels, or not finite")
        if not np.allclose(directions @ directions.T, np.eye(len(directions)), atol=1e-3):
            raise fl.PeerError("a basis whose directions are not orthonormal")
        along: fl.Doubles = _or_peer_error(clipped, (vectors - centre) @ directions.T, clip)
        return np.asarray(centre + along @ directions)
    return np.asarray(centre + _or_peer_error(clipped, vectors.astype(np.float64) - centre, clip))
