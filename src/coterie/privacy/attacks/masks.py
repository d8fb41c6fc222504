"""What the helper of PAFed, honest but curious, reads off masked numbers.

It sees signs among dummies of random sign, and both classes' masked sums, which show whether a class is empty. A model
w under a mask of real numbers in [-B, B] lies outside w' + [-B, B] in some coordinate with probability 1 - prod (1 -
|w_i - w'_i| / 2B).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from coterie.privacy.attacks.result import AttackResult, real_rows, top_share
from coterie.protocol.errors import UserError

Doubles = NDArray[np.float64]
Classes = Literal["both", "agreeing", "conflicting"]
"""Which classes are not empty, as the masked sums show."""


def count_posterior(negative: int, late: int, dummies: int, classes: Classes | None = None) -> Doubles:
    """(late + 1,) probabilities that k = 0, 1, ... late updates conflict, from the number of negative signs.

    A priori each with probability 1/2.  classes: as the sums show it, or None. Raises UserError for impossible signs.
    """
    from scipy.stats import binom  # slow to import

    seen = np.array([classes in (None, class_of(k, late)) for k in range(late + 1)])
    posterior = _prior(late) * seen * binom.pmf(negative - np.arange(late + 1), dummies, 0.5)
    if not (total := float(posterior.sum())):
        raise UserError(f"{negative} negative signs of {late} late updates and {dummies} dummies are impossible here")
    return np.asarray(posterior / total)


def count_among_decoys(patterns: Sequence[Classes], late: int) -> Doubles:
    """(late + 1,) probabilities of each number, from the patterns of all sets of sums: one is real,
    decoys are uniform.
    """
    # a pattern that n sets have is n times as likely to be the real one's
    posterior = _prior(late) * [patterns.count(class_of(k, late)) for k in range(late + 1)]
    if not (total := float(posterior.sum())):
        raise UserError(f"no set of sums of {len(patterns)} shows a pattern that {late} late updates can have")
    return np.asarray(posterior / total)


def count_accuracy(posteriors: Sequence[NDArray[Any]], truth: Sequence[int]) -> AttackResult:
    """How often the likeliest number of conflicting updates is correct; ties share. Chance: without any sign."""
    right = [top_share(posterior)[k] for posterior, k in zip(posteriors, truth, strict=True)]
    chance = [top_share(_prior(len(posterior) - 1))[k] for posterior, k in zip(posteriors, truth, strict=True)]
    sd = float(np.sqrt(np.sum(np.array(chance) * (1 - np.array(chance))))) / len(right)
    return AttackResult(
        "conflicting updates counted (share)", float(np.mean(right)), float(np.mean(chance)), 1.0, len(right), sd
    )


def class_of(conflicting: int, late: int) -> Classes:
    """What the sums show if this many late updates conflict."""
    return "agreeing" if not conflicting else "conflicting" if conflicting == late else "both"


def _prior(late: int) -> Doubles:
    from scipy.stats import binom  # slow to import

    return np.asarray(binom.pmf(np.arange(late + 1), late, 0.5))


def told_apart(masked: NDArray[Any], first: NDArray[Any], second: NDArray[Any], bound: float) -> NDArray[np.float64]:
    """Masked models (n, d) -> (n,) probability that the first of two models (d,) is inside: 1 or 0 where only one is
    possible, else 1/2. Masks are uniform in [-bound, bound].
    """
    rows = real_rows("masked", masked)
    inside = [(np.abs(rows - np.asarray(model, np.float64)) <= bound).all(axis=1) for model in (first, second)]
    return np.asarray(0.5 + 0.5 * inside[0] - 0.5 * inside[1])


def telling_accuracy(probability: NDArray[Any], truth: NDArray[Any]) -> AttackResult:
    """How often the likelier model is correct. truth: (n,) whether it was the first. Chance, and a tie: 1/2."""
    right = np.where(probability == 0.5, 0.5, (probability > 0.5) == truth)
    return AttackResult(
        "models told apart (share)", float(right.mean()), 0.5, 1.0, len(right), 0.5 / math.sqrt(len(right))
    )
