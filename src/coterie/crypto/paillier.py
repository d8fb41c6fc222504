"""Paillier's additively homomorphic encryption of packed fixed-point vectors, over ``gmpy2``.

P. Paillier, "Public-key cryptosystems based on composite degree residuosity classes", EUROCRYPT 1999, with g = N + 1,
decryption by the Chinese remainder theorem, and many values a plaintext. Keys have 2048 bits (112-bit security) or 3072
(128-bit).

**Randomness.** A ciphertext is ``(1 + mN) * r^N mod N^2``. ``randomness="full"`` draws r uniformly. ``"short"``, the
default, is the variant of I. Damgard, M. Jurik and J. B. Nielsen, "A generalization of Paillier's public-key system
with applications to electronic voting" (2010): ``h = -x^2 mod N`` is part of the public key, and ``r = h^s mod N`` for
a random s of half as many bits as N. It also assumes that powers of h with such short exponents can't be told from
random numbers of Jacobi symbol 1.

**Masks** (FedCAPrivacy, eq. 6 to 10). A party that opens vectors under one mask sees integers, each uniform up to
2^-kappa, and their true differences (eq. 8).

Sign ciphertexts: a lie about values is noticed only if a lane leaves the range of its terms. A number that is no unit
modulo N would open to a factor of N, so ``from_bytes`` refuses it. Decryption is not constant in time.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from numpy.typing import ArrayLike

from coterie.crypto import packing, padded, paillier_arrays, vector, wire
from coterie.crypto.arrays import CiphertextError, RandomBytes
from coterie.crypto.packing import PARAMETERS, RANDOMNESS
from coterie.crypto.tally import Tally
from coterie.crypto.vector import Mask
from coterie.protocol.arrays import Doubles, Integers
from coterie.protocol.errors import CapacityError, CryptoError, KeyMismatchError, UserError

# Measured per ciphertext; other sizes of keys by the cube.
_ENCRYPT_MS = {("short", 2048): 1.35, ("short", 3072): 2.4, ("full", 2048): 14.5, ("full", 3072): 43.5}
_DECRYPT_MS = {2048: 3.5, 3072: 14.8}
_PAD_S, _WORD_S = 2e-4, 1e-8  # of padded vectors: one pad's key, and a value


def keygen(
    bits: int = 2048,
    lanes: packing.Lanes | None = None,
    randomness: packing.Randomness = "short",
    *,
    emulated: bool = False,
    random_bytes: RandomBytes = os.urandom,
    allow_insecure: bool = False,
) -> SecretKey:
    """A fresh key of 2048 or 3072 bits. Raises UserError for other sizes; tests may use 256 bits or more.

    random_bytes: for the name of an emulated key alone.
    """
    if bits not in PARAMETERS.values() and not allow_insecure:
        raise UserError(f"key_bits={bits} is no secure Paillier key: choose one of {sorted(PARAMETERS.values())}")
    if randomness not in RANDOMNESS:
        raise UserError(f"randomness={randomness!r} is unknown: choose one of {list(RANDOMNESS)}")
    layout, flag = packing.Layout(lanes or packing.Lanes(), bits), RANDOMNESS.index(randomness)
    if emulated:
        return SecretKey(padded.Exact.generate(layout, flag, random_bytes))
    return SecretKey(paillier_arrays.Secret.generate(layout, flag))


def pads_keygen(
    lanes: packing.Lanes | None = None, *, emulated: bool = False, random_bytes: RandomBytes = os.urandom
) -> SecretKey:
    """For padded vectors (``padded``), with the same rules."""
    words = packing.Words(lanes or packing.Lanes())
    return SecretKey(padded.Plain.generate(words, 0, random_bytes) if emulated else padded.Secret.generate(words, 0))


@dataclass(frozen=True, eq=False, repr=False)
class BlindedVector(vector.BlindedVector):
    key: PublicKey

    def minus(self, other: BlindedVector) -> Integers:
        """``(d,) int64``: the exact difference of the values under two vectors with the same mask.

        Raises CiphertextError if the masks differ or a lane is overfilled, CapacityError for too many terms.
        """
        theirs: BlindedVector = self._checked(other)
        lanes = self.key.layout.lanes
        if self.fingerprint != theirs.fingerprint or self.length != theirs.length:
            raise KeyMismatchError("only vectors of one length, opened with one key, can be subtracted")
        if not self.blinded or self.blinded != theirs.blinded:
            raise CryptoError(f"masks cancel in equal numbers only, not {self.blinded} against {theirs.blinded}")
        if self.terms + theirs.terms > lanes.max_terms:
            terms = f"{self.terms} and {theirs.terms} terms"
            raise CapacityError(f"the difference of {terms} doesn't fit lanes made for {lanes.max_terms}")
        values = self.key.arrays.minus(self.array, theirs.array, self.length, self.terms - theirs.terms)
        if not lanes.within(values, self.terms, minus=theirs.terms):
            raise CiphertextError(packing.NOT_OF_MODELS)
        return values


@dataclass(frozen=True, eq=False, repr=False)
class CipherVector(vector.CipherVector):
    key: PublicKey

    def among(self, count: int) -> CipherVector:
        """On the wire as long as a masked sum of ``count``, so that its own number does not show."""
        return self._made(self.tally, self.key.arrays.lengthened(self.array, count + 1))

    def _plain(self, values: ArrayLike) -> tuple[Integers, int]:
        return self.key.layout.lanes.quantise(values), 1


@dataclass(frozen=True, eq=False, repr=False)
class PublicKey(vector.PublicKey[CipherVector]):
    arrays: paillier_arrays.Public | padded.Public

    backends: ClassVar = {
        "paillier": paillier_arrays.Public,
        "exact": padded.Exact,
        "pads": padded.Public,
        "plain": padded.Plain,
    }
    vectors: ClassVar = CipherVector

    @cached_property
    def fingerprint(self) -> bytes:
        """16 bytes, of the modulus, h and the lanes (not of the randomness, the sender's choice)."""
        named = wire.join_key("public", replace(self.arrays, flag=0))
        return hashlib.sha256(b"coterie/key/" + named).digest()[:16]

    @property
    def layout(self) -> packing.Layout:
        return self.arrays.space

    def encrypt(self, values: ArrayLike) -> CipherVector:
        """``(d,)`` floats, eq. (4) and (5). Raises CapacityError naming a value that doesn't fit its lane."""
        integers = self.layout.lanes.quantise(values)
        return self._vector(Tally(self.fingerprint, integers.size), self.arrays.encrypt(integers, self.fresh))

    def blinded(self, stored: vector.StoredVector) -> BlindedVector:
        held = super().blinded(stored)
        return BlindedVector(self, held.tally, held.array)

    def mask(self, length: int, random_bytes: RandomBytes) -> Mask:
        """A fresh mask for ``length`` values (eq. 6), from n -> n secret random bytes.

        Use it for one round: two vectors with one mask show their difference.
        """
        return self._mask(length, self.fresh, random_bytes)

    def nominal_seconds_encrypt(self, length: int) -> float:
        if isinstance(self.layout, packing.Words):
            return _PAD_S + _WORD_S * length
        bits, randomness = self.layout.key_bits, RANDOMNESS[self.arrays.flag]
        each = _ENCRYPT_MS.get((randomness, bits)) or _ENCRYPT_MS[randomness, 2048] * (bits / 2048) ** 3
        return self.layout.plaintexts(length) * 1e-3 * each


@dataclass(frozen=True, eq=False, repr=False)
class SecretKey(vector.SecretKey[CipherVector]):
    arrays: paillier_arrays.Secret | padded.Secret | padded.Plain

    backends: ClassVar = {
        "paillier": paillier_arrays.Secret,
        "exact": padded.Exact,
        "pads": padded.Secret,
        "plain": padded.Plain,
    }

    @cached_property
    def public(self) -> PublicKey:
        return PublicKey(self.arrays.public)

    @property
    def layout(self) -> packing.Layout:
        return self.public.layout

    def encrypt(self, values: ArrayLike) -> CipherVector:
        return self.public.encrypt(values)

    def decrypt(self, cipher: CipherVector) -> Doubles:
        """The ``(d,) float64`` values, or sums of ``cipher.terms`` of them.

        Raises KeyMismatchError, CryptoError if masks are inside, and CiphertextError for what honest parties can't
        encrypt.
        """
        return self.layout.lanes.dequantise(self.decrypt_integers(cipher))

    def decrypt_integers(self, cipher: CipherVector) -> Integers:
        """As ``decrypt``: ``(d,) int64`` steps of ``2^-fraction_bits``."""
        ours = self._openable(cipher, masked=False)
        values = self.arrays.decrypt(ours.array, ours.tally)
        if not self.layout.lanes.within(values, ours.terms):
            raise CiphertextError(
                f"a lane holds what no sum of {ours.terms} values is: damaged, forged or wrongly unblinded"
            )
        return values

    def open_blinded(self, cipher: CipherVector) -> BlindedVector:
        """Eq. (7): the plaintexts with masks still on. Raises as ``decrypt``, and CryptoError without a mask."""
        ours = self._openable(cipher, masked=True)
        return BlindedVector(self.public, ours.tally, self.arrays.open_blinded(ours.array, ours.tally))

    def nominal_seconds_encrypt(self, length: int) -> float:
        return self.public.nominal_seconds_encrypt(length)

    def nominal_seconds_decrypt(self, length: int) -> float:
        if isinstance(self.layout, packing.Words):
            return self.public.nominal_seconds_encrypt(length)
        bits = self.layout.key_bits
        each = _DECRYPT_MS.get(bits) or _DECRYPT_MS[2048] * (bits / 2048) ** 3
        return self.layout.plaintexts(length) * 1e-3 * each
