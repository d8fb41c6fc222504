"""Who resembles whom, from the clustering label matrix.

Who: the business server of FedCAPrivacy, honest but curious. On: phi, which the cloud service provider returns and the
server turns back into identities with its own permutation, in order to distribute the models. It proves that the
server learns exactly the similarity between participants that the paper promises to hide from the aggregator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from coterie.attacks.label_shares import shares
from coterie.attacks.result import Result, real_rows
from coterie.protocol.errors import UserError


def similar_pairs(membership: NDArray[Any]) -> NDArray[np.float64]:
    """phi (n, c) by identity -> (n, n) guess of similarity in [0, 1]: shared clusters over all clusters of a pair."""
    phi = real_rows("membership", membership)
    if not np.isin(phi, (0, 1)).all():
        raise UserError("membership must hold 0 and 1 only")
    shared = phi @ phi.T
    size = phi.sum(axis=1)
    either = size[:, None] + size - shared
    return np.asarray(shared / np.where(either > 0, either, 1.0))


def pair_correlation(guess: NDArray[Any], label_counts: NDArray[Any]) -> Result:
    """Pearson correlation of `similar_pairs` with the cosine of label counts (n, classes), over all pairs of clients.

    Chance is 0, and so is a constant guess (one cluster for all).
    """
    truth = shares(label_counts)
    truth = truth / np.linalg.norm(truth, axis=1, keepdims=True)
    cosine, guess = truth @ truth.T, _pairs(guess, len(truth))
    upper = np.triu_indices(len(cosine), 1)
    if np.ptp(cosine[upper]) < 1e-12:
        raise UserError("all clients have the same label shares: there is no similarity to find")

    target = cosine[upper] - cosine[upper].mean()
    centred = guess - guess[upper].mean()
    norm = float(np.linalg.norm(target) * np.linalg.norm(centred[upper])) if np.ptp(guess[upper]) else np.inf

    def score(order: NDArray[np.intp]) -> float:
        return float(centred[np.ix_(order, order)][upper] @ target) / norm

    return _scored("correlation with label similarity of pairs", 0.0, len(cosine), score)


def pair_auc(guess: NDArray[Any], groups: NDArray[Any]) -> Result:
    """Area under the ROC curve of `similar_pairs` as a test for "both clients are of one group"; groups: (n,) labels.

    Chance is 0.5, and so is a constant guess.
    """
    groups = np.asarray(groups).ravel()
    guess = _pairs(guess, len(groups))
    upper = np.triu_indices(len(groups), 1)
    same = (groups[:, None] == groups)[upper]
    if same.all() or not same.any():
        raise UserError("an ROC curve needs pairs of one group and pairs of two groups")

    ranks = np.zeros_like(guess)
    ranks[upper] = rankdata(guess[upper])  # the Mann-Whitney form of the area, ties counting half
    ranks += ranks.T
    hits, misses = int(same.sum()), int((~same).sum())

    def score(order: NDArray[np.intp]) -> float:
        rank_sum = float(ranks[np.ix_(order, order)][upper][same].sum())
        return (rank_sum - hits * (hits + 1) / 2) / (hits * misses)

    return _scored("AUC for pairs of one group", 0.5, len(groups), score)


def telling(labels: NDArray[Any]) -> bool:
    """Whether some pairs of clients share a label and some do not."""
    return 1 < len(np.unique(labels)) < len(labels)


def _scored(metric: str, chance: float, n: int, score: Callable[[NDArray[np.intp]], float]) -> Result:
    """``score(order)`` of n clients as they are, and its spread over 200 random orders (fixed seed)."""
    rng = np.random.default_rng(0)
    shuffled = [score(rng.permutation(n)) for _ in range(200)]
    return Result(metric, score(np.arange(n)), chance, 1.0, n, float(np.std(shuffled, ddof=1)))


def _pairs(guess: NDArray[Any], n: int) -> NDArray[np.float64]:
    matrix = real_rows("guess", guess)
    if matrix.shape != (n, n) or n < 3:
        raise UserError(f"expected the similarities of {n} clients (at least 3) as a square matrix, not {matrix.shape}")
    return matrix
