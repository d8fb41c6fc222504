"""Composition of releases by several mechanisms: one epsilon, from above. Accounting is dp-accounting's.

Each mechanism has a privacy loss distribution (PLD), and that of all is the convolution (Koskela et al. 2020;
Doroshenko et al., "Connect the dots", 2022), also for releases chosen by what earlier ones have shown. Skellam noise
has no PLD for vectors: Rényi divergences add up instead (``skellam.py``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from coterie.dp.gaussian import FINE, GRID, check_delta
from coterie.dp.gaussian import epsilon as gaussian_epsilon
from coterie.dp.skellam import epsilon as skellam_epsilon

MOST_STEPS = 1e6
"""On the grid of one loss."""
# more take memory and change epsilon in its fifth digit
GRID_OF_ONE = 0.03
"""In standard deviations of one sampled loss of many: rounding up adds to each."""


def composed(
    gaussian: Mapping[float, int],
    sampled: Mapping[tuple[float, float], int],
    pure: Mapping[float, int],
    delta: float,
    skellam: Mapping[tuple[float, float, float], int] = MappingProxyType({}),
) -> float:
    """The epsilon at ``delta`` of so many releases of each kind together; 0 of none.

    gaussian: by noise multiplier.  sampled: by noise multiplier and probability of the client's part in it.  pure: by
    epsilon.  skellam: by noise multiplier, L2 and L1 sensitivity; with any of these all are composed by Rényi
    divergences, and sampled ones count as not sampled. Raises UserError.
    """
    check_delta(delta)
    # N(0, z^2) against N(1, z^2): several are one with 1/z^2 = sum of 1/z_i^2.
    loss = math.fsum(sorted(count / z**2 for z, count in gaussian.items()))
    every = math.fsum([loss, *sorted(count / z**2 for (z, _), count in sampled.items())])  # all in every round
    pures = math.fsum(sorted(epsilon * count for epsilon, count in pure.items()))
    if skellam:
        return skellam_epsilon(skellam, every, pures, delta)
    basic: float = gaussian_epsilon(every**-0.5 if every else math.inf, delta) + pures
    single = sum(pure.values()) == 1 and not every
    spread = _spread(loss, sampled.items(), pure.items())
    if single or not (sampled or pure) or (every and not FINE[0] <= 1 / spread <= FINE[1]):
        return basic
    return min(basic, by_distributions(loss, tuple(sorted(sampled.items())), tuple(sorted(pure.items())), delta))


@lru_cache(maxsize=1024)
def by_distributions(
    loss: float, sampled: tuple[tuple[tuple[float, float], int], ...], pure: tuple[tuple[float, int], ...], delta: float
) -> float:
    """As ``composed``, by convolution. loss: 1 / z^2 of all Gaussians that are not sampled."""
    step = _step(loss, sampled, pure)
    parts = [_gaussian(loss**-0.5, step)] if loss else []
    parts += [_sampled(z, q, step).self_compose(count) for (z, q), count in sampled]
    parts += [_pure(epsilon, step).self_compose(count) for epsilon, count in pure]
    together, *others = parts
    for other in others:
        together = together.compose(other)
    return float(together.get_epsilon_for_delta(delta))


def _spread(loss: float, sampled: Any, pure: Any) -> float:
    return math.sqrt(
        loss
        + sum(count * min(z**-2, 4 * q * q * math.sinh(min(z**-2 / 4, 50.0))) for (z, q), count in sampled)
        + sum(count * min(epsilon, 1.0) ** 2 for epsilon, count in pure)
    )


def _step(loss: float, sampled: Any, pure: Any) -> float:
    many = sum(count for _, count in sampled)
    fine = min(GRID, GRID_OF_ONE / math.sqrt(many)) if many else GRID
    step: float = max(fine * _spread(loss, sampled, pure), *(20 / (z * MOST_STEPS) for (z, _), _ in sampled), 1e-12)
    least = min((epsilon for epsilon, _ in pure), default=0.0)
    if least >= step:
        step = least / math.ceil(least / step)
    return step


@lru_cache(maxsize=256)
def _gaussian(z: float, step: float) -> Any:
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism  # a second to import

    return from_gaussian_mechanism(z, value_discretization_interval=step)


# The client is in the sum with probability q, unknown to all that see it: (1 - q) N(0, z^2) + q N(1/2, z^2) against the
# same with N(-1/2, z^2). Adding and removing a client does not suffice under composition (Lebeda et al., "Avoiding
# pitfalls for privacy accounting of subsampled mechanisms under composition", 2024).
@lru_cache(maxsize=256)
def _sampled(z: float, q: float, step: float) -> Any:
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    return from_gaussian_mechanism(
        z,
        sensitivity=0.5,  # of one client's vector, in units of the sensitivity of a replacement
        value_discretization_interval=step,
        sampling_prob=q,
        neighboring_relation=NeighboringRelation.REPLACE_ONE,
    )


# Randomised response, which dominates any other (Kairouz, Oh, Viswanath 2015). The k choices of an exponential
# mechanism without replacement are k of them.
def _pure(epsilon: float, step: float) -> Any:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    places = math.ceil(epsilon / step - 1e-9)
    worse = 1 / (1 + math.exp(-places * step))
    return PrivacyLossDistribution.create_from_rounded_probability({places: worse, -places: 1 - worse}, 0.0, step)
