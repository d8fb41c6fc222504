"""How PAFed classifies late updates, with plain numbers: algorithm 1, and eq. (13) with it or exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.protocol.errors import UserError

Floats = NDArray[np.float64]


def minimum(a: Any, b: Any, iterations: int) -> Any:
    """Algorithm 1, Min(a, b) for a, b in [0, 1] by additions and products only; any shape.

    With y = (a - b) / 2 it is (a + b) / 2 minus an approximation of |y| that starts as y^2.
    """
    if iterations < 0:
        raise UserError(f"Min needs at least 0 iterations, not {iterations}")
    x, y = (a + b) * 0.5, (a - b) * 0.5  # l. 1
    m = y * y  # l. 2
    n = m - 1
    for _ in range(iterations):
        m = m * (1 - n * 0.5)  # l. 4
        n = n * n * ((n - 3) * 0.25)  # l. 5
    return x - m


def class_weights(cosines: NDArray[Any], iterations: int | None = None) -> tuple[Floats, Floats]:
    """Eq. (13): the weights of late updates among the agreeing, at least 0, and the conflicting, at most 0.

    cosines: (m,) c_j in [-1, 1].  iterations: of algorithm 1; None: the exact minimum, c_j / 2 in its sign's class.
    """
    c = np.asarray(cosines, dtype=np.float64)
    half = np.full_like(c, 0.5)
    x = np.minimum((c + 1) / 2, half) if iterations is None else minimum((c + 1) / 2, half, iterations)
    return (c + 1) / 2 - x, x - half
