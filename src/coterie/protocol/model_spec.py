"""A model's shape: a frozen, hashable description of its flat vector."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, takewhile
from math import prod

import numpy as np
from numpy.typing import NDArray

from coterie.protocol.options import TaskKind as TaskKind


@dataclass(frozen=True)
class Part:
    """One tensor of a model.  kind: ``"parameter"`` or ``"buffer"``.  scope: ``"shared"`` or ``"personal"``.  offset:
    first index in the flat vector, in elements.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: str
    scope: str
    offset: int

    @property
    def size(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class ModelSpec:
    """All parts of a model, in the order of the flat ``(d,)`` vector.

    flops_per_sample: nominal floating-point operations of one forward and backward pass.  outputs: for a sample (a
    classifier's classes).  activations: numbers of all layers that training keeps for a sample. 0 if unknown.
    """

    parts: tuple[Part, ...]
    flops_per_sample: float = 0.0
    outputs: int = 0
    activations: int = 0

    @cached_property
    def size(self) -> int:
        """d, the length of the flat vector."""
        return sum(part.size for part in self.parts)

    @cached_property
    def buffers(self) -> NDArray[np.bool_]:
        """(d,) bool, coordinates of buffers (running statistics); read-only."""
        return self._mask(lambda part: part.kind == "buffer")

    @cached_property
    def variances(self) -> NDArray[np.bool_]:
        """(d,) bool, coordinates of running variances, by torch's name; read-only."""
        return self._mask(lambda part: part.kind == "buffer" and part.name.split(".")[-1] == "running_var")

    @property
    def head(self) -> tuple[str, ...]:
        """The output layer's parts: the last ones of one layer with a row for each output; () if unknown."""
        layer = self.parts[-1].name.rpartition(".")[0]
        last = takewhile(
            lambda part: part.shape[:1] == (self.outputs,) and part.name.rpartition(".")[0] == layer,
            reversed(self.parts),
        )
        return tuple(part.name for part in last)[::-1]

    @property
    def normalisation(self) -> tuple[str, ...]:
        """Parameters and running statistics of batch normalisation, by torch's names."""
        layers = {name.removesuffix("running_mean") for name in self.names if name.endswith("running_mean")}
        return tuple(name for name in self.names if f"{name.rpartition('.')[0]}.".lstrip(".") in layers)

    @property
    def trainable(self) -> tuple[str, ...]:
        return tuple(part.name for part in self.parts if part.kind == "parameter")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(part.name for part in self.parts)

    def of(self, names: Collection[str]) -> NDArray[np.bool_]:
        """(d,) bool, the coordinates of these parts; read-only."""
        return self._mask(lambda part: part.name in names)

    def without(self, names: Collection[str]) -> ModelSpec:
        """The other parts alone. Raises ValueError if there are none."""
        left = [part for part in self.parts if part.name not in names]
        if not left:
            raise ValueError("no part is left")
        offsets = accumulate((part.size for part in left), initial=0)
        moved = tuple(replace(part, offset=offset) for part, offset in zip(left, offsets, strict=False))
        return replace(self, parts=moved)

    def _mask(self, wanted: Callable[[Part], bool]) -> NDArray[np.bool_]:
        mask = np.zeros(self.size, np.bool_)
        for part in self.parts:
            mask[part.offset : part.offset + part.size] = wanted(part)
        mask.setflags(write=False)
        return mask

    @cached_property
    def digest(self) -> bytes:
        """16 bytes in every message with weights."""
        text = repr([(p.name, p.shape, p.dtype, p.kind, p.scope, p.offset) for p in self.parts])
        return hashlib.blake2b(text.encode(), digest_size=16).digest()
