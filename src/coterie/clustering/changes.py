"""What became of clusters: their lasting numbers, and events. Labels as in `merging`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from coterie.clustering.density import NOISE
from coterie.clustering.merging import Change, Labels, heterogeneity, mean_between

Kind = Literal["merge", "split", "placed", "alone", "joined", "left", "moved"]


@dataclass(frozen=True)
class Event:
    """One thing that happened to clusters.

    By kind: clusters (their numbers); names (of devices that changed sides); value (a mean divergence).

    - ``merge``: the cluster that stays and the one that is gone; those that came; eq. (7).
    - ``split``: the cluster that stays and the new one; those that went; eq. (8).
    - ``placed``: a noise device's cluster, or ``alone``: its own; the mean divergence to the nearest one.
    - ``joined``, ``left``: the cluster; the device; the mean divergence to the others there (0 if it has left).
    - ``moved``: the clusters before and after; the device; the mean divergence to the others there.
    """

    kind: Kind
    clusters: tuple[int, ...]
    names: tuple[str, ...]
    value: float


def happenings(names: Sequence[str], labels: Labels, changes: Sequence[Change]) -> tuple[Event, ...]:
    """A clustering's changes as events, with the numbers of the clusters in which the sides ended."""
    found = []
    for change in changes:
        small, large = change.first, change.second
        if change.kind in ("merge", "split") and len(small) > len(large):
            small, large = large, small
        sides = [large, small] if change.kind in ("merge", "split") else [small]
        clusters = tuple(int(labels[side[0]]) for side in sides)
        found.append(Event(change.kind, clusters, tuple(names[i] for i in small), change.value))
    return tuple(found)


def lasting_numbers(before: Labels, after: Labels, following: int) -> tuple[Labels, int]:
    """The clusters ``after`` (n,), counted from 0, under the numbers ``before`` (n,) (NOISE: not there yet).

    The pair of clusters with most common devices is one cluster, then that of the rest, and so on; ties go to the lower
    numbers. The others get numbers from ``following`` on, whose next value is returned.
    """
    there = before != NOISE
    pairs, common = np.unique(np.stack([before[there], after[there]], axis=1), axis=0, return_counts=True)
    number: dict[int, int] = {}
    for old, new in pairs[np.argsort(-common, kind="stable")].tolist():
        if old not in number.values() and new not in number:
            number[new] = old
    for new in range(int(after.max()) + 1):
        if new not in number:
            number[new], following = following, following + 1
    return np.array([number[k] for k in after.tolist()], dtype=np.int64), following


def differences(
    names: Sequence[str], d: NDArray[Any], before: Labels, after: Labels, gone: Sequence[tuple[str, int]]
) -> tuple[Event, ...]:
    """What happened between two clusterings with lasting numbers.

    names, d, before, after: of the later clustering's devices; before: NOISE for a new one.  gone: those that left,
        with their clusters.
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


def _event(kind: Kind, clusters: tuple[int, ...], names: Sequence[str], rows: NDArray[Any], value: float) -> Event:
    return Event(kind, clusters, tuple(names[i] for i in rows), value)


def _most(labels: Labels) -> int:
    numbers, counts = np.unique(labels, return_counts=True)
    return int(numbers[counts.argmax()])


def _to_others(d: NDArray[Any], labels: Labels, i: int) -> float:
    others = np.flatnonzero(labels == labels[i])
    others = others[others != i]
    return mean_between(d, np.array([i]), others) if others.size else 0.0
