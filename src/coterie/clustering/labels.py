"""Labels of clusters: a number from 0 for each row, or NOISE."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from coterie.protocol.arrays import Array

NOISE = -1
Labels = NDArray[np.int64]


def by_first_row(labels: Array) -> Labels:
    """Numbered 0, 1, ... by their first row, (n,)."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse].astype(np.int64)


def members_of(names: Sequence[str], labels: Labels) -> dict[int, tuple[str, ...]]:
    return {int(k): tuple(names[i] for i in np.flatnonzero(labels == k).tolist()) for k in np.unique(labels)}


def lasting_numbers(before: Labels, after: Labels, following: int) -> tuple[Labels, int]:
    """The clusters ``after`` (n,), counted from 0, under the numbers ``before`` (n,) (NOISE: not there yet).

    Clusters with most common devices are one first; ties go to the lower numbers. Others get numbers from ``following``
    on; its next value is returned.
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
