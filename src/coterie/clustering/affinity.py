"""Distances between rows (flat models or sketches), and eq. (8) of "FedCAPrivacy" over them.

Every distance is a function of its two rows alone, bit for bit, so that no shared mask or shuffle moves a result.
"""

from __future__ import annotations

from functools import cmp_to_key
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from coterie.protocol.errors import UserError

Kernel = Literal["laplacian", "rbf"]
Gamma = float | Literal["median"]

BLOCK = 1024  # coordinates at a time: a block of 100 rows stays in the cache; fixed, because it decides the rounding
_EXACT = 2**53  # integers below are exact in float64


def pairwise_distances(x: NDArray[Any]) -> NDArray[np.float64]:
    """Euclidean distances between all rows: (n, d) real -> (n, n) float64, symmetric, zero diagonal.

    A memory-mapped ``x`` is read in blocks. Raises UserError for anything but finite real rows; integers of 2^53 and
    above must be turned into differences to some row first.
    """
    n = _rows(x).shape[0]
    squares = np.zeros((n, n))
    differences = np.empty((n, BLOCK))
    for lo in range(0, x.shape[1], BLOCK):
        block = _block(x, lo)
        for i in range(n - 1):
            later = differences[: n - 1 - i, : block.shape[1]]
            np.subtract(block[i + 1 :], block[i], out=later)
            squares[i, i + 1 :] += _squares(later)
    return _root(squares + squares.T)


def cross_distances(x: NDArray[Any], y: NDArray[Any], *, centred: bool = False) -> NDArray[np.float64]:
    """Euclidean distances from every row of x to every row of y: (n, d), (m, d) -> (n, m) float64.

    centred: subtract each side's mean row, and so a common mask. Raises UserError as `pairwise_distances`.
    """
    if _rows(x).shape[1] != _rows(y).shape[1]:
        raise UserError(f"rows of {x.shape[1]} and of {y.shape[1]} coordinates: no distance between them")
    squares = np.zeros((len(x), len(y)))
    for lo in range(0, x.shape[1], BLOCK):
        a, b = _block(x, lo), _block(y, lo)
        if centred:
            a, b = a - a.mean(axis=0), b - b.mean(axis=0)
        for i, row in enumerate(a):
            squares[i] += _squares(b - row)
    return _root(squares)


def affinity(distances: NDArray[Any], gamma: Gamma = 0.5, kernel: Kernel = "laplacian") -> NDArray[np.float64]:
    """Eq. (8): distances of any shape -> affinities in [0, 1] of the same shape, 1 at distance 0.

    ``laplacian``: as printed, exp(-||.||_2 / (2 gamma)). ``rbf``: exp(-||.||_2^2 / (2 gamma^2)). gamma is in the unit
    of the distances; ``"median"`` takes the median of the positive ones, or 1. Raises UserError.
    """
    distances = np.asarray(distances, dtype=np.float64)
    if not (np.isfinite(distances).all() and (distances >= 0).all()):
        raise UserError("distances must be finite and not negative")
    scaled = distances / _gamma(gamma, distances)
    if kernel == "laplacian":
        return np.exp(-scaled / 2)  # eq. (8)
    if kernel == "rbf":
        with np.errstate(over="ignore"):  # an infinite square has affinity 0, which is right
            return np.exp(-(scaled**2) / 2)
    raise UserError(f"unknown kernel {kernel!r}: use 'laplacian' (eq. (8) as printed) or 'rbf'")


def lexicographic_order(x: NDArray[Any]) -> NDArray[np.intp]:
    """The permutation that sorts the rows of x (n, d), by their first coordinate first."""

    def compare(i: int, j: int) -> int:
        for lo in range(0, x.shape[1], BLOCK):
            a, b = x[i, lo : lo + BLOCK], x[j, lo : lo + BLOCK]
            different = np.flatnonzero(a != b)
            if different.size:
                return -1 if a[different[0]] < b[different[0]] else 1
        return 0

    return np.array(sorted(range(_rows(x).shape[0]), key=cmp_to_key(compare)), dtype=np.intp)


def _rows(x: NDArray[Any]) -> NDArray[Any]:
    if not isinstance(x, np.ndarray) or x.ndim != 2 or 0 in x.shape:
        given = f"shape {x.shape}" if isinstance(x, np.ndarray) else type(x).__name__
        raise UserError(f"rows must be a non-empty array of shape (clients, d), not {given}")
    if x.dtype.kind not in "fiu":
        raise UserError(f"rows must be real numbers, not {x.dtype}; turn long integers into differences to one row")
    return x


def _block(x: NDArray[Any], lo: int) -> NDArray[np.float64]:
    raw = x[:, lo : lo + BLOCK]
    block = np.ascontiguousarray(raw, dtype=np.float64)
    if x.dtype.kind == "f" and not np.isfinite(block).all():
        row, column = np.argwhere(~np.isfinite(block))[0]
        raise UserError(f"row {row} is not finite at coordinate {lo + column}: leave that client out")
    if x.dtype.kind != "f" and (np.abs(block) >= _EXACT).any():
        raise UserError("integers of 2^53 and above lose bits here: pass their differences to one of the rows")
    return block


def _squares(differences: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(over="ignore"):  # told by _root
        return np.asarray(np.vecdot(differences, differences))


def _root(squares: NDArray[np.float64]) -> NDArray[np.float64]:
    if not np.isfinite(squares).all():
        raise UserError("the rows are too far apart: a squared distance exceeds the range of float64")
    return np.sqrt(squares)


def _gamma(gamma: Gamma, distances: NDArray[np.float64]) -> float:
    if gamma == "median":
        positive = distances[distances > 0]
        return float(np.median(positive)) if positive.size else 1.0
    if isinstance(gamma, bool) or not isinstance(gamma, int | float) or not 0 < gamma < float("inf"):
        raise UserError(f"gamma must be a positive number or 'median', not {gamma!r}")
    return float(gamma)
