"""The discrete Laplace mechanism for counts: Ghosh et al., "Universally utility-maximizing privacy mechanisms", 2009.

Unlike rounded floating-point noise, whole numbers do not tell a count by their last digits (Mironov, CCS 2012).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.protocol.errors import UserError
from coterie.protocol.randomness import Secrets


def discrete_laplace(secrets: Secrets, count: int, scale: float) -> NDArray[np.int64]:
    """(count,) whole numbers k, each with probability proportional to exp(-|k| / scale).

    Raises UserError unless the scale is finite and at least 0, which gives no noise.
    """
    if not 0 <= scale < np.inf:
        raise UserError(f"the scale of Laplace noise must be finite and at least 0, not {scale}")
    if scale == 0:
        return np.zeros(count, np.int64)
    drawn = np.frombuffer(secrets.bytes(16 * count), "<u8").reshape(2, count)
    uniform = (drawn.astype(np.float64) + 1.0) / 2.0**64  # in (0, 1]
    first, second = np.floor(-np.log(uniform) * scale).astype(np.int64)
    return np.asarray(first - second)


def private_counts(counts: NDArray[Any], epsilon: float, secrets: Secrets) -> NDArray[np.int64]:
    """A histogram (classes,) under epsilon-differential privacy for the replacement of one sample, cut off at 0.

    epsilon: positive; infinity adds nothing.
    """
    if not epsilon > 0:
        raise UserError(f"epsilon must be positive, not {epsilon}")
    # One sample changes the counts by 2 in sum: every class gets this noise, present or not.
    noisy = np.asarray(counts, np.int64) + discrete_laplace(secrets, len(counts), 2.0 / epsilon)
    return np.asarray(np.maximum(0, noisy))
