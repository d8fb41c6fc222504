"""The label-residual signature: which clients have the same task, however skewed their labels are.

A signature says how a client's samples of each label deviate from everybody's: whitened residuals, a block for each
label, and a pooled one for shifts that all labels share. Each client makes two, of two halves of its samples, whose
inner product with another client's is 0 on average unless they have something in common. The eigenvalues that stand out
are one fewer than the groups. Not from a paper; limits: docs/systems/fedcaprivacy.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import msgspec
import numpy as np

from coterie.clustering.affinity import lexicographic_order, pairwise_distances
from coterie.clustering.spectral import soft_spectral_from_distances, unit_rows, without_small_clusters
from coterie.protocol.arrays import Array, Doubles, Flags, Integers
from coterie.protocol.errors import UserError

FEATURES = 64  # m: numbers that the public map makes of a sample
BOUND = 8.0  # of a mapped number: beyond it is cut off, so that the sums of any client are bounded
RIDGE = 0.1
DRAWS = 400
FIRST, FURTHER = 0.99, 0.95  # quantiles of the null that an eigenvalue must exceed
LEAST_SHARE = 0.3  # of the first eigenvalue that a further one must have
GUARD = 0.7, 4.5
FURTHEST = 2.5
NOTHING = 1e-6  # a signature of length 1 that is no further from the centre is at it
HOLDERS = 3  # a label that fewer clients hold is not looked at: the sum would show the two who hold it to each other
SMALLEST = 3


@dataclass(frozen=True, eq=False)
class Reference:
    """means: M_c (labels, m).  whiten: W (m, m).  kept: (labels,) bool, those that enough clients hold; the rest are
    ignored.
    """

    means: Doubles
    whiten: Doubles
    kept: Flags


def mapped(x: Array) -> Doubles:
    """The public map: samples (n, ...) -> (n, FEATURES), within +-BOUND. Fewer numbers are padded with zeros, more
    projected by random signs from a public seed (Achlioptas, 2003).
    """
    flat = np.asarray(x, np.float64).reshape(len(x), -1)
    size = flat.shape[1]
    flat = np.pad(flat, ((0, 0), (0, FEATURES - size))) if size <= FEATURES else flat @ _signs(size)
    return np.clip(flat, -BOUND, BOUND)


@lru_cache(maxsize=4)
def _signs(size: int) -> Doubles:
    signs = np.random.default_rng(size).integers(0, 2, (size, FEATURES), np.int8)
    return np.asarray((2.0 * signs - 1) / np.sqrt(size))


def statistics(x: Doubles, y: Array, kept: Flags) -> Doubles:
    """A client's term of the sums: shares of the labels, their sums of x, and second moments.

    x: (n, m) of ``mapped``.  y: (n,) int labels.  kept: (labels,) bool.
    Returns (labels + labels m + m (m + 1) / 2,) float64 within BOUND^2, over its samples with kept labels, so that
    clients count alike.
    """
    shown = kept[y]
    x, y = x[shown], y[shown]
    member = np.eye(len(kept))[y] / max(len(y), 1)  # (n, labels)
    second = x.T @ x / max(len(y), 1)
    return np.concatenate([member.sum(axis=0), (member.T @ x).ravel(), second[np.triu_indices(x.shape[1])]])


def statistics_size(labels: int) -> int:
    return labels * (1 + FEATURES) + FEATURES * (FEATURES + 1) // 2


def reference(total: Doubles, kept: Flags) -> Reference:
    """From the sum of all ``statistics``: M_c, and W = (within-label covariance + RIDGE x its mean
    eigenvalue)^(-1/2). Raises UserError for an impossible sum.
    """
    labels, m = len(kept), FEATURES
    if total.shape != (statistics_size(labels),) or not np.isfinite(total).all():
        raise UserError(f"a total of shape {total.shape}; {statistics_size(labels)} finite numbers belong in it")
    counts, sums, upper = np.split(total, [labels, labels + labels * m])
    used = kept & (counts > 0)
    if (counts[kept] < 0).any() or not used.any():
        raise UserError("the counts of the labels are not those of any data: a client has sent what is no count")
    means = np.where(used[:, None], sums.reshape(labels, m) / np.where(used, counts, 1)[:, None], 0)
    second = np.zeros((m, m))
    second[np.triu_indices(m)] = upper
    second = second + np.triu(second, 1).T
    within = (second - means.T @ (counts[:, None] * used[:, None] * means)) / counts[used].sum()
    values, vectors = np.linalg.eigh(within)
    if np.abs(means).max() > BOUND or values[0] < -max(values.mean(), 0) or values[-1] > BOUND**2 * m:
        raise UserError("the sums are not those of any data: a client has sent what are no statistics")
    scale = np.maximum(values, 0) + RIDGE * values.mean() + 1e-12
    return Reference(means, (vectors / np.sqrt(scale)) @ vectors.T, used)


def signature(x: Doubles, y: Array, to: Reference) -> Doubles:
    """Of samples x (n, m) with labels y (n,): ((labels + 1) m,) float64 of length 1, or 0.

    A block sqrt(n_c) W (mean_c - M_c) for each label, then the shared sum_c n_c W (mean_c - M_c) / sqrt(n).
    """
    shown = to.kept[y]
    x, y = x[shown], y[shown]
    member = np.eye(len(to.kept))[y]  # (n, labels)
    counts = member.sum(axis=0)
    residuals = (member.T @ x - counts[:, None] * to.means) @ to.whiten  # n_c W (mean_c - M_c)
    blocks = residuals / np.sqrt(np.maximum(counts, 1))[:, None]
    pooled = residuals.sum(axis=0) / np.sqrt(max(len(y), 1))
    return np.asarray(unit_rows(np.vstack([blocks, pooled]).reshape(1, -1))[0])


def halves(y: Array, rng: np.random.Generator) -> Flags:
    """(n,) bool, samples of the first half: half of each label, odd ones alternating."""
    first = np.zeros(len(y), bool)
    order = rng.permutation(len(y))
    order = order[np.argsort(y[order], kind="stable")]
    first[order[rng.integers(2) :: 2]] = True  # every other sample, label by label
    return first


class FoundGroups(msgspec.Struct, frozen=True, eq=False):
    """labels: (n,) int64 from 0.  directions: (groups, 2d), of length 1 in each half, or 0.
    centre: (2d,) what was subtracted.  quality: q of ``guarded``, else NaN.  eigenvalues: those that stood out.
    why: why there are fewer groups, or "".
    """

    labels: Integers
    centre: Doubles
    directions: Doubles
    quality: float
    eigenvalues: tuple[float, ...]
    why: str

    @property
    def number(self) -> int:
        return len(self.directions)


def find_groups(
    rows: Doubles, rng: np.random.Generator, groups: int | Literal["auto"] = "auto", smallest: int = SMALLEST
) -> FoundGroups:
    """rows: (n, 2d), a client's two halves, projected or not, with any common vector added.

    rng: of the null.  groups: how many, or "auto".  smallest: clients of a group. Raises UserError for impossible rows
    or ``groups``.
    """
    if rows.ndim != 2 or rows.shape[1] % 2 or 0 in rows.shape or not np.isfinite(rows).all():
        raise UserError(f"signatures must be finite numbers (clients, 2 d), not {rows.shape} or NaN")
    if groups != "auto" and (isinstance(groups, bool) or groups < 1):
        raise UserError(f"groups must be at least 1 or 'auto', not {groups!r}")
    order = lexicographic_order(rows)  # the draws must not depend on the order of the clients
    back = np.argsort(order)
    centre = rows[order].mean(axis=0)
    first, second = centred(rows[order], centre)
    products = first @ second.T
    if groups == "auto":
        eigenvalues = standing_out(products, rng, len(rows) // smallest - 1)
        wanted = 1 + len(eigenvalues)
    else:
        eigenvalues, wanted = (), groups
    labels, why = _divided(first + second, wanted, smallest)
    quality = guarded(products, labels)
    if groups == "auto" and labels.any() and not GUARD[0] <= quality <= GUARD[1]:
        labels = np.zeros_like(labels)
        why = f"halves of one client agree {quality:.2f} times as much as those of two in a group: no groups"
    directions = np.stack([_direction(first[labels == k], second[labels == k]) for k in range(labels.max() + 1)])
    return FoundGroups(labels[back], centre, directions, quality, eigenvalues, why)


def plausible(rows: Doubles) -> Flags:
    """(n,) bool, which rows (n, 2d) lie as near most others as signatures must."""
    # halves of length 1 are at most 2 apart, nearly so after projection
    parts = np.split(rows, 2, axis=1)
    furthest = np.maximum(*(pairwise_distances(part) for part in parts))
    return np.asarray(np.median(furthest, axis=1) <= FURTHEST)


def within_reach(row: Doubles, found: FoundGroups) -> bool:
    """Whether a newcomer's row (2d,) can be a signature."""
    return bool(max(np.linalg.norm(half) for half in np.split(row - found.centre, 2)) <= FURTHEST)


