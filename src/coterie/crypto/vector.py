"""The front of all schemes: keys, ciphertext vectors, masks and opened vectors.

A *ciphertext vector* is an encrypted flat vector of d values with a ``Tally``, which refuses misuse:

- vectors under different keys, of different lengths or forms, or with different masks are never combined;
- sums with more terms or masks than there is room for are refused. The caller answers for bounds that it states
  (``within``, ``at_most``) and for the norms of vectors in dot products;
- vectors with masks are opened by ``open_blinded`` only, those without by ``decrypt`` only.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from typing import Any, ClassVar, Generic, NoReturn, Self, SupportsIndex, TypeVar

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from coterie.crypto import wire
from coterie.crypto.arrays import Immutable, KeyArrays, PublicArrays, RandomBytes, Space
from coterie.crypto.tally import PLAIN, Form, Room, Tally, integer_weight
from coterie.protocol.errors import CryptoError, KeyMismatchError


@dataclass(frozen=True, eq=False, repr=False)
class Key(Immutable):
    """Immutable, equal by kind and fingerprint, and shown by its fingerprint only.

    arrays: the backend.  backends: by scheme; their ``load(space, flag, body)`` reads keys.
    """

    arrays: Any

    kind: ClassVar[str]
    backends: ClassVar[Mapping[str, Any]]

    @property
    def fingerprint(self) -> bytes:
        raise NotImplementedError

    @property
    def scheme(self) -> str:
        return str(self.arrays.scheme)

    @property
    def emulated(self) -> bool:
        return self.scheme in wire.EMULATED

    @property
    def size(self) -> str:
        return str(self.arrays.space.size)

    def to_bytes(self) -> bytes:
        """The wire form, which ``load`` reads; of a secret key SECRET, at rest in a file of mode 0600."""
        return wire.join_key(self.kind, self.arrays)

    @classmethod
    def load(cls, data: bytes, *, allow_insecure: bool = False) -> Self:
        """Raises DecodeError, also for an insecure key unless ``allow_insecure`` (tests)."""
        scheme, *numbers = wire.split_key(bytes(data), cls.kind, tuple(cls.backends), allow_insecure)
        return cls(cls.backends[scheme].load(*numbers))

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, Key) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash((type(self), self.fingerprint))

    def __reduce__(self) -> tuple[Any, ...]:  # without what gmpy2 and SEAL have made of it
        return partial(type(self).load, allow_insecure=True), (self.to_bytes(),)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.scheme} {self.size} {self.fingerprint.hex()[:8]}>"


@dataclass(frozen=True, eq=False)
class Mask(Immutable):
    """SECRET of its party, for every key with the same scheme and parameters."""

    scheme: str
    space: Space
    length: int
    form: Form
    numbers: Any

    def __repr__(self) -> str:
        return f"<Mask length {self.length} level {self.form.level}>"


@dataclass(frozen=True, eq=False, repr=False)
class BaseVector(Immutable):
    """Immutable, never compared, shown by its tally only."""

    key: PublicKey[Any]
    tally: Tally
    array: Any

    @property
    def fingerprint(self) -> bytes:
        return self.tally.fingerprint

    @property
    def length(self) -> int:
        return self.tally.length

    @property
    def terms(self) -> int:
        return self.tally.terms

    @property
    def blinded(self) -> int:
        return self.tally.blinded

    @property
    def scheme(self) -> str:
        return self.key.scheme

    @property
    def emulated(self) -> bool:
        return self.key.emulated

    @property
    def _room(self) -> Room:
        return self.key.arrays.space.room

    def __add__(self, other: Self) -> Self:
        """Of terms and masks, too. Raises KeyMismatchError, CryptoError (length or form) or CapacityError."""
        theirs: Self = self._checked(other)
        tally = self.tally.plus(theirs.tally, self._room)
        return self._made(tally, self._sum(theirs.array))

    def _sum(self, array: Any) -> Any:
        raise NotImplementedError

    def _made(self, tally: Tally, array: Any) -> Self:
        return replace(self, tally=tally, array=array)

    def _checked(self, other: object) -> Any:
        if not isinstance(other, type(self)) or other.scheme != self.scheme:
            raise KeyMismatchError(f"{other!r} is no {self.scheme} ciphertext, or was not opened with such a key")
        return other

    def __len__(self) -> int:
        return self.tally.length

    def __eq__(self, other: object) -> NoReturn:
        raise CryptoError(f"two {type(self).__name__}s can't be compared: equal values have different ciphertexts")

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        t = self.tally
        form = f" {t.form}" if t.form != PLAIN else ""
        key = t.fingerprint.hex()[:8]
        return f"<{type(self).__name__} key {key} length {t.length} terms {t.terms} masks {t.blinded}{form}>"


@dataclass(frozen=True, eq=False, repr=False)
class BlindedVector(BaseVector):
    """With its masks still on: all that the key's holder sees."""

    def _sum(self, array: Any) -> Any:
        return self.key.arrays.add_opened(self.array, array, self.tally.form)

    def stored(self) -> StoredVector:
        return StoredVector(self.tally, self.key.arrays.to_arrays(self.array))


