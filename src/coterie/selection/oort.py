"""Oort's selection of participants: Lai et al., "Oort: Efficient Federated Learning via Guided Participant Selection",
OSDI 2021, algorithm 1 and sections 4.2 to 4.4.

What the paper leaves open: docs/selection.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from coterie.protocol.errors import UserError
from coterie.protocol.options import AtLeastOne, NotNegative, check_bounds

Floats = NDArray[np.float64]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


@dataclass(frozen=True)
class Oort:
    """The paper's settings (section 7.1) as far as it has them.

    exploration: first share of a round that goes to clients that were never tried.  exploration_decay: its factor
    after every round.  least_exploration: where it stays.  penalty: alpha, the power of (pace / duration) for clients
    slower than the pace.  cutoff: c, clients with at least this share of the last admitted utility may be drawn.
    clip: quantile at which utilities are cut off.  window: W, rounds that the pacer compares.  pace_step: by how much
    the pacer moves, as a quantile of the durations seen.  most_selected: a client that was selected so often is not
    selected any more; 0 for no limit.
    """

    exploration: Share = 0.9
    exploration_decay: Share = 0.98
    least_exploration: Share = 0.2
    penalty: NotNegative = 2.0
    cutoff: Share = 0.95
    clip: Share = 0.95
    window: AtLeastOne = 20
    pace_step: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.2
    most_selected: Annotated[int, msgspec.Meta(ge=0)] = 0

    def __post_init__(self) -> None:
        check_bounds(self, "Oort's {}")


class Pool(msgspec.Struct, frozen=True):
    """Of n clients. utility: (n,) last statistical utility, NaN for an untried one.  duration: (n,) last seconds.
    last: (n,) the round in which it last took part.  selected: (n,) how often.

    round: R, rounds selected so far.  exploration: the next epsilon.  pace: the pacer's steps.  paced: the round of the
    last.  gains: utilities of the last 2 W rounds.
    """

    utility: Floats
    duration: Floats
    last: NDArray[np.int64]
    selected: NDArray[np.int64]
    round: int = 0
    exploration: float = 0.9
    pace: int = 1
    paced: int = 0
    gains: tuple[float, ...] = ()


def pool(clients: int, settings: Oort | None = None) -> Pool:
    if clients < 1:
        raise UserError(f"Oort selects among at least 1 client, not {clients}")
    unknown = np.full(clients, np.nan)
    zeros = np.zeros(clients, np.int64)
    return Pool(unknown, unknown, zeros, zeros, exploration=(settings or Oort()).exploration)


def utility_of_mean(samples: int, loss: float) -> float:
    """|B| sqrt(mean of the squared losses), section 4.2; 0 for impossible numbers. loss: root mean square, or the
    mean, which is less.
    """
    value = samples * abs(loss)
    return float(value) if np.isfinite(value) and samples > 0 else 0.0


def preferred_duration(state: Pool, settings: Oort) -> float:
    """T: the pacer's quantile of durations; infinity before any, or at the last step."""
    seen = state.duration[~np.isnan(state.duration)]
    level = state.pace * settings.pace_step
    return float(np.quantile(seen, level, method="higher")) if len(seen) and level < 1 else np.inf


def utilities(state: Pool, settings: Oort) -> Floats:
    """Util(i), (n,), NaN for untried clients: algorithm 1, lines 9 to 12."""
    # statistical utilities are cut off at the quantile clip and divided by the largest left: the bonus for staleness
    # has no unit
    tried = ~np.isnan(state.utility)
    if not tried.any():
        return np.full(len(tried), np.nan)
    highest = _cut(state.utility[tried], settings.clip)
    util = np.minimum(state.utility, highest) / (highest if highest > 0 else 1.0)
    util = util + np.sqrt(0.1 * np.log(max(state.round, 1)) / np.maximum(state.last, 1))  # temporal uncertainty
    preferred = preferred_duration(state, settings)
    slow = tried & (state.duration > preferred)
    with np.errstate(all="ignore"):
        penalty = np.where(slow, (preferred / state.duration) ** settings.penalty, 1.0)  # system utility
    return np.asarray(util * penalty)


