"""Merging and splitting clusters: eq. (7) and (8) of "FedEPC", algorithm 2, l. 13-14, to a fixed point; and events.

Labels are cluster numbers from 0 (NOISE: none); d is of divergences (n, n), symmetric, with a zero diagonal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from coterie.clustering.labels import NOISE, Labels
from coterie.protocol.arrays import Array, Doubles

_BLOCK = 1024  # devices at a time


@dataclass(frozen=True)
class Change:
    """Two sets of rows that were merged or split, or a noise device and the nearest cluster, and the deciding mean
    divergence.
    """

    kind: Literal["merge", "split", "placed", "alone"]
    first: NDArray[np.intp]
    second: NDArray[np.intp]
    value: float


def mean_between(d: Array, first: Array, second: Array) -> float:
    """Eq. (7)."""
    return float(d[np.ix_(first, second)].mean(dtype=np.float64))


def heterogeneity(d: Array, members: Array, diagonal: bool = True) -> float:
    """Eq. (8); without ``diagonal``, of pairs of two devices (0 for one device)."""
    return _within(float(d[np.ix_(members, members)].sum(dtype=np.float64)), len(members), diagonal)


def sums_between(d: Array, labels: Labels, clusters: int) -> Doubles:
    """(clusters, clusters) sums of divergences between clusters, and within them."""
    from scipy.sparse import csr_array

    rows = np.argsort(labels, kind="stable")
    rows = rows[labels[rows] != NOISE]
    member = csr_array((np.ones(len(rows)), (labels[rows], rows)), shape=(clusters, len(labels)))
    sums = np.zeros((clusters, clusters))
    for lo in range(0, len(rows), _BLOCK):
        own = rows[lo : lo + _BLOCK]
        kinds, first = np.unique(labels[own], return_index=True)
        sums[:, kinds] += np.add.reduceat(member @ d[:, own].astype(np.float64), first, axis=1)
    return sums


def merged(d: Array, labels: Labels, below: float) -> tuple[Labels, list[Change]]:
    """Eq. (7): the two nearest clusters become one while their mean divergence is below ``below``."""
    count = int(labels.max(initial=NOISE)) + 1
    members = [np.flatnonzero(labels == k) for k in range(count)]
    sums, sizes = sums_between(d, labels, count), np.array([len(own) for own in members], float)
    np.fill_diagonal(sums, np.inf)  # a merged-away cluster has infinite sums, too

    changes, nearest, best = [], np.zeros(count, np.intp), np.empty(count)

    def look(p: int) -> None:
        means = sums[p] / (sizes[p] * sizes)
        nearest[p] = means.argmin()
        best[p] = means[nearest[p]]

    for p in range(count):
        look(p)
    while count and (value := float(best[p := int(best.argmin())])) < below:
        q = int(nearest[p])
        changes.append(Change("merge", members[p], members[q], value))
        members[p], members[q] = np.union1d(members[p], members[q]), members[q][:0]
        sums[p] += sums[q]
        sums[:, p], sums[q], sums[:, q] = sums[p], np.inf, np.inf
        sizes[p] += sizes[q]
        # a mean of two means is no less than both, so only rows that looked at p or q have another nearest
        for r in {p, q, *np.flatnonzero(((nearest == p) | (nearest == q)) & np.isfinite(best)).tolist()}:
            look(r)
    return _labelled(len(d), members), changes


def split(d: Array, labels: Labels, above: float, diagonal: bool = True) -> tuple[Labels, list[Change]]:
    """Eq. (8): a cluster whose mean divergence is above ``above`` is divided, and its parts in turn, by the nearer
    of its two most different devices.
    """
    changes: list[Change] = []

    def divided(members: NDArray[np.intp]) -> Iterator[NDArray[np.intp]]:
        waiting = [members]
        while waiting:
            own = waiting.pop()
            inner = d[np.ix_(own, own)]
            value = _within(float(inner.sum(dtype=np.float64)), len(own), diagonal)
            if value <= above:
                yield own
                continue
            a, b = np.unravel_index(inner.argmax(), inner.shape)  # the "maximum heterogeneity pair"
            nearer = inner[a] <= inner[b]
            changes.append(Change("split", own[nearer], own[~nearer], value))
            waiting += [own[~nearer], own[nearer]]

    count = int(labels.max(initial=NOISE)) + 1
    return _labelled(len(d), [part for k in range(count) for part in divided(np.flatnonzero(labels == k))]), changes


def settled(
    d: Array, labels: Labels, theta_merge: float, theta_split: float, diagonal: bool, passes: int
) -> tuple[Labels, list[Change]]:
    """Merges and splits in turn until nothing changes, or ``passes`` times."""
    changes: list[Change] = []
    for _ in range(passes):
        labels, merges = merged(d, labels, theta_merge)
        labels, splits = split(d, labels, theta_split, diagonal)
        changes += merges + splits
        if not merges and not splits:
            break
    return labels, changes


def _within(total: float, size: int, diagonal: bool) -> float:
    return total / (size * (size if diagonal else max(size - 1, 1)))


def _labelled(n: int, members: list[NDArray[np.intp]]) -> Labels:
    labels = np.full(n, NOISE)
    for k, own in enumerate(own for own in members if own.size):
        labels[own] = k
    return labels


# What became of clusters

Kind = Literal["merge", "split", "placed", "alone", "joined", "left", "moved"]


@dataclass(frozen=True)
class Event:
    """By kind: clusters (their numbers); names (of devices that changed sides); value (a mean divergence).

    - ``merge``: the cluster that stays and the one that is gone; those that came; eq. (7).
    - ``split``: the cluster that stays and the new one; those that went; eq. (8).
    - ``placed``: a noise device's cluster, or ``alone``: its own; to the nearest one.
    - ``joined``, ``left``: the cluster; the device; to the others there (0 if it has left).
    - ``moved``: the clusters before and after; the device; to the others there.
    """

    kind: Kind
    clusters: tuple[int, ...]
    names: tuple[str, ...]
    value: float


def happenings(names: Sequence[str], labels: Labels, changes: Sequence[Change]) -> tuple[Event, ...]:
    """With the numbers of the clusters in which the sides ended."""
    found = []
    for change in changes:
        small, large = change.first, change.second
        if change.kind in ("merge", "split") and len(small) > len(large):
            small, large = large, small
        sides = [large, small] if change.kind in ("merge", "split") else [small]
        clusters = tuple(int(labels[side[0]]) for side in sides)
        found.append(Event(change.kind, clusters, tuple(names[i] for i in small), change.value))
    return tuple(found)


def differences(
    names: Sequence[str], d: Array, before: Labels, after: Labels, gone: Sequence[tuple[str, int]]
) -> tuple[Event, ...]:
    """Between two clusterings with lasting numbers.

    names, d, before, after: of the later one's devices; before: NOISE for a new one.  gone: those that left, with their
    clusters.
    """
    found = [Event("left", (k,), (name,), 0.0) for name, k in gone]
    told = before == NOISE  # joined devices have an event of their own
    for i in np.flatnonzero(told).tolist():
        found.append(Event("joined", (int(after[i]),), (names[i],), _to_others(d, after, i)))
    old, new = set(before[~told].tolist()), set(after.tolist())
    for k in sorted(old - new):
        own = np.flatnonzero(before == k)
        into = _most(after[own])
        came, others = own[after[own] == into], np.flatnonzero((before == into) & (after == into))
        if others.size:
            found.append(_event("merge", (into, k), names, came, mean_between(d, came, others)))
            told[came] = True
    for k in sorted(new - old):
        own = np.flatnonzero((after == k) & (before != NOISE))
        if not own.size:
            continue  # of devices that have joined
        out = _most(before[own])
        went, whole = own[before[own] == out], np.flatnonzero(before == out)
        found.append(_event("split", (out, k), names, went, heterogeneity(d, whole)))
        told[went] = True
    for i in np.flatnonzero(~told & (before != after)).tolist():
        found.append(Event("moved", (int(before[i]), int(after[i])), (names[i],), _to_others(d, after, i)))
    return tuple(found)


def _event(kind: Kind, clusters: tuple[int, ...], names: Sequence[str], rows: Array, value: float) -> Event:
    return Event(kind, clusters, tuple(names[i] for i in rows), value)


def _most(labels: Labels) -> int:
    numbers, counts = np.unique(labels, return_counts=True)
    return int(numbers[counts.argmax()])


def _to_others(d: Array, labels: Labels, i: int) -> float:
    others = np.flatnonzero(labels == labels[i])
    others = others[others != i]
    return mean_between(d, np.array([i]), others) if others.size else 0.0
