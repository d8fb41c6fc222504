"""Clusters of updates by their cosine similarity: by greedy merging, and in two parts."""

from __future__ import annotations

import numpy as np

from coterie.clustering.labels import by_first_row
from coterie.protocol.arrays import Array, Flags, Integers, finite
from coterie.protocol.errors import UserError


def agglomerated(vectors: Array, least: float) -> tuple[Integers, list[float]]:
    """(n,) groups 0, 1, ... numbered by their first row, and each merge's similarity (FLACC: Mehta and Shao, 2023).

    vectors: (n, d) finite. The two groups of largest cosine similarity merge, and their rows add up, while that is
    above ``least``; ties go to the lowest numbers. A row of zeros stays alone. Raises UserError.
    """
    rows = finite(vectors, "vectors", "groups", "d")
    if not -1 <= least <= 1:
        raise UserError(f"a cosine similarity lies between -1 and 1; {least} is no bound for one")
    n = len(rows)
    group = np.arange(n)
    most = float(np.abs(rows).max(initial=0.0))
    gram = (rows / most) @ (rows / most).T if most else np.zeros((n, n))
    alive = gram.diagonal() > 0
    merges: list[float] = []
    while alive.sum() > 1:
        sizes = np.sqrt(np.where(alive, gram.diagonal(), 1.0))
        cosines = np.where(alive[:, None] & alive & ~np.eye(n, dtype=bool), gram / np.outer(sizes, sizes), -np.inf)
        i, j = sorted(int(place) for place in np.unravel_index(int(cosines.argmax()), cosines.shape))
        if not cosines[i, j] > least:
            break
        merges.append(float(cosines[i, j]))
        gram[i] += gram[j]
        gram[:, i] += gram[:, j]
        alive[j] = False
        alive[i] = gram[i, i] > 0  # opposite rows may cancel
        group[group == j] = i
    return by_first_row(group), merges


def bipartition(vectors: Array) -> tuple[Flags, float]:
    """(n,) each row's part (False for the first row's), and alpha_cross^max of the optimal bipartition. Sattler,
    Mueller and Samek, IEEE TNNLS 2021, algorithm 1.

    vectors: (n, d) finite, n >= 2; a row of zeros is orthogonal to all. O(n^2 d). Raises UserError for other vectors.
    """
    from scipy.cluster.hierarchy import linkage, to_tree  # slow to import, and named by a system's module
    from scipy.spatial.distance import squareform

    rows = finite(vectors, "vectors", "n", "d")
    if len(rows) < 2:
        raise UserError(f"a bipartition takes at least two vectors, not {len(rows)}")
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    rows = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)
    apart = np.clip(1 - rows @ rows.T, 0, 2)
    np.fill_diagonal(apart, 0)
    tree = linkage(squareform(apart, checks=False), "single")
    second = np.zeros(len(rows), np.bool_)
    second[to_tree(tree).get_right().pre_order()] = True  # of the last merge; several may be at its height
    return second ^ second[0], 1 - float(tree[-1, 2])


def cosines_to(directions: Array, vector: Array) -> Array:
    """(n,), of directions (n, d) and a vector (d,); 0 where one of them is 0."""
    sizes = np.linalg.norm(directions, axis=1) * np.linalg.norm(vector)
    return np.asarray(directions @ vector / np.where(sizes > 0, sizes, np.inf))
