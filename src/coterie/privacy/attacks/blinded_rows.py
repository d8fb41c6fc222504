"""Identities and whole models from blinded and shuffled rows, by FedCAPrivacy's cloud service provider.

A client's difference from the others hardly changes between rounds, nor do distances under a rotation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.clustering.affinity import cross_distances
from coterie.privacy.attacks.result import AttackResult, real_rows
from coterie.protocol.errors import UserError

Doubles = NDArray[np.float64]


def relink(previous: NDArray[Any], following: NDArray[Any]) -> NDArray[np.int64]:
    """Shuffled rows (n, d) of one round and (m, d) of the next -> (m,) row of ``previous``, or -1.

    Centred rows are matched one to one at the least total distance (Hungarian method).
    """
    # distances, not squares: when the two rounds' clients differ, few large errors should not decide the rest
    return _match(cross_distances(previous, following, centred=True))


def relink_by_profiles(previous: NDArray[Any], following: NDArray[Any]) -> NDArray[np.int64]:
    """`relink` by distances (n, n) and (m, m) within each round: a client's sorted ones over the round's median."""
    points = max(len(previous), len(following)) - 1
    return _match(cross_distances(_profiles(previous, points), _profiles(following, points)))


def relink_accuracy(guess: NDArray[np.int64], truth: NDArray[np.int64], previous_clients: int) -> AttackResult:
    """Share of the clients of both rounds that were re-linked correctly. Chance: a random one-to-one matching.

    guess: (m,) of `relink`.  truth: (m,) the true previous row, -1 for absent clients.
    """
    both = truth >= 0
    k, rows = int(both.sum()), max(previous_clients, len(truth))
    if not k:
        raise UserError("no client took part in both rounds: nothing can be re-linked")
    chance, pair = 1 / rows, 1 / rows / max(rows - 1, 1)  # that one client, and two, are matched rightly
    variance = chance / k + (k - 1) / k * pair - chance**2
    accuracy = float((guess[both] == truth[both]).mean())
    return AttackResult("re-linked clients (share)", accuracy, chance, 1.0, k, float(np.sqrt(max(variance, 0.0))))


def recover(rows: NDArray[Any], known: NDArray[Any], position: int | None = None) -> Doubles:
    """Blinded rows (n, d) and one known model (d,) -> (n, d) the models.

    position: its row, if it is a colluding client's, and exact; else it is the common start, with the mean update as
    error.
    """
    rows = real_rows("rows", rows)
    return np.asarray(rows - (rows.mean(axis=0) if position is None else rows[position]) + known)


def recovery_error(recovered: NDArray[Any], models: NDArray[Any], start: NDArray[Any]) -> AttackResult:
    """Mean over clients of |recovered - model| / |model| (L2). Chance: guessing the start (d,)."""
    recovered, models = real_rows("recovered", recovered), real_rows("models", models)
    size = np.linalg.norm(models, axis=1)
    if not size.all():
        raise UserError("a model is 0: a relative error does not exist")
    error, chance = (float((np.linalg.norm(guess - models, axis=1) / size).mean()) for guess in (recovered, start))
    if chance == 0:
        raise UserError("no client moved from the start: there is nothing to recover")
    return AttackResult("relative error of models", error, chance, 0.0, len(models))


def _match(cost: Doubles) -> NDArray[np.int64]:
    from scipy.optimize import linear_sum_assignment  # slow to import

    before, after = linear_sum_assignment(cost)
    guess = np.full(cost.shape[1], -1, dtype=np.int64)
    guess[after] = before
    return guess


def _profiles(distances: NDArray[Any], points: int) -> Doubles:
    matrix = real_rows("distances", distances)
    if len(matrix) < 2:
        raise UserError("profiles need the distances of at least 2 clients")
    others = np.sort(matrix[~np.eye(len(matrix), dtype=bool)].reshape(len(matrix), -1), axis=1)
    scale = float(np.median(others)) or 1.0
    return np.quantile(others / scale, np.linspace(0, 1, points), axis=1).T
