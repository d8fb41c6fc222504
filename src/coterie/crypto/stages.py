"""The stages of a discrete Fourier transform of slots, as diagonals: plain numbers, which ``fourier`` explains."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coterie.crypto.ckks_parameters import Slots
from coterie.protocol.errors import CryptoError

Diagonals = dict[int, NDArray[np.complex128]]  # offset -> (n,)

STAGES = 3
"""Merged stages, each one level."""


@dataclass(frozen=True, eq=False)
class Stage:
    """A map of slots, y_j = sum_(g, b) d_(g, b, j) x_(j + (baby g + b) stride): giant and baby steps.

    stride, radix: of the merged butterflies.  baby: baby steps in a giant one.  giants: giant steps.
    diagonals: (giant, baby) -> ``(n,)`` complex, rotated for the order of evaluation.
    """

    stride: int
    radix: int
    baby: int
    giants: int
    diagonals: Mapping[tuple[int, int], NDArray[np.complex128]]

    @property
    def steps(self) -> tuple[int, int]:
        return self.stride, self.stride * self.baby

    def applied(self, slots: Slots) -> Slots:
        """What the encrypted form computes, ``(blocks, n)``, in the same order of sums."""
        turned = [np.roll(slots, -self.stride * b, axis=1) for b in range(self.baby)]
        total = np.zeros_like(slots)
        for g in range(self.giants - 1, -1, -1):
            total = np.roll(total, -self.stride * self.baby, axis=1)
            for b, row in enumerate(turned):
                if (g, b) in self.diagonals:
                    total += self.diagonals[g, b] * row
        return total


@dataclass(frozen=True, eq=False)
class Plan:
    """The stages of the transform of n slots. frame: how far its result is rotated to the left."""

    n: int
    stages: tuple[Stage, ...]
    frame: int

    @property
    def steps(self) -> tuple[int, ...]:
        """The rotations that it needs, for ``ParameterSet.steps``."""
        return tuple(sorted({step for stage in self.stages for step in stage.steps}))

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """``(n,)``: which frequency stands in each slot of the result."""
        return np.roll(_reversed(self.n), -self.frame)


def radices(n: int) -> tuple[int, ...]:
    """Radices of ``STAGES`` stages whose product is n, a power of two; the smaller first, where levels cost more."""
    bits = n.bit_length() - 1
    if n < 2**STAGES or n != 1 << bits:
        raise CryptoError(f"a transform in {STAGES} stages has a power of two of at least {2**STAGES} slots, not {n}")
    return tuple(1 << ((bits + i) // STAGES) for i in range(STAGES))


@lru_cache(maxsize=8)
def plan(n: int, high: bool = False) -> Plan:
    """The transform of n slots. high: zeros except at frequencies of ``is_high``."""
    stages, frame, distance = [], 0, n
    for radix in radices(n):
        distance //= radix
        diagonals = _merged(n, distance, radix)
        if high and distance == 1:
            kept = is_high(_reversed(n), n)
            diagonals = _without_zeros({offset: kept * row for offset, row in diagonals.items()})
        stage, turned = _steps(diagonals, n, distance, radix, frame)
        stages.append(stage)
        frame += turned
    return Plan(n, tuple(stages), frame)


def is_high(k: ArrayLike, n: int) -> NDArray[np.bool_]:
    """Whether a frequency k of n is at least n/4 away from 0, on either side."""
    of = np.asarray(k) % n
    return np.asarray(4 * np.minimum(of, n - of) >= n)


def _reversed(n: int) -> NDArray[np.int64]:
    """``(n,)``: every number with its bits reversed."""
    order = np.zeros(1, dtype=np.int64)
    while len(order) < n:
        order = np.concatenate([2 * order, 2 * order + 1])
    return order


def _merged(n: int, distance: int, radix: int) -> Diagonals:
    """The diagonals, by offset, of unitary butterflies at distances ``radix / 2 * distance`` to ``distance``."""
    diagonals = {0: np.ones(n, dtype=np.complex128)}
    h = radix * distance
    while h > distance:
        h //= 2
        step = _butterfly(n, h)
        product: Diagonals = {}
        for outer, x in step.items():
            for inner, y in diagonals.items():
                offset = (outer + inner) % n
                product[offset] = product.get(offset, 0) + x * np.roll(y, -outer)
        diagonals = _without_zeros(product)
    return {offset: row / math.sqrt(radix) for offset, row in diagonals.items()}


def _without_zeros(diagonals: Diagonals) -> Diagonals:
    return {offset: row for offset, row in diagonals.items() if np.abs(row).max() > 1e-9}


def _butterfly(n: int, h: int) -> Diagonals:
    """One butterfly of algorithm 3, lines 5 to 7: of a and b at distance h, a + b and (a - b) w."""
    j = np.arange(n)
    first, w = j // h % 2 == 0, np.exp(-1j * np.pi * (j % h) / h)
    rows = (0, np.where(first, 1, -w)), (h, np.where(first, 1.0 + 0j, 0)), (-h % n, np.where(first, 0, w))
    diagonals: Diagonals = {}
    for offset, row in rows:  # h and -h are one offset where h is half of n
        diagonals[offset] = diagonals.get(offset, np.zeros(n, dtype=np.complex128)) + row
    return diagonals


def _steps(diagonals: Diagonals, n: int, stride: int, radix: int, frame: int) -> tuple[Stage, int]:
    """A stage for slots rotated to the left by ``frame``, and its result's further rotation."""
    turned = 0 if len(diagonals) * stride == n else (radix - 1) * stride  # makes all offsets positive
    placed = {(offset + turned) % n // stride: row for offset, row in diagonals.items()}
    count, baby = max(placed) + 1, 1
    while 2 * baby * baby <= count:
        baby *= 2
    table = {}
    for place, row in placed.items():
        g, b = divmod(place, baby)
        table[g, b] = np.roll(row, -(frame + turned) + stride * baby * g)
    return Stage(stride, radix, baby, -(-count // baby), table), turned
