"""Eq. (17) of PAFed with plain numbers, beside which its servers' encrypted steps are held."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.security.late_classes import Floats, class_weights
from coterie.systems.pafed.config import Rates

LEAST_WEIGHT = 1e-6
"""A class whose weights sum to less is left out: eq. (13) would divide by nothing."""


def corrected_step(
    mean: NDArray[Any], late: NDArray[Any], rates: Rates, *, iterations: int | None = None, unit_mean: bool = False
) -> Floats:
    """Eq. (17): what is added to the global model, (d,) float64.

    mean: (d,) of the updates in time.  late: (m, d), of norm 1 each.  iterations: as in :func:`class_weights`.
    unit_mean: project by eq. (14) as printed, which takes m for a unit vector; the mean of unit vectors is none.
    A class whose weights nearly sum to 0 is left out (``LEAST_WEIGHT``).
    """
    m, v = np.asarray(mean, dtype=np.float64), np.asarray(late, dtype=np.float64)
    step = rates.in_time * m
    if not len(v):
        return np.asarray(step)
    dots, square = v @ m, float(m @ m)
    if square <= 0:
        return np.asarray(step + rates.agreeing * v.mean(axis=0))  # nothing to conflict with
    agreeing, conflicting = class_weights(dots, iterations)
    if abs(n1 := float(agreeing.sum())) >= LEAST_WEIGHT:
        step = step + rates.agreeing * agreeing / n1 @ v
    if abs(n2 := float(conflicting.sum())) >= LEAST_WEIGHT:
        shares = conflicting / n2
        turn = float(shares @ dots) / (1.0 if unit_mean else square)  # eq. (12) or (14)
        step = step + rates.conflicting * (shares @ v - turn * m)
    return np.asarray(step)
