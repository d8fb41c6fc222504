"""The shape of a model as one frozen, hashable description of its flat vector."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Part:
    """One tensor of a model: where it lies in the flat vector and what it is.

    kind: ``"parameter"`` or ``"buffer"``.  scope: ``"shared"`` or ``"personal"``.  offset: first index, in elements.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: str
    scope: str
    offset: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)


@dataclass(frozen=True)
class ModelSpec:
    """All parts of a model, in the order of the flat ``(d,)`` vector.

    flops_per_sample: nominal floating-point operations of one forward and backward pass, for virtual time.
    """

    parts: tuple[Part, ...]
    flops_per_sample: float = 0.0

    @property
    def size(self) -> int:
        """d, the length of the flat vector."""
        return sum(part.size for part in self.parts)

    @cached_property
    def buffer_mask(self) -> NDArray[np.bool_]:
        """(d,) whether a number belongs to a buffer, a statistic that no gradient moves; read-only."""
        mask = np.zeros(self.size, np.bool_)
        for part in self.parts:
            mask[part.offset : part.offset + part.size] = part.kind == "buffer"
        mask.flags.writeable = False
        return mask

    @cached_property
    def digest(self) -> bytes:
        """16 bytes that every message with weights carries: two parties with different shapes refuse each other."""
        text = repr([(p.name, p.shape, p.dtype, p.kind, p.scope, p.offset) for p in self.parts])
        return hashlib.blake2b(text.encode(), digest_size=16).digest()
