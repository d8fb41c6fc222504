"""Identities and whole models from blinded and shuffled rows.

Who: the cloud service provider of FedCAPrivacy, honest but curious. On: the rows that it decrypts in a round. Their
common mask disappears from their differences.

A fresh shuffle does not make clients anonymous. A client's difference from the others hardly changes between rounds
(`relink`); nor do its distances where models are rotated by a per-round secret (`relink_by_profiles`). A common mask
hides one vector, not n: one known vector opens every model, be it the public start or a colluding client's model.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from coterie.clustering.affinity import cross_distances
from coterie.privacy.attacks.result import AttackResult, real_rows, same_shape
from coterie.protocol.errors import UserError

Doubles = NDArray[np.float64]


def relink(previous: NDArray[Any], following: NDArray[Any]) -> NDArray[np.int64]:
    """Shuffled rows (n, d) of one round and (m, d) of the next -> (m,) row of ``previous``, or -1.

    Both rounds are centred on their mean row, then matched one to one at the least total distance (Hungarian method).
    """
    # distances, not squares: when the two rounds' clients differ, few large errors should not decide the rest
    return _match(cross_distances(previous, following, centred=True))


def relink_by_profiles(previous: NDArray[Any], following: NDArray[Any]) -> NDArray[np.int64]:
    """`relink` from the distances (n, n) and (m, m) within each round alone.

    A client's profile is its sorted distances to the others over the round's median distance. Rounds of different size
    are compared on quantiles.
    """
    points = max(len(previous), len(following)) - 1
    return _match(cross_distances(_profiles(previous, points), _profiles(following, points)))


def relink_accuracy(guess: NDArray[np.int64], truth: NDArray[np.int64], previous_clients: int) -> AttackResult:
    """Share of the clients of both rounds that were re-linked correctly. Chance is a random one-to-one matching.

    guess: (m,) of `relink`.  truth: (m,) the true previous row, -1 for clients that were absent.
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
    rows = max(n, m)
    chance, pair = 1 / rows, 1 / rows / max(rows - 1, 1)  # that one client, and two, are matched rightly
    variance = chance / k + (k - 1) / k * pair - chance**2
    accuracy = float((guess[both] == truth[both]).mean())
    return AttackResult("re-linked clients (share)", accuracy, chance, 1.0, k, float(np.sqrt(max(variance, 0.0))))


def recover(rows: NDArray[Any], known: NDArray[Any], position: int | None = None) -> Doubles:
    """Blinded rows (n, d) and one known model (d,) -> (n, d) the models.

    position: its row, if it is a colluding client's; the guess is then exact. Otherwise the model is the common start,
    for which the mean row stands; the error is the mean update.
    """
    rows = real_rows("rows", rows)
    if position is not None and not 0 <= position < len(rows):
        raise UserError(f"position {position} is not one of the {len(rows)} rows")
    return np.asarray(rows - (rows.mean(axis=0) if position is None else rows[position]) + _known(known, rows))


def recovery_error(recovered: NDArray[Any], models: NDArray[Any], start: NDArray[Any]) -> AttackResult:
    """Mean over clients of |recovered - model| / |model| (L2). Chance: guessing the start (d,)."""
    recovered, models = real_rows("recovered", recovered), real_rows("models", models)
    same_shape("recovered", recovered, "models", models)
    size = np.linalg.norm(models, axis=1)
    if not size.all():
        raise UserError("a model is 0: a relative error does not exist")
    guesses = recovered, _known(start, models)
    error, chance = (float((np.linalg.norm(guess - models, axis=1) / size).mean()) for guess in guesses)
    if chance == 0:
        raise UserError("no client moved from the start: there is nothing to recover")
    return AttackResult("relative error of models", error, chance, 0.0, len(models))


def _match(cost: Doubles) -> NDArray[np.int64]:
    before, after = linear_sum_assignment(cost)
    guess = np.full(cost.shape[1], -1, dtype=np.int64)
    guess[after] = before
    return guess


def _profiles(distances: NDArray[Any], points: int) -> Doubles:
    """(n, points) quantiles of each row's distances to the others, over their median."""
    matrix = np.asarray(distances, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or len(matrix) < 2 or not np.isfinite(matrix).all():
        raise UserError(f"profiles need a finite (clients, clients) matrix of at least 2 clients, not {matrix.shape}")
    others = np.sort(matrix[~np.eye(len(matrix), dtype=bool)].reshape(len(matrix), -1), axis=1)
    scale = float(np.median(others)) or 1.0
    return np.quantile(others / scale, np.linspace(0, 1, points), axis=1).T


def _known(vector: NDArray[Any], rows: Doubles) -> Doubles:
    known = np.asarray(vector, dtype=np.float64)
    if known.shape != rows.shape[1:]:
        raise UserError(f"expected a known model of {rows.shape[1]} weights, not of shape {known.shape}")
    return known
