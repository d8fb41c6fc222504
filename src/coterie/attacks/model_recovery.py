"""Whole models from their differences.

Who: the cloud service provider of FedCAPrivacy, with one thing that the paper does not count as a secret: the public
start of the training, or the model of one client that colludes with it. On: one round's blinded rows. It proves that a
common mask hides one vector, not n of them: all differences are open, so one known vector opens every model.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.attacks.result import Result, real_rows, same_shape
from coterie.protocol.errors import UserError


def recover_from_start(rows: NDArray[Any], start: NDArray[Any]) -> NDArray[np.float64]:
    """Blinded rows (n, d) and the weights (d,) that all clients started from -> (n, d) guess of the models.

    The mean row stands for the start, so what is missed is the mean update.
    """
    rows = real_rows("rows", rows)
    return np.asarray(rows - rows.mean(axis=0) + _known(start, rows))


def recover_from_colluder(rows: NDArray[Any], position: int, model: NDArray[Any]) -> NDArray[np.float64]:
    """Blinded rows (n, d), the colluding client's row number and its model (d,) -> (n, d) the models, exactly."""
    rows = real_rows("rows", rows)
    if not 0 <= position < len(rows):
        raise UserError(f"position {position} is not one of the {len(rows)} rows")
    return np.asarray(rows - rows[position] + _known(model, rows))


def recovery_error(recovered: NDArray[Any], models: NDArray[Any], start: NDArray[Any]) -> Result:
    """Mean over clients of |recovered - model| / |model| (L2).

    Chance is an adversary who knows the start (d,) alone: the mean of |start - model| / |model|.
    """
    recovered, models = real_rows("recovered", recovered), real_rows("models", models)
    same_shape("recovered", recovered, "models", models)
    size = np.linalg.norm(models, axis=1)
    if not size.all():
        raise UserError("a model is 0: a relative error does not exist")
    error = float((np.linalg.norm(recovered - models, axis=1) / size).mean())
    chance = float((np.linalg.norm(_known(start, models) - models, axis=1) / size).mean())
    if chance == 0:
        raise UserError("no client moved from the start: there is nothing to recover")
    return Result("relative error of models", error, chance, 0.0, len(models))


def _known(vector: NDArray[Any], rows: NDArray[np.float64]) -> NDArray[np.float64]:
    known = np.asarray(vector, dtype=np.float64)
    if known.shape != rows.shape[1:]:
        raise UserError(f"expected a known model of {rows.shape[1]} weights, not of shape {known.shape}")
    return known
