"""The layout of a model, or of an update, in a ciphertext vector: parameters first, then buffers.

No coefficient of algorithm 4 may change a buffer. So an update carries the *values* of its client's buffers, averaged
with equal weights, in ciphertexts of their own. A client with one beyond 4 times ``CKKS_UNIT`` can't take part. Clients
receive buffers with an error of 0.009 (one standard deviation of the flooding under ``ckks-8192-deep``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

import coterie.method as fl
from coterie.aggregation.buffers import ckks_units, not_below_zero


@dataclass(frozen=True)
class Layout:
    """degree: N, the reals that one ciphertext holds."""

    spec: fl.ModelSpec
    degree: int

    @cached_property
    def places(self) -> fl.Integers:
        buffers = self.spec.buffers
        return np.where(buffers, self.parameters + np.cumsum(buffers) - 1, np.cumsum(~buffers) - 1)

    @cached_property
    def parameters(self) -> int:
        """Their number of places. If buffers follow, zeros fill the last ciphertext."""
        count = int((~self.spec.buffers).sum())
        return count if count == self.spec.size else -(-count // self.degree) * self.degree

    @cached_property
    def size(self) -> int:
        return self.parameters + int(self.spec.buffers.sum())

    @property
    def has_buffers(self) -> bool:
        return self.size > self.parameters

    def packed(self, vector: fl.Vector) -> fl.Vector:
        """(d,) in the order of the spec -> (size,) float32."""
        if not self.has_buffers:
            return vector
        made = np.zeros(self.size, np.float32)
        made[self.places] = vector / ckks_units(self.spec)
        return made

    def unpacked(self, opened: fl.Array) -> fl.Array:
        """(size,) -> (d,) in the order of the spec, variances at least 0. Raises PeerError for another length."""
        if len(opened) != self.size:
            raise fl.PeerError(f"a model of {len(opened)} numbers under encryption; expected {self.size}")
        if not self.has_buffers:
            return opened
        return not_below_zero(self.spec, opened[self.places] * ckks_units(self.spec))  # the cipher rounds variances

    def split(self, vector: Any) -> tuple[Any, Any]:
        return vector.split(self.parameters) if self.has_buffers else (vector, None)

    def joined(self, parameters: Any, buffers: Any) -> Any:
        return parameters if buffers is None else parameters.joined(buffers)
