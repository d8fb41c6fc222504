"""Dynamic K-means: clusters of clients that join, leave and change (OFL, algorithm 1, l. 8, and section 4.3).

A clustering keeps the last centres unless a fresh start fits better by ``BETTER``. A cluster that keeps most of its
members keeps its number.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from coterie.clustering.labels import NOISE, Labels, lasting_numbers
from coterie.protocol.arrays import Doubles
from coterie.protocol.errors import UserError
from coterie.protocol.threads import one_thread

STARTS = 10
BETTER = 0.05
"""Of the sum of squared distances, by which a fresh start must beat the last centres."""
_CONSTANT = 1e-12  # of a column's largest value: a deviation below it is none


class Clusters(msgspec.Struct, eq=False):
    """numbers: by name, the lasting number of its cluster.  order: (k,) that of each centre's.
    centres: (k, d) in the features' units.  weights: (d,) of the columns.  following: the next new number.
    """

    numbers: dict[str, int] = {}
    order: Labels = msgspec.field(default_factory=lambda: np.zeros(0, np.int64))
    centres: Doubles = msgspec.field(default_factory=lambda: np.zeros((0, 0)))
    weights: Doubles = msgspec.field(default_factory=lambda: np.zeros(0))
    following: int = 0


def regrouped(
    names: Sequence[str],
    features: ArrayLike,
    k: int,
    before: Clusters | None = None,
    *,
    seed: int = 0,
    groups: Sequence[int] | None = None,
    least: int = 1,
) -> Clusters:
    """The clusters of these clients: k, or as many as have ``least`` members each.

    features: (n, d), in the order of the names. Columns are scaled to deviation 1; a constant one does not count.
    groups: numbers of columns that belong together; groups that differ at all count alike.
    before: the clustering to continue.
    With fewer distinct rows than clusters, the largest cluster is halved in the order of the names. Raises UserError.
    """
    rows = _checked(names, features, k, groups, least)
    before = before or Clusters()
    if not len(rows):
        return Clusters(following=before.following)
    weights = _weights(rows, groups)
    count, points = max(1, min(k, len(rows) // least)), rows * weights
    labels = _filled(_labels(points, count, _kept(before, rows, weights, count), seed), count)
    labels = _supplied(points, labels, min(least, len(rows)))
    old = np.array([before.numbers.get(name, NOISE) for name in names], np.int64)
    lasting, following = lasting_numbers(old, labels, before.following)
    order = np.unique(lasting)
    centres = np.stack([rows[lasting == number].mean(axis=0) for number in order])
    numbers = dict(zip(names, lasting.tolist(), strict=True))
    return Clusters(numbers, order, centres, weights, following)


def nearest(clusters: Clusters, row: ArrayLike) -> int:
    """The cluster nearest to a row (d,), of a client that joins in between. Raises UserError without a cluster, or
    for another row.
    """
    point = np.asarray(row, np.float64)
    if not len(clusters.order) or point.shape != clusters.weights.shape or not np.isfinite(point).all():
        raise UserError(
            f"{len(clusters.order)} clusters of {len(clusters.weights)} features, a row of shape {point.shape}: there "
            "must be a cluster, and as many finite numbers"
        )
    return int(clusters.order[(((clusters.centres - point) * clusters.weights) ** 2).sum(axis=1).argmin()])


def _checked(names: Sequence[str], features: ArrayLike, k: int, groups: Sequence[int] | None, least: int) -> Doubles:
    rows = np.asarray(features, np.float64)
    if k < 1 or least < 1:
        raise UserError(f"clusters and their members must be at least 1, not {k} and {least}")
    if not len(names):
        return np.zeros((0, 0))
    if len(set(names)) < len(names):
        raise UserError("a client stands twice among those to be clustered")
    if rows.ndim != 2 or len(rows) != len(names) or not rows.shape[1] or not np.isfinite(rows).all():
        raise UserError(f"features must be {len(names)} rows of finite numbers, one a client, not {rows.shape}")
    if groups is not None and (sum(groups) != rows.shape[1] or min(groups, default=0) < 1):
        raise UserError(f"groups of {tuple(groups)} columns do not make up {rows.shape[1]}")
    return rows


def _weights(rows: Doubles, groups: Sequence[int] | None) -> Doubles:
    largest = np.abs(rows).max(axis=0)
    scaled = rows / np.where(largest > 0, largest, 1.0)  # no overflow in squares
    spread = scaled.std(axis=0)
    weights = np.zeros(rows.shape[1])
    differs = spread > _CONSTANT
    weights[differs] = 1 / (spread[differs] * largest[differs])
    ends = np.cumsum([rows.shape[1]] if groups is None else groups)
    for part in np.split(np.arange(rows.shape[1]), ends[:-1]):
        weights[part] /= np.sqrt(max(1, int(differs[part].sum())))
    return weights


def _kept(before: Clusters, rows: Doubles, weights: Doubles, count: int) -> Doubles | None:
    fits = before.centres.shape == (count, rows.shape[1])
    return before.centres * weights if fits else None


def _labels(points: Doubles, count: int, kept: Doubles | None, seed: int) -> Labels:
    import sklearn.cluster as of
    from sklearn.exceptions import ConvergenceWarning

    def fitted(init: Any, starts: int) -> Any:
        return of.KMeans(count, init=init, n_init=starts, random_state=seed).fit(points)

    with warnings.catch_warnings(), one_thread():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct rows than clusters: they are halved
        found = fitted("k-means++", STARTS)
        if kept is not None:
            same = fitted(kept, 1)
            found = same if same.inertia_ <= (1 + BETTER) * found.inertia_ else found
    return np.unique(found.labels_, return_inverse=True)[1].astype(np.int64)


def _filled(labels: Labels, count: int) -> Labels:
    labels = labels.copy()
    for new in range(int(labels.max()) + 1, count):
        own = np.flatnonzero(labels == np.bincount(labels).argmax())
        labels[own[len(own) // 2 + len(own) % 2 :]] = new
    return labels


def _supplied(points: Doubles, labels: Labels, least: int) -> Labels:
    labels = labels.copy()
    while (sizes := np.bincount(labels)).min() < least:
        small = int(sizes.argmin())
        spare = np.flatnonzero(sizes[labels] > least)
        centre = points[labels == small].mean(axis=0)
        labels[spare[((points[spare] - centre) ** 2).sum(axis=1).argmin()]] = small
    return labels
