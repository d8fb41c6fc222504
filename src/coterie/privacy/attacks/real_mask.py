"""Why the mask of a model must be uniform over the whole ring of ciphertexts.

Who: the helper of PAFed, honest but curious. On: the model under a mask of real numbers, uniform in [-B, B] as the
paper's algorithm 5 can be read. Such a mask distinguishes two models: w + r lies outside w' + [-B, B] in some
coordinate with probability 1 - prod (1 - |w_i - w'_i| / 2B). To hide 1.66 million weights that differ by .1 up to 2^-40
takes a B near 10^17 (`needed_bound`), which leaves CKKS no precision.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.privacy.attacks.result import AttackResult, Expected, real_rows
from coterie.protocol.errors import UserError


def told_apart(masked: NDArray[Any], first: NDArray[Any], second: NDArray[Any], bound: float) -> NDArray[np.float64]:
    """Masked models (n, d) -> (n,) probability that the first of two models (d,) is inside, not the second.

    Masks are uniform in [-bound, bound]: 1 or 0 where only one model is possible, otherwise 1/2.
    """
    _positive(bound)
    rows = real_rows("masked", masked)
    inside = [(np.abs(rows - np.asarray(model, np.float64)) <= bound).all(axis=1) for model in (first, second)]
    return np.asarray(0.5 + 0.5 * inside[0] - 0.5 * inside[1])


def telling_accuracy(probability: NDArray[Any], truth: NDArray[Any]) -> AttackResult:
    """How often the likelier model is correct. truth: (n,) whether it was the first. Chance, and a tie: 1/2."""
    believed, is_first = np.asarray(probability, np.float64), np.asarray(truth, np.bool_)
    if believed.shape != is_first.shape or not believed.size:
        raise UserError(f"{believed.shape} guesses for {is_first.shape} models: give one each, and at least one")
    right = np.where(believed == 0.5, 0.5, (believed > 0.5) == is_first)
    return AttackResult(
        "models told apart (share)", float(right.mean()), 0.5, 1.0, len(right), 0.5 / math.sqrt(len(right))
    )


def expected_told_apart(first: NDArray[Any], second: NDArray[Any], bound: float) -> Expected:
    """The closed form of `telling_accuracy` for masks uniform in [-bound, bound]: (1 + total variation) / 2."""
    _positive(bound)
    apart = np.abs(np.asarray(first, np.float64) - np.asarray(second, np.float64)) / (2 * bound)
    with np.errstate(divide="ignore"):
        variation = -math.expm1(float(np.log1p(-np.minimum(apart, 1.0)).sum()))
    sd = math.sqrt(variation * (1 - variation)) / 2  # right for sure, or by half
    return Expected((1 + variation) / 2, sd, math.sqrt(1 - variation**2) / 2)


def needed_bound(weights: int, difference: float, variation: float = 2.0**-40) -> float:
    """The B that hides this many weights, each different by this much, up to this total variation."""
    per_weight = -math.expm1(math.log1p(-variation) / weights)
    return difference / (2 * per_weight)


def _positive(bound: float) -> None:
    if not 0 < bound < math.inf:
        raise UserError(f"a mask's bound must be positive and finite, not {bound}")
