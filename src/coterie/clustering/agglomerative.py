"""Greedy agglomeration by cosine similarity, without a number of clusters.

Used by FLACC (Mehta and Shao, IEEE TII 2023; ``coterie.baselines.flacc``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.protocol.errors import UserError


@dataclass(frozen=True)
class Merge:
    """One step: groups ``into`` < ``gone`` (row numbers) became ``into``, at this similarity."""

    into: int
    gone: int
    similarity: float


def agglomerated(vectors: NDArray[Any], least: float) -> tuple[NDArray[np.int64], tuple[Merge, ...]]:
    """(n,) groups 0, 1, ... numbered by their first row, and the merges in their order.

    vectors: (n, d) finite; a row is the sum of a group. While a pair is more similar than ``least``, the two groups of
        largest cosine similarity merge, and their rows add up. Ties go to the pair of lowest numbers. A row of zeros
        stays alone. O(n^2 d) for the products, and O(n^2) a merge. Raises UserError for NaN, infinity, or ``least``
        beyond -1 to 1.
    """
    rows = np.asarray(vectors, np.float64)
    if rows.ndim != 2 or not np.isfinite(rows).all():
        raise UserError(f"agglomeration takes finite vectors (groups, d), not {rows.shape} with NaN or infinity")
    if not -1 <= least <= 1:
        raise UserError(f"a cosine similarity lies between -1 and 1; {least} is no bound for one")
    n = len(rows)
    group = np.arange(n)
    most = float(np.abs(rows).max(initial=0.0))
    gram = (rows / most) @ (rows / most).T if most else np.zeros((n, n))
    alive = gram.diagonal() > 0
    merges: list[Merge] = []
    while alive.sum() > 1:
        sizes = np.sqrt(np.where(alive, gram.diagonal(), 1.0))
        cosines = np.where(alive[:, None] & alive & ~np.eye(n, dtype=bool), gram / np.outer(sizes, sizes), -np.inf)
        i, j = sorted(int(place) for place in np.unravel_index(int(cosines.argmax()), cosines.shape))
        if not cosines[i, j] > least:
            break
        merges.append(Merge(i, j, float(cosines[i, j])))
        gram[i] += gram[j]
        gram[:, i] += gram[:, j]
        alive[j] = False
        alive[i] = gram[i, i] > 0  # opposite rows may cancel
        group[group == j] = i
    numbers = {int(first): number for number, first in enumerate(dict.fromkeys(group.tolist()))}
    return np.array([numbers[int(first)] for first in group], np.int64), tuple(merges)
