"""What the weights of a model can be before it counts as blown up. Imports no torch, for the servers that check."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_WEIGHT = 2.0**40
"""A model with a larger weight, or a variance of a batch norm, has blown up: it is as good as infinite."""


def largest(values: NDArray[np.floating[Any]]) -> float:
    """The largest magnitude in an array of at least one number; NaN if there is one."""
    return float(max(values.max(), -values.min()))
