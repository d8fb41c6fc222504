"""The evidence that two clients have one task: label residuals under a normal model of groups.

A client has, for every label c, n_c samples and the sum R_c of their whitened residuals, d = ``FEATURES`` numbers
(``clustering/signature.py``). In a group these have one mean, normal with variance tau_c; samples scatter about it with
variance phi_c (Gelman et al., Bayesian Data Analysis, 2013, section 5.4). The log evidence of a group with N_c samples
and residual sum S_c, over that of means of 0, is

    f(N, S) = sum_c [-(d/2) ln(1 + t_c N_c) + (tau_c / 2) |S_c / phi_c|^2 / (1 + t_c N_c)],  t_c = tau_c / phi_c    (1)

and two clients gain g_ij = f(i + j) - f(i) - f(j) by being in one group.

By a few eigenvectors, g_ij is nearly a bilinear form x_i . J x_j of rows that each client computes alone (``row``),
with a fixed J (``twisted``), which two servers can compute on shares (``protocols/shared_groups.py``): off by at most
0.05, a hundredth of itself and a thousandth of the greater of |f(i)| and |f(j)|, for t_c up to 25.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from coterie.clustering.signature import FEATURES, Reference, mapped
from coterie.protocol.arrays import Array, Doubles, Integers

NO_CONTRAST = 1e-6
MOST = 256  # samples of a label that count
RANK = 8
BALANCE = 8.0  # of the two factors of a product, which are rounded to the same unit
BONUS = FEATURES / 8
"""Added to the gain of each pair."""
# without it single clients and small groups are left over


@dataclass(frozen=True, eq=False)
class ResidualSpread:
    """Of each label's residuals, per coordinate: tau (labels,) between groups, phi (labels,) within."""

    tau: Doubles
    phi: Doubles


def features(x: Array) -> Doubles:
    """(n, FEATURES) of samples (n, ...), each image or series at mean 0 and deviation 1."""
    if x.ndim < 3:
        return mapped(x)
    flat = np.asarray(x, np.float64).reshape(len(x), -1)
    centred = flat - flat.mean(axis=1, keepdims=True)
    return mapped(centred / np.maximum(centred.std(axis=1, keepdims=True), NO_CONTRAST))


def basis(seed: int) -> Doubles:
    """(FEATURES, FEATURES) orthonormal; residuals in it have the same gains. seed: of all clients, no server."""
    return np.asarray(np.linalg.qr(np.random.default_rng(seed).normal(size=(FEATURES, FEATURES)))[0])


def residuals(x: Doubles, y: Array, to: Reference) -> tuple[Integers, Doubles]:
    """Counts (labels,), at most MOST, and residual sums (labels, FEATURES), scaled to so many, of x (n, FEATURES), y
    (n,).
    """
    shown = to.kept[y]
    member = np.eye(len(to.kept))[y[shown]]
    counts = member.sum(axis=0)
    sums = (member.T @ x[shown] - counts[:, None] * to.means) @ to.whiten
    scale = np.minimum(1.0, MOST / np.maximum(counts, 1))
    return np.minimum(counts, MOST).astype(np.int64), sums * scale[:, None]


def spread_terms(halves: tuple[tuple[Integers, Doubles], tuple[Integers, Doubles]]) -> Doubles:
    """(4 labels,) a client's term for ``spread``. halves: ``residuals`` of two halves."""
    (n, first), (m, second) = halves
    both = (n > 0) & (m > 0)
    weight = both * np.sqrt(n * m)
    means = first / np.maximum(n, 1)[:, None], second / np.maximum(m, 1)[:, None]
    product = weight * (means[0] * means[1]).sum(axis=1)
    apart = both * ((means[0] - means[1]) ** 2).sum(axis=1) / (1 / np.maximum(n, 1) + 1 / np.maximum(m, 1))
    return np.concatenate([product, weight, apart, both]).astype(np.float64)


def spread(total: Doubles) -> ResidualSpread:
    """total: (4 labels,) of all terms. A label without a pair of halves has tau 0."""
    product, weight, apart, both = np.split(total, 4)
    tau = np.maximum(product / np.maximum(weight, 1), 0) / FEATURES
    phi = apart / np.maximum(both, 1) / FEATURES
    return ResidualSpread(np.where(phi > 0, tau, 0.0), np.where(phi > 0, phi, 1.0))


def evidence(counts: Integers, sums: Doubles, of: ResidualSpread) -> float:
    """f of (1), for counts (labels,) and residual sums (labels, FEATURES)."""
    grown = 1 + of.tau / of.phi * counts
    squared = ((sums / of.phi[:, None]) ** 2).sum(axis=1)
    return float((-FEATURES / 2 * np.log(grown) + of.tau / 2 * squared / grown).sum())


def gain(one: tuple[Integers, Doubles], other: tuple[Integers, Doubles], of: ResidualSpread) -> float:
    """g_ij of two clients' ``residuals``."""
    together = evidence(one[0] + other[0], one[1] + other[1], of)
    return together - evidence(*one, of) - evidence(*other, of)


# --------------------------------------------------------------------------------------------------- as a bilinear form


def row_length(labels: int) -> int:
    return labels * RANK * (3 + FEATURES) + 2


def row(counts: Integers, sums: Doubles, of: ResidualSpread) -> Doubles:
    """(row_length,) x_i of a client's ``residuals``; ``x @ twisted(x')`` is nearly the gain of two."""
    parts = list[Doubles]()
    for n, total, tau, phi in zip(counts, sums, of.tau, of.phi, strict=True):
        logs, shares = (vectors[n] for vectors in _eigenvectors(float(tau / phi)))
        scaled = np.sqrt(tau) / phi * total
        size = 0.5 * float(scaled @ scaled)
        parts += [np.sqrt(FEATURES / 2) * logs, size / BALANCE * shares, BALANCE * shares]
        parts += [np.outer(shares, scaled).ravel()]
    return np.concatenate([*parts, [-evidence(counts, sums, of), 1.0]])


def twisted(rows: Array) -> Array:
    """J x for rows x (n, row_length): signs, and the swaps of |S|^2 with what it multiplies."""
    labels = (rows.shape[1] - 2) // (RANK * (3 + FEATURES))
    blocks = rows[:, :-2].reshape(len(rows), labels, -1)
    out = blocks.copy()
    out[:, :, 0] = -blocks[:, :, 0]  # -ln: one eigenvalue below 0, the others above
    out[:, :, RANK : 2 * RANK] = blocks[:, :, 2 * RANK : 3 * RANK]
    out[:, :, 2 * RANK : 3 * RANK] = blocks[:, :, RANK : 2 * RANK]
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
