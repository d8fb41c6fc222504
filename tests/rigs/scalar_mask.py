"""Why the blinding factor must be a vector.

Who: the cloud service provider of FedCAPrivacy, honest but curious. On: one round's rows, blinded by one random
*number* mu as the paper's text can be read (eq. (6)). It proves that such a mask hides nothing: the entries of a
trained network average to almost 0, so the mean over all entries is mu, up to a few per cent of a weight's size.
Against a mask with an entry of its own for each coordinate the same subtraction recovers nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.privacy.attacks.result import AttackResult, real_rows
from coterie.protocol.errors import UserError


def unmask_scalar(rows: NDArray[Any]) -> NDArray[np.float64]:
    """Blinded rows (n, d) -> (n, d) float64 guess of the models behind them: rows minus the mean of all entries.

    rows: floats, integers, or Python integers of any length (dtype object); the unit is kept.
    """
    rows = np.asarray(rows)
    if rows.ndim != 2 or 0 in rows.shape or rows.dtype.kind not in "fiuO":
        raise UserError(f"rows must be a non-empty (clients, d) array of numbers, not {rows.shape} {rows.dtype}")
    # A mask is far longer than a weight: take it off in exact arithmetic before anything is rounded.
    exact = rows if rows.dtype.kind == "f" else rows.astype(object)
    relative = (exact - exact[0, 0]).astype(np.float64)
    return np.asarray(relative - relative.mean())


def unmasking_error(recovered: NDArray[Any], models: NDArray[Any]) -> AttackResult:
    """Relative L2 error of all recovered models (n, d). Chance is 1, the error of guessing 0 for every weight."""
    recovered, models = real_rows("recovered", recovered), real_rows("models", models)
    size = float(np.linalg.norm(models))
    if size == 0:
        raise UserError("all models are 0: a relative error does not exist")
    return AttackResult(
        "relative error of weights", float(np.linalg.norm(recovered - models)) / size, 1.0, 0.0, len(models)
    )