def centred(rows: Doubles, centre: Doubles) -> tuple[Doubles, Doubles]:
    """Both halves of rows (n, 2d) minus the centre, at length 1: two (n, d)."""
    first, second = (np.where(_long(half), half, 0.0) for half in np.split(rows - centre, 2, axis=1))
    return unit_rows(first), unit_rows(second)


def _long(half: Doubles) -> Flags:
    return np.asarray(np.linalg.norm(half, axis=1, keepdims=True) > NOTHING)


def placed(rows: Doubles, found: FoundGroups) -> Integers:
    """(n,) the group in whose direction each newcomer's row (2d,) points most."""
    together = np.concatenate(centred(rows, found.centre), axis=1)
    return np.asarray(np.argmax(together @ found.directions.T, axis=1), np.int64)


def standing_out(products: Doubles, rng: np.random.Generator, most: int) -> tuple[float, ...]:
    """At most so many eigenvalues of the products (n, n) of first with second halves.

    The first must exceed the FIRST quantile of the largest eigenvalues of DRAWS products with random signs, the others
    the FURTHER quantile and LEAST_SHARE of the first.
    """
    rest = products.copy()
    np.fill_diagonal(rest, 0.0)  # a client resembles itself, which says nothing of groups
    found: list[float] = []
    while len(found) < most:
        values, vectors = np.linalg.eigh(_symmetric(rest))
        value, vector = float(values[-1]), vectors[:, -1]
        signs = 1.0 - 2.0 * rng.integers(0, 2, (DRAWS, 2, len(rest)))
        null = [np.linalg.eigvalsh(_symmetric(rest * np.outer(*sign)))[-1] for sign in signs]
        floor = np.quantile(null, FURTHER if found else FIRST)
        if value <= max(floor, LEAST_SHARE * found[0] if found else 0.0):
            break
        found.append(value)
        others = np.eye(len(rest)) - np.outer(vector, vector)
        rest = others @ rest @ others
    return tuple(found)


