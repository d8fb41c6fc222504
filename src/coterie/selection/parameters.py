"""Which parameters travel: OFL, section 4.2, eq. (5), algorithm 2, l. 11, and "stalest first" for downloads (4.1).

    utility = max_min(o_factor(trained, last, before_last, density(trained)))
    places = gumbel_top_k(utility, count(gamma_up, len(utility)), epsilon1, secrets)

Rows are a model's parameters, without its buffers. A choice of k costs epsilon_1 x k in the ledger.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.protocol.arrays import finite
from coterie.protocol.errors import UserError
from coterie.protocol.randomness import Secrets

Doubles = NDArray[np.float64]

_STEPS = 4
"""In a bandwidth of the density estimate."""
_MOST_CELLS = 1 << 14
_TINY = 1e-12


def density(values: NDArray[Any]) -> Doubles:
    """DensEst of eq. (5): (d,) in (0, 1], the mean over all values of a Gaussian kernel of height 1, with
    Silverman's bandwidth (1986); linear in d. Raises UserError unless there are values, all finite.
    """
    row = finite(values, "values", "d")
    width, sd = float(np.ptp(row)), float(row.std())
    if width == 0.0:
        return np.ones(len(row))
    low, high = np.percentile(row, [25, 75])
    spread = min(sd, (high - low) / 1.34) or sd
    bandwidth = 0.9 * spread * len(row) ** -0.2
    cells = int(min(_MOST_CELLS, max(16, math.ceil(_STEPS * width / bandwidth))))
    place = np.minimum(((row - row.min()) / width * cells).astype(np.int64), cells - 1)
    cell = width / cells
    reach = min(cells, math.ceil(4 * bandwidth / cell) + 1)
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) * cell / bandwidth) ** 2)
    smooth = np.convolve(np.bincount(place, minlength=cells), kernel)[reach : reach + cells] / len(row)
    centres = row.min() + (np.arange(cells) + 0.5) * cell
    return np.clip(between(row, place, centres, smooth), _TINY, 1.0)


def between(row: Doubles, place: NDArray[np.int64], centres: Doubles, heights: Doubles) -> Doubles:
    """``np.interp(row, centres, heights)``, without its search. place: (d,) the cell of each value."""
    steps = np.diff(centres)
    if not (steps > 0).all():  # cells as narrow as the numbers' last digit
        return np.interp(row, centres, heights)
    left = place - (row < centres[place])  # the last centre that is not above the value, or -1
    slopes = np.append(np.diff(heights) / steps, 0.0)  # 0 beyond the last centre, and so for -1
    at = np.maximum(left, 0)
    return np.asarray(slopes[left] * (row - centres[at]) + heights[at])


def o_factor(
    local: NDArray[Any], last: NDArray[Any], before: NDArray[Any], dense: NDArray[Any], literal: bool = False
) -> Doubles:
    """Eq. (5): (d,) at least 0, |theta' - theta_0| DensEst(theta') / log2(2 + |theta_0 - theta_1|).

    local: theta', the latest local training.  last, before: theta_0 and theta_1, after the last two global syncs; both
    zero for a client that was not synced twice.  dense: DensEst(theta').
    literal: the printed denominator log2(1 + |theta_0 - theta_1|), plus 1e-12, by which parameters that were not synced
    in between exceed all others. Raises UserError for rows of different lengths, NaN and infinity.
    """
    rows = [
        finite(row, name, "d") for name, row in (("local", local), ("last", last), ("before", before), ("dense", dense))
    ]
    if len({len(row) for row in rows}) > 1:
        raise UserError(f"the o-factor takes rows of one length, not {[len(row) for row in rows]}")
    own, first, second, heights = rows
    moved = np.abs(first - second)
    below = np.log2(1 + moved) + _TINY if literal else np.log2(2 + moved)  # eq. (5)
    return np.asarray(np.abs(own - first) * heights / below)


def max_min(scores: NDArray[Any]) -> Doubles:
    """Norm(o-factor): (d,) in [0, 1], all 0 where scores are equal."""
    row = finite(scores, "scores", "d")
    width = float(np.ptp(row))
    return np.zeros(len(row)) if width == 0.0 else np.clip((row - row.min()) / width, 0.0, 1.0)


def gumbel_top_k(utility: NDArray[Any], k: int, epsilon1: float, secrets: Secrets) -> NDArray[np.int64]:
    """(k,) different places, ascending, drawn one after the other with probability proportional to exp(epsilon1 u / 2).

    Each draw is epsilon1-DP, since a utility in [0, 1] has a sensitivity of at most 1 (McSherry and Talwar 2007; by
    Gumbel noise: Durfee and Rogers 2019). Raises UserError unless utilities lie in [0, 1], 1 <= k <= d and epsilon1 is
    positive and finite.
    """
    row = finite(utility, "utility", "d")
    if row.min() < 0 or row.max() > 1:
        raise UserError(f"utilities lie in [0, 1], not in [{row.min():g}, {row.max():g}]: normalise them first")
    _check_number(k, len(row))
    if not 0 < epsilon1 < math.inf:
        raise UserError(f"epsilon_1 of a selection is positive and finite, not {epsilon1}")
    if k == len(row):
        return np.arange(k, dtype=np.int64)
    drawn = np.frombuffer(secrets.bytes(8 * len(row)), "<u8") >> np.uint64(11)
    noise = -np.log(-np.log((drawn + 0.5) / 2.0**53))
    return np.sort(np.argpartition(epsilon1 * row / 2 + noise, len(row) - k)[len(row) - k :]).astype(np.int64)


def stalest_first(last_synced: NDArray[Any], k: int) -> NDArray[np.int64]:
    """(k,) places, ascending, of the parameters synced longest ago, lower ones first. last_synced: (d,) rounds.

    Raises UserError unless 1 <= k <= d.
    """
    rounds = np.asarray(last_synced)
    if rounds.ndim != 1 or rounds.dtype.kind not in "iu":
        raise UserError(f"the rounds of the last syncs are a row of whole numbers, not {rounds.shape} {rounds.dtype}")
    _check_number(k, len(rounds))
    return np.sort(np.argsort(rounds, kind="stable")[:k]).astype(np.int64)


def count(gamma: float, size: int) -> int:
    """A share gamma of ``size``, rounded down, at least 1. Raises UserError unless gamma is in (0, 1]."""
    if not 0 < gamma <= 1 or size < 1:
        raise UserError(f"a share of parameters lies in (0, 1], of at least one, not {gamma} of {size}")
    return max(1, int(gamma * size))


def _check_number(k: int, size: int) -> None:
    if not 1 <= k <= size:
        raise UserError(f"{k} of {size} parameters cannot be chosen")
