"""One-time pads over CKKS: the sender of a ciphertext does not choose its c_1.

If it did, it could read the key off what is opened (``attacks/key_in_sum.py``). It sends one polynomial for each
ciphertext, which only enters c_0:

    y = encode(u) + pad          the sender: ``PadKey(public, key).encrypt(u)``, under 32 bytes that are used once
    p = -a s + e - sum of pads   the key's holder, which knows the pads: ``counterpart(key, keys, length)``
    (sum of y + p, a)            whoever has both: ``completed(padded, counterpart)``, a fresh ciphertext of the sum

Pads are uniform over the ciphertexts' ring (AES-256 in counter mode). A public seed, which the key's holder draws
afresh for each counterpart, gives a. **A pad is used once**: ``protocols/pads.py`` derives its key.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from os import urandom
from typing import Any

from numpy.typing import ArrayLike

from coterie.crypto import wire
from coterie.crypto.arrays import RandomBytes, drawn
from coterie.crypto.ckks import CipherVector, PublicKey, SecretKey
from coterie.crypto.tally import Form, Tally
from coterie.crypto.vector import BaseVector
from coterie.protocol.codec import content, weighs, weighted
from coterie.protocol.errors import CryptoError, DecodeError

PAD_BYTES = 32
"""Of a pad's key, and of the public seed of a."""

# Magic "CoPd", version, scheme, level, 0, key fingerprint, length; then polynomials as in ``wire``. A counterpart has
# magic "CoPc", and the seed of a after the header.
_HEADER = struct.Struct("<4sBBBB16sQ")
_VERSION = 1


@dataclass(frozen=True, eq=False, repr=False)
class Polynomials(BaseVector):
    """One polynomial for each ciphertext: an addend of c_0."""

    key: PublicKey

    magic = b""
    seed_bytes = 0

    @property
    def seed(self) -> bytes:
        return b""

    def to_bytes(self) -> bytes:
        scheme, form = self.key.scheme, self.tally.form
        codes = _VERSION, wire.SCHEMES[scheme], form.level, 0
        header = _HEADER.pack(self.magic, *codes, self.tally.fingerprint, self.length)
        parts = header, self.seed, *self.key.arrays.pack(self.array, form)
        if not self.key.emulated:
            return b"".join(parts)
        return weighted(pad_bytes(self.key, self.length, form) + self.seed_bytes, *parts)

    @classmethod
    def _split(
        cls, key: PublicKey, data: bytes, length: int | None, form: Form | None = None
    ) -> tuple[Tally, memoryview]:
        held, wanted = content(data), form or key.fresh
        if not key.emulated and len(held) != len(data):
            raise DecodeError(f"emulated bytes where {key.scheme} is used: a real vector states no weight")
        if len(held) < _HEADER.size + cls.seed_bytes:
            raise DecodeError(f"{len(held)} bytes are no {cls.__name__.lower()} vector")
        magic, version, code, level, zero, fingerprint, count = _HEADER.unpack_from(held)
        if (magic, version, code, zero) != (cls.magic, _VERSION, wire.SCHEMES[key.scheme], 0):
            raise DecodeError(f"no {cls.__name__.lower()} vector of {key.scheme}, version {_VERSION}")
        if fingerprint != key.fingerprint:
            raise DecodeError(f"made for key {fingerprint.hex()[:8]}, not for {key.fingerprint.hex()[:8]}")
        if level != wanted.level:
            raise DecodeError(f"a vector at level {level} where one at level {wanted.level} was expected")
        if count < 1 or (length is not None and count != length):
            raise DecodeError(f"{count} values where {length or 'at least 1'} were expected")
        if weighs(data) != (whole := pad_bytes(key, count, wanted) + cls.seed_bytes):
            raise DecodeError(f"{weighs(data)} bytes for {count} values: {whole} were expected")
        return Tally(fingerprint, count, form=wanted), held[_HEADER.size :]