class StoredVector(msgspec.Struct, frozen=True, array_like=True):
    tally: Tally
    numbers: tuple[NDArray[np.generic], ...]


@dataclass(frozen=True, eq=False, repr=False)
class CipherVector(BaseVector):
    """An encrypted ``(d,)`` vector; the operations return new ones."""

    def _sum(self, array: Any) -> Any:
        return self.key.arrays.add(self.array, array, self.tally.form)

    def add_plain(self, values: ArrayLike) -> Self:
        """The encrypted sum with known ``(d,)`` floats: one more term, of scalars as many as their magnitude.

        Not re-randomised: the vectors before and after show the values.
        """
        plain, terms = self._plain(values)
        form = self.tally.form
        tally = self.tally.plus(Tally(self.fingerprint, plain.size, terms, form=form, vectors=0), self._room)
        return self._made(tally, self.key.arrays.add_plain(self.array, plain, form))

    def scale(self, weight: SupportsIndex) -> Self:
        """The vector times an integer of at least 1, which multiplies terms and masks."""
        factor = integer_weight(weight)
        tally = self.tally.times(factor, self._room)
        return self._made(tally, self.key.arrays.scale(self.array, factor, tally.form))

    def blind(self, mask: Mask) -> Self:
        """The vector plus the mask, unlinkable to this one: FedCAPrivacy, eq. (6); PAFed, algorithm 5."""
        numbers = self._matching(mask)
        tally = self.tally.bounded(self.terms, self._room, masks=1)
        return self._made(tally, self.key.arrays.shift(self.array, numbers, 1, tally.form))

    def unblind(self, mask: Mask, times: int) -> Self:
        """The vector minus ``times`` times the mask, freshly randomised: FedCAPrivacy, eq. (10), with sums and counts;
        PAFed, line 16.

        Raises CryptoError if fewer masks are inside. With Paillier another mask than the one inside is noticed at
        opening.
        """
        numbers, factor = self._matching(mask), integer_weight(times)
        if factor > self.blinded:
            raise CryptoError(f"{factor} masks can't be taken off a vector that carries {self.blinded}")
        tally = replace(self.tally, blinded=self.blinded - factor)
        # Freshly randomised: else the vectors before and after would show the mask.
        return self._made(tally, self.key.arrays.shift(self.array, numbers, -factor, tally.form))

    def to_bytes(self) -> bytes:
        arrays = self.key.arrays
        return wire.join_vector(self.scheme, arrays.space, self.tally, arrays.pack(self.array, self.tally.form))

    def _plain(self, values: ArrayLike) -> tuple[Any, int]:
        raise NotImplementedError

    def _matching(self, mask: Mask) -> Any:
        space, form = self.key.arrays.space, self.tally.form
        space.maskable()
        if not isinstance(mask, Mask) or mask.scheme != self.scheme:
            raise KeyMismatchError(f"{mask!r} is no mask for {self.scheme}")
        if mask.space.identity != space.identity:
            raise KeyMismatchError(f"a mask for {mask.space.size} doesn't fit {space.size}, or has other lanes")
        if form.product or form.conjugated:
            raise CryptoError(f"a {form} can't carry a mask: rescale a product first, and take the vector itself")
        if mask.length != self.length or mask.form.level != form.level:
            raise CryptoError(
                f"a mask for {mask.length} values at level {mask.form.level} doesn't fit {self.length} at {form.level}"
            )
        return mask.numbers


_Vector = TypeVar("_Vector", bound=CipherVector)


