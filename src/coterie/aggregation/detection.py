"""Weights that damp poisoned models under encryption: OFL's s-factors (eq. 6), and ``robust``, which does better.

From a few opened scalars of each leader's model follow integer weights for the encrypted sum (``weighted``) and its
divisor. docs/detection.md has the formulas, and what liars can do.

``robust`` compares each update u_i with the mean of the *others*. With n_i = |u_i|^2, M = sum_j f_j u_j the encrypted
mean of cut updates (``cut``), and d_i = u_i M, this follows in the clear:

    u_i (M - f_i u_i) = d_i - f_i n_i,    |M|^2 = sum_i f_i d_i,    |M - f_i u_i|^2 = |M|^2 - 2 f_i d_i + f_i^2 n_i.

**No leader stays alone**: the effective number of leaders, by weight (for ``robust`` by weight times length), is at
least ``FEWEST``. Else, for eq. (6), leaders up to the median suspicion get one weight; ``robust`` takes all a_i as 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coterie.protocol.errors import RunError, UserError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

BITS = 10
"""The largest weight is 2^BITS - 1, where there are few leaders."""

ROOM_BITS = 14
"""All weights sum up to less than 2^ROOM_BITS, which shared keys have room for."""

FEWEST = 1.5
"""The least effective number of leaders in a sum."""

ALONE = "one leader would have nearly all of the sum, and its model would be opened"
"""Why weights were replaced (``Weights.fallback``)."""

OUTLYING = 3.0
"""Standard deviations below the median cosine at which an update counts nothing (Hampel)."""

_TO_DEVIATION = 1.4826
"""A normal distribution's standard deviation, over the median absolute deviation."""

_OF_FEW = (1.196, 1.495, 1.363, 1.206, 1.200, 1.140, 1.129, 1.107)
"""By what this estimate of 2 to 9 values is too small; n / (n - 0.8) for more (Croux and Rousseeuw 1992)."""

_CUT_BITS = 6

_DEVIATION = 5e-5
"""Of an opened squared norm, a leader: the most flooding in it (``crypto.threshold``, ``fourier``)."""


@dataclass(frozen=True, eq=False)
class LeaderWeights:
    """weights: ``(k,)`` integers >= 0.  suspicion: ``(k,)`` in [0, 1], 1 the most.

    divisor: of the sum of weights times vectors, at least the sum of the weights.
    fallback: why the weights don't follow from the suspicion, or "".
    """

    weights: Integers
    suspicion: Floats
    divisor: float
    fallback: str = ""


def s_factors(energies: ArrayLike, distances: ArrayLike, bits: int = BITS) -> LeaderWeights:
    """Eq. (6): 1 - MagNorm x DistNorm, from ``(k,)`` magnitudes of high frequencies and squared distances to the global
    model.

    Non-finite numbers get no weight. Raises UserError for arrays that don't fit, RunError for fewer than two leaders.
    """
    magnitude, distance = _rows(energies, distances)
    honest = np.isfinite(magnitude) & np.isfinite(distance)
    lengths = np.sqrt(np.maximum(np.where(honest, distance, 0), 0))
    suspicion = np.where(honest, _normalised(magnitude, honest) * _normalised(lengths, honest), 1.0)  # eq. (6)
    _enough(honest)
    most = largest(len(suspicion), bits)
    made, why = np.asarray(np.rint(most * (1 - suspicion)), dtype=np.int64), ""
    if effective(made) < FEWEST:
        why = ALONE
        order = np.argsort(np.where(honest, suspicion, np.inf), kind="stable")
        made[:] = 0
        made[order[: max(2, math.ceil(honest.sum() / 2))]] = most
    return LeaderWeights(made, suspicion, float(made.sum()), why)