@dataclass(frozen=True, eq=False, repr=False)
class Padded(Polynomials):
    magic = b"CoPd"

    def _sum(self, array: Any) -> Any:
        return self.key.arrays.add(self.array, array, self.tally.form)

    @classmethod
    def from_bytes(cls, key: PublicKey, data: bytes, length: int | None = None) -> Padded:
        """Another party's, fully checked. Raises DecodeError."""
        tally, body = cls._split(key, data, length)
        return cls(key, tally, key.arrays.unpack_pad(body, tally))


@dataclass(frozen=True, eq=False, repr=False)
class Counterpart(Polynomials):
    """``-a s + e`` minus the pads of a sum, and the seed of a."""

    a: bytes

    magic = b"CoPc"
    seed_bytes = PAD_BYTES

    @property
    def seed(self) -> bytes:
        return self.a

    @classmethod
    def from_bytes(cls, key: PublicKey, data: bytes, length: int | None = None) -> Counterpart:
        tally, body = cls._split(key, data, length)
        array = key.arrays.unpack_pad(body[PAD_BYTES:], tally)
        return cls(key, tally, array, bytes(body[:PAD_BYTES]))


@dataclass(frozen=True, eq=False, repr=False)
class PadKey:
    """SECRET: encrypts one vector, once, in place of a public key in an ``Encrypt`` effect.

    public: of the key that opens it.  key: 32 bytes; else CryptoError.
    """

    public: PublicKey
    key: bytes

    def __post_init__(self) -> None:
        if len(self.key) != PAD_BYTES:
            raise CryptoError(f"the key of a pad has {PAD_BYTES} bytes, not {len(self.key)}")

    @property
    def emulated(self) -> bool:
        return self.public.emulated

    def encrypt(self, values: ArrayLike) -> Padded:
        """``(d,)`` floats. Raises CapacityError for one that is not finite or beyond ``parameters.reach``."""
        array, tally = self.public.prepared(values)
        pad = _pad(self.public, self.key, array.size, tally.form)
        return Padded(self.public, tally, self.public.arrays.pad(array, pad, tally.form))

    def __repr__(self) -> str:
        return f"<PadKey for {self.public!r}>"


def counterpart(key: SecretKey, pads: Iterable[bytes], length: int, random_bytes: RandomBytes = urandom) -> Counterpart:
    """What completes the sum of vectors of ``length`` values, padded with these keys, with a fresh a and noise.
    Raises CryptoError without pads.
    """
    public, form = key.public, key.public.fresh
    total: Any = None
    for one in pads:
        pad = _pad(public, one, length, form)
        total = pad if total is None else public.arrays.add(total, pad, form)
    if total is None:
        raise CryptoError("a counterpart of no pads: give at least one")
    seed = drawn(random_bytes, PAD_BYTES)
    tally = Tally(public.fingerprint, length, form=form)
    return Counterpart(public, tally, key.arrays.counterpart(total, seed, form), seed)


def completed(padded: Padded, part: Counterpart) -> CipherVector:
    """The ciphertext of a padded vector, or of a sum, by the counterpart of exactly its pads.

    Raises KeyMismatchError or CryptoError if the two can't belong together.
    """
    padded.tally.under_one_key(part.tally, "can't belong together")
    if padded.length != part.length:
        raise CryptoError(f"a counterpart for {part.length} values doesn't fit {padded.length}")
    array = padded.key.arrays.completed(padded.array, part.array, part.a, padded.tally.form)
    return CipherVector(padded.key, padded.tally, array)


def pad_bytes(key: PublicKey, length: int, form: Form | None = None) -> int:
    """Bytes of a padded vector of ``length`` values, or of polynomials for another form."""
    return _HEADER.size + key.parameters.body_bytes(length, form or key.fresh) // 2


def _pad(key: PublicKey, pad: bytes, length: int, form: Form) -> Any:
    return key.arrays.draw(length, form, lambda _: pad)
