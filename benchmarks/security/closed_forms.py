"""What theory says of the attacks on PAFed's masks (``privacy/attacks/masks.py``)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from coterie.privacy.attacks.masks import class_of, count_posterior
from coterie.privacy.attacks.result import AttackResult, Expected, top_share
from coterie.protocol.errors import UserError


def expected_count(late: int, dummies: int, *, sums: bool = True) -> Expected:
    """The closed form of `count_accuracy` for conflicts with probability 1/2. sums: whether they are seen."""
    mean, square = 0.0, 0.0
    for k, probable in enumerate(binom.pmf(np.arange(late + 1), late, 0.5)):
        for positive in range(dummies + 1):
            weight = float(probable * binom.pmf(positive, dummies, 0.5))
            posterior = count_posterior(k + positive, late, dummies, class_of(k, late) if sums else None)
            score = float(top_share(posterior)[k])
            mean, square = mean + weight * score, square + weight * score**2
    return Expected.of_moments(mean, square)


def size_correlation(seen: NDArray[Any], cosines: NDArray[Any]) -> AttackResult:
    """Correlation of log |seen| with log |cosine|, (n,) each. Chance: the mean of |r| of independent numbers."""
    with np.errstate(divide="ignore"):
        x, y = (np.log2(np.abs(np.asarray(values, np.float64))) for values in (seen, cosines))
    if x.shape != y.shape or len(x) < 3 or not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise UserError("give a masked number for each of at least three cosines, none of them 0")
    r = float(np.corrcoef(x, y)[0, 1])
    return AttackResult(
        "correlation of sizes", r, math.sqrt(2 / (math.pi * len(x))), 1.0, len(x), 1 / math.sqrt(len(x))
    )


def expected_correlation(cosines: NDArray[Any], mask_bits: int) -> Expected:
    """The closed form of `size_correlation` for these cosines under masks 2^u, u uniform in [0, mask_bits]."""
    spread = float(np.var(np.log2(np.abs(np.asarray(cosines, np.float64)))))
    r = math.sqrt(spread / (spread + mask_bits**2 / 12))
    return Expected(r, 1 - r * r, 1 - r * r)  # asymptotic standard deviation of a correlation, times sqrt(n)


def expected_told_apart(first: NDArray[Any], second: NDArray[Any], bound: float) -> Expected:
    """The closed form of `telling_accuracy` for masks uniform in [-bound, bound]: (1 + total variation) / 2."""
    apart = np.abs(np.asarray(first, np.float64) - np.asarray(second, np.float64)) / (2 * bound)
    with np.errstate(divide="ignore"):
        variation = -math.expm1(float(np.log1p(-np.minimum(apart, 1.0)).sum()))
    sd = math.sqrt(variation * (1 - variation)) / 2  # right for sure, or by half
    return Expected((1 + variation) / 2, sd, math.sqrt(1 - variation**2) / 2)


def needed_bound(weights: int, difference: float, variation: float = 2.0**-40) -> float:
    """The B that hides this many weights, each different by this much, up to this total variation."""
    per_weight = -math.expm1(math.log1p(-variation) / weights)
    return difference / (2 * per_weight)
