"""A check of arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coterie.protocol.errors import UserError


def finite(values: ArrayLike, what: str, *axes: str) -> NDArray[np.float64]:
    """As float64, with these axes, such as "n" and "d". Raises UserError for NaN, infinity, no or others."""
    array = np.asarray(values, np.float64)
    if array.ndim != len(axes) or not array.size or not np.isfinite(array).all():
        raise UserError(
            f"{what} must be finite numbers ({', '.join(axes)}), not an array {array.shape}, NaN or infinity"
        )
    return array
