"""Adaptive isomorphic device clustering (AIDC): section 3.3 of "FedEPC" (Tang and others, CMC 2025), eq. (3) to (8) and
algorithm 2. See docs/clustering.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from coterie.clustering import divergence
from coterie.clustering.affinity import lexicographic_order
from coterie.clustering.density import FEW, literal_parts, parts
from coterie.clustering.labels import NOISE, Labels, lasting_numbers, members_of
from coterie.clustering.merging import Change, Event, differences, happenings, merged, settled, split
from coterie.protocol.arrays import Array, Doubles, Flags, Floats, Integers
from coterie.protocol.errors import UserError
from coterie.protocol.options import AtLeastOne, Count, NotNegative, Positive, check_bounds

__all__ = ["Aidc", "Event", "Groups", "cluster", "update"]

EXACT = 300  # devices; the divergences of more are computed by matrix products
QUIET = (
    2  # median floors; one with a higher floor is placed last, so what it says of its noise cannot join two clusters
)


@dataclass(frozen=True)
class Aidc:
    """Settings, which docs/clustering.md explains. Raises UserError for impossible ones."""

    gamma: NotNegative = 1.0
    theta_merge: NotNegative = 0.15
    theta_split: NotNegative = 0.18
    singles_to: Count = FEW
    eta: NotNegative = 1.0
    neighbours: AtLeastOne = 5
    floors_per_scale: Positive = divergence.FLOORS_PER_SCALE
    diagonal: bool = True
    passes: AtLeastOne = 10
    literal: bool = False
    reference: bool = False
    seed: Count = 0
    force_thresholds: bool = False

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.literal and self.reference:
            raise UserError(
                "literal is algorithm 2, which compares all pairs, and reference is section 3.5: choose one"
            )
        if self.theta_split < self.theta_merge and not self.force_thresholds:
            raise UserError(
                f"theta_split = {self.theta_split} is below theta_merge = {self.theta_merge}: what is merged would be "
                "split again; raise theta_split, or set force_thresholds for such rows of table 2"
            )


class Groups(msgspec.Struct):
    """A server's state between two calls. Row i is device i of n.

    names: (n,), different.  features: (n, C) float64, sparsity vectors.  floors: (n,) float64, noise floors.
    labels: (n,) int64, each device's cluster, kept while the cluster lives and never reused.
    scale: the calibrated unit in nats (1 where nothing is).
    mjs: (n, n) float32, eq. (3), or the differences of section 3.5; None to be computed.  gamma: of eq. (3) in it.
    reference: the device of section 3.5, or "".  following: the next new cluster's number.
    """

    names: tuple[str, ...]
    features: Doubles
    floors: Doubles
    labels: Integers
    scale: float
    mjs: Floats | None
    gamma: float
    reference: str
    following: int

    def members(self) -> dict[int, tuple[str, ...]]:
        return members_of(self.names, self.labels)


def cluster(
    names: Sequence[str], features: ArrayLike, floors: ArrayLike, settings: Aidc | None = None
) -> tuple[Groups, tuple[Event, ...]]:
    """AIDC of n devices: names (n,), sparsity vectors (n, C) in [0, 1], noise floors (n,) -> groups, and events.

    The order of devices doesn't matter. Numbers start at 0 for the largest cluster. Events of kind ``merge`` or
    ``split`` have the ``clusters`` in which the sides ended. Raises UserError.
    """
    settings = settings or Aidc()
    s, names = divergence.sparsity_vectors(features), _names(names)
    if len(names) != len(s):
        raise UserError(f"{len(names)} names of devices, but {len(s)} sparsity vectors")
    h = divergence.noise_floors(floors, len(s))
    order = _order(s, h)
    reference = _drawn(names, order, settings)
    mjs = _divergences(s, names.index(reference) if reference else NOISE, settings, order)
    labels, _, scale, changes = _grouped(s, h, mjs, settings, order)
    numbered = _by_size(labels, order)
    made = Groups(names, s, h, numbered, scale, mjs, settings.gamma, reference, int(numbered.max()) + 1)
    return made, happenings(names, numbered, changes)


def update(
    groups: Groups,
    changed: Mapping[str, tuple[ArrayLike, float]],
    left: Iterable[str] = (),
    settings: Aidc | None = None,
) -> tuple[Groups, tuple[Event, ...]]:
    """New groups after devices joined or changed (name -> sparsity vector (C,), floor) and others left.

    The groups are those of `cluster` (up to rounding above 300 devices), at the cost of the changed devices'
    divergences. A cluster keeps its number where most of the devices in both are in it before and after. Raises
    UserError.
    """
    settings, left = settings or Aidc(), tuple(left)
    row = {name: i for i, name in enumerate(groups.names)}
    if strangers := [name for name in left if name not in row]:
        raise UserError(f"device {strangers[0]!r} cannot leave: it is in no cluster")
    if both := [name for name in left if name in changed]:
        raise UserError(f"device {both[0]!r} is said to have left and to have changed: leave it out of one of the two")
    stays = np.array([i for i, name in enumerate(groups.names) if name not in set(left)], np.intp)
    old_names = tuple(groups.names[i] for i in stays)
    names = _names([*old_names, *(name for name in changed if name not in row)])
    if not names:
        raise UserError("all devices have left: keep the groups, or start anew with those that come")

    s = np.zeros((len(names), groups.features.shape[1]))
    h = np.zeros(len(names))
    s[: len(stays)], h[: len(stays)] = groups.features[stays], groups.floors[stays]
    moved = np.arange(len(names)) >= len(stays)
    place = {name: i for i, name in enumerate(names)}
    for name, (vector, floor) in changed.items():
        i, own = place[name], _own(name, vector, floor, s.shape[1])
        moved[i] |= bool((own[0] != s[i]).any())
        s[i], h[i] = own

    order = _order(s, h)
    reference = groups.reference if groups.reference in old_names else ""
    if settings.reference != bool(reference):
        reference = _drawn(names, order, settings)
    mjs = _updated(groups, stays, s, moved, place.get(reference, NOISE), settings, order)
    labels, d, scale, _ = _grouped(s, h, mjs, settings, order)
    before = np.full(len(names), NOISE)
    before[: len(stays)] = groups.labels[stays]
    numbered, following = lasting_numbers(before, _by_size(labels, order), groups.following)
    made = Groups(names, s, h, numbered, scale, mjs, settings.gamma, reference, following)
    gone = tuple((groups.names[i], int(groups.labels[i])) for i in range(len(row)) if groups.names[i] not in place)
    return made, differences([names[i] for i in order], d, before[order], numbered[order], gone)


def _grouped(
    s: Doubles, h: Doubles, mjs: Array, settings: Aidc, order: NDArray[np.intp]
) -> tuple[Labels, Array, float, list[Change]]:
    d, scale, floors = mjs[np.ix_(order, order)], 1.0, np.zeros_like(h) if settings.reference else h[order]
    if settings.literal:
        found, changes = _as_printed(s[order], d, settings)
    else:
        d, scale = divergence.calibrated(d, floors, per_scale=settings.floors_per_scale)
        found, changes = _settled(s[order], d, floors, settings)
    labels = np.empty_like(found)
    labels[order] = found
    return labels, d, scale, [Change(c.kind, order[c.first], order[c.second], c.value) for c in changes]


def _settled(s: Doubles, d: Array, h: Doubles, settings: Aidc) -> tuple[Labels, list[Change]]:
    limits = (settings.theta_merge, settings.theta_split, settings.diagonal, settings.passes)
    quiet = np.flatnonzero(h <= QUIET * np.median(h))
    labels = np.full(len(d), NOISE)
    inner = d if quiet.size == len(d) else d[np.ix_(quiet, quiet)]
    if len(d) <= settings.singles_to:
        labels[quiet], _ = merged(inner, np.arange(quiet.size), settings.theta_merge)
    else:
        labels[quiet] = parts(inner, s[quiet], settings.neighbours, settings.eta)
    labels, changes = settled(d, labels, *limits)
    labels, placed = _placed(d, labels, settings.theta_split)
    labels, further = settled(d, labels, *limits)
    return labels, changes + placed + further


def _as_printed(s: Doubles, mjs: Array, settings: Aidc) -> tuple[Labels, list[Change]]:
    # noise devices are alone, since each needs a model
    labels, merges = merged(mjs, literal_parts(s, mjs, settings.eta), settings.theta_merge)
    labels, splits = split(mjs, labels, settings.theta_split, settings.diagonal)
    labels, alone = _placed(mjs, labels, 0.0)
    return labels, merges + splits + alone


def _placed(d: Array, labels: Labels, below: float) -> tuple[Labels, list[Change]]:
    """Each noise device in the cluster of least mean divergence, if below ``below``, else alone."""
    rows = np.argsort(labels, kind="stable")
    rows = rows[labels[rows] != NOISE]
    _, first, sizes = np.unique(labels[rows], return_index=True, return_counts=True)
    found, changes = labels.copy(), []
    for i in np.flatnonzero(labels == NOISE):
        means = np.add.reduceat(d[i, rows].astype(np.float64), first) / sizes if rows.size else np.zeros(0)
        k, value = (int(means.argmin()), float(means.min())) if rows.size else (NOISE, 0.0)
        placed = k != NOISE and value < below
        found[i] = k if placed else found.max() + 1
        changes.append(Change("placed" if placed else "alone", np.array([i]), np.flatnonzero(labels == k), value))
    return found, changes


def _divergences(s: Doubles, reference: int, settings: Aidc, order: NDArray[np.intp]) -> Floats:
    if settings.reference:
        distance = np.linalg.norm(s - s[reference], axis=1)
        return np.asarray(np.abs(distance[:, None] - distance), np.float32)
    if len(s) <= EXACT:
        return divergence.modified_divergence(s, settings.gamma).astype(np.float32)
    back = np.argsort(order)  # products of matrices depend on the order of their rows, in the last bits
    return np.asarray(divergence.modified_divergence(s[order], settings.gamma, exact=False)[np.ix_(back, back)])


def _updated(
    groups: Groups,
    stays: NDArray[np.intp],
    s: Doubles,
    moved: Flags,
    reference: int,
    settings: Aidc,
    order: NDArray[np.intp],
) -> Floats:
    known = (
        groups.mjs is not None and not settings.reference and not groups.reference and settings.gamma == groups.gamma
    )
    touched = np.flatnonzero(moved)
    if groups.mjs is None or not known or len(touched) > max(EXACT, len(s) // 4):
        return _divergences(s, reference, settings, order)
    mjs = np.zeros((len(s), len(s)), np.float32)
    mjs[: len(stays), : len(stays)] = groups.mjs[np.ix_(stays, stays)]
    rows = divergence.divergence_to(s[touched], s, settings.gamma).astype(np.float32) if touched.size else mjs[touched]
    mjs[touched], mjs[:, touched] = rows, rows.T
    return mjs


def _order(s: Doubles, h: Doubles) -> NDArray[np.intp]:
    return lexicographic_order(np.column_stack([s, h]))


def _drawn(names: tuple[str, ...], order: NDArray[np.intp], settings: Aidc) -> str:
    return names[order[np.random.default_rng(settings.seed).integers(len(order))]] if settings.reference else ""


def _by_size(labels: Labels, order: NDArray[np.intp]) -> Labels:
    kinds, first, inverse, sizes = np.unique(labels[order], return_index=True, return_inverse=True, return_counts=True)
    number = np.empty(len(kinds), np.int64)
    number[np.lexsort((first, -sizes))] = np.arange(len(kinds))
    found = np.empty_like(labels)
    found[order] = number[inverse]
    return found


def _names(names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str) or any(not isinstance(name, str) or not name for name in names):
        raise UserError("names of devices must be texts, one a device, and none empty")
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise UserError(f"two devices are called {twice!r}: give each a name of its own")
    return tuple(names)


def _own(name: str, vector: ArrayLike, floor: float, channels: int) -> tuple[Doubles, float]:
    try:
        s = divergence.sparsity_vector(vector)
        if len(s) != channels:
            raise UserError(f"{len(s)} channels, where the others have {channels}")
        return s, float(divergence.noise_floors([floor], 1)[0])
    except UserError as error:
        raise UserError(f"device {name!r}: {error}") from None
