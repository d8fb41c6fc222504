"""Sums and means of models that do not depend on the order in which the models arrive.

Sums are float64 pairs of a total and its rounding error (Knuth's two-sum), exact for whole numbers below 2^53, and for
float32 weights times sample counts while magnitudes in one coordinate span less than 2^50 and samples times models stay
below 2^34.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.protocol.effects import Vector
from coterie.protocol.errors import UserError

_BLOCK = 8192  # coordinates at a time, so that the passes of one addition stay in the cache


class Sum:
    """A running sum of ``count`` vectors (size,)."""

    def __init__(self, size: int) -> None:
        if size < 1:
            raise UserError(f"a sum needs vectors of at least one coordinate, not {size}")
        self.count = 0
        self._total = np.zeros(size)
        self._lost = np.zeros(size)

    def take(self, values: NDArray[Any], factor: float = 1.0) -> None:
        """Add ``factor * values``: (size,) finite real numbers. Raises UserError otherwise."""
        values = np.asarray(values)
        if values.shape != self._total.shape or values.dtype.kind not in "fiub":
            raise UserError(
                f"expected {len(self._total)} real numbers, got shape {values.shape} of {values.dtype}: "
                "are all models of one shape?"
            )
        if not np.isfinite(values).all() or not np.isfinite(factor):
            raise UserError("a vector with NaN or infinity cannot be added: leave that client out")
        for lo in range(0, len(values), _BLOCK):
            part = slice(lo, lo + _BLOCK)
            total, term = self._total[part], values[part] * np.float64(factor)
            new = total + term
            shift = new - total
            self._lost[part] += (total - (new - shift)) + (term - shift)  # exactly what new lacks
            total[:] = new
        self.count += 1

    def value(self) -> NDArray[np.float64]:
        return self._total + self._lost


class WeightedMean:
    def __init__(self, size: int) -> None:
        self._sum = Sum(size)
        self.samples = 0

    @property
    def count(self) -> int:
        return self._sum.count

    def take(self, weights: NDArray[Any], samples: int = 1) -> None:
        """Add a model, (size,) real, of ``samples`` >= 1. Raises UserError otherwise."""
        if isinstance(samples, bool) or not isinstance(samples, int | np.integer) or samples < 1:
            raise UserError(f"a model's weight must be a whole number of samples of at least 1, not {samples!r}")
        self._sum.take(weights, int(samples))
        self.samples += int(samples)

    def mean(self) -> NDArray[np.float64]:
        """(size,) float64. Raises UserError where no model was taken."""
        if not self.samples:
            raise UserError("the mean of no models does not exist: check that some client answered")
        return self._sum.value() / self.samples


class RunningMix:
    """Models (d,) mixed in one after the other, each at its share: w -> keep w + add (FedAsync, RFL-HA)."""

    def __init__(self, size: int) -> None:
        self.keep, self.add = 1.0, np.zeros(size)

    def take(self, values: Vector, share: float) -> None:
        self.keep *= 1 - share
        self.add += share * (values - self.add)

    def __call__(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        return self.keep * weights + self.add
