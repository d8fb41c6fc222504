"""What a backend is: arrays under one key, and nothing of rules.

The front (``vector``, ``paillier``, ``ckks``) keeps the rules; a backend only computes. There are four:
``paillier_arrays`` and its exact twin ``exact``, ``ckks_arrays`` and its rounding twin ``rounded``. The front never
looks into a backend's array (numbers modulo N^2, machine words, residues, steps). An operation that only CKKS has is a
method of the two CKKS backends and one of ``ckks.CipherVector``: mypy checks the three against each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from coterie.crypto.ckks_parameters import ParameterSet
from coterie.crypto.packing import Layout
from coterie.crypto.tally import Form, Tally
from coterie.protocol.errors import CryptoError, DecodeError, PeerError

ID_BYTES = 32
RandomBytes = Callable[[int], bytes]
Array = Any
Space = Layout | ParameterSet
"""The public parameters that two keys must share for their vectors to fit."""


class CiphertextError(PeerError):
    """A ciphertext that opens to something that no honest party encrypts: damaged, forged or wrongly unblinded."""


class Opened(NamedTuple):
    """A CKKS vector under its masks: as it was opened, and with noise for other keys."""

    exact: Array
    flooded: Array


class KeyArrays(Protocol):
    """The numbers of one key of any kind. flag: what its header says besides the parameters (``wire``).

    parts: what follows the header, bytes-like. A class method ``load(space, flag, body)`` is the inverse. It raises
    DecodeError for numbers that no honest party can have made.
    """

    @property
    def scheme(self) -> str: ...
    @property
    def space(self) -> Space: ...
    @property
    def flag(self) -> int: ...
    def parts(self) -> Sequence[Any]: ...


class PublicArrays(KeyArrays, Protocol):
    """What a public key of any scheme computes. form: of the vector that is given; nothing is changed in place."""

    def encrypt(self, values: Any, form: Form) -> Array:
        """A fresh encryption of checked ``(d,)`` values."""

    def add(self, a: Array, b: Array, form: Form) -> Array: ...
    def add_plain(self, a: Array, values: Any, form: Form) -> Array:
        """Plus checked values in the clear."""

    def scale(self, a: Array, factor: int, form: Form) -> Array:
        """Times an integer of at least 1."""

    def draw(self, length: int, form: Form, random_bytes: RandomBytes) -> Any:
        """The numbers of a fresh mask, from n -> n secret random bytes."""

    def shift(self, a: Array, numbers: Any, factor: int, form: Form) -> Array:
        """Plus a fresh encryption of ``factor`` times a mask's numbers; the factor may be negative."""

    def lift(self, opened: Any, form: Form, own: bool) -> Array:
        """A fresh encryption of a vector that was opened under its masks, by this key (own) or by another."""

    def add_opened(self, x: Any, y: Any, form: Form) -> Any:
        """The sum of two opened vectors, masks included."""

    def to_arrays(self, opened: Any) -> tuple[Any, ...]:
        """An opened vector as arrays, for the state of the party that holds it."""

    def from_arrays(self, arrays: Sequence[Any]) -> Any:
        """The inverse of ``to_arrays``."""

    def pack(self, a: Array, form: Form) -> Sequence[Any]:
        """The body of a vector's bytes, in parts."""

    def unpack(self, body: memoryview, tally: Tally) -> Array:
        """The inverse, of another party's bytes. Raises DecodeError."""


class Halves:
    """A secret key, which has ``decrypt`` and ``open_blinded``: the rest of it is as its public half's."""

    public: Any

    @property
    def scheme(self) -> str:
        return str(self.public.scheme)

    @property
    def space(self) -> Any:
        return self.public.space

    @property
    def flag(self) -> int:
        return int(self.public.flag)

    def parts(self) -> Sequence[Any]:
        parts: Sequence[Any] = self.public.parts()
        return parts


@dataclass(frozen=True, eq=False, repr=False)
class Twin:
    """What the public keys of both emulated twins share. key_id: 32 bytes that tell keys apart."""

    key_id: bytes
    space: Any
    flag: int

    @classmethod
    def generate(cls, space: Space, flag: int, random_bytes: RandomBytes) -> Self:
        return cls(drawn(random_bytes, ID_BYTES), space, flag)

    @classmethod
    def load(cls, space: Space, flag: int, body: memoryview) -> Self:
        return cls(bytes(held(body, ID_BYTES)), space, flag)

    def parts(self) -> list[bytes]:
        return [self.key_id]

    def add(self, a: Array, b: Array, form: Form) -> Array:
        return a + b

    def pack(self, a: Array, form: Form) -> list[memoryview]:
        return [np.ascontiguousarray(a, a.dtype.newbyteorder("<")).data.cast("B")]


def held(body: memoryview, size: int, what: str = "a key") -> memoryview:
    """What an emulated key or vector holds besides its header, of this size. Raises DecodeError for another."""
    if len(body) != size:
        raise DecodeError(f"{len(body)} emulated bytes for {what} besides its header: {size} were expected")
    return body


def drawn(random_bytes: RandomBytes, size: int) -> bytes:
    """``random_bytes(size)``, refused if it gives another number of bytes."""
    data = random_bytes(size)
    if len(data) != size:
        raise CryptoError(f"the source of randomness gave {len(data)} bytes where {size} were asked for")
    return data
