"""``Exact``: Paillier's emulated twin, the same integers without the encryption.

For studies of hundreds of rounds. It gives NO secrecy and is flagged ``emulated``, but it quantises, counts terms and
masks, refuses and sums as ``paillier`` does, and its results equal Paillier's bit for bit: a lane holds the same sum of
fixed-point integers, here modulo 2^B for the machine word of B >= lane width bits. Masks are uniform modulo 2^B, so the
difference of two vectors with the same mask is exact, and so is a sum after its masks are taken off. Keys and vectors
weigh exactly as many bytes on the wire as Paillier's (``protocol/hollow.py``), and have the same nominal times.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Literal, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coterie.crypto import wire
from coterie.crypto.lacking import EncryptsAsPublic, PublicWithoutProducts, VectorWithoutProducts
from coterie.crypto.packing import Floats, Integers, Lanes, Layout
from coterie.crypto.tally import Form, Tallied, Tally, differences, integer_weight, openable
from coterie.crypto.vector import (
    NOT_OF_MODELS,
    BlindedLike,
    CiphertextError,
    CipherVectorLike,
    Keyed,
    MaskLike,
    RandomBytes,
    drawn,
    nominal_decrypt_s,
    nominal_encrypt_s,
)
from coterie.protocol.errors import CryptoError, DecodeError, KeyMismatchError, UserError
from coterie.protocol.hollow import hollow

SCHEME = "exact"
Words = NDArray[Any]  # (d,) unsigned, little end first: sums modulo 2^B
_ID_BYTES = 32


def keygen(
    bits: int = 2048,
    lanes: Lanes | None = None,
    *,
    randomness: Literal["short", "full"] = "short",
    random_bytes: RandomBytes = os.urandom,
) -> SecretKey:
    """A twin of ``paillier.keygen``. random_bytes: n -> n bytes, seeded so that emulated runs repeat."""
    if bits not in wire.PARAMETERS.values():
        raise UserError(f"key_bits={bits} is no secure Paillier key: choose one of {sorted(wire.PARAMETERS.values())}")
    return insecure_for_tests(bits, lanes, randomness=randomness, random_bytes=random_bytes)


def insecure_for_tests(
    bits: int = 512,
    lanes: Lanes | None = None,
    *,
    randomness: Literal["short", "full"] = "short",
    random_bytes: RandomBytes = os.urandom,
) -> SecretKey:
    """A twin of ``paillier.insecure_for_tests``."""
    if randomness not in wire.RANDOMNESS:
        raise UserError(f"randomness={randomness!r} is unknown: choose one of {list(wire.RANDOMNESS)}")
    return SecretKey(PublicKey(drawn(random_bytes, _ID_BYTES), Layout(lanes or Lanes(), bits), randomness))


@lru_cache(maxsize=16)
def word(layout: Layout) -> np.dtype[Any]:
    """The smallest unsigned machine word that holds a lane; it never takes more bytes than a lane of a ciphertext."""
    return np.dtype(f"<u{next(size for size in (1, 2, 4, 8) if 8 * size >= layout.lanes.width)}")


@dataclass(frozen=True, eq=False, repr=False)
class PublicKey(PublicWithoutProducts, Keyed):
    """The twin of a public key. key_id: 32 bytes that tell keys apart."""

    key_id: bytes
    layout: Layout
    randomness: Literal["short", "full"] = "short"

    scheme = SCHEME
    emulated = True

    @cached_property
    def fingerprint(self) -> bytes:  # type: ignore[override]
        """16 bytes that name the key and its lanes."""
        return hashlib.sha256(b"coterie/key/" + replace(self, randomness="short").to_bytes()).digest()[:16]

    @property
    def size(self) -> str:
        """Bits of the modulus."""
        return f"{self.layout.key_bits} bits"

    def encrypt(self, values: ArrayLike) -> CipherVector:
        """``(d,)`` floats as fixed point. Raises CapacityError naming a value that doesn't fit its lane."""
        return self._wrap(self.layout.lanes.quantise(values))

    def encrypt_integers(self, integers: ArrayLike) -> CipherVector:
        """``(d,)`` integers in steps of ``2^-fraction_bits``. Raises CapacityError if one doesn't fit."""
        return self._wrap(self.layout.lanes.check(integers))

    def encrypt_blinded(self, blinded: BlindedLike) -> CipherVector:
        """A still masked vector under this key. Raises KeyMismatchError unless size and lanes are the same."""
        if not isinstance(blinded, Blinded) or blinded.layout != self.layout:
            raise KeyMismatchError(f"{blinded!r} was opened under a key of another scheme, size or lanes than {self!r}")
        return CipherVector(self, replace(blinded.tally, fingerprint=self.fingerprint), blinded.words)

    def mask(self, length: int, random_bytes: RandomBytes) -> Mask:
        """A fresh mask for ``length`` values, uniform modulo 2^B in every lane."""
        if length < 1:
            raise CryptoError(f"a mask for {length} values: give at least 1")
        dtype = word(self.layout)
        return Mask(self.layout, np.frombuffer(drawn(random_bytes, length * dtype.itemsize), dtype=dtype))

    def from_bytes(
        self,
        data: bytes,
        length: int | None = None,
        *,
        terms: int | None = None,
        blinded: int | None = None,
        form: Form | None = None,
    ) -> CipherVector:
        """As ``paillier.PublicKey.from_bytes``; a view of the bytes, not a copy. Raises DecodeError.

        There are no numbers modulo N here, and so none that Paillier refuses as no units.
        """
        data = bytes(data)
        tally, body = wire.split_vector(
            data, SCHEME, self.fingerprint, self.layout, wire.Wanted(length, terms, blinded, form)
        )
        dtype = word(self.layout)
        if len(body) != (whole := tally.length * dtype.itemsize):
            raise DecodeError(f"{len(body)} emulated bytes for {tally.length} values: {whole} were expected")
        return CipherVector(self, tally, np.frombuffer(body, dtype=dtype))

    def wire_bytes(self, length: int) -> int:
        """Exact bytes of a vector of ``length`` values: as many as Paillier's."""
        return wire.vector_bytes(self.layout, length)

    def nominal_seconds_encrypt(self, length: int) -> float:
        """What Paillier would nominally take to encrypt, or to blind."""
        return nominal_encrypt_s(self.layout.key_bits, self.randomness, self.layout.plaintexts(length))

    def to_bytes(self) -> bytes:
        """The key for other parties; ``PublicKey.load`` reads it."""
        header = wire.KeyHeader(SCHEME, "public", self.randomness, self.layout).to_bytes()
        return hollow(len(header) + self.layout.key_bits // 4, header, self.key_id)

    @classmethod
    def load(cls, data: bytes, *, allow_insecure: bool = False) -> PublicKey:
        """A key from ``to_bytes``. Raises DecodeError, also for a small key unless ``allow_insecure`` (tests)."""
        return _load(data, "public", allow_insecure)

    def _wrap(self, integers: Integers) -> CipherVector:
        return CipherVector(self, Tally(self.fingerprint, integers.size), integers.astype(word(self.layout)))


@dataclass(frozen=True, eq=False, repr=False)
class SecretKey(EncryptsAsPublic, Keyed):
    """The twin of a secret key. It holds no secret; only the rules are kept."""

    public: PublicKey

    scheme = SCHEME
    emulated = True

    @property
    def fingerprint(self) -> bytes:  # type: ignore[override]
        """The public key's."""
        return self.public.fingerprint

    @property
    def layout(self) -> Layout:
        """The public key's."""
        return self.public.layout

    @property
    def size(self) -> str:
        """The public key's."""
        return self.public.size

    def decrypt(self, cipher: CipherVectorLike) -> Floats:
        """The ``(d,) float64`` values or sums. Raises as ``paillier.SecretKey.decrypt`` does."""
        return self.layout.lanes.dequantise(self.decrypt_integers(cipher))

    def decrypt_integers(self, cipher: CipherVectorLike) -> Integers:
        """As ``decrypt``: the ``(d,) int64`` values in steps of ``2^-fraction_bits``."""
        twin = _twin(cipher)
        openable(twin.tally, self.fingerprint, masked=False)
        values = _signed(twin.words)
        if not self.layout.lanes.within(values, cipher.terms):
            raise CiphertextError(
                f"a lane holds what no sum of {cipher.terms} values is: damaged, forged or wrongly unblinded"
            )
        return values

    def open_blinded(self, cipher: CipherVectorLike) -> Blinded:
        """The lanes with their masks still on. Raises as ``paillier.SecretKey.open_blinded`` does."""
        twin = _twin(cipher)
        openable(twin.tally, self.fingerprint, masked=True)
        return Blinded(self.layout, twin.tally, twin.words)

    def nominal_seconds_decrypt(self, length: int) -> float:
        """What Paillier would nominally take to open."""
        return nominal_decrypt_s(self.layout.key_bits, self.layout.plaintexts(length))

    def to_bytes(self) -> bytes:
        """Hollow, of a Paillier secret key's weight; ``SecretKey.load`` reads it."""
        header = wire.KeyHeader(SCHEME, "secret", self.public.randomness, self.layout).to_bytes()
        return hollow(len(header) + self.layout.key_bits // 4, header, self.public.key_id)

    @classmethod
    def load(cls, data: bytes, *, allow_insecure: bool = False) -> SecretKey:
        """A key from ``to_bytes``. Raises DecodeError, also for a small key unless ``allow_insecure`` (tests)."""
        return cls(_load(data, "secret", allow_insecure))


@dataclass(frozen=True, eq=False, repr=False)
class CipherVector(VectorWithoutProducts, Tallied):
    """A vector in the clear that behaves as if it were encrypted: its key, its tally and its words."""

    key: PublicKey
    tally: Tally
    words: Words

    scheme = SCHEME
    emulated = True

    def add(self, other: CipherVectorLike) -> CipherVector:
        """The sum. Raises KeyMismatchError, CryptoError for another length, CapacityError for too many terms."""
        theirs = _twin(other)
        return replace(self, tally=self.tally.plus(theirs.tally, self._most), words=self.words + theirs.words)

    __add__ = add

    def add_plain(self, values: ArrayLike) -> CipherVector:
        """The sum with known ``(d,)`` floats: one more term."""
        return self.add(self.key.encrypt(values))

    def scale(self, weight: SupportsIndex) -> CipherVector:
        """The vector times an integer of at least 1, which counts as that many terms (and masks)."""
        factor = integer_weight(weight)
        tally = self.tally.times(factor, self._most)
        return replace(self, tally=tally, words=self.words * _modulo(factor, self.words))

    def blind(self, mask: MaskLike) -> CipherVector:
        """The vector plus the mask."""
        words = self._matching(mask)
        return replace(self, tally=self.tally.masked(self._most), words=self.words + words)

    def unblind(self, mask: MaskLike, times: int) -> CipherVector:
        """Takes the mask off ``times`` times. Raises CryptoError if fewer masks are inside."""
        words, factor = self._matching(mask), integer_weight(times)
        return replace(self, tally=self.tally.unmasked(factor), words=self.words - words * _modulo(factor, words))

    def to_bytes(self) -> bytes:
        """The wire form, hollow: header and words weigh ``key.wire_bytes(d)``."""
        words = np.ascontiguousarray(self.words).data.cast("B")
        return hollow(self.key.wire_bytes(self.length), wire.vector_header(self.tally, SCHEME), words)

    @property
    def _most(self) -> int:
        return self.key.layout.lanes.max_terms

    def _matching(self, mask: MaskLike) -> Words:
        if not isinstance(mask, Mask) or mask.layout != self.key.layout:
            raise KeyMismatchError("this mask is made for a key of another scheme, size or lanes")
        if mask.length != self.length:
            raise CryptoError(f"a mask for {mask.length} values doesn't fit a vector of {self.length}")
        return mask.words


@dataclass(frozen=True, eq=False)
class Mask:
    """One uniform word a value."""

    layout: Layout
    words: Words

    @property
    def length(self) -> int:
        """d, the number of values."""
        return self.words.size

    def __repr__(self) -> str:
        return f"<Mask length {self.length}>"

    def __deepcopy__(self, memo: object) -> Mask:
        return self


@dataclass(frozen=True, eq=False, repr=False)
class Blinded(Tallied):
    """An opened vector that still carries its masks."""

    layout: Layout
    tally: Tally
    words: Words

    def minus(self, other: BlindedLike) -> Integers:
        """``(d,) int64``: the exact difference of two vectors with the same mask. Raises as Paillier's does."""
        theirs = _masked(other)
        differences(self.tally, theirs.tally, self.layout.lanes.max_terms)
        values = _signed(self.words - theirs.words)
        if not self.layout.lanes.within(values, self.terms, minus=theirs.terms):
            raise CiphertextError(NOT_OF_MODELS)
        return values

    def plus(self, other: BlindedLike) -> Blinded:
        """The sum: values and masks add up. Raises CapacityError if terms or masks become too many."""
        theirs = _masked(other)
        tally = self.tally.plus(theirs.tally, self.layout.lanes.max_terms)
        return replace(self, tally=tally, words=self.words + theirs.words)

    __add__ = plus


def _load(data: bytes, kind: str, allow_insecure: bool) -> PublicKey:
    header, numbers = wire.split_key(bytes(data), SCHEME, kind, allow_insecure)
    if len(numbers) != _ID_BYTES:
        raise DecodeError(f"an emulated key that holds {len(numbers)} bytes besides its header")
    return PublicKey(bytes(numbers), header.layout, "full" if header.randomness == "full" else "short")


def _signed(words: Words) -> Integers:
    """Words modulo 2^B as the signed integers nearest to zero."""
    return words.view(words.dtype.str.replace("u", "i")).astype(np.int64)


def _modulo(number: int, like: Words) -> Words:
    """A positive number as a word of the same size."""
    return np.asarray(number % (1 << (8 * like.dtype.itemsize)), dtype=like.dtype)


def _twin(cipher: Any) -> CipherVector:
    if not isinstance(cipher, CipherVector):
        raise KeyMismatchError(f"{cipher!r} is no emulated ciphertext")
    return cipher


def _masked(blinded: Any) -> Blinded:
    if not isinstance(blinded, Blinded):
        raise KeyMismatchError(f"{blinded!r} was not opened with an emulated key")
    return blinded
