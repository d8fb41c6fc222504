"""Noise of CKKS's emulated twin: Gaussian, of stated size, a function of what it is added to, and next to free.

Numbers are taken from one table of a million, at a place that follows from the key, the purpose and the values: nothing
is drawn for each value, which would take longer than all the arithmetic. So noises of different operations are as good
as independent (no two start at one place, but for once in a million), and the same operation repeats exactly.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np

from coterie.crypto.packing import Floats, Integers

_TABLE = 1 << 20


def add_noise(values: Integers, steps: float, key_id: bytes, purpose: bytes) -> Integers:
    """The values with noise of a standard deviation of ``steps``, rounded; in place."""
    table, at = _rounded_table(steps), _place(values, key_id, purpose)
    start = 0
    while start < values.size:
        taken = min(values.size - start, _TABLE - at)
        values[start : start + taken] += table[at : at + taken]
        start, at = start + taken, 0
    return values


def to_steps(values: Floats | Integers, steps: float) -> Integers:
    """Values times steps, rounded to integers."""
    scaled = values * np.float64(steps)
    return np.rint(scaled, out=scaled).astype(np.int64)


def _place(values: Integers, key_id: bytes, purpose: bytes) -> int:
    told = hashlib.sha256(key_id + purpose)
    total = np.add.reduce(values, dtype=np.int64)  # wraps, which does no harm
    told.update(int(total).to_bytes(8, "little", signed=True) + values[:64].tobytes())
    return int.from_bytes(told.digest()[:8], "little") % _TABLE


@lru_cache(maxsize=1)
def _table() -> Floats:
    return np.random.Generator(np.random.SFC64(0)).standard_normal(_TABLE)


@lru_cache(maxsize=16)
def _rounded_table(steps: float) -> Integers:
    return to_steps(_table(), steps)
