"""The Gaussian mechanism: clipping, noise, and the epsilon that they give. Accounting is dp-accounting's.

A noise multiplier z is the standard deviation of the noise in units of the L2 sensitivity. The worst pair of outputs is
N(0, z^2) and N(1, z^2). The proof is about real numbers; noise is drawn in float64, whose lowest bits are not Gaussian
(Mironov 2012).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coterie.protocol.errors import UserError

GRID = 1e-3
"""The step of a privacy loss distribution, in standard deviations 1 / z of the loss."""
# Epsilon is high by about 1e-7 of itself. A fixed step would take gigabytes at z = .01.
FINE = (0.05, 1e5)
"""Noise multipliers for which the grid is used."""
# outside it loses its digits, and dp-accounting's closed form of a single Gaussian counts (Balle and Wang 2018)
MOST_EPSILON = 1e6
LEAST_DELTA = 1e-15
"""Bounds on what noise is drawn for."""
# drawn numbers end at 8.6 standard deviations (Secrets.normal), and dp-accounting fails far outside
_NUDGE = 1e-6


def epsilon(noise_multiplier: float, delta: float, releases: int = 1) -> float:
    """The least epsilon at ``delta`` of so many Gaussian releases of one party; infinite without noise. Raises
    UserError for impossible numbers.
    """
    check_delta(delta)
    if not noise_multiplier >= 0:
        raise UserError(f"a noise multiplier is at least 0, not {noise_multiplier}")
    if releases != int(releases) or releases < 0:
        raise UserError(f"a number of releases is a whole number of at least 0, not {releases}")
    if releases == 0 or math.isinf(noise_multiplier):
        return 0.0
    # k releases are one with noise multiplier z / sqrt(k), exactly (Koskela et al. 2020; Doroshenko et al. 2022).
    return _epsilon(noise_multiplier / math.sqrt(releases), delta) if noise_multiplier else math.inf


def noise_multiplier(epsilon: float, delta: float, releases: int = 1) -> float:
    """The least whose releases have at most ``epsilon`` at ``delta``, within 1e-6 of itself. Raises UserError unless
    0 < epsilon <= MOST_EPSILON, LEAST_DELTA <= delta < 1 and releases >= 1.
    """
    check_delta(delta)
    if not 0 < epsilon < math.inf:
        raise UserError(f"epsilon is positive and finite, not {epsilon}: without noise there is no epsilon")
    if epsilon > MOST_EPSILON or delta < LEAST_DELTA:
        raise UserError(
            f"noise for epsilon {epsilon:g} at delta {delta:g}: epsilon is at most {MOST_EPSILON:g} and delta at least "
            f"{LEAST_DELTA:g}"
        )
    if releases != int(releases) or releases < 1:
        raise UserError(f"a number of releases is a whole number of at least 1, not {releases}")
    return _multiplier(epsilon, delta) * math.sqrt(releases)


def clipped(rows: ArrayLike, clip: float) -> NDArray[np.float64]:
    """Rows (n, d), those longer than ``clip`` scaled to this L2 norm. Raises UserError for NaN, infinity, clip <= 0."""
    values = np.asarray(rows, np.float64)
    if not 0 < clip < math.inf:
        raise UserError(f"a clipping norm is positive and finite, not {clip}")
    if values.ndim != 2 or not np.isfinite(values).all():
        raise UserError(f"what is clipped are rows (n, d) of finite numbers, not {values.shape}")
    norms = np.linalg.norm(values, axis=1, keepdims=True)
    return np.asarray(values * (clip / np.maximum(norms, clip)))


def mean_sensitivity(clip: float, samples: int) -> float:
    """How far the mean of so many rows of L2 norm at most ``clip`` moves if one is replaced. Raises UserError without a
    row.
    """
    if samples < 1:
        raise UserError("a mean needs at least one sample")
    return 2 * clip / samples


def noised(
    values: ArrayLike, noise_multiplier: float, sensitivity: float, normal: Callable[[int], NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Values of any shape plus Gaussian noise of standard deviation noise_multiplier x sensitivity.

    sensitivity: L2, of all values together.  normal: such as ``party.secrets("noise").normal``. Raises UserError for
    impossible noise.
    """
    array = np.asarray(values, np.float64)
    sigma = noise_multiplier * sensitivity
    if not (noise_multiplier >= 0 and sensitivity >= 0 and math.isfinite(sigma)):
        raise UserError(f"noise of {noise_multiplier} x {sensitivity} is none that can be drawn")
    return np.asarray(array + sigma * normal(array.size).reshape(array.shape))


def loss_distribution(noise_multiplier: float, step: float) -> Any:
    """Of one Gaussian release on a grid of this step, rounded up (dp-accounting's)."""
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism  # a second to import

    return from_gaussian_mechanism(noise_multiplier, value_discretization_interval=step)


@lru_cache(maxsize=1024)
def _epsilon(z: float, delta: float) -> float:
    from dp_accounting.gaussian_mechanism import get_epsilon_gaussian

    if not FINE[0] <= z <= FINE[1]:
        return float(get_epsilon_gaussian(z, delta))
    return float(loss_distribution(z, GRID / z).get_epsilon_for_delta(delta))


@lru_cache(maxsize=1024)
def _multiplier(target: float, delta: float) -> float:
    from dp_accounting.gaussian_mechanism import get_sigma_gaussian

    z = float(get_sigma_gaussian(target, delta))  # the closed form, which the grid exceeds by a trifle
    while _epsilon(z, delta) > target:
        z *= 1 + _NUDGE
    return z


def check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise UserError(f"delta lies between 0 and 1, not at {delta}: far below 1 / samples, 1e-5 say")