@dataclass(frozen=True, eq=False, repr=False)
class PublicKey(Key, Generic[_Vector]):
    arrays: PublicArrays

    kind = "public"
    vectors: ClassVar[Any]  # the class of its ciphertext vectors

    @property
    def fresh(self) -> Form:
        """The form to ask of an upload."""
        return self.arrays.space.fresh

    def encrypt_blinded(self, blinded: BlindedVector) -> _Vector:
        """A vector opened by any key, under this key; masks still on. Raises KeyMismatchError for other parameters."""
        space = self.arrays.space
        space.maskable()
        fits = isinstance(blinded, BlindedVector) and blinded.scheme == self.scheme
        if not fits or blinded.key.arrays.space.identity != space.identity:
            raise KeyMismatchError(f"{blinded!r} was not opened with a {self.scheme} key of {self.size} and such lanes")
        tally = replace(blinded.tally, fingerprint=self.fingerprint)
        own = blinded.fingerprint == self.fingerprint
        return self._vector(tally, self.arrays.lift(blinded.array, tally.form, own))

    def blinded(self, stored: StoredVector) -> BlindedVector:
        """The inverse of ``BlindedVector.stored``. Raises KeyMismatchError for another key."""
        if stored.tally.fingerprint != self.fingerprint:
            raise KeyMismatchError(f"a blinded vector that was not opened with {self!r}")
        return BlindedVector(self, stored.tally, self.arrays.from_arrays(stored.numbers))

    def from_bytes(
        self,
        data: bytes,
        length: int | None = None,
        *,
        terms: int | None = None,
        blinded: int | None = None,
        form: Form | None = None,
    ) -> _Vector:
        """Another party's, fully checked. Raises DecodeError.

        length, terms, blinded, form: required in its header, None: anything that fits. To add or multiply fresh
        uploads, require terms=1, blinded=0 and ``form=key.fresh`` (of a scalar: ``key.fresh_scalar``).
        """
        space, wanted = self.arrays.space, (length, terms, blinded)
        tally, body = wire.split_vector(bytes(data), self.scheme, self.fingerprint, space, wanted, form)
        return self._vector(tally, self.arrays.unpack(body, tally))

    def wire_bytes(self, length: int, form: Form | None = None) -> int:
        return wire.vector_bytes(self.arrays.space, length, form or self.fresh)

    def _mask(self, length: int, form: Form, random_bytes: RandomBytes) -> Mask:
        self.arrays.space.maskable()
        if length < 1:
            raise CryptoError(f"a mask for {length} values: give at least 1")
        return Mask(self.scheme, self.arrays.space, length, form, self.arrays.draw(length, form, random_bytes))

    def _vector(self, tally: Tally, array: Any) -> _Vector:
        made: _Vector = self.vectors(self, tally, array)
        return made


@dataclass(frozen=True, eq=False, repr=False)
class SecretKey(Key, Generic[_Vector]):
    arrays: KeyArrays

    kind = "secret"

    @cached_property
    def public(self) -> PublicKey[_Vector]:
        raise NotImplementedError

    @property
    def fingerprint(self) -> bytes:
        return self.public.fingerprint

    def _openable(self, cipher: _Vector, *, masked: bool) -> _Vector:
        if not isinstance(cipher, CipherVector) or cipher.scheme != self.scheme:
            raise KeyMismatchError(f"{cipher!r} is no {self.scheme} ciphertext")
        if cipher.fingerprint != self.fingerprint:
            names = f"{cipher.fingerprint.hex()[:8]} can't be opened with {self.fingerprint.hex()[:8]}"
            raise KeyMismatchError(f"a vector under key {names}")
        if cipher.blinded and not masked:
            raise CryptoError(f"the vector still carries {cipher.blinded} masks: unblind it first, or use open_blinded")
        if masked and not cipher.blinded:
            raise CryptoError(
                "the vector carries no mask: opening it would show its values; blind it first, or use decrypt"
            )
        return cipher


_Summand = TypeVar("_Summand", bound=BaseVector)


def sum_ciphers(vectors: Iterable[_Summand]) -> _Summand:
    """Of ciphertext or blinded vectors (FedCAPrivacy eq. 9 without its division), one at a time."""
    iterator = iter(vectors)
    total = next(iterator, None)
    if total is None:
        raise CryptoError("an empty sum has no key and no length: give at least one vector")
    return reduce(operator.add, iterator, total)
