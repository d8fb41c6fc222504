"""CICS, FedEPC's choice of devices within a cluster: section 3.4, eq. (9) to (12), algorithm 3 (docs/selection.md)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from coterie.protocol.errors import UserError
from coterie.protocol.options import AtLeastOne, Count, NotNegative, Positive, check_bounds
from coterie.protocol.threads import one_thread
from coterie.selection import posterior
from coterie.selection.contexts import (
    COLUMNS,
    affordable,
    as_budget,
    as_contexts,
    as_costs,
    believed,
    standardised,
    usable,
)
from coterie.selection.posterior import Belief, Past, SetSums
from coterie.selection.search import Devices, Floats, every_set, greedy_with_swaps

FEATURES = 1 + 2 * len(COLUMNS)
MEMBERS = 32
"""Devices of a tried set whose contexts are kept, at most."""


@dataclass(frozen=True)
class Cics:
    """Settings, which docs/selection.md explains."""

    confidence: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.1
    exploration: NotNegative = 1.0
    length_scale: Positive = 10.0
    sigma: NotNegative = 1.0
    noise: Positive = 0.3
    slope: NotNegative = 1.0
    window: AtLeastOne = 128
    cheapest: NotNegative = 0.1
    exhaustive_to: Annotated[int, msgspec.Meta(ge=0, le=16)] = 12
    pool: AtLeastOne = 64
    swaps: Count = 256
    literal: bool = False

    def __post_init__(self) -> None:
        check_bounds(self)


class Bandit(msgspec.Struct, frozen=True):
    """One cluster's: the last ``window`` rounds.

    t: rounds learned, also forgotten ones.  sizes: (s,) contexts of each set, one after another in contexts (M, 5).
    features: (s, 11) Phi of each set.  rewards: (s,).
    """

    t: int = 0
    sizes: NDArray[np.int64] = msgspec.field(default_factory=lambda: np.zeros(0, np.int64))
    contexts: Floats = msgspec.field(default_factory=lambda: np.zeros((0, len(COLUMNS))))
    features: Floats = msgspec.field(default_factory=lambda: np.zeros((0, FEATURES)))
    rewards: Floats = msgspec.field(default_factory=lambda: np.zeros(0))

    def past(self) -> Past:
        return Past(self.contexts, self.sizes, self.features, self.rewards)


@dataclass(frozen=True)
class Choice:
    """A_t of eq. (11).

    chosen: ascending numbers of devices; if empty, ``skipped`` says why.  mean, deviation, ucb: of the set's reward, in
    its units.  candidates: sets that were compared.
    """

    chosen: tuple[int, ...]
    mean: float = 0.0
    deviation: float = 0.0
    ucb: float = 0.0
    candidates: int = 0
    skipped: str | None = None


def beta(t: int, confidence: float) -> float:
    """sqrt(2 log(t^2 / delta)), below eq. (11). t counts from 1; 0 where the logarithm is negative."""
    if t < 1:
        raise UserError(f"rounds count from 1, not from {t}")
    return math.sqrt(max(0.0, 2 * (2 * math.log(t) - math.log(confidence))))


def choose(
    bandit: Bandit,
    contexts: Any,
    costs: Any,
    budget: float,
    settings: Cics,
    rng: np.random.Generator,
    least: int = 1,
    most: int | None = None,
) -> Choice:
    """Algorithm 3, lines 3 to 6: the set with the highest mu + beta_t sigma whose costs keep the budget.

    contexts: (n, 5) raw, eq. (9); NaN for unknown.  costs: (n,) |D_i| / f_i (``time_costs``).  budget: T_max, in their
    unit.  least, most: devices of a set.  rng: decides among equal sets, and draws for the search beyond
    ``exhaustive_to`` devices.
    Devices with an infinite context or an impossible cost are never selected; none are if no ``least`` devices keep the
    budget. Raises UserError.
    """
    rows = as_contexts(contexts)
    prices, limit = as_costs(costs, len(rows)), as_budget(budget)
    if least < 1:
        raise UserError(f"a set has at least 1 device, not {least}")
    if most is not None and most < least:
        raise UserError(f"a set of at least {least} and at most {most} devices")
    able = rng.permutation(np.flatnonzero(usable(rows, prices)))  # no place in the list is better than another
    prices = prices[able]
    if why := infeasible(prices, limit, least, len(rows)):
        return Choice((), skipped=why)
    if not settings.literal:
        counted = believed(prices, settings.cheapest)
        prices = prices if infeasible(counted, limit, least, len(rows)) else counted
    with one_thread():
        devices = _devices(bandit, rows, able, prices, settings)
        belief = _belief(bandit, settings)
        explore = settings.exploration * beta(bandit.t + 1, settings.confidence)

        def bound(sets: SetSums) -> Floats:
            mean, deviation = belief(sets)
            return mean + explore * deviation  # eq. (11)

        if len(able) <= settings.exhaustive_to:
            found = every_set(devices, bound, limit, least, most)
        else:
            found = greedy_with_swaps(devices, bound, limit, least, settings.swaps, settings.pool, rng, most)
        assert found is not None  # the cheapest devices keep the budget
        members = np.zeros((1, len(able)), np.bool_)
        members[0, list(found.chosen)] = True
        mean, deviation = (float(x[0]) for x in belief(devices.sums(members)))
    chosen = tuple(sorted(int(able[i]) for i in found.chosen))
    return Choice(chosen, mean, deviation, mean + explore * deviation, found.candidates)


def learned(bandit: Bandit, contexts: Any, chosen: Sequence[int], reward: float, settings: Cics) -> Bandit:
    """Algorithm 3, lines 7 and 8: the state after this set brought this reward.

    contexts: (n, 5), those that the set was chosen by.  reward: in any unit; a non-finite one counts as the lowest in
    the window, and as at most 0. Raises UserError for an impossible set.
    """
    rows = as_contexts(contexts)
    index = np.array(sorted(chosen), np.int64)
    if not len(index) or len(set(index.tolist())) < len(index) or index[0] < 0 or index[-1] >= len(rows):
        raise UserError(f"a set must name one or more of {len(rows)} devices, each once, not {tuple(chosen)}")
    if not math.isfinite(reward):
        reward = min([0.0, *bandit.rewards.tolist()])
    known = _known(rows, settings)
    kept = known[index[np.unique(np.linspace(0, len(index) - 1, MEMBERS).round().astype(np.int64))]]
    sizes = np.append(bandit.sizes, len(kept))[-settings.window :]
    return Bandit(
        t=bandit.t + 1,
        sizes=sizes,
        contexts=np.concatenate([bandit.contexts, kept])[-int(sizes.sum()) :],
        features=np.concatenate([bandit.features, _features(known)[index].sum(axis=0)[None]])[-settings.window :],
        rewards=np.append(bandit.rewards, float(reward))[-settings.window :],
    )


def _belief(bandit: Bandit, settings: Cics) -> Belief:
    if settings.literal:
        return posterior.printed_posterior(bandit.past(), settings.length_scale, settings.noise)
    return posterior.posterior(bandit.past(), settings.length_scale, settings.noise, settings.slope, settings.sigma)


def _devices(bandit: Bandit, rows: Floats, able: NDArray[np.int64], costs: Floats, settings: Cics) -> Devices:
    known = _known(rows, settings)
    own = known[able]
    past = posterior.mean_distances(own, bandit.contexts, bandit.sizes)
    return Devices(own, costs, past, _features(known)[able])


def _known(rows: Floats, settings: Cics) -> Floats:
    lost = np.isinf(rows).any(axis=1, keepdims=True)
    rows = np.where(lost, np.nan, rows)
    return np.nan_to_num(rows) if settings.literal else standardised(rows)


def _features(known: Floats) -> Floats:
    return posterior.phi(known) / max(len(known), 1)


def infeasible(costs: Floats, budget: float, least: int, devices: int) -> str | None:
    """For any set of ``least`` devices with these costs, or None. devices: of all."""
    if len(costs) < least:
        return f"{len(costs)} of {devices} devices can be selected, and a set has at least {least}"
    if not affordable(cheapest := float(np.sort(costs)[:least].sum()), budget):
        return f"the cheapest set of {least} costs {cheapest:.4g}, and the time budget is {budget:.4g}"
    return None
