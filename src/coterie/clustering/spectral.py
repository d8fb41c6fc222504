"""Oblivious spectral clustering, algorithm 2 of "FedCAPrivacy": soft clusters from distances between shuffled rows.

Departures (docs/systems/fedcaprivacy_appendix.md; ``literal=True`` keeps the text, and fails on planted clusters): D is
the row sums of A, U the eigenvectors of the *smallest* eigenvalues of L_norm, and the centre epsilon_k a cluster's mean
*row*. The paper's epsilon_j (a threshold) is called ``budget``.

A shuffle of the input gives the same clusters bit for bit.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from coterie.clustering import affinity as of
from coterie.clustering.affinity import Gamma, Kernel, affinity
from coterie.clustering.labels import by_first_row
from coterie.protocol.arrays import Array, Doubles, Flags, Integers
from coterie.protocol.errors import UserError
from coterie.protocol.threads import one_thread

KMEANS_STARTS = 10


@dataclass(frozen=True, eq=False)
class Soft:
    """Row j is that of the input.

    labels: (n,) int64, each row's cluster by k-means.  closeness: (n, c) float64, a_jk in [0, 1].
    membership: (n, c) bool, phi: every row has a cluster; a cluster may, rarely, be empty.
    affinity: (n, n) float64, A of eq. (8).  fewer_because: why c is smaller than asked for, or ``""``.
    """

    labels: Integers
    closeness: Doubles
    membership: Flags
    affinity: Doubles
    fewer_because: str


def soft_spectral(
    rows: Array, clusters: int, gamma: Gamma = 0.5, kernel: Kernel = "laplacian", *, literal: bool = False
) -> Soft:
    """Algorithm 2 over rows (n, d) real: flat models or sketches.

    Neither order nor a common added vector (exact differences given) changes a row's clusters. c is at most the number
    of distinct rows, and empty clusters are dropped (``Soft.fewer_because``). gamma, kernel: see `affinity`;
    ``"median"`` is taken anew for eq. (8) and a_jk.  literal: the algorithm as printed. Raises UserError.
    """
    distances = of.pairwise_distances(rows)
    order = of.lexicographic_order(rows)  # decides between rows that distances alone cannot tell apart
    ordered = distances[np.ix_(order, order)]
    return _reordered(soft_spectral_from_distances(ordered, clusters, gamma, kernel, literal=literal), order)


def soft_spectral_from_distances(
    distances: Array, clusters: int, gamma: Gamma = 0.5, kernel: Kernel = "laplacian", *, literal: bool = False
) -> Soft:
    """`soft_spectral` of distances (n, n) alone. Where these can't tell rows apart the order of the input decides.
    Raises UserError for impossible distances.
    """
    import sklearn.cluster  # noqa: F401  # loads its threads before they are limited

    distances = distance_matrix(distances)
    if isinstance(clusters, bool) or not isinstance(clusters, int | np.integer) or clusters < 1:
        raise UserError(f"clusters must be a whole number of at least 1, not {clusters!r}")
    order = canonical_order(distances)
    with one_thread():
        soft = _algorithm_2(distances[np.ix_(order, order)], int(clusters), gamma, kernel, literal)
    return _reordered(soft, order)


def canonical_order(distances: Doubles) -> NDArray[np.intp]:
    """It follows from the distances (n, n), not from their order."""
    rank = _dense_rank(np.sort(distances, axis=1))
    while (counts := np.bincount(rank)).max() > 1:
        first = np.flatnonzero(rank == np.flatnonzero(counts > 1)[0])[0]
        behind = np.arange(len(rank)) != first
        rank = _dense_rank(np.column_stack([rank, behind, distances[:, first]]))
    return np.argsort(rank)


def soft_membership(closeness: Doubles) -> Flags:
    """Algorithm 2's last step: (n, c) where closeness a_jk reaches the row's budget, its mean."""
    budget = closeness.mean(axis=1)
    budget = np.minimum(budget, closeness.max(axis=1))  # the mean of equal numbers may be rounded up beyond them
    return np.asarray(closeness >= budget[:, None])


def without_small_clusters(soft: Soft, minimum: int) -> Flags:
    """phi (n, c) without clusters of fewer than ``minimum`` rows, but for one. A row that loses its last cluster
    joins the closest other. Raises UserError for minimum < 1.
    """
    if minimum < 1:
        raise UserError(f"the smallest cluster must have at least 1 row, not {minimum}")
    phi = soft.membership.copy()
    while True:
        sizes = phi.sum(axis=0)
        kept = np.flatnonzero(sizes)
        small = kept[sizes[kept] < minimum]
        if len(small) == 0 or len(kept) == 1:
            return phi
        gone = small[sizes[small].argmin()]
        phi[:, gone] = False
        others = kept[kept != gone]
        homeless = np.flatnonzero(~phi.any(axis=1))
        phi[homeless, others[soft.closeness[np.ix_(homeless, others)].argmax(axis=1)]] = True


def _algorithm_2(distances: Doubles, clusters: int, gamma: Gamma, kernel: Kernel, literal: bool) -> Soft:
    n = len(distances)
    distinct = n - int((np.tril(distances == 0, -1).any(axis=1)).sum())  # rows unlike every row before them
    c = min(clusters, distinct)
    A = affinity(distances, gamma, kernel)  # eq. (8)
    D = np.diag(A) if literal else A.sum(axis=1)
    U = embedding(A, D)[1]
    U = unit_rows(U[:, -c:] if literal else U[:, :c])
    labels = _kmeans(U, c)
    E = unit_rows(_eigenvectors(A)[1][:, -c:])
    found = int(labels.max()) + 1
    members = [E[labels == k] for k in range(found)]  # none of them empty
    centre = np.stack([np.full(c, m.mean()) if literal else m.mean(axis=0) for m in members])
    to_centre = of.cross_distances(E, centre)  # l. 14: |E_norm[j] - epsilon_k|
    a = affinity(to_centre, gamma, kernel)
    reasons = [f"only {distinct} distinct rows among {n}"] if distinct < clusters else []
    reasons += [f"k-means left {c - found} of {c} clusters empty"] if found < c else []
    return Soft(labels, a, soft_membership(a), A, "; ".join(reasons))


def embedding(A: Doubles, D: Doubles | None = None) -> tuple[Doubles, Doubles]:
    """Eigenvalues (n,), ascending, and eigenvectors (n, n), as columns, of L_norm = D^-1/2 (D - A) D^-1/2.

    A: (n, n).  D: (n,), by default the row sums of A.
    """
    D = A.sum(axis=1) if D is None else D
    scale = 1 / np.sqrt(D)
    return _eigenvectors(scale[:, None] * (np.diag(D) - A) * scale)


def _eigenvectors(symmetric: Doubles) -> tuple[Doubles, Doubles]:
    values, vectors = np.linalg.eigh(symmetric)
    largest = np.abs(vectors).argmax(axis=0)
    return values, vectors * np.where(vectors[largest, np.arange(len(vectors))] < 0, -1.0, 1.0)


def unit_rows(vectors: Doubles) -> Doubles:
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(length > 0, length, 1.0)


def _kmeans(points: Doubles, clusters: int) -> Integers:
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct points than clusters: told in the result
        raw = KMeans(clusters, n_init=KMEANS_STARTS, random_state=0).fit_predict(points)
    return by_first_row(raw)


def _reordered(soft: Soft, order: NDArray[np.intp]) -> Soft:
    back = np.argsort(order)
    rows = {name: getattr(soft, name)[back] for name in ("labels", "closeness", "membership")}
    return replace(soft, **rows, affinity=soft.affinity[np.ix_(back, back)])


def _dense_rank(keys: Doubles) -> NDArray[np.intp]:
    return np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)


def distance_matrix(distances: Array) -> Doubles:
    matrix = np.asarray(distances, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.size == 0:
        raise UserError(f"distances must be a non-empty square matrix, not of shape {matrix.shape}")
    if not np.isfinite(matrix).all() or (matrix < 0).any() or np.diag(matrix).any() or (matrix != matrix.T).any():
        raise UserError("distances must be finite, not negative, symmetric and zero on the diagonal")
    return matrix
