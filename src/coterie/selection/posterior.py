"""The belief about the rewards of sets: a Gaussian process with a linear prior mean, and the paper's recursion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from coterie.selection.contexts import standardised_rewards
from coterie.selection.kernels import SetSums, between, energy_distance, matern, printed_distance

Floats = NDArray[np.float64]


class Belief(Protocol):
    """What is believed of sets, in units of the reward."""

    def __call__(self, sets: SetSums) -> tuple[Floats, Floats]:
        """Mean and standard deviation (N,), (N,)."""


@dataclass(frozen=True)
class Past:
    """The sets tried: contexts (M, 5), one set after another; the sets' sizes, features, rewards."""

    contexts: Floats
    sizes: NDArray[np.int64]
    features: Floats
    rewards: Floats


def posterior(past: Past, length_scale: float, noise: float, slope: float, sigma: float) -> Belief:
    """The full posterior of a Gaussian process on the sets tried: Rasmussen and Williams, 2006, alg. 2.1 and sect. 2.7.

    The prior mean is theta^T Phi(A) with theta ~ N(0, slope^2 I), Phi(A) the mean of phi over the cluster with zeros
    for devices not in A, so theta is learnt by ridge regression (eq. 12). The rest is a process with the kernel of eq.
    (10); the whole is one process whose kernel is the sum. noise: standard deviation of a reward, in units of the
    process's. Rewards are standardised like contexts; mean and deviation are in the rewards' own units.
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
    """(s, s): the prior covariance of the rewards of the sets tried, without noise. apart: their `between`."""
    own = np.diag(apart)
    kernel = matern(energy_distance(apart, own[:, None], own), length_scale)
    return np.asarray(sigma**2 * kernel + slope**2 * past.features @ past.features.T)


def coefficients(past: Past, length_scale: float, noise: float, slope: float, sigma: float) -> Floats:
    """theta (f,) as learnt, eq. (12), in units of the standardised reward: the slope's posterior mean."""
    apart = between(past.contexts, past.sizes)
    gram = covariance(past, apart, length_scale, slope, sigma) + noise**2 * np.eye(len(apart))
    return np.asarray(slope**2 * past.features.T @ np.linalg.solve(gram, standardised_rewards(past.rewards)[0]))


def printed_posterior(past: Past, length_scale: float, noise: float) -> Belief:
    """Algorithm 3, line 8, as printed, with mu_0 = 0 and the distance of eq. (10) as printed.

    Every step uses the prior kernel, so the deviation knows the last set alone. The kernel is not positive
    semi-definite; a negative variance counts as 0.
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
