"""An empirical audit of differential privacy: which of two neighbouring data sets did a release come from?

Who: anyone who sees the release and knows all of the data but for what differs. On: outputs of the real release
function on both data sets, each reduced to one number that grows with the likelihood of the first (a likelihood ratio
is best). A mechanism with (epsilon, delta) bounds how well any test tells them apart. So a test that does better
disproves the claim, and the `lower_bound` is what it proves. A bound below the claim does not prove the claim.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from coterie.protocol.errors import UserError


def lower_bound(first: NDArray[Any], second: NDArray[Any], delta: float, confidence: float = 0.95) -> float:
    """Scores (n,) of outputs on one data set and (m,) on its neighbour -> the epsilon that they prove, at least 0.

    From epsilon >= log((1 - delta - false positives) / false negatives), and the same for the other error (Kairouz,
    Oh, Viswanath 2015). The threshold is chosen on every second score, and the errors are counted on the others, with
    the upper ends of Clopper and Pearson's intervals. Each of the four errors counted errs with a quarter of what
    ``confidence`` leaves. Raises UserError without two finite scores on both sides.
    """
    sides = [np.asarray(side, np.float64) for side in (first, second)]
    if not all(side.ndim == 1 and len(side) >= 2 and np.isfinite(side).all() for side in sides):
        raise UserError("an audit needs two finite scores or more, on both data sets")
    if not (0 <= delta < 1 and 0 < confidence < 1):
        raise UserError(f"delta lies in [0, 1) and confidence between 0 and 1, not at {delta} and {confidence}")
    doubt = (1 - confidence) / 4
    best = 0.0
    for high, low in (sides, sides[::-1]):  # each of the two data sets as the one whose outputs a region should hold
        sign = 1 if high is sides[0] else -1
        threshold = _threshold(sign * high[::2], sign * low[::2], delta)
        held, left = sign * high[1::2] > threshold, sign * low[1::2] > threshold
        hit = _least(int(held.sum()), len(held), doubt)
        false = 1 - _least(int((~left).sum()), len(left), doubt)
        if hit > delta:
            best = max(best, math.log((hit - delta) / false))
    return best


def _threshold(high: NDArray[np.float64], low: NDArray[np.float64], delta: float) -> float:
    """The threshold with the largest bound on these scores, each rate three standard errors to its disadvantage."""
    every = np.sort(np.concatenate([high, low]))
    hits = 1 - np.searchsorted(np.sort(high), every, side="right") / len(high)
    falses = 1 - np.searchsorted(np.sort(low), every, side="right") / len(low)
    worst = 3 * np.sqrt((hits + 1 / len(high)) / len(high)), 3 * np.sqrt((falses + 1 / len(low)) / len(low))
    safe = np.maximum(hits - worst[0] - delta, 1e-300) / (falses + worst[1])
    return float(every[safe.argmax()])


def _least(hits: int, trials: int, doubt: float) -> float:
    """The lower end of Clopper and Pearson's interval for a probability, wrong with at most this probability."""
    return float(beta.ppf(doubt, hits, trials - hits + 1)) if hits else 0.0