def select(
    state: Pool,
    number: int,
    speeds: Any,
    rng: np.random.Generator,
    settings: Oort | None = None,
    available: Sequence[int] | None = None,
) -> tuple[tuple[int, ...], Pool]:
    """Algorithm 1: the clients of the next round, and the state after selecting them.

    number: K.  speeds: (n,) known beforehand; untried clients are drawn in proportion to them, impossible ones as the
    slowest.  available: clients to choose from, all by default. Fewer than K are returned only where fewer are
    available.
    """
    settings = settings or Oort()
    n = len(state.utility)
    if number < 1:
        raise UserError(f"Oort must select at least 1 client, not {number}")
    there = np.zeros(n, np.bool_)
    there[_index(range(n) if available is None else available, n)] = True
    there = _without_blacklist(there, state, number, settings)
    state = paced(msgspec.structs.replace(state, round=state.round + 1), settings)
    util = utilities(state, settings)
    known, fresh = np.flatnonzero(there & ~np.isnan(util)), np.flatnonzero(there & np.isnan(util))
    number = min(number, len(known) + len(fresh))
    explored = min(len(fresh), max(round(state.exploration * number), number - len(known)))
    chosen = [*_by_utility(known, util, number - explored, settings.cutoff, rng)]
    chosen += _drawn(fresh, _positive(speeds, n)[fresh], explored, rng)
    selected = state.selected.copy()
    selected[chosen] += 1
    epsilon = max(settings.least_exploration, state.exploration * settings.exploration_decay)
    if state.exploration < settings.least_exploration:
        epsilon = state.exploration  # set lower by hand: it stays there
    state = msgspec.structs.replace(state, selected=selected, exploration=epsilon)
    return tuple(sorted(int(i) for i in chosen)), state


def told(state: Pool, clients: Sequence[int], utility: Any, durations: Any, settings: Oort | None = None) -> Pool:
    """UpdateWithFeedback: the state after these clients' answers. Call it once a round, also without clients.

    utility: impossible ones count as 0.  durations: seconds from asking to answering; impossible ones count as
    infinite.
    """
    settings = settings or Oort()
    index = _index(clients, len(state.utility))
    values, seconds = np.asarray(utility, np.float64), np.asarray(durations, np.float64)
    if not values.shape == seconds.shape == index.shape:
        raise UserError(f"{len(index)} clients, {values.size} utilities and {seconds.size} durations: one each")
    values = np.where(np.isfinite(values) & (values > 0), values, 0.0)
    seconds = np.where(seconds > 0, seconds, np.inf)  # NaN is not
    was, took, last = state.utility.copy(), state.duration.copy(), state.last.copy()
    was[index], took[index], last[index] = values, seconds, state.round
    tried = was[~np.isnan(was)]
    gain = float(np.minimum(values, _cut(tried, settings.clip)).sum()) if len(values) else 0.0
    gains = (*state.gains, gain)[-2 * settings.window :]
    return msgspec.structs.replace(state, utility=was, duration=took, last=last, gains=gains)


def paced(state: Pool, settings: Oort) -> Pool:
    """Lines 7 and 8: a step on if the last W rounds brought less than the W before; once in W rounds."""
    window = settings.window
    if len(state.gains) < 2 * window or state.round - state.paced < window:
        return state
    if sum(state.gains[:window]) <= sum(state.gains[window:]) or state.pace * settings.pace_step >= 1:
        return state
    return msgspec.structs.replace(state, pace=state.pace + 1, paced=state.round)


def _cut(utilities: Floats, clip: float) -> float:
    """A utility that occurs, so that a single liar counts as the next below."""
    return float(np.quantile(utilities, clip, method="lower"))


def _without_blacklist(there: NDArray[np.bool_], state: Pool, number: int, settings: Oort) -> NDArray[np.bool_]:
    if not settings.most_selected:
        return there
    allowed = there & (state.selected < settings.most_selected)
    missing = min(number, int(there.sum())) - int(allowed.sum())
    if missing > 0:
        barred = np.flatnonzero(there & ~allowed)
        allowed[barred[np.argsort(state.selected[barred], kind="stable")[:missing]]] = True
    return allowed


def _by_utility(
    known: NDArray[np.int64], util: Floats, number: int, cutoff: float, rng: np.random.Generator
) -> list[int]:
    if number < 1:
        return []
    ordered = known[np.argsort(-util[known], kind="stable")]
    admitted = ordered[util[ordered] >= cutoff * util[ordered[number - 1]]]
    return _drawn(admitted, util[admitted], number, rng)


def _drawn(clients: NDArray[np.int64], weights: Floats, number: int, rng: np.random.Generator) -> list[int]:
    if number < 1:
        return []
    with np.errstate(divide="ignore"):
        keys = np.log(rng.random(len(clients))) / np.where(weights > 0, weights, 1e-300)
    return [int(i) for i in clients[np.argsort(-keys, kind="stable")[:number]]]  # Efraimidis and Spirakis, 2006


def _index(clients: Sequence[int], n: int) -> NDArray[np.int64]:
    index = np.asarray(clients, np.int64)
    if len(index) and not (index.min() >= 0 and index.max() < n and len(np.unique(index)) == len(index)):
        raise UserError(f"clients must be different numbers from 0 to {n - 1}, not {tuple(clients)}")
    return index


def _positive(speeds: Any, n: int) -> Floats:
    values = np.asarray(speeds, np.float64)
    if values.shape != (n,):
        raise UserError(f"speeds must have shape ({n},), one a client, not {values.shape}")
    good = np.isfinite(values) & (values > 0)
    slowest = float(values[good].min()) if good.any() else 1.0
    return np.where(good, values, slowest)
