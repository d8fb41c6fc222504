"""The belief about the rewards of sets of devices: FedEPC's kernel between sets, eq. (10), and what follows from it.

Kernels need sums over devices alone (`SetSums`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from coterie.selection.contexts import standardised_rewards

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
    from scipy.spatial.distance import cdist

    return np.asarray(cdist(x, y))


def mean_distances(x: Floats, others: Floats, sizes: NDArray[np.int64]) -> Floats:
    """(n, s): each context's, to each of s sets, one after another in ``others``."""
    if not len(sizes):
        return np.zeros((len(x), 0))
    starts = np.cumsum(sizes) - sizes
    step = max(1, _CHUNK // len(others))
    sums = [np.add.reduceat(distances(x[i : i + step], others), starts, axis=1) for i in range(0, len(x), step)]
    return np.asarray(np.concatenate([np.zeros((0, len(sizes))), *sums]) / sizes, np.float64)


def between(contexts: Floats, sizes: NDArray[np.int64]) -> Floats:
    """(s, s): mean distances of contexts between and, on the diagonal, within s sets."""
    if not len(sizes):
        return np.zeros((0, 0))
    to_sets = mean_distances(contexts, contexts, sizes)
    means = np.add.reduceat(to_sets, np.cumsum(sizes) - sizes, axis=0) / sizes[:, None]
    return np.asarray((means + means.T) / 2)


def energy_distance(cross: Any, own: Any, other: Any) -> Floats:
    """d(A, A') = sqrt(2 E|x - y| - E|x - x'| - E|y - y'|): the root of the energy distance of two sets of contexts,
    a distance in a Hilbert space (Szekely and Rizzo, Energy statistics, 2013; Sejdinovic et al., Equivalence of
    distance-based and RKHS-based statistics, 2013). cross, own, other: mean distances between and within.
    """
    return np.asarray(np.sqrt(np.maximum(2 * np.asarray(cross) - (own + other), 0.0)))


def printed_distance(total: Any, size: Any, other: Any) -> Floats:
    """Eq. (10) as printed: the sum over all pairs over m^2, m the larger size."""
    return np.asarray(total / np.maximum(size, other) ** 2)


def matern(d: Any, length_scale: float) -> Floats:
    """Eq. (10) with sigma = 1: the Matern kernel of smoothness 3/2 at distance d, positive definite in any Hilbert
    space (Schoenberg, 1938).
    """
    scaled = np.sqrt(3.0) * np.asarray(d, np.float64) / length_scale
    return np.asarray((1.0 + scaled) * np.exp(-scaled))


def phi(x: Floats) -> Floats:
    """Contexts (n, 5) -> (n, 11): 1, x and x squared by elements. Eq. (12), theta in R^10 and one for the count."""
    return np.concatenate([np.ones((len(x), 1)), x, x * x], axis=1)


# The belief: a Gaussian process with a linear prior mean, and the paper's recursion


class Belief(Protocol):
    """In units of the reward."""

    def __call__(self, sets: SetSums) -> tuple[Floats, Floats]:
        """Mean and standard deviation, (N,) each."""


@dataclass(frozen=True)
class Past:
    """The sets tried. contexts: (M, 5), one set after another."""

    contexts: Floats
    sizes: NDArray[np.int64]
    features: Floats
    rewards: Floats


def posterior(past: Past, length_scale: float, noise: float, slope: float, sigma: float) -> Belief:
    """The posterior of a Gaussian process on the sets tried: Rasmussen and Williams, 2006, alg. 2.1 and sect. 2.7.

    The prior mean is theta^T Phi(A) with theta ~ N(0, slope^2 I), Phi(A) the mean of phi over the cluster with zeros
    for devices not in A (eq. 12). The rest is a process with the kernel of eq. (10). noise: standard deviation of a
    reward, in units of the process's.
    """
    from scipy.linalg import cho_solve, cholesky, solve_triangular

    rewards, centre, unit = standardised_rewards(past.rewards)
    apart = between(past.contexts, past.sizes)
    own = np.diag(apart)
    gram = covariance(past, apart, length_scale, slope, sigma) + noise**2 * np.eye(len(own))
    lower = cholesky(gram, lower=True) if len(own) else gram
    weights = cho_solve((lower, True), rewards) if len(own) else rewards

    def belief(sets: SetSums) -> tuple[Floats, Floats]:
        size = sets.size[:, None]
        d = energy_distance(sets.past / size, (sets.pairs / sets.size**2)[:, None], own)
        cross = sigma**2 * matern(d, length_scale) + slope**2 * sets.features @ past.features.T  # (N, s)
        prior = sigma**2 + slope**2 * np.square(sets.features).sum(axis=1)
        explained = np.square(solve_triangular(lower, cross.T, lower=True)).sum(axis=0) if len(own) else 0.0
        deviation = np.sqrt(np.maximum(prior - explained, 0.0))
        return centre + unit * (cross @ weights), unit * deviation

    return belief


def covariance(past: Past, apart: Floats, length_scale: float, slope: float, sigma: float) -> Floats:
    """(s, s) of the tried sets' rewards, a priori and without noise. apart: their `between`."""
    own = np.diag(apart)
    kernel = matern(energy_distance(apart, own[:, None], own), length_scale)
    return np.asarray(sigma**2 * kernel + slope**2 * past.features @ past.features.T)


def printed_posterior(past: Past, length_scale: float, noise: float) -> Belief:
    """Algorithm 3, line 8, with mu_0 = 0, and the distance of eq. (10), as printed.

    The kernel is not positive semi-definite; a negative variance counts as 0.
    """
    sizes = past.sizes.astype(np.float64)
    total = between(past.contexts, past.sizes) * np.outer(sizes, sizes)
    gram = matern(printed_distance(total, sizes[:, None], sizes), length_scale)
    weights = np.zeros(len(sizes))
    for t, reward in enumerate(past.rewards):
        weights[t] = (reward - gram[t, :t] @ weights[:t]) / (gram[t, t] + noise**2)

    def belief(sets: SetSums) -> tuple[Floats, Floats]:
        size = sets.size[:, None]
        k = matern(printed_distance(sets.past * sizes, size, sizes), length_scale)
        variance = matern(printed_distance(sets.pairs, sets.size, sets.size), length_scale)
        if len(sizes):
            variance = variance - k[:, -1] ** 2 / (gram[-1, -1] + noise**2)
        return k @ weights, np.sqrt(np.maximum(variance, 0.0))

    return belief
