"""Kernels between sets of devices: FedEPC eq. (10), and the features of eq. (12).

They need sums over devices alone (`Sums`), so sets that differ by a device or two are cheap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_CHUNK = 1 << 21  # distances that are held at once


@dataclass(frozen=True)
class SetSums:
    """N sets of devices as kernels need them.

    size: (N,) devices.  pairs: (N,) sum of the distances of all ordered pairs within.  past: (N, s) sum over the
        devices of the mean distance to each of s reference sets.  features: (N, f) sums of phi.
    """

    size: Floats
    pairs: Floats
    past: Floats
    features: Floats


def distances(x: Floats, y: Floats) -> Floats:
    """Euclidean distances (n, m) between contexts (n, 5) and (m, 5)."""
    from scipy.spatial.distance import cdist

    return np.asarray(cdist(x, y))


def mean_distances(x: Floats, others: Floats, sizes: NDArray[np.int64]) -> Floats:
    """(n, s): each context's mean distance to each of s sets, one after another in ``others``."""
    if not len(sizes):
        return np.zeros((len(x), 0))
    starts = np.cumsum(sizes) - sizes
    step = max(1, _CHUNK // len(others))
    sums = [np.add.reduceat(distances(x[i : i + step], others), starts, axis=1) for i in range(0, len(x), step)]
    return np.asarray(np.concatenate([np.zeros((0, len(sizes))), *sums]) / sizes, np.float64)


def between(contexts: Floats, sizes: NDArray[np.int64]) -> Floats:
    """(s, s): the mean distances of all pairs of contexts between and, on the diagonal, within each of s sets."""
    if not len(sizes):
        return np.zeros((0, 0))
    to_sets = mean_distances(contexts, contexts, sizes)
    means = np.add.reduceat(to_sets, np.cumsum(sizes) - sizes, axis=0) / sizes[:, None]
    return np.asarray((means + means.T) / 2)


def energy_distance(cross: Any, own: Any, other: Any) -> Floats:
    """d(A, A') = sqrt(2 E|x - y| - E|x - x'| - E|y - y'|): the root of the energy distance of two sets of contexts.

    cross, own, other: mean distances 1 / (|A| |A'|) sum sum ||x_i - x_j|| between the sets and within each. 0 for equal
        sets, and a distance in a Hilbert space (Szekely and Rizzo, Energy statistics, 2013; Sejdinovic et al.,
        Equivalence of distance-based and RKHS-based statistics, 2013).
    """
    return np.asarray(np.sqrt(np.maximum(2 * np.asarray(cross) - (own + other), 0.0)))


def printed_distance(total: Any, size: Any, other: Any) -> Floats:
    """The distance of eq. (10) as printed: the sum over all pairs over m^2, m the larger size."""
    return np.asarray(total / np.maximum(size, other) ** 2)


def matern(d: Any, length_scale: float) -> Floats:
    """Eq. (10) with sigma = 1: the Matern kernel of smoothness 3/2 at distance d.

    It is positive definite for distances of any Hilbert space (Schoenberg, 1938).
    """
    scaled = np.sqrt(3.0) * np.asarray(d, np.float64) / length_scale
    return np.asarray((1.0 + scaled) * np.exp(-scaled))


def phi(x: Floats) -> Floats:
    """Contexts (n, 5) -> (n, 11): 1, x and x squared by elements. Eq. (12), theta in R^10 and one for the count."""
    return np.concatenate([np.ones((len(x), 1)), x, x * x], axis=1)
