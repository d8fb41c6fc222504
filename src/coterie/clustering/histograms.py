"""Clusters of label histograms: Hellinger distance and density clusterings (HACCS: Wolfrath et al., IPDPS 2022)."""

from __future__ import annotations

from typing import Literal

import numpy as np

from coterie.clustering.labels import by_first_row
from coterie.protocol.arrays import Array, Doubles, Integers
from coterie.protocol.errors import UserError

Density = Literal["dbscan", "optics"]


def hellinger(histograms: Array) -> Doubles:
    """(n, n) Hellinger distances in [0, 1] between rows: H(p, q)^2 = 1/2 sum_c (sqrt(p_c) - sqrt(q_c))^2.

    histograms: (n, classes) finite, at least 0. p is a row over its sum; zeros count as uniform. Raises UserError.
    """
    rows = np.asarray(histograms, np.float64)
    if rows.ndim != 2 or not rows.shape[1]:
        raise UserError(f"histograms must be (devices, classes), not {rows.shape}")
    if not np.isfinite(rows).all() or (rows < 0).any():
        bad = int(np.flatnonzero(~(np.isfinite(rows) & (rows >= 0)).all(axis=1))[0])
        raise UserError(f"histogram {bad} has a negative or infinite count, or NaN: counts are at least 0")
    most = rows.max(axis=1, keepdims=True)
    rows = np.where(most > 0, rows / np.where(most > 0, most, 1), 1.0)  # by the largest first: no sum overflows
    roots = np.sqrt(rows / rows.sum(axis=1, keepdims=True))
    squares = np.maximum(0.0, 1.0 - roots @ roots.T)  # 1/2 (1 + 1 - 2 sum sqrt(p q))
    np.fill_diagonal(squares, 0.0)
    return np.asarray(np.sqrt((squares + squares.T) / 2))


def density_clusters(distances: Doubles, method: Density = "dbscan", radius: float = 0.35) -> Integers:
    """(n,) numbers of clusters 0, 1, ... of two devices or more, by first device, then one for each other device.

    distances: (n, n), symmetric, 0 on the diagonal.  method: ``dbscan`` joins devices within ``radius`` of each other,
    over any chain (Ester et al., KDD 1996). ``optics`` (Ankerst et al., SIGMOD 1999) takes valleys of the reachability
    plot (scikit-learn's xi), without a radius. Raises UserError unless the radius is positive.
    """
    if not 0 < radius < np.inf:
        raise UserError(f"the radius of a density clustering must be positive and finite, not {radius}")
    n = len(distances)
    if n < 2:
        return np.zeros(n, np.int64)
    from sklearn.cluster import DBSCAN, OPTICS  # here, so that a list of systems does not wait for it

    if method == "dbscan":
        found = DBSCAN(eps=radius, min_samples=2, metric="precomputed").fit_predict(distances)
    else:
        with np.errstate(divide="ignore", invalid="ignore"):  # duplicates have a reachability of 0
            found = OPTICS(min_samples=2, metric="precomputed").fit_predict(distances)
    alone = found < 0
    found = np.where(alone, found.max() + 1 + np.cumsum(alone), found)
    return by_first_row(found)
