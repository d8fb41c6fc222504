"""Skellam noise: the difference of two Poisson numbers of one mean. Its draws and its Rényi differential privacy.

Sums of independent Skellam numbers are Skellam numbers, whose variances add up. So several parties can each add a share
of the noise (Agarwal, Kairouz, Liu, "The Skellam mechanism for differentially private federated learning", NeurIPS
2021).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from coterie.dp.gaussian import check_delta
from coterie.protocol.errors import UserError
from coterie.protocol.randomness import Secrets

Floats = NDArray[np.float64]
LEAST_VARIANCE = 100.0
"""Of a share."""
# the sampler is for means of at least 10, and less noise hides nothing
MOST_VARIANCE = 2.0**50  # whole numbers of twice as many bits are no longer exact
_TABLE = 64  # orders below this are taken in steps of 1/50, and then whole ones
_MOST_ORDER = 2048


def draw(count: int, variance: float, secrets: Secrets) -> NDArray[np.int64]:
    """(count,) independent, of mean 0. Raises UserError for an impossible variance."""
    numbers = _poisson(2 * count, possible(variance) / 2, secrets)
    return numbers[:count] - numbers[count:]


def possible(variance: float) -> float:
    """Raises UserError outside LEAST_VARIANCE to MOST_VARIANCE."""
    if not LEAST_VARIANCE <= variance <= MOST_VARIANCE:
        raise UserError(
            f"noise of variance {variance:g}, in steps of the grid: from {LEAST_VARIANCE:g} to {MOST_VARIANCE:g} is "
            "possible"
        )
    return variance


def _poisson(count: int, mean: float, secrets: Secrets) -> NDArray[np.int64]:
    b = 0.931 + 2.53 * math.sqrt(mean)
    a, scale = -0.059 + 0.02483 * b, 1.1239 + 1.1328 / (b - 3.4)
    sure = 0.9277 - 3.6224 / (b - 2)
    found, left = np.empty(count, np.int64), np.arange(count)
    while len(left):
        u, v = secrets.uniform(2 * len(left)).reshape(2, -1)
        u -= 0.5
        near = 0.5 - np.abs(u)
        k = np.floor((2 * a / near + b) * u + mean + 0.43)
        taken = (near >= 0.07) & (v <= sure)
        open_ = ~taken & (k >= 0) & ~((near < 0.013) & (v > near))
        at = np.flatnonzero(open_)
        ratio = np.log(v[at] * scale / (a / near[at] ** 2 + b))
        taken[at] = ratio <= _log_poisson(k[at], mean)
        found[left[taken]] = k[taken]
        left = left[~taken]
    return found


def _log_poisson(k: Floats, mean: float) -> Floats:
    from scipy.special import gammaln

    far = np.maximum(k, 1.0)
    ratio = (mean - far) / far
    deviance = far * (ratio - np.log1p(ratio))  # of k from the mean
    series = 1 / (12 * far) - 1 / (360 * far**3)  # Stirling
    large = -deviance - series - 0.5 * np.log(2 * math.pi * far)
    return np.where(k < 1000, k * math.log(mean) - mean - gammaln(k + 1), large)


def rdp(order: Floats, variance: float, sensitivity_l2: float, sensitivity_l1: float) -> Floats:
    """Upper bounds on the Rényi divergences of whole orders >= 2 (Agarwal et al. 2021, theorem 3.5).

    variance: of the noise in each coordinate.  sensitivity_l2, sensitivity_l1: of the vector of whole numbers.
    """
    square = sensitivity_l2**2
    small = ((2 * order - 1) * square + 6 * sensitivity_l1) / (4 * variance**2)
    return order * square / (2 * variance) + np.minimum(small, 3 * sensitivity_l1 / (2 * variance))


def epsilon(skellam: Mapping[tuple[float, float, float], int], others: float, pure: float, delta: float) -> float:
    """The epsilon at ``delta`` of releases together, by Rényi divergences: an upper bound, seldom high by a tenth.

    skellam: by (noise multiplier, L2 sensitivity, L1 sensitivity), how many.  others: 1 / z^2 of all Gaussians.  pure:
    the sum of pure epsilons.
    """
    check_delta(delta)
    return _epsilon(tuple(sorted(skellam.items())), others, delta) + pure


@lru_cache(maxsize=1024)
def _epsilon(skellam: tuple[tuple[tuple[float, float, float], int], ...], others: float, delta: float) -> float:
    from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

    orders, whole = _orders()
    chords = np.zeros(len(whole))
    for (z, l2, l1), count in skellam:
        chords[1:] += count * (whole[1:] - 1) * rdp(whole[1:], (z * l2) ** 2, l2, l1)
    spent = np.interp(orders, whole, chords) / (orders - 1) + orders * others / 2
    return float(compute_epsilon(orders, spent, delta)[0])


@lru_cache(maxsize=1)
def _orders() -> tuple[Floats, Floats]:
    whole = np.arange(1, _MOST_ORDER + 1, dtype=np.float64)
    return np.concatenate([np.arange(51, 50 * _TABLE) / 50, whole[_TABLE - 1 :]]), whole


@lru_cache(maxsize=256)
def noise_multiplier(budget: float, delta: float, releases: int, sensitivity_l2: float, sensitivity_l1: float) -> float:
    """The least z, within a millionth, with which so many releases have at most this epsilon. Raises UserError for
    an impossible epsilon, or no release.
    """
    if not 0 < budget < math.inf or releases < 1:
        raise UserError(f"noise for epsilon {budget} and {releases} releases: both are positive and finite")
    low, high = 0.0, 1.0
    while epsilon({(high, sensitivity_l2, sensitivity_l1): releases}, 0.0, 0.0, delta) > budget:
        low, high = high, 2 * high
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        fits = epsilon({(middle, sensitivity_l2, sensitivity_l1): releases}, 0.0, 0.0, delta) <= budget
        low, high = (low, middle) if fits else (middle, high)
    return high
