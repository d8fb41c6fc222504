"""Models mixed in one after the other, each at its own share (FedAsync, RFL-HA)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coterie.protocol.effects import Vector


class RunningMix:
    """w -> keep w + add: what mixing in models (d,) makes of any w."""

    def __init__(self, size: int) -> None:
        self.keep, self.add = 1.0, np.zeros(size)

    def take(self, values: Vector, share: float) -> None:
        self.keep *= 1 - share
        self.add += share * (values - self.add)

    def __call__(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        return self.keep * weights + self.add
