"""An empirical audit of differential privacy: which of two neighbouring data sets did a release come from?

The attacker knows all but the difference. A test that beats (epsilon, delta) disproves the claim; a `lower_bound` below
it proves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

import coterie.method as fl
from coterie.dp import heuristic, skellam
from coterie.dp.distributed import Distributed
from coterie.dp.ledger import Ledger, stated
from coterie.dp.uploads import Standard

Doubles = NDArray[np.float64]

SPREAD = 3.0
"""How many times wider the heuristic's neighbour spreads its values."""
VALUES = 8
"""At the centroid of the cluster in the heuristic's audit."""
TRIALS = 4000


@dataclass(frozen=True)
class NoiseAudit:
    """claimed: the epsilon at ``delta``.  lower_bound: what ``trials`` outputs on each data set prove, wrong with a
    probability of at most 5 %.  exact: the least true epsilon, where there is a formula; infinite where nothing is
    hidden.
    """

    mechanism: str
    neighbours: str
    claimed: float
    lower_bound: float
    delta: float
    trials: int
    exact: float | None = None

    @property
    def holds(self) -> bool:
        return max(self.lower_bound, self.exact or 0.0) <= self.claimed

    def row(self) -> dict[str, Any]:
        return {
            "mechanism": self.mechanism,
            "neighbours": self.neighbours,
            "claimed_epsilon": stated(self.claimed),
            "lower_bound": stated(self.lower_bound),
            "exact_epsilon": None if self.exact is None else stated(self.exact),
            "delta": self.delta,
            "trials": self.trials,
            "holds": self.holds,
        }


@cache
def audit_standard(
    mechanism: Standard, size: int, delta: float, uploads: int = 1, trials: int = TRIALS, seed: int = 0
) -> NoiseAudit:
    """The standard mechanism on changes of ``size`` parameters as far apart as clipping allows: C and -C. The
    likelihood ratio grows with the outputs' sum along the direction.

    uploads: of one client, together.
    """
    draw = fl.Secrets(fl.rng(seed, "audit", "standard"))
    found = _opposite(lambda change: mechanism.noised(change, draw), mechanism.clip, size, uploads, trials)
    words = f"all data replaced, by opposite changes; uploads: {uploads}"
    return NoiseAudit("standard", words, mechanism.epsilon(delta, uploads), lower_bound(*found, delta), delta, trials)


@cache
def audit_distributed(mechanism: Distributed, delta: float, trials: int = TRIALS) -> NoiseAudit:
    """Noise on a sum, for an opener that knows all but two terms, and the shares of ``missing`` parties."""
    draw, honest = fl.Secrets(fl.rng(0, "audit", "distributed")), 2
    shares = skellam.draw(2 * trials * honest * mechanism.length, mechanism.variance(mechanism.missing + honest), draw)
    noise = iter(shares.reshape(-1, honest, mechanism.length).sum(axis=1))

    def opened(change: Doubles) -> Doubles:
        return mechanism.off_grid(mechanism.on_grid(change, b"audit", draw) + next(noise), 1, b"audit")

    found = _opposite(opened, mechanism.clip, mechanism.length, 1, trials)
    claimed = Ledger((mechanism.release(),)).epsilon(delta, "replace one client")
    words = "all data replaced, by opposite changes; sums: 1"
    return NoiseAudit("distributed", words, claimed, lower_bound(*found, delta), delta, trials)


def _opposite(
    released: Callable[[Doubles], NDArray[np.floating[Any]]], clip: float, size: int, times: int, trials: int
) -> tuple[Doubles, Doubles]:
    direction = np.full(size, 1 / math.sqrt(size))

    def scores(sign: float) -> Doubles:
        far = sign * 10 * clip * direction  # clipped to C
        return np.array([sum(float(released(far) @ direction) for _ in range(times)) for _ in range(trials)])

    return scores(1.0), scores(-1.0)


@cache
def audit_heuristic(
    claimed: float = 2.0, delta: float = 1e-5, spread: float = SPREAD, trials: int = TRIALS, seed: int = 0
) -> NoiseAudit:
    """The paper's mechanism on a density cluster whose two outermost values are ``spread`` times wider in a neighbour.

    It looks at the ``VALUES`` values at the centroid.  claimed: in all, by section 5.1.1. With ``spread`` infinite one
    data set's values are all equal, and sent without noise. Raises UserError unless spread > 1.
    """
    if not spread > 1 or trials < 2:
        raise fl.UserError(f"a spread exceeds 1 and an audit needs two trials, not {spread} and {trials}")
    draw, flat = fl.Secrets(fl.rng(seed, "audit", "heuristic")), np.ones(VALUES + 2)  # one cluster
    centre = slice(1, -1)

    def values(width: float) -> Doubles:
        return np.concatenate([[-width], np.zeros(VALUES), [width]])

    both = [values(0.0), values(1.0)] if math.isinf(spread) else [values(1.0), values(spread)]
    narrow, wide = (float(heuristic.scales(one, flat, claimed / VALUES)[1]) for one in both)
    scores = []
    for one in both[::-1]:
        seen = [heuristic.perturbed(one, flat, claimed / VALUES, draw)[centre] for _ in range(trials)]
        scores.append(_wider(np.array(seen, np.float64), narrow, wide))
    words = "equal values" if math.isinf(spread) else f"outermost values {spread:g} times wider"
    bound, exact = lower_bound(scores[0], scores[1], delta), heuristic.true_epsilon(spread, delta, VALUES)
    return NoiseAudit(f"paper ({heuristic.HEURISTIC})", words, claimed, bound, delta, trials, exact)


def _wider(seen: Doubles, narrow: float, wide: float) -> Doubles:
    if narrow == 0:
        return np.asarray((seen != 0).any(axis=1), np.float64)
    ratios: Doubles = (np.abs(seen) * (1 / narrow - 1 / wide) + math.log(narrow / wide)).sum(axis=1)
    return ratios


# -- what outputs prove ------------------------------------------------------------------------------------------------


def lower_bound(first: NDArray[Any], second: NDArray[Any], delta: float, confidence: float = 0.95) -> float:
    """Scores (n,) of outputs on one data set and (m,) on its neighbour -> the epsilon that they prove, at least 0.

    By Kairouz, Oh, Viswanath 2015. Every second score chooses the threshold; Clopper-Pearson intervals bound the errors
    of the others. Raises UserError without two finite scores on a side.
    """
    sides = [np.asarray(side, np.float64) for side in (first, second)]
    if not all(side.ndim == 1 and len(side) >= 2 and np.isfinite(side).all() for side in sides):
        raise fl.UserError("an audit needs two finite scores or more, on both data sets")
    if not (0 <= delta < 1 and 0 < confidence < 1):
        raise fl.UserError(f"delta lies in [0, 1) and confidence between 0 and 1, not at {delta} and {confidence}")
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
    every = np.sort(np.concatenate([high, low]))
    hits = 1 - np.searchsorted(np.sort(high), every, side="right") / len(high)
    falses = 1 - np.searchsorted(np.sort(low), every, side="right") / len(low)
    worst = 3 * np.sqrt((hits + 1 / len(high)) / len(high)), 3 * np.sqrt((falses + 1 / len(low)) / len(low))
    safe = np.maximum(hits - worst[0] - delta, 1e-300) / (falses + worst[1])
    return float(every[safe.argmax()])


def _least(hits: int, trials: int, doubt: float) -> float:
    from scipy.stats import beta  # slow to import

    return float(beta.ppf(doubt, hits, trials - hits + 1)) if hits else 0.0
