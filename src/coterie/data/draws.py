"""Random tables of counts: the few draws that all partitions are made of."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]


def even_sizes(total: int, parts: int, rng: np.random.Generator) -> Counts:
    """``(parts,)`` sizes that sum to ``total`` and differ by at most one; who gets the odd ones is by lot."""
    base, odd = divmod(total, parts)
    sizes = np.full(parts, base, dtype=np.int64)
    sizes[rng.permutation(parts)[:odd]] += 1
    return sizes


def proportional_sizes(total: int, weights: Counts) -> Counts:
    """``(parts,)`` sizes that sum to ``total >= parts``, nearest to ``weights``' shares and at least one each."""
    quota = total * weights / weights.sum()
    sizes: Counts = np.maximum(np.floor(quota), 1).astype(np.int64)
    while missing := total - int(sizes.sum()):
        step = 1 if missing > 0 else -1
        error = np.where((step > 0) | (sizes > 1), step * (quota - sizes), -np.inf)
        sizes[error.argmax()] += step
    return sizes


def log_gamma(shape: Floats, rng: np.random.Generator) -> Floats:
    """Logarithms of independent Gamma(shape, 1) draws; rows normalised to sum to 1 are Dirichlet draws.

    In logarithms because a Gamma(0.01) draw is often below the smallest float, and a row of zeros has no proportions:
    Gamma(a) = Gamma(a + 1) U^(1/a).
    """
    return np.log(rng.standard_gamma(shape + 1)) + np.log1p(-rng.random(shape.shape)) / shape


def rounded(totals: Counts, shares: Floats, rng: np.random.Generator) -> Counts:
    """Whole numbers ``(rows, parts)`` with row sums ``totals`` and means ``totals * shares``; shares' rows sum to 1.

    Systematic sampling: one random offset a row, so an entry is its mean rounded up or down, and its expectation is
    exact. Rounding the mean itself would take from small parts in every draw.
    """
    edges = np.cumsum(shares, axis=1)
    edges = totals[:, None] * (edges / edges[:, -1:]) + rng.random((len(shares), 1))
    whole = np.minimum(np.floor(edges).astype(np.int64), totals[:, None])
    whole[:, -1] = totals
    return np.diff(whole, axis=1, prepend=0)


def allot(want: Counts, log_weights: Floats, supply: Counts, rng: np.random.Generator) -> Counts:
    """Give every row ``want[i]`` units, of kinds drawn with its own weights, out of a limited supply of each kind.

    want: (rows,).  log_weights: (rows, kinds), unnormalised.  supply: (kinds,), in all at least ``want.sum()``.
    -> (rows, kinds) counts. Where more units of a kind are asked for than there are, lots among all who asked decide,
    and who lost draws again among the kinds that are left, in proportion. No row comes before another.
    """
    counts = np.zeros(log_weights.shape, dtype=np.int64)
    want, supply = want.copy(), supply.copy()
    while want.any():
        log_q = np.where(supply > 0, log_weights, -np.inf)
        q = np.exp(log_q - log_q.max(axis=1, keepdims=True))
        asked = rng.multinomial(want, q / q.sum(axis=1, keepdims=True))
        for kind in np.flatnonzero(asked.sum(axis=0) > supply):
            asked[:, kind] = rng.multivariate_hypergeometric(asked[:, kind], supply[kind])
        counts += asked
        supply -= asked.sum(axis=0)
        want -= asked.sum(axis=1)
    return counts
