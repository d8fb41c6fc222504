"""The modified Jensen-Shannon divergence of devices' sparsity vectors, eq. (3) and (4) of "FedEPC", and its
calibration.

A sparsity vector s has a share of zeros in [0, 1] for each of C channels; P = s / sum(s) is its distribution.

    js(x, y) = 1/2 sum_c [x_c ln(2 x_c / (x_c + y_c)) + y_c ln(2 y_c / (x_c + y_c))],      0 ln 0 = 0,
    MJS(s, t) = js(P, Q) + gamma js(s, t).

Departures: docs/systems/fedepc_appendix.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coterie.protocol.arrays import Array, Doubles, Floats
from coterie.protocol.errors import UserError

FLOORS_PER_SCALE = 10.0  # the scale is at least so many median floors
MOST_SCALES = 2.0  # a device's floor counts at most so many times that
NODES = 14  # of the matrix form, a channel
NEGLIGIBLE = 1e-9  # eigenvalues of a channel's kernel that the matrix form leaves out

_BLOCK = 512  # rows at a time


def modified_divergence(s: ArrayLike, gamma: float = 1.0, *, exact: bool = True) -> Array:
    """MJS between all rows of s (n, C) in [0, 1] -> (n, n), symmetric, zero diagonal, natural logarithm.

    exact: float64, each entry a function of its two rows alone, bit for bit; else float32 by `embedded`, far faster
    from hundreds of devices on. Raises UserError for an impossible s or gamma.
    """
    s, gamma = sparsity_vectors(s), _weight(gamma)
    if not exact:
        return _by_products(s, gamma)
    found = np.zeros((len(s), len(s)))
    for x, weight in _terms(s, gamma):
        for i in range(len(s) - 1):
            found[i, i + 1 :] += weight * _js(x[i], x[i + 1 :])
    return found + found.T


def divergence_to(s: ArrayLike, t: ArrayLike, gamma: float = 1.0) -> Doubles:
    """MJS between each row of s (n, C) and each of t (m, C) -> (n, m).

    Bit for bit as `modified_divergence`. Raises UserError as that, and for unlike lengths.
    """
    s, t, gamma = sparsity_vectors(s), sparsity_vectors(t), _weight(gamma)
    if s.shape[1] != t.shape[1]:
        raise UserError(f"sparsity vectors of {s.shape[1]} and of {t.shape[1]} channels: no divergence between them")
    found = np.zeros((len(s), len(t)))
    for (x, weight), (y, _) in zip(_terms(s, gamma), _terms(t, gamma), strict=True):
        for i, row in enumerate(x):
            found[i] += weight * _js(row, y)
    return found


def noise_floor(first: ArrayLike, second: ArrayLike, gamma: float = 1.0) -> float:
    """h_i: MJS between the vectors (C,) of two random halves of one device's data, about twice that of two devices
    of like data. Raises UserError as above.
    """
    return float(divergence_to(sparsity_vector(first)[None], sparsity_vector(second)[None], gamma)[0, 0])


def calibrated(
    mjs: Array, floors: ArrayLike, scale: float | None = None, *, per_scale: float = FLOORS_PER_SCALE
) -> tuple[NDArray[np.floating[Any]], float]:
    """Divergences in units in which 0 is noise and 1 is usual: max(0, MJS - (h_i + h_j) / 4) / scale, and the scale.

    mjs: (n, n) of `modified_divergence`, whose type the result has.  floors: (n,), h_i >= 0 of `noise_floor`; one
    counts as 2 ``per_scale`` median ones at most.
    scale: by default MJS of the median pair, or ``per_scale`` median floors if more; the median of positive pairs where
    that is 0, or 1. Raises UserError for impossible numbers.
    """
    mjs, h = np.asarray(mjs), noise_floors(floors, len(mjs))
    if mjs.ndim != 2 or mjs.shape[0] != mjs.shape[1] or mjs.dtype.kind != "f":
        raise UserError(f"divergences must be a square array of real numbers, not {mjs.dtype} of shape {mjs.shape}")
    if not (np.isfinite(mjs).all() and (mjs >= 0).all()):
        raise UserError("divergences must be finite and not negative")
    middle = float(np.median(h))
    if scale is None:
        scale = _scale(mjs, per_scale * middle)
    elif not 0 < scale < np.inf:
        raise UserError(f"the scale of divergences must be a positive number, not {scale!r}")
    quarter = (np.minimum(h, MOST_SCALES * per_scale * middle) / 4).astype(mjs.dtype)
    found = mjs - quarter
    found -= quarter[:, None]
    np.maximum(found, 0, out=found)
    found /= mjs.dtype.type(scale)
    np.fill_diagonal(found, 0)
    return found, scale


def sparsity_vectors(s: ArrayLike) -> Doubles:
    """(n, C) float64. Raises UserError naming the row and channel of an impossible share."""
    s = _numbers(s, "sparsity vectors")
    if s.ndim != 2 or 0 in s.shape:
        raise UserError(f"sparsity vectors must be an array of shape (devices, channels), not {s.shape}")
    wrong = ~((s >= 0) & (s <= 1))  # NaN as well
    if wrong.any():
        i, c = np.argwhere(wrong)[0]
        raise UserError(f"the sparsity of row {i} in channel {c} is {s[i, c]}: it is a share, between 0 and 1")
    return s + 0.0  # no -0.0


def sparsity_vector(s: ArrayLike) -> Doubles:
    """As ``sparsity_vectors``, for one device: (C,) float64."""
    one = _numbers(s, "a sparsity vector")
    if one.ndim != 1:
        raise UserError(f"a sparsity vector must have shape (channels,), not {one.shape}")
    (own,) = sparsity_vectors(one[None])
    return np.array(own, np.float64)


def noise_floors(floors: ArrayLike, n: int) -> Doubles:
    """(n,) float64; UserError names the device."""
    h = _numbers(floors, "noise floors")
    if h.shape != (n,):
        raise UserError(f"noise floors must be one a device: {n} devices, but floors of shape {h.shape}")
    wrong = ~((h >= 0) & (h < np.inf))
    if wrong.any():
        i = int(np.flatnonzero(wrong)[0])
        raise UserError(f"the noise floor of row {i} is {h[i]}: it is a divergence, finite and not negative")
    return h


def _numbers(values: ArrayLike, what: str) -> Doubles:
    try:
        array = np.asarray(values)
        if array.dtype.kind not in "fiub":
            raise TypeError
    except (TypeError, ValueError):
        raise UserError(f"{what} must be of real numbers, and all rows of one length") from None
    return array.astype(np.float64)


def _weight(gamma: float) -> float:
    if isinstance(gamma, bool) or not isinstance(gamma, int | float) or not 0 <= gamma < np.inf:
        raise UserError(f"gamma weighs the second term of eq. (3): a finite number of at least 0, not {gamma!r}")
    return float(gamma)


def _terms(s: Doubles, gamma: float) -> tuple[tuple[Doubles, float], tuple[Doubles, float]]:
    sums = s.sum(axis=1, keepdims=True)
    uniform = np.full_like(s, 1 / s.shape[1])
    return (np.divide(s, sums, out=uniform, where=sums > 0), 1.0), (s, gamma)


def _js(x: Doubles, y: Doubles) -> Doubles:
    from scipy.special import rel_entr

    both = x + y
    found = (rel_entr(2 * x, both) + rel_entr(2 * y, both)).sum(axis=1) / 4
    return np.asarray(np.maximum(found, 0))  # rounding may leave less of nearly equal rows


def _scale(mjs: Array, least: float) -> float:
    pairs = np.concatenate([mjs[i, i + 1 :] for i in range(len(mjs))])
    scale = max(float(np.median(pairs)) if pairs.size else 0.0, least)
    if scale == 0 and (positive := pairs[pairs > 0]).size:
        scale = float(np.median(positive))
    return scale or 1.0


# -- by matrix products ------------------------------------------------------------------------------------------------


def embedded(x: Doubles) -> tuple[Floats, float]:
    """Rows (n, d) float32 with squared distances of about 2 js of eq. (4) between rows of x (n, C) >= 0, and the bound
    by which these are too small at most.

    By Nystroem's method on NODES values of a channel (Williams and Seeger, NIPS 2000), as js is a squared distance of
    Hilbert space (Fuglede and Topsoe, 2004).
    """
    low, high = np.sqrt(x.min(axis=0)), np.sqrt(x.max(axis=0))
    place = (1 - np.cos(np.pi * (np.arange(NODES) + 0.5) / NODES)) / 2  # Chebyshev's, of the root: f is singular at 0
    nodes = np.square(low[:, None] + (high - low)[:, None] * place)  # (C, nodes)
    origin = nodes[:, NODES // 2, None]
    inner = (_f(nodes, origin)[:, :, None] + _f(nodes, origin)[:, None] - _f(nodes[:, :, None], nodes[:, None])) / 2
    values, vectors = np.linalg.eigh(inner)
    kept = values > NEGLIGIBLE
    towards = vectors / np.sqrt(np.where(kept, values, 1))[:, None]  # (C, nodes, directions)
    rows, lost = np.empty((len(x), int(kept.sum())), np.float32), 0.0
    for lo in range(0, len(x), _BLOCK):
        a = x[lo : lo + _BLOCK, :, None]
        own = _f(a, origin)
        k = (own + _f(nodes, origin) - _f(a, nodes)) / 2  # (rows, C, nodes)
        found = np.matmul(k.swapaxes(0, 1), towards).swapaxes(0, 1)[:, kept]
        lost = max(lost, float((own.sum(axis=(1, 2)) - np.square(found).sum(axis=1)).max()))
        rows[lo : lo + _BLOCK] = found
    return rows - rows.mean(axis=0), 4 * lost


def _f(a: Doubles, b: Doubles) -> Doubles:
    from scipy.special import xlogy

    both = a + b
    return np.asarray(xlogy(a, a) + xlogy(b, b) + both * np.log(2) - xlogy(both, both))


def _by_products(s: Doubles, gamma: float) -> Floats:
    channels = s.shape[1]
    (p, _), _ = _terms(s, gamma)
    shares = embedded(p * channels)[0] / np.float32(np.sqrt(2 * channels))  # js(cP, cQ) = c js(P, Q)
    rows = np.hstack([shares, embedded(s)[0] * np.float32(np.sqrt(gamma / 2))])
    found = rows @ rows.T
    squares = found.diagonal().copy()
    found *= -2
    for lo in range(0, len(found), _BLOCK):
        found[lo : lo + _BLOCK] += squares[lo : lo + _BLOCK, None] + squares  # the sum first: symmetric to the last bit
    np.maximum(found, 0, out=found)
    np.fill_diagonal(found, 0)
    return found
