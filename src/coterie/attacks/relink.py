"""Re-linking shuffled clients from one round to the next.

Who: the cloud service provider of FedCAPrivacy, honest but curious. On: the blinded, shuffled rows that it decrypts in
two rounds (`relink`), or only their distances within each round (`relink_by_profiles`; all that is left when clients
rotate their models by a per-round secret). It proves that a fresh shuffle does not make clients anonymous: the mask is
common to all rows of a round, so it disappears from their differences, and a client's difference from the others
hardly changes between rounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from coterie.attacks.result import Result
from coterie.clustering.affinity import cross_distances
from coterie.protocol.errors import UserError


def relink(previous: NDArray[Any], following: NDArray[Any]) -> NDArray[np.int64]:
    """Rows (n, d) of one round and (m, d) of the next, each in its own shuffle -> (m,) guesses.

    Entry j is the row of ``previous`` that row j of ``following`` comes from, or -1 (only when m > n). Both rounds are
    centred on their mean row, then matched one to one at the least total distance (Hungarian method).
    """
    # distances, not squares: when the two rounds' clients differ, few large errors should not decide the rest
    return _match(cross_distances(previous, following, centred=True))


def relink_by_profiles(previous: NDArray[Any], following: NDArray[Any]) -> NDArray[np.int64]:
    """`relink` from the distances (n, n) and (m, m) within each round alone.

    A client's profile is the sorted list of its distances to the others in units of the round's median distance;
    rounds of different size are compared on quantiles.
    """
    points = max(len(previous), len(following)) - 1
    return _match(cross_distances(_profiles(previous, points), _profiles(following, points)))


def relink_accuracy(guess: NDArray[np.int64], truth: NDArray[np.int64], previous_clients: int) -> Result:
    """Share of the clients of both rounds that were re-linked rightly.

    guess: (m,) of `relink`.  truth: (m,) the true row of the previous round, -1 for clients who were not in it.
    Chance is a random one-to-one matching: 1 / max(n, m), which is 1 / n when the same clients take part.
    """
    guess, truth = np.asarray(guess), np.asarray(truth)
    both = truth >= 0
    m, n, k = len(truth), previous_clients, int(both.sum())
    if guess.shape != truth.shape or truth.ndim != 1:
        raise UserError(f"guess of shape {guess.shape} and truth of shape {truth.shape} must both be (clients,)")
    if not k:
        raise UserError("no client took part in both rounds: nothing can be re-linked")
    if truth.max() >= n or len(np.unique(truth[both])) != k:
        raise UserError(f"truth must name different rows below {n}")
    chance = 1 / max(n, m)
    # P(two given clients are both matched rightly) is 1 / (N (N - 1)) with N = max(n, m)
    pair = chance / (max(n, m) - 1) if max(n, m) > 1 else chance
    variance = chance / k + (k - 1) / k * pair - chance**2
    accuracy = float((guess[both] == truth[both]).mean())
    return Result("re-linked clients (share)", accuracy, chance, 1.0, k, float(np.sqrt(max(variance, 0.0))))


def _match(cost: NDArray[np.float64]) -> NDArray[np.int64]:
    before, after = linear_sum_assignment(cost)
    guess = np.full(cost.shape[1], -1, dtype=np.int64)
    guess[after] = before
    return guess


def _profiles(distances: NDArray[Any], points: int) -> NDArray[np.float64]:
    """(n, points) quantiles of each row's distances to the others, over their median."""
    matrix = np.asarray(distances, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or len(matrix) < 2 or not np.isfinite(matrix).all():
        raise UserError(f"profiles need a finite (clients, clients) matrix of at least 2 clients, not {matrix.shape}")
    others = np.sort(matrix[~np.eye(len(matrix), dtype=bool)].reshape(len(matrix), -1), axis=1)
    scale = float(np.median(others)) or 1.0
    return np.quantile(others / scale, np.linspace(0, 1, points), axis=1).T
