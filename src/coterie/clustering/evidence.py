"""The evidence that two clients have one task: label residuals under a normal model of groups.

A client has, for every label c, n_c samples and the sum R_c of their whitened residuals, d = ``FEATURES`` numbers
(``clustering/signature.py``). In a group these have one mean, normal with variance tau_k, and samples scatter about it
with variance phi_k (Gelman et al., Bayesian Data Analysis, 2013, section 5.4). k is 0 in d_0 directions, at most one
fewer than the kept labels, that have all differences of their means, as of groups that name labels otherwise, and 1 in
the d_1 others. The log evidence of a group with N_c samples and residual sums S_ck, over that of means of 0, is

    f(N, S) = sum_ck [-(d_k/2) ln(1 + t_k N_c) + (tau_k/2) |S_ck/phi_k|^2 / (1 + t_k N_c)],  t_k = tau_k / phi_k   (1)

and two clients gain g_ij = f(i + j) - f(i) - f(j) by being in one group.

By a few eigenvectors, g_ij is nearly a bilinear form x_i . J x_j of rows that each client computes alone (``row``),
with a fixed J (``twisted``), which two servers can compute on shares (``protocols/shared_groups.py``): off by at most
0.05, a hundredth of itself and a thousandth of the greater of |f(i)| and |f(j)|, for t_k up to 25.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from coterie.clustering.signature import FEATURES, Reference, mapped
from coterie.protocol.arrays import Array, Doubles, Flags, Integers

NO_CONTRAST = 1e-6
MOST = 256  # samples of a label that count
RANK = 8
BALANCE = 8.0  # of the two factors of a product, which are rounded to the same unit
BONUS = float(np.log(20))
"""Added to the gain of each pair, which has one task unless the evidence against it is 20 to 1."""
# without it chance parts clients of one task
TERMS = 6  # of a client, for ``spread``
WIDTH = RANK * (6 + FEATURES)  # of a row, for a label


@dataclass(frozen=True, eq=False)
class ResidualSpread:
    """Of residuals in these two ``parts``, per coordinate: tau (2,) between groups, phi (2,) within."""

    parts: tuple[slice, slice]
    tau: Doubles
    phi: Doubles


def parts(kept: Flags) -> tuple[slice, slice]:
    """The coordinates of both k. kept: (labels,) as in ``Reference``."""
    between = min(max(int(kept.sum()) - 1, 0), FEATURES)
    return slice(0, between), slice(between, FEATURES)


def features(x: Array) -> Doubles:
    """(n, FEATURES) of samples (n, ...), each image or series at mean 0 and deviation 1."""
    if x.ndim < 3:
        return mapped(x)
    flat = np.asarray(x, np.float64).reshape(len(x), -1)
    centred = flat - flat.mean(axis=1, keepdims=True)
    return mapped(centred / np.maximum(centred.std(axis=1, keepdims=True), NO_CONTRAST))


def basis(seed: int, kept: Flags) -> Doubles:
    """(FEATURES, FEATURES) orthonormal within both ``parts``; residuals in it have the same gains. seed: of all
    clients, no server.
    """
    draw, found = np.random.default_rng(seed), np.zeros((FEATURES, FEATURES))
    for part in parts(kept):
        size = part.stop - part.start
        found[part, part] = np.linalg.qr(draw.normal(size=(size, size)))[0]
    return found


def axes(to: Reference) -> Doubles:
    """(FEATURES, FEATURES) orthonormal; the first of ``parts`` has all differences of kept labels' whitened means."""
    means = to.means[to.kept] @ to.whiten
    return np.asarray(np.linalg.qr((means[1:] - means[:1])[:FEATURES].T, mode="complete")[0])


def residuals(x: Doubles, y: Array, to: Reference) -> tuple[Integers, Doubles]:
    """Counts (labels,), at most MOST, and residual sums (labels, FEATURES) along ``axes``, scaled to so many, of x
    (n, FEATURES), y (n,).
    """
    shown = to.kept[y]
    member = np.eye(len(to.kept))[y[shown]]
    counts = member.sum(axis=0)
    sums = (member.T @ x[shown] - counts[:, None] * to.means) @ to.whiten @ axes(to)
    scale = np.minimum(1.0, MOST / np.maximum(counts, 1))
    return np.minimum(counts, MOST).astype(np.int64), sums * scale[:, None]


