"""Backends: arrays under one key, which compute and keep no rules; the front (``vector``, ``paillier``, ``ckks``)
keeps these and never looks into an array.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Protocol, Self

import numpy as np

from coterie.crypto.ckks_parameters import ParameterSet
from coterie.crypto.packing import Layout
from coterie.crypto.tally import Form, Tally
from coterie.protocol.errors import CryptoError, PeerError

RandomBytes = Callable[[int], bytes]
Array = Any
Space = Layout | ParameterSet
"""Public parameters, which vectors of two keys must share to fit."""


class CiphertextError(PeerError):
    """A ciphertext that no honest party encrypts: damaged, forged or wrongly unblinded."""


class KeyArrays(Protocol):
    """The numbers of one key of any kind. flag: of its header, besides the parameters (``wire``).

    parts: what follows the header.  ``load(space, flag, body)``: the inverse; raises DecodeError.
    """

    @property
    def scheme(self) -> str: ...
    @property
    def space(self) -> Space: ...
    @property
    def flag(self) -> int: ...
    def parts(self) -> Sequence[Any]: ...


class PublicArrays(KeyArrays, Protocol):
    """What a public key of any scheme computes, never in place. form: of the given vector.

    encrypt, add_plain: of checked ``(d,)`` values.  scale: by an integer of at least 1.
    draw: a fresh mask's numbers.  shift: plus a fresh encryption of ``factor`` times these; it may be negative.
    lift: a fresh encryption of a vector opened under its masks, by this key (own) or by another.
    to_arrays, from_arrays: an opened vector for its party's state, and back.
    unpack: of another party's bytes; raises DecodeError.
    """

    def encrypt(self, values: Any, form: Form) -> Array: ...
    def add(self, a: Array, b: Array, form: Form) -> Array: ...
    def add_plain(self, a: Array, values: Any, form: Form) -> Array: ...
    def scale(self, a: Array, factor: int, form: Form) -> Array: ...
    def draw(self, length: int, form: Form, random_bytes: RandomBytes) -> Any: ...
    def shift(self, a: Array, numbers: Any, factor: int, form: Form) -> Array: ...
    def lift(self, opened: Any, form: Form, own: bool) -> Array: ...
    def add_opened(self, x: Any, y: Any, form: Form) -> Any: ...
    def to_arrays(self, opened: Any) -> tuple[Any, ...]: ...
    def from_arrays(self, arrays: Sequence[Any]) -> Any: ...
    def pack(self, a: Array, form: Form) -> Sequence[Any]: ...
    def unpack(self, body: memoryview, tally: Tally) -> Array: ...


class Immutable:
    """A copy is itself."""

    def __deepcopy__(self, memo: object) -> Self:
        return self


class ArrayVectors:
    """An opened vector is the array as opened and, last, that with noise for other keys."""

    def add(self, a: Array, b: Array, form: Form) -> Array:
        raise NotImplementedError

    def add_opened(self, x: Sequence[Array], y: Sequence[Array], form: Form) -> tuple[Array, ...]:
        return tuple(self.add(a, b, form) for a, b in zip(x, y, strict=True))

    def to_arrays(self, opened: tuple[Array, ...]) -> tuple[Array, ...]:
        return opened

    def from_arrays(self, arrays: Sequence[Array]) -> tuple[Array, ...]:
        return tuple(arrays)

    def join(self, a: Array, b: Array) -> Array:
        return np.concatenate((a, b))


class Halves:
    public: Any

    scheme = property(attrgetter("public.scheme"))
    space = property(attrgetter("public.space"))
    flag = property(attrgetter("public.flag"))


def drawn(random_bytes: RandomBytes, size: int) -> bytes:
    """``random_bytes(size)``, refused if it gives another number of bytes."""
    data = random_bytes(size)
    if len(data) != size:
        raise CryptoError(f"the source of randomness gave {len(data)} bytes where {size} were asked for")
    return data
