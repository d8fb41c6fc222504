"""How many clusters there are: the eigengap of an affinity, with a floor that noise does not pass.

The eigengap (von Luxburg, 2007, section 8.3) names at least two, which count if the embedding's spread within them (Ng,
Jordan and Weiss, NIPS 2001) is less than in each of nine Gaussian clouds of the same covariance (Liu, Hayes, Nobel and
Marron, JASA 2008; Torgerson's classical scaling), and at most .6 of their mean. Clusters are tested in turn.
"""

from __future__ import annotations

import warnings

import numpy as np
from numpy.random import Generator

from coterie.clustering.affinity import Gamma, Kernel, affinity, pairwise_distances
from coterie.clustering.spectral import canonical_order, distance_matrix, embedding, unit_rows
from coterie.protocol.arrays import Array, Doubles, Integers
from coterie.protocol.errors import UserError
from coterie.protocol.threads import one_thread

CLOUDS = 9
MOST_SPREAD = 0.6
SMALLEST = 3
_STEPS = 10  # of k-means


def count_clusters(
    distances: Array, rng: Generator, gamma: Gamma = 0.5, kernel: Kernel = "laplacian", smallest: int = SMALLEST
) -> int:
    """Among n rows with distances (n, n); 1 where none stand out.

    rng: draws the clouds.  gamma, kernel: see `affinity`.  smallest: rows of a cluster. Raises UserError for impossible
    distances or ``smallest``.
    """
    if smallest < 1:
        raise UserError(f"the smallest cluster must have at least 1 row, not {smallest}")
    distances = distance_matrix(distances)
    order = canonical_order(distances)
    with one_thread():
        return _count(distances[np.ix_(order, order)], rng, gamma, kernel, smallest)


def _count(distances: Doubles, rng: Generator, gamma: Gamma, kernel: Kernel, smallest: int) -> int:
    eigenvalues, vectors = embedding(affinity(distances, gamma, kernel))
    gaps = np.diff(eigenvalues)[1 : len(distances) // smallest]  # after the second, the third, ...
    for c in 2 + np.argsort(-gaps, kind="stable"):
        within, labels = _share_within(vectors, c)
        if np.bincount(labels, minlength=c).min() >= smallest:
            break
    else:
        return 1  # too few rows, or nothing but rows that stand apart
    deviations, of_clouds = np.sqrt(_principal_variances(distances)), []
    for _ in range(CLOUDS):
        cloud = rng.normal(size=distances.shape) * deviations
        _, vectors = embedding(affinity(pairwise_distances(cloud), gamma, kernel))
        of_clouds.append(_share_within(vectors, c)[0])
    if within >= min(of_clouds) or within > MOST_SPREAD * np.mean(of_clouds):
        return 1
    inside = (np.flatnonzero(labels == k) for k in range(c))
    return sum(_count(distances[np.ix_(own, own)], rng, gamma, kernel, smallest) for own in inside)


def _share_within(vectors: Doubles, c: int) -> tuple[float, Integers]:
    from scipy.cluster.vq import kmeans2
    from scipy.linalg import qr

    rows = unit_rows(vectors[:, :c])
    far_apart = qr(rows.T, mode="r", pivoting=True)[-1][:c]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a cluster that is left empty is too small
        centres, labels = kmeans2(rows, rows[far_apart], _STEPS, minit="matrix")
    within = np.square(rows - centres[labels]).sum()
    total = np.square(rows - rows.mean(axis=0)).sum()
    return float(within / total) if total > 0 else 1.0, labels.astype(np.int64)


def _principal_variances(distances: Doubles) -> Doubles:
    squares = np.square(distances)
    centred = squares - squares.mean(axis=0) - squares.mean(axis=1)[:, None] + squares.mean()
    return np.maximum(np.linalg.eigvalsh(-centred / 2), 0) / max(len(distances) - 1, 1)