def spread_terms(halves: tuple[tuple[Integers, Doubles], tuple[Integers, Doubles]], kept: Flags) -> Doubles:
    """(TERMS,) a client's term for ``spread``. halves: ``residuals`` of two halves."""
    (n, first), (m, second) = halves
    both = (n > 0) & (m > 0)
    weight = both * np.sqrt(n * m)
    means = first / np.maximum(n, 1)[:, None], second / np.maximum(m, 1)[:, None]
    products = weight @ (means[0] * means[1])
    apart = (both / (1 / np.maximum(n, 1) + 1 / np.maximum(m, 1))) @ (means[0] - means[1]) ** 2
    sizes = np.maximum([part.stop - part.start for part in parts(kept)], 1)
    sums = [[one[part].sum() for part in parts(kept)] / sizes for one in (products, apart)]
    return np.concatenate([*sums, [weight.sum(), both.sum()]])


def spread(total: Doubles, kept: Flags) -> ResidualSpread:
    """total: (TERMS,) of all terms. Where no halves make a pair tau is 0."""
    products, apart, (weight, both) = np.split(total, [2, 4])
    tau, phi = np.maximum(products, 0) / max(weight, 1), apart / max(both, 1)
    return ResidualSpread(parts(kept), np.where(phi > 0, tau, 0.0), np.where(phi > 0, phi, 1.0))


def evidence(counts: Integers, sums: Doubles, of: ResidualSpread) -> float:
    """f of (1), for counts (labels,) and residual sums (labels, FEATURES)."""
    found = 0.0
    for tau, phi, part in zip(of.tau, of.phi, of.parts, strict=True):
        grown = 1 + tau / phi * counts
        squared = ((sums[:, part] / phi) ** 2).sum(axis=1)
        found += float(((part.start - part.stop) / 2 * np.log(grown) + tau / 2 * squared / grown).sum())
    return found


def gain(one: tuple[Integers, Doubles], other: tuple[Integers, Doubles], of: ResidualSpread) -> float:
    """g_ij of two clients' ``residuals``."""
    together = evidence(one[0] + other[0], one[1] + other[1], of)
    return together - evidence(*one, of) - evidence(*other, of)


# --------------------------------------------------------------------------------------------------- as a bilinear form


def row_length(labels: int) -> int:
    return labels * WIDTH + 2


def row(counts: Integers, sums: Doubles, of: ResidualSpread) -> Doubles:
    """(row_length,) x_i of a client's ``residuals``; ``x @ twisted(x')`` is nearly the gain of two."""
    heads, products = list[Doubles](), list[Doubles]()
    for tau, phi, part in zip(of.tau, of.phi, of.parts, strict=True):
        logs, shares = (vectors[counts] for vectors in _eigenvectors(float(tau / phi)))  # (labels, RANK)
        scaled = np.sqrt(tau) / phi * sums[:, part]
        size = 0.5 * (scaled**2).sum(axis=1, keepdims=True)
        heads += [np.sqrt((part.stop - part.start) / 2) * logs, size / BALANCE * shares, BALANCE * shares]
        products.append(shares[:, :, None] * scaled[:, None])
    blocks = np.concatenate([*heads, np.concatenate(products, axis=2).reshape(len(counts), -1)], axis=1)
    return np.concatenate([blocks.ravel(), [-evidence(counts, sums, of), 1.0]])


def twisted(rows: Array) -> Array:
    """J x for rows x (n, row_length): signs, and the swaps of |S|^2 with what it multiplies."""
    blocks = rows[:, :-2].reshape(len(rows), -1, WIDTH)
    out = blocks.copy()
    for at in (0, 3 * RANK):  # of both k
        out[:, :, at] = -blocks[:, :, at]  # -ln: one eigenvalue below 0, the others above
        sizes, shares = slice(at + RANK, at + 2 * RANK), slice(at + 2 * RANK, at + 3 * RANK)
        out[:, :, sizes], out[:, :, shares] = blocks[:, :, shares], blocks[:, :, sizes]
    return np.concatenate([out.reshape(len(rows), -1), rows[:, :-3:-1]], axis=1)


@lru_cache(maxsize=64)
def _eigenvectors(t: float) -> tuple[Doubles, Doubles]:
    """(MOST + 1, RANK) each, scaled, of ln(1 + t (x + y)) and 1 / (1 + t (x + y)) for x, y = 0..MOST."""
    grid = np.arange(MOST + 1.0)
    grown = 1 + t * (grid[:, None] + grid)
    values, vectors = np.linalg.eigh(np.log(grown))
    chosen = [-1, *range(RANK - 1)]
    logs = vectors[:, chosen] * np.sqrt(np.maximum(np.array([1.0] + [-1.0] * (RANK - 1)) * values[chosen], 0))
    values, vectors = np.linalg.eigh(1 / grown)
    return logs, vectors[:, -RANK:] * np.sqrt(np.maximum(values[-RANK:], 0))
