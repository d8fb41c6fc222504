"""The number and size of conflicts between late updates and the others, from masked cosines.

Who: the helper of PAFed, honest but curious. On: every late update's cosine c_j times a random rho_j > 0, shuffled
among dummies of random sign; and the masked sums of both classes, which show whether a class is empty. Dummies blur the
number of conflicting updates as a binomial does, but never that none or all conflict. A mask 2^u with u uniform in
[0, b] blurs a cosine's size and does not hide it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from coterie.privacy.attacks.result import AttackResult, Expected, top_share
from coterie.protocol.errors import UserError

Doubles = NDArray[np.float64]
Classes = Literal["both", "agreeing", "conflicting"]
"""Which classes have anybody in them, as the masked sums show."""


def count_posterior(
    negative: int, late: int, dummies: int, classes: Classes | None = None, prior: NDArray[Any] | None = None
) -> Doubles:
    """(late + 1,) probabilities that k = 0, 1, ... late updates conflict, from the number of negative signs.

    classes: as the sums show it, or None.  prior: (late + 1,), by default each conflicts with probability 1/2.
    Raises UserError for an impossible number of signs.
    """
    seen = np.array([classes in (None, class_of(k, late)) for k in range(late + 1)])
    posterior = _prior(late, prior) * seen * binom.pmf(negative - np.arange(late + 1), dummies, 0.5)
    if not (total := float(posterior.sum())):
        raise UserError(f"{negative} negative signs of {late} late updates and {dummies} dummies are impossible here")
    return np.asarray(posterior / total)


def count_among_decoys(patterns: Sequence[Classes], late: int, prior: NDArray[Any] | None = None) -> Doubles:
    """(late + 1,) probabilities of each number, from the patterns of all sets of sums, one of which is real.

    Decoys' patterns are uniform over those possible, so a pattern that n sets have is n times as likely as before to be
    the real one's. prior: as in `count_posterior`.
    """
    posterior = _prior(late, prior) * [patterns.count(class_of(k, late)) for k in range(late + 1)]
    if not (total := float(posterior.sum())):
        raise UserError(f"no set of sums of {len(patterns)} shows a pattern that {late} late updates can have")
    return np.asarray(posterior / total)


def count_accuracy(posteriors: Sequence[NDArray[Any]], truth: Sequence[int]) -> AttackResult:
    """How often the likeliest number of conflicting updates is correct; ties share. Chance: without any sign."""
    if not len(posteriors) or len(posteriors) != len(truth):
        raise UserError(f"{len(posteriors)} posteriors for {len(truth)} rounds: give one each, and at least one")
    right = [top_share(posterior)[k] for posterior, k in zip(posteriors, truth, strict=True)]
    chance = [top_share(_prior(len(posterior) - 1, None))[k] for posterior, k in zip(posteriors, truth, strict=True)]
    sd = float(np.sqrt(np.sum(np.array(chance) * (1 - np.array(chance))))) / len(right)
    return AttackResult(
        "conflicting updates counted (share)", float(np.mean(right)), float(np.mean(chance)), 1.0, len(right), sd
    )


def expected_count(late: int, dummies: int, *, sums: bool = True) -> Expected:
    """The closed form of `count_accuracy` for conflicts with probability 1/2. sums: whether they are seen."""
    mean, square = 0.0, 0.0
    for k, probable in enumerate(_prior(late, None)):
        for positive in range(dummies + 1):
            weight = float(probable * binom.pmf(positive, dummies, 0.5))
            posterior = count_posterior(k + positive, late, dummies, class_of(k, late) if sums else None)
            score = float(top_share(posterior)[k])
            mean, square = mean + weight * score, square + weight * score**2
    return Expected.of_moments(mean, square)


def class_of(conflicting: int, late: int) -> Classes:
    """What the sums show if this many late updates conflict."""
    return "agreeing" if not conflicting else "conflicting" if conflicting == late else "both"


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


def _prior(late: int, prior: NDArray[Any] | None) -> Doubles:
    weights = binom.pmf(np.arange(late + 1), late, 0.5) if prior is None else np.asarray(prior, np.float64)
    if late < 1 or weights.shape != (late + 1,) or not (weights >= 0).all() or not weights.sum() > 0:
        raise UserError(f"a prior over 0 to {late} conflicting updates has {late + 1} weights, not {weights.shape}")
    return np.array(weights / weights.sum())
