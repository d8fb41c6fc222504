"""Padded fixed-point vectors: an additively homomorphic encryption of integers that costs one key exchange a vector.

A vector of machine words plus a one-time pad (ChaCha20), and the pad's key, sealed for the key's owner (HPKE,
``signing``); a sum has those of all summands, 80 bytes each (additive stream encryption, C. Castelluccia, E. Mykletun,
G. Tsudik, "Efficient aggregation of encrypted data in wireless sensor networks", 2005, with sealed keys). Masks hide
perfectly. Security: 128 bits.

Words are easily changed: sign them. The number of keys tells how many vectors a sum has, unless ``lengthened`` hides
it, and a party that opens two sums could recognise a key in both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from os import urandom
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from coterie.crypto.arrays import ArrayVectors, CiphertextError, Halves, RandomBytes, drawn
from coterie.crypto.packing import SEALED_BYTES, Layout
from coterie.crypto.signing import KEY_BYTES, OpeningKey, SealError, SealingKey
from coterie.crypto.sketch import SEED_BYTES, expanded
from coterie.crypto.tally import Form, Tally
from coterie.protocol.arrays import Integers
from coterie.protocol.errors import DecodeError

Machine = NDArray[Any]
"""(d,) unsigned machine words, little end first."""

_ENDS = "sender of a pad", "owner of a key"


class Padded(NamedTuple):
    """words: (d,) values plus pads, modulo the word.  keys: the sealed key of every pad."""

    words: Machine
    keys: tuple[bytes, ...]


@dataclass(frozen=True, eq=False, repr=False)
class Public(ArrayVectors):
    """As ``arrays.PublicArrays``. key: 32 bytes, of Curve25519."""

    key: bytes
    space: Layout
    flag: int

    scheme = "pads"
    pads = 1  # at least, in a vector

    def encrypt(self, integers: Integers, form: Form) -> Padded:
        return self._padded(integers.astype(self.space.lanes.word), ())

    def add(self, a: Padded, b: Padded, form: Form) -> Padded:
        return Padded(a.words + b.words, a.keys + b.keys)

    def add_plain(self, a: Padded, integers: Integers, form: Form) -> Padded:
        return a._replace(words=a.words + integers.astype(a.words.dtype))

    def scale(self, a: Padded, factor: int, form: Form) -> Padded:
        return Padded(_times(a.words, factor), a.keys * factor)

    def draw(self, length: int, form: Form, random_bytes: RandomBytes) -> Machine:
        word = self.space.lanes.word
        return np.frombuffer(drawn(random_bytes, length * word.itemsize), word)

    def shift(self, a: Padded, numbers: Machine, factor: int, form: Form) -> Padded:
        return self._padded(a.words + _times(numbers, factor), a.keys)

    def lengthened(self, a: Padded, pads: int) -> Padded:
        while len(a.keys) < pads * self.pads:
            a = self._padded(*a)
        return a

    def lift(self, opened: tuple[Machine], form: Form, own: bool) -> Padded:
        return self._padded(opened[0], ())

    def add_opened(self, x: Sequence[Machine], y: Sequence[Machine], form: Form) -> tuple[Machine]:
        return (x[0] + y[0],)

    def minus(self, x: tuple[Machine], y: tuple[Machine], length: int, terms: int) -> Integers:
        return _signed(x[0] - y[0])

    def pack(self, a: Padded, form: Form) -> list[bytes]:
        return [a.words.tobytes(), *sorted(a.keys)]  # the order of the summands is nobody's business

    def unpack(self, body: memoryview, tally: Tally) -> Padded:
        word = self.space.lanes.word
        size = word.itemsize * tally.length
        count, surplus = divmod(len(body) - size, SEALED_BYTES)
        if surplus or not self.pads <= count <= 2 * self.pads * self.space.lanes.max_terms:
            raise DecodeError(f"{len(body)} bytes are not {tally.length} words and the keys of their pads")
        keys = (bytes(body[at : at + SEALED_BYTES]) for at in range(size, len(body), SEALED_BYTES))
        return Padded(np.frombuffer(body[:size], word), tuple(keys))

    def parts(self) -> list[bytes]:
        return [self.key]

    @classmethod
    def load(cls, space: Layout, flag: int, body: memoryview) -> Self:
        if len(body) != KEY_BYTES:
            raise DecodeError(f"{len(body)} bytes are no key of {KEY_BYTES}")
        return cls(bytes(body), space, flag)

    def _padded(self, words: Machine, keys: tuple[bytes, ...]) -> Padded:
        seed = urandom(SEED_BYTES)
        return Padded(words + pad(seed, words), (*keys, SealingKey(self.key).seal(seed, *_ENDS)))


@dataclass(frozen=True, eq=False, repr=False)
class Secret(Halves):
    key: OpeningKey
    public: Public

    @classmethod
    def generate(cls, space: Layout, flag: int) -> Secret:
        return cls.load(space, flag, memoryview(OpeningKey.generate().to_bytes()))

    def decrypt(self, a: Padded, tally: Tally) -> Integers:
        return _signed(self.open_blinded(a, tally)[0])

    def open_blinded(self, a: Padded, tally: Tally) -> tuple[Machine]:
        """Raises CiphertextError for a key that was sealed for another."""
        words = a.words.copy()
        for sealed, count in Counter(a.keys).items():
            try:
                words -= _times(pad(self.key.open(sealed, *_ENDS), words), count)
            except SealError:
                raise CiphertextError("the key of a pad does not open: damaged or forged") from None
        return (words,)

    def parts(self) -> list[bytes]:
        return [self.key.to_bytes()]

    @classmethod
    def load(cls, space: Layout, flag: int, body: memoryview) -> Secret:
        key = OpeningKey.load(bytes(body))
        return cls(key, Public(key.public.to_bytes(), space, flag))


class Plain(Public):
    """The emulated twin of both halves: its pads are zero. key: a name."""

    scheme = "plain"

    @property
    def public(self) -> Self:
        return self

    @classmethod
    def generate(cls, space: Layout, flag: int, random_bytes: RandomBytes) -> Self:
        return cls(drawn(random_bytes, KEY_BYTES), space, flag)

    def decrypt(self, a: Padded, tally: Tally) -> Integers:
        return _signed(a.words)

    def open_blinded(self, a: Padded, tally: Tally) -> tuple[Machine]:
        return (a.words,)

    def _padded(self, words: Machine, keys: tuple[bytes, ...]) -> Padded:
        return Padded(words, (*keys, bytes(SEALED_BYTES)))


class Exact(Plain):
    """The twin of ``paillier_arrays``, equal bit for bit."""

    scheme = "exact"
    pads = 0

    def _padded(self, words: Machine, keys: tuple[bytes, ...]) -> Padded:
        return Padded(words, ())


def _signed(words: Machine) -> Integers:
    return words.view(words.dtype.str.replace("u", "i")).astype(np.int64)


def _times(words: Machine, factor: int) -> Machine:
    product: Machine = words * np.asarray(factor % (1 << (8 * words.dtype.itemsize)), words.dtype)
    return product


def pad(seed: bytes, words: Machine) -> Machine:
    """SECRET: words like these, from a seed of 32 bytes (ChaCha20)."""
    return np.frombuffer(expanded(seed, "pad")(words.nbytes), words.dtype)