def largest(leaders: int, bits: int = BITS) -> int:
    """The weight of an unsuspected leader. Raises UserError for too many leaders."""
    if leaders >= 1 << ROOM_BITS:
        raise UserError(f"{leaders} leaders are too many: a sum has room for {(1 << ROOM_BITS) - 1} weights")
    return min((1 << bits) - 1, ((1 << ROOM_BITS) - 1) // leaders)


def shares(high: ArrayLike, total: ArrayLike) -> Floats:
    """``(k,)`` of the energy: one reading of eq. (6)'s magnitude."""
    part, whole = _rows(high, total)
    with np.errstate(invalid="ignore"):
        return np.asarray(part / np.maximum(whole, np.finfo(float).tiny))


def effective(parts: ArrayLike) -> float:
    """(sum p)^2 / sum p^2 of leaders' parts ``(k,)`` >= 0 in a sum; infinity for zeros, which show nobody."""
    (p,) = _rows(parts)
    return float((p / p.max()).sum() ** 2 / ((p / p.max()) ** 2).sum()) if p.any() else math.inf


def cut(squares: ArrayLike, bits: int = _CUT_BITS) -> Integers:
    """Integer factors ``(k,)``, up to ``2^bits - 1``, that cut updates of these squared norms to the lower median
    length; 0 for non-finite norms. Raises RunError for fewer than two leaders.
    """
    (norms,) = _rows(squares)
    honest = np.isfinite(norms)
    _enough(honest)
    return _whole(((1 << bits) - 1) * _cut(_lengths(norms, honest), honest))


def robust(
    squares: ArrayLike, dots: ArrayLike, factors: ArrayLike, bits: int = BITS, *, deviations: float = 0.0
) -> LeaderWeights:
    """Weights a_i c_i, rounded down: a_i of ``agreements``, and c_i = min(1, L / l_i), L the lower median of the
    lengths l_i.

    squares, dots: ``(k,)`` squared norms of updates, and their dot products with the sum of ``factors`` times updates.
    deviations: of noise that an opened number may be off by. What may be zero hides no other update, unless all may be.
    Raises as ``s_factors``, and RunError if any such sum would open one update.
    """
    norms, products, used = _rows(squares, dots, factors)
    honest = np.isfinite(norms) & np.isfinite(products)
    _enough(honest)
    n, d, f = (np.where(honest, row, 0) for row in (np.maximum(norms, 0), products, used))
    lengths, most, shorter = _lengths(norms, honest), largest(len(n), bits), _cut(_lengths(norms, honest), honest)
    agreed = np.zeros(len(n))
    agreed[honest] = agreements(others_cosines(n, d, f)[honest], cosine_errors(n, d, f, deviations)[honest])
    suspicion = 1 - agreed * shorter
    hiding, made = least(n, deviations), _whole(most * agreed * shorter)
    hiding = hiding if hiding.any() else lengths
    if made.any() and effective(made * hiding) >= FEWEST:
        return LeaderWeights(made, suspicion, most * float(agreed.sum()))
    made = _whole(most * shorter)
    if effective(made * hiding) < FEWEST:
        raise RunError("the other updates are too short or too long to hide one leader's, which a sum would open")
    return LeaderWeights(made, suspicion, float(most * honest.sum()), ALONE)


def agreements(cosines: ArrayLike, errors: ArrayLike = 0.0, outlying: float = OUTLYING) -> Floats:
    """a_i = 1 - min(1, max(0, med - cos_i - e_i) / max(|med|, outlying sd)), ``(k,)``, so 1 for half of them or more.

    errors: e_i, by which a cosine may be too small.  med, sd: median and ``deviation_of`` the cosines.
    """
    (cos,) = _rows(cosines)
    off, usual = np.asarray(errors, dtype=np.float64), float(np.median(cos))
    scale = max(abs(usual), outlying * deviation_of(cos))
    short = np.maximum(usual - cos - off, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(short > 0, 1 - np.minimum(short / scale, 1), 1.0))


def deviation_of(values: ArrayLike) -> float:
    """The standard deviation of ``(k,)`` values, by the median of their absolute deviations; 0 for one value."""
    (row,) = _rows(values)
    n = row.size
    few = 1.0 if n < 2 else _OF_FEW[n - 2] if n - 2 < len(_OF_FEW) else n / (n - 0.8)
    return _TO_DEVIATION * few * float(np.median(np.abs(row - np.median(row))))


def cosine_errors(squares: ArrayLike, dots: ArrayLike, factors: ArrayLike, deviations: float) -> Floats:
    """Of ``others_cosines``, ``(k,)``, for so many deviations of independent noise on opened numbers, to first
    order; infinite where a length is 0.
    """
    n, d, f = _rows(squares, dots, factors)
    if not deviations:
        return np.zeros(n.size)
    own, rest = np.maximum(n, 0), np.maximum(f @ d - 2 * f * d + f**2 * n, 0)  # |u_i|^2 and |M - f_i u_i|^2
    cos = others_cosines(n, d, f)
    with np.errstate(divide="ignore", invalid="ignore"):
        by_dot = 1 / np.sqrt(own * rest) + cos * f / (2 * rest)  # d cos_i / d d_i
        by_square = f / np.sqrt(own * rest) + cos / (2 * own) + cos * f**2 / (2 * rest)  # - d cos_i / d n_i
        by_others = cos**2 * (f @ f - f**2) / (2 * rest) ** 2  # the sum of squares of d cos_i / d d_j, j != i
        error = deviations * _DEVIATION * n.size * np.sqrt(by_dot**2 + by_square**2 + by_others)
    return np.asarray(np.nan_to_num(error, nan=np.inf, posinf=np.inf))


def least(squares: ArrayLike, deviations: float) -> Floats:
    """``(k,)`` least lengths, by squared norms less so many deviations of noise."""
    (n,) = _rows(squares)
    return np.sqrt(np.maximum(n - deviations * _DEVIATION * n.size, 0))


def lower_median(values: ArrayLike) -> float:
    """The smaller of an even number's two medians: half of the ``(n,)`` numbers can't enlarge it."""
    return float(median_low(np.asarray(values, np.float64).tolist()))


def others_cosines(squares: ArrayLike, dots: ArrayLike, factors: ArrayLike) -> Floats:
    """``(k,)``, of each update with the weighted mean of all others; 0 where either is zero."""
    n, d, f = _rows(squares, dots, factors)
    apart, square = d - f * n, f @ d - 2 * f * d + f**2 * n
    with np.errstate(divide="ignore", invalid="ignore"):
        cosines = np.nan_to_num(apart / np.sqrt(np.maximum(n, 0) * np.maximum(square, 0)), nan=0.0, posinf=0, neginf=0)
    return np.asarray(np.clip(cosines, -1, 1))


def too_long(mean: ArrayLike, weights: ArrayLike, divisor: float, squares: ArrayLike, slack: float = 1.05) -> bool:
    """Whether an opened mean is longer than the opened squared lengths of its vectors allow: a forgery.

    mean: ``(d,)`` of updates (or models minus the global one).  weights, squares: ``(k,)``.
    """
    counts, norms = _rows(weights, squares)
    used, error = counts > 0, 40 * _DEVIATION * counts.size  # distances have up to 4 times the noise of norms
    most = float((counts[used] * np.sqrt(np.maximum(norms[used], 0) + error)).sum()) / divisor
    return not float(np.linalg.norm(np.asarray(mean, dtype=np.float64))) <= slack * most


def weighted(ciphers: Sequence[Any], weights: ArrayLike) -> Any:
    total = None
    for cipher, weight in zip(ciphers, np.asarray(weights).tolist(), strict=True):
        if weight:
            part = cipher.scale(int(weight))
            total = part if total is None else total + part
    if total is None:
        raise UserError("no vector has a weight: there is nothing to sum up")
    return total


# ---- parts


def _lengths(squares: Floats, honest: NDArray[np.bool_]) -> Floats:
    return np.sqrt(np.maximum(np.where(honest, squares, 0), 0))


def _cut(lengths: Floats, honest: NDArray[np.bool_]) -> Floats:
    usual = lower_median(lengths[honest])
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(lengths > usual, usual / lengths, 1.0) * honest


def _whole(values: Floats) -> Integers:
    return np.asarray(np.floor(values), dtype=np.int64)


def _enough(honest: NDArray[np.bool_]) -> None:
    if honest.sum() < 2:
        raise RunError(f"{honest.sum()} of {honest.size} leaders sent a model that opens: a sum needs two")


def _normalised(values: Floats, honest: NDArray[np.bool_]) -> Floats:
    least, most = values[honest].min(initial=np.inf), values[honest].max(initial=-np.inf)
    if not most > least:
        return np.zeros_like(values)
    return np.asarray(np.clip((np.where(honest, values, least) - least) / (most - least), 0, 1))


def _rows(*arrays: ArrayLike) -> list[Floats]:
    rows = [np.asarray(array, dtype=np.float64) for array in arrays]
    if rows[0].ndim != 1 or not rows[0].size or any(row.shape != rows[0].shape for row in rows):
        raise UserError(f"one number of each leader is needed, not arrays of shapes {[row.shape for row in rows]}")
    return rows
