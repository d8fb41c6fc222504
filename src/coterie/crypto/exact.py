"""``exact``: Paillier's emulated twin, the same integers without the encryption.

For studies of hundreds of rounds. It gives NO secrecy and is flagged ``emulated``. Its results equal Paillier's bit for
bit: a lane holds the same sum of fixed-point integers, here modulo 2^B for the machine word of B >= lane width bits.
Masks are uniform modulo 2^B, so the difference of two vectors with the same mask is exact, and so is a sum after its
masks are taken off. Keys and vectors weigh as much on the wire as Paillier's (``protocol/codec.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.crypto.arrays import Halves, RandomBytes, Twin, drawn, held
from coterie.crypto.packing import Integers, Layout
from coterie.crypto.tally import Form, Tally

Words = NDArray[Any]  # (d,) unsigned, little end first: sums modulo 2^B


@lru_cache(maxsize=16)
def word(layout: Layout) -> np.dtype[Any]:
    """The smallest unsigned machine word that holds a lane; it never takes more bytes than a lane of a ciphertext."""
    return np.dtype(f"<u{next(size for size in (1, 2, 4, 8) if 8 * size >= layout.lanes.width)}")


@dataclass(frozen=True, eq=False, repr=False)
class Public(Twin):
    """The twin of ``paillier_arrays.Public``, as ``arrays.PublicArrays``."""

    space: Layout

    scheme = "exact"

    def encrypt(self, integers: Integers, form: Form) -> Words:
        return integers.astype(word(self.space))

    def add_plain(self, a: Words, integers: Integers, form: Form) -> Words:
        return a + self.encrypt(integers, form)

    def scale(self, a: Words, factor: int, form: Form) -> Words:
        scaled: Words = a * np.asarray(factor % (1 << (8 * a.dtype.itemsize)), dtype=a.dtype)
        return scaled

    def draw(self, length: int, form: Form, random_bytes: RandomBytes) -> Words:
        dtype = word(self.space)
        return np.frombuffer(drawn(random_bytes, length * dtype.itemsize), dtype=dtype)

    def shift(self, a: Words, numbers: Words, factor: int, form: Form) -> Words:
        return a + (numbers if factor == 1 else self.scale(numbers, factor, form))

    def lift(self, opened: Words, form: Form, own: bool) -> Words:
        return opened

    def add_opened(self, x: Words, y: Words, form: Form) -> Words:
        return x + y

    def to_arrays(self, opened: Words) -> tuple[Words]:
        return (opened,)

    def from_arrays(self, arrays: Sequence[Words]) -> Words:
        return arrays[0]

    def minus(self, x: Words, y: Words, length: int, terms: int) -> Integers:
        return _signed(x - y)

    def unpack(self, body: memoryview, tally: Tally) -> Words:
        """A view of the bytes."""
        dtype = word(self.space)
        return np.frombuffer(held(body, tally.length * dtype.itemsize, f"{tally.length} values"), dtype=dtype)


@dataclass(frozen=True, eq=False, repr=False)
class Secret(Halves):
    """The twin of ``paillier_arrays.Secret``. It holds no secret."""

    public: Public

    def decrypt(self, words: Words, tally: Tally) -> Integers:
        return _signed(words)

    def open_blinded(self, words: Words, tally: Tally) -> Words:
        return words

    @classmethod
    def load(cls, layout: Layout, flag: int, body: memoryview) -> Secret:
        return cls(Public.load(layout, flag, body))


def _signed(words: Words) -> Integers:
    """Words modulo 2^B as the signed integers nearest to zero."""
    return words.view(words.dtype.str.replace("u", "i")).astype(np.int64)
