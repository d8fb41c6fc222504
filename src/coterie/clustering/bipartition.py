"""The optimal bipartition of clients by the cosine of their updates.

Sattler, Mueller and Samek, "Clustered federated learning: model-agnostic distributed multitask optimization under
privacy constraints", IEEE TNNLS 2021 (algorithm 1). Used by ``coterie.baselines.cfl``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.protocol.errors import UserError


def bipartition(vectors: NDArray[Any]) -> tuple[NDArray[np.bool_], float]:
    """(n,) each row's part (False for the first row's), and alpha_cross^max.

    vectors: (n, d) finite, n >= 2. It minimises the largest cosine similarity between rows of different parts, by
        single linkage: the last merge joins the parts at just this similarity. A row of zeros is orthogonal to all.
        O(n^2 d). Raises UserError for other vectors.
    """
    from scipy.cluster.hierarchy import linkage, to_tree  # slow to import, and named by a system's module
    from scipy.spatial.distance import squareform

    rows = np.asarray(vectors, np.float64)
    if rows.ndim != 2 or len(rows) < 2 or not np.isfinite(rows).all():
        raise UserError(f"a bipartition takes at least two finite vectors, not {rows.shape} or NaN or infinity")
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    rows = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)
    apart = np.clip(1 - rows @ rows.T, 0, 2)
    np.fill_diagonal(apart, 0)
    tree = linkage(squareform(apart, checks=False), "single")
    second = np.zeros(len(rows), np.bool_)
    second[to_tree(tree).get_right().pre_order()] = True  # of the last merge; several may be at its height
    return second ^ second[0], 1 - float(tree[-1, 2])
