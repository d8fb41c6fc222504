"""Clients' labels from sparsity vectors ("FedEPC", section 3.2, says that they reveal nothing precise).

A vector mixes the classes' means by the client's label shares; its receiver has means of samples of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.privacy.attacks.result import AttackResult, handed_out, real_rows, shares_of
from coterie.protocol.errors import UserError

DRAWS = 50
"""Guesses of the same kind, for the luck of vectors without names."""
_SUM_TO_ONE = 1e3


def class_means(vectors: NDArray[Any], labels: NDArray[Any], classes: int) -> NDArray[np.float64]:
    """Vectors (m, C), clipped as the clients' are, and labels (m,) of the attacker's samples -> (classes, C) means, NaN
    for a class without any.
    """
    rows = real_rows("auxiliary vectors", vectors)
    means = np.full((classes, rows.shape[1]), np.nan)
    for k in np.unique(labels):
        means[k] = rows[labels == k].mean(axis=0)
    return means


def shares_by_nnls(vectors: NDArray[Any], means: NDArray[Any]) -> NDArray[np.float64]:
    """Vectors (n, C) and class means (classes, C) -> (n, classes) label shares: the w >= 0 with sum 1 that minimizes
    |w means - vector_i|; 0 for an unknown mean. Raises UserError where no class is known.
    """
    from scipy.optimize import nnls  # slow to import

    rows, known = real_rows("vectors", vectors), np.isfinite(means).all(axis=1)
    if not known.any():
        raise UserError("no class means are known")
    columns = means[known].T
    heavy = _SUM_TO_ONE * max(1.0, float(np.abs(columns).max()))  # the sum is an equation that outweighs all others
    system = np.vstack([columns, np.full(columns.shape[1], heavy)])
    shares = np.zeros((len(rows), len(means)))
    for own, row in zip(shares, rows, strict=True):
        found, _ = nnls(system, np.append(row, heavy))
        own[known] = found / found.sum()
    return shares


def by_cluster(estimate: NDArray[Any], clusters: NDArray[Any]) -> NDArray[np.float64]:
    """The mean estimate (n, classes) of each client's cluster (n,)."""
    rows = real_rows("estimate", estimate)
    _, own = np.unique(clusters, return_inverse=True)
    sums = np.zeros((own.max() + 1, rows.shape[1]))
    np.add.at(sums, own, rows)
    return np.asarray(sums[own] / np.bincount(own)[own, None])


def total_variation(estimate: NDArray[Any], label_counts: NDArray[Any], prior: NDArray[Any]) -> AttackResult:
    """Mean total variation between estimated and true label shares (n, classes); 0 is perfect.

    Chance guesses ``prior`` (classes,) for every client, with the spread of handing the estimates to random clients.
    """
    estimate, truth = real_rows("estimate", estimate), shares_of(label_counts)
    value, _, sd = handed_out(_apart(truth, estimate))
    return AttackResult("label shares: total variation", value, _blind(truth, prior), 0.0, len(truth), sd)


def unnamed_total_variation(estimate: NDArray[Any], label_counts: NDArray[Any], prior: NDArray[Any]) -> AttackResult:
    """`total_variation` for estimates without names, in the best matching with the clients.

    Chance gives each estimate's numbers to random labels (`DRAWS` times, fixed seed) and matches them, or guesses the
    prior if that is better.
    """
    estimate, truth = real_rows("estimate", estimate), shares_of(label_counts)
    rng = np.random.default_rng(0)
    by_luck = [_matched(truth, rng.permuted(estimate, axis=1)) for _ in range(DRAWS)]
    chance = min(float(np.mean(by_luck)), _blind(truth, prior))
    metric = "label shares of unnamed clients: total variation"
    return AttackResult(metric, _matched(truth, estimate), chance, 0.0, len(truth), float(np.std(by_luck, ddof=1)))


def _apart(truth: NDArray[np.float64], estimate: NDArray[np.float64]) -> NDArray[np.float64]:
    from scipy.spatial.distance import cdist  # slow to import

    return np.asarray(cdist(truth, estimate, "cityblock") / 2)


def _matched(truth: NDArray[np.float64], estimate: NDArray[np.float64]) -> float:
    from scipy.optimize import linear_sum_assignment  # slow to import

    apart = _apart(truth, estimate)
    return float(apart[linear_sum_assignment(apart)].mean())


def _blind(truth: NDArray[np.float64], prior: NDArray[Any]) -> float:
    guess = np.asarray(prior, np.float64)
    return float(_apart(truth, guess[None] / guess.sum()).mean())
