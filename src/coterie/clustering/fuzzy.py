"""Fuzzy c-means: Bezdek, "Pattern recognition with fuzzy objective function algorithms", 1981.

It minimises J = sum_ik u_ik^m |x_i - c_k|^2 over memberships u and centres c, in turns.
"""

from __future__ import annotations

import numpy as np

from coterie.protocol.arrays import Array, Doubles, finite
from coterie.protocol.errors import UserError

TURNS = 100


def memberships(points: Array, centres: Array, fuzzifier: float = 2.0) -> Doubles:
    """(n, k) u_ik = 1 / sum_l (|x_i - c_k| / |x_i - c_l|)^(2 / (m - 1)), m the fuzzifier > 1.

    points: (n, d), centres: (k, d), finite. A point on centres belongs to these alone, alike. Raises UserError for
    others.
    """
    x, c = finite(points, "points", "n", "d"), finite(centres, "centres", "n", "d")
    if x.shape[1] != c.shape[1] or not len(c):
        raise UserError(f"points {x.shape} and centres {c.shape} need the same number of columns, and a centre")
    if not 1 < fuzzifier < np.inf:
        raise UserError(f"the fuzzifier must be above 1 and finite, not {fuzzifier}")
    squares = np.square(x[:, None] - c).sum(axis=2)
    with np.errstate(divide="ignore"):
        logs = -np.log(squares) / (fuzzifier - 1)  # of squares^(-1 / (m - 1)); infinite on a centre
    on = np.isinf(logs) & (logs > 0)
    logs = np.where(on.any(axis=1, keepdims=True), np.where(on, 0.0, -np.inf), logs)
    u = np.exp(logs - logs.max(axis=1, keepdims=True))
    return np.asarray(u / u.sum(axis=1, keepdims=True))


def centres_of(points: Array, u: Array, before: Array, fuzzifier: float = 2.0) -> Doubles:
    """(k, d) c_k = sum_i u_ik^m x_i / sum_i u_ik^m. A centre without points stays where it was."""
    weights = np.asarray(u, np.float64) ** fuzzifier
    sums = weights.sum(axis=0)[:, None]
    return np.where(sums > 0, weights.T @ points / np.where(sums > 0, sums, 1.0), before)


def first_centres(points: Array, count: int) -> Doubles:
    """(count, d): the point nearest to the mean, then each time the farthest from all so far. Raises UserError for
    none.
    """
    x = finite(points, "points", "n", "d")
    if not len(x) or count < 1:
        raise UserError(f"{count} centres of {len(x)} points: there must be one of each at least")
    chosen = [int(np.square(x - x.mean(axis=0)).sum(axis=1).argmin())]
    nearest = np.square(x - x[chosen[0]]).sum(axis=1)
    while len(chosen) < count:
        chosen.append(int(nearest.argmax()))
        nearest = np.minimum(nearest, np.square(x - x[chosen[-1]]).sum(axis=1))
    return x[chosen]


def fuzzy_c_means(points: Array, start: Array, fuzzifier: float = 2.0) -> tuple[Doubles, Doubles]:
    """Memberships (n, k) and centres (k, d), from ``start`` until none moves by more than 1e-6, or ``TURNS`` times."""
    x, centres = finite(points, "points", "n", "d"), finite(start, "centres", "n", "d")
    for _ in range(TURNS):
        before, centres = centres, centres_of(x, memberships(x, centres, fuzzifier), centres, fuzzifier)
        if np.abs(centres - before).max() <= 1e-6:
            break
    return memberships(x, centres, fuzzifier), centres