def guarded(products: Doubles, labels: Integers) -> float:
    """q: the mean product of a client's own halves over that of two clients in one group; NaN for 0 / 0."""
    same = labels[:, None] == labels
    np.fill_diagonal(same, False)
    within = products[same].mean() if same.any() else 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.float64(np.diag(products).mean()) / within)


def _symmetric(products: Doubles) -> Doubles:
    return (products + products.T) / 2


def _divided(together: Doubles, groups: int, smallest: int) -> tuple[Integers, str]:
    if groups == 1:
        return np.zeros(len(together), np.int64), ""
    distances = pairwise_distances(unit_rows(together)) ** 2 / 2  # 1 - cosine, and exactly 0 between equal rows
    positive = distances[distances > 0]
    gamma = float(np.median(positive)) / 2 if positive.size else 1.0  # exp(-2 (d / median)^2)
    soft = soft_spectral_from_distances(distances, groups, gamma, "rbf")
    hard = np.eye(int(soft.labels.max()) + 1, dtype=bool)[soft.labels]
    phi = without_small_clusters(type(soft)(soft.labels, soft.closeness, hard, soft.affinity, ""), smallest)
    return np.unique(phi.argmax(axis=1), return_inverse=True)[1].astype(np.int64), soft.fewer_because


def _direction(first: Doubles, second: Doubles) -> Doubles:
    return np.concatenate([unit_rows(half.mean(axis=0, keepdims=True))[0] for half in (first, second)])
