"""``rounded``: CKKS's emulated twin, the same sums and products with rounding and noise of the same size.

For studies of hundreds of rounds. It gives NO secrecy and is flagged ``emulated``, but it counts terms and levels,
refuses and sums as ``ckks`` does, within the same stated error bound. A value is a 64-bit integer in steps of
2^-44 (of any set with 2^18 for reach times terms), so sums do not depend on their order. An encryption adds Gaussian
noise of the real one's standard deviation; so does every other operation that does. The noise of one encryption is a
pure function of the key and the values: emulated runs repeat whatever the order of the work, and the same values give
the same bytes.
The noise of a scalar is one number, where the real one differs from slot to slot. Keys and vectors weigh exactly
as much on the wire as the real ones (``protocol/hollow.py``), and have the same nominal times.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike

from coterie.crypto import ckks_wire, wire
from coterie.crypto.ckks_habits import PublicHabits, SecretHabits, VectorHabits
from coterie.crypto.ckks_masks import SANITISING_BITS
from coterie.crypto.ckks_parameters import Parameters, insecure, named
from coterie.crypto.packing import Floats, Integers
from coterie.crypto.rounded_masks import Blinded, EvaluationKey, Mask, evaluating, opened_with
from coterie.crypto.rounded_noise import add_noise, to_steps
from coterie.crypto.tally import Form, Tally, integer_weight, openable
from coterie.crypto.vector import (
    BlindedLike,
    CiphertextError,
    CipherVectorLike,
    EvaluationKeyLike,
    MaskLike,
    RandomBytes,
    drawn,
)
from coterie.protocol.errors import CryptoError, DecodeError, KeyMismatchError
from coterie.protocol.hollow import hollow

SCHEME = "rounded"
_ID_BYTES = 32
_STEP_BITS = 62  # of an int64, for the largest sum: the steps lie below it


def keygen(
    parameters: str = "ckks-4096-add", *, products: bool = True, random_bytes: RandomBytes = os.urandom
) -> SecretKey:
    """A twin of ``ckks.keygen``. random_bytes: n -> n bytes, seeded so that emulated runs repeat."""
    return _generate(named(parameters), products, random_bytes)


def insecure_for_tests(
    parameters: str = "insecure-1024-add", *, products: bool = True, random_bytes: RandomBytes = os.urandom
) -> SecretKey:
    """A twin of ``ckks.insecure_for_tests``."""
    return _generate(insecure(parameters), products, random_bytes)


def _generate(parameters: Parameters, products: bool, random_bytes: RandomBytes) -> SecretKey:
    return SecretKey(PublicKey(drawn(random_bytes, _ID_BYTES), parameters, products and parameters.levels > 0))


@dataclass(frozen=True, eq=False, repr=False)
class PublicKey(PublicHabits):
    """The twin of a public key. key_id: 32 bytes that tell keys apart and seed the noise.

    products: whether ciphertexts can be multiplied by each other.
    """

    key_id: bytes
    parameters: Parameters
    products: bool

    scheme = SCHEME
    emulated = True

    @cached_property
    def fingerprint(self) -> bytes:  # type: ignore[override]
        """16 bytes that name the key, the same with and without what products need."""
        header = ckks_wire.key_header(self.parameters, SCHEME, "public", products=False)
        return hashlib.sha256(b"coterie/key/" + header + self.key_id).digest()[:16]

    def without_products(self) -> PublicKey:
        """The same key for who only encrypts and adds: a small part of the bytes."""
        return replace(self, products=False)

    def encrypt(self, values: ArrayLike, level: int | None = None) -> CipherVector:
        """``(d,)`` floats with a public-key encryption's noise. Raises CapacityError as the real one does."""
        return _sealed(self, *self.prepared(values, level))

    def encrypt_scalar(self, value: float, at_most: int = 1, level: int | None = None) -> CipherVector:
        """One number for products: a vector of length 1, within ``+-at_most``."""
        return _sealed(self, *self.prepared_scalar(value, at_most, level))

    def mask(self, length: int, random_bytes: RandomBytes, level: int = 0) -> Mask:
        """A mask for ``length`` values at a level, from n -> n random bytes."""
        return Mask.draw(self.parameters, length, random_bytes, level)

    def encrypt_blinded(self, blinded: BlindedLike) -> CipherVector:
        """A vector that was opened under its masks, under this key, as ``ckks.PublicKey.encrypt_blinded`` does it."""
        opened = opened_with(self.parameters, blinded)
        tally = replace(opened.tally, fingerprint=self.fingerprint)
        return CipherVector(self, tally, self._noisy(opened.under(self.fingerprint).copy(), tally.form, b"convert"))

    def from_bytes(
        self,
        data: bytes,
        length: int | None = None,
        *,
        terms: int | None = None,
        blinded: int | None = None,
        form: Form | None = None,
    ) -> CipherVector:
        """As ``ckks.PublicKey.from_bytes``; a view of the bytes, not a copy. Raises DecodeError."""
        data, wanted = bytes(data), wire.Wanted(length, terms, blinded, form)
        tally, body = ckks_wire.split_vector(data, SCHEME, self.fingerprint, self.parameters, wanted)
        if len(body) != (whole := 8 * tally.length):
            raise DecodeError(f"{len(body)} emulated bytes for {tally.length} values: {whole} were expected")
        return CipherVector(self, tally, np.frombuffer(body, dtype="<i8"))

    def to_bytes(self) -> bytes:
        """The key for other parties; ``PublicKey.load`` reads it."""
        header = ckks_wire.key_header(self.parameters, SCHEME, "public", products=self.products)
        return hollow(self._bytes("public"), header, self.key_id)

    @classmethod
    def load(cls, data: bytes, *, allow_insecure: bool = False) -> PublicKey:
        """A key from ``to_bytes``. Raises DecodeError, also for an insecure set unless ``allow_insecure`` (tests)."""
        return _load(data, "public", allow_insecure)

    @property
    def _steps(self) -> float:
        """Steps in 1."""
        return 2.0 ** (_STEP_BITS - self.parameters.largest_bits)

    def _bytes(self, kind: str) -> int:
        return ckks_wire.key_bytes(self.parameters, kind, products=self.products)

    def _noisy(self, values: Integers, form: Form, purpose: bytes, *, symmetric: bool = False) -> Integers:
        """Values in steps with the noise of one encryption, or rescaling, at the level of a form; in place."""
        deviation = self.parameters.deviation(self.parameters.scale(form), symmetric=symmetric)
        return add_noise(values, deviation * self._steps, self.key_id, purpose)


@dataclass(frozen=True, eq=False, repr=False)
class SecretKey(SecretHabits):
    """The twin of a secret key. It holds no secret; only the rules are kept."""

    public: PublicKey

    scheme = SCHEME
    emulated = True

    def encrypt(self, values: ArrayLike, level: int | None = None) -> CipherVector:
        """As ``public.encrypt``, with the smaller noise of an encryption under the secret key."""
        return _sealed(self.public, *self.public.prepared(values, level), symmetric=True)

    def encrypt_scalar(self, value: float, at_most: int = 1, level: int | None = None) -> CipherVector:
        """As ``public.encrypt_scalar``, with the smaller noise."""
        return _sealed(self.public, *self.public.prepared_scalar(value, at_most, level), symmetric=True)

    def decrypt(self, cipher: CipherVectorLike) -> Floats:
        """The ``(d,) float64`` values or sums. Raises as ``ckks.SecretKey.decrypt`` does."""
        twin = _twin(cipher)
        openable(twin.tally, self.fingerprint, masked=False)
        twin.travels()
        values: Floats = twin.values / self.public._steps
        if not self.parameters.plausible(values, twin.tally):
            raise CiphertextError(f"a slot holds what no sum of {twin.terms} values is: damaged or forged")
        return values

    def open_blinded(self, cipher: CipherVectorLike, *, flood_bits: int | None = None) -> Blinded:
        """As ``ckks.SecretKey.open_blinded``, with as much noise."""
        twin, bits = _twin(cipher), self.parameters.flood(flood_bits)
        openable(twin.tally, self.fingerprint, masked=True)
        deviation = self.parameters.flood_deviation(twin.tally.form.level, bits) * self.public._steps
        flooded = add_noise(twin.values.copy(), deviation, self.public.key_id, b"flood")
        return Blinded(self.parameters, twin.tally, twin.values, flooded)

    def evaluation(self) -> EvaluationKey:
        """The twin of an evaluation key. Raises CryptoError for a key without products."""
        if not self.public.products:
            raise CryptoError(f"a key of {self.size} without products has no use for an evaluation key")
        return EvaluationKey(self.parameters, self.fingerprint)

    def to_bytes(self) -> bytes:
        """Hollow, of a real secret key's weight; ``SecretKey.load`` reads it."""
        header = ckks_wire.key_header(self.parameters, SCHEME, "secret", products=self.public.products)
        return hollow(self.public._bytes("secret"), header, self.public.key_id)

    @classmethod
    def load(cls, data: bytes, *, allow_insecure: bool = False) -> SecretKey:
        """A key from ``to_bytes``. Raises DecodeError, also for an insecure set unless ``allow_insecure`` (tests)."""
        return cls(_load(data, "secret", allow_insecure))


@dataclass(frozen=True, eq=False, repr=False)
class CipherVector(VectorHabits):
    """A vector in the clear that behaves as if it were encrypted. values: ``(d,) int64`` in the key's steps."""

    key: PublicKey
    tally: Tally
    values: Integers

    scheme = SCHEME
    emulated = True

    def add(self, other: CipherVectorLike) -> CipherVector:
        """The sum. Raises KeyMismatchError, CryptoError (length or form) or CapacityError (terms)."""
        theirs = _twin(other)
        return replace(self, tally=self.tally.plus(theirs.tally, self.most), values=self.values + theirs.values)

    __add__ = add

    def add_plain(self, values: ArrayLike) -> CipherVector:
        """The sum with known ``(d,)`` floats: one more term."""
        array, tally = self.prepared(values)
        return replace(self, tally=tally, values=self.values + to_steps(array, self.key._steps))

    def scale(self, weight: SupportsIndex) -> CipherVector:
        """The vector times an integer of at least 1, which counts as that many terms."""
        factor = integer_weight(weight)
        return replace(self, tally=self.tally.times(factor, self.most), values=self.values * factor)

    def times(self, scalar: CipherVectorLike, *, at_most: int | None = None) -> CipherVector:
        """The vector times a scalar, rounded. Raises as ``ckks.CipherVector.times`` does."""
        theirs = _twin(scalar)
        tally = self.product_tally(theirs.tally, at_most)
        self.multiplies()
        return replace(self, tally=tally, values=to_steps(self.values, float(theirs.values[0]) / self.key._steps))

    def rescaled(self) -> CipherVector:
        """A product with the noise of rescaling, one level lower; anything else as it is."""
        if not self.tally.form.product:
            return self
        tally = self.tally.rescaled()
        return replace(self, tally=tally, values=self.key._noisy(self.values.copy(), tally.form, b"rescale"))

    def times_plain(self, number: float, *, at_most: int | None = None) -> CipherVector:
        """The vector times a number, one level lower. Raises as ``ckks.CipherVector.times_plain`` does."""
        tally = self.plain_tally(number, at_most)
        return replace(
            self, tally=tally, values=self.key._noisy(to_steps(self.values, float(number)), tally.form, b"plain")
        )

    def at_level(self, level: int) -> CipherVector:
        """The same values at a lower level, with the noise of getting there; a product is rescaled first."""
        ready = self.rescaled()
        tally = ready.lower_tally(level)
        if tally.form == ready.tally.form:
            return ready
        return replace(ready, tally=tally, values=self.key._noisy(ready.values.copy(), tally.form, b"lower"))

    def conjugated(self, keys: EvaluationKeyLike) -> CipherVector:
        """The second factor of dot products with this vector. Raises as ``ckks.CipherVector.conjugated`` does."""
        tally = self.conjugated_tally(evaluating(keys))
        return replace(self, tally=tally, values=self.key._noisy(self.values.copy(), tally.form, b"conjugate"))

    def dot(self, prepared: CipherVectorLike, keys: EvaluationKeyLike) -> CipherVector:
        """The dot product with a vector that is ``conjugated``. Raises as ``ckks.CipherVector.dot`` does."""
        theirs = _twin(prepared)
        tally = self.dot_tally(theirs.tally, evaluating(keys))
        self.multiplies()
        product = np.einsum("i,i->", self.values.astype(np.float64), theirs.values.astype(np.float64))
        values = to_steps(np.array([product]), 1 / self.key._steps)
        return replace(self, tally=tally, values=self.key._noisy(values, tally.form, b"dot"))

    def blind(self, mask: MaskLike) -> CipherVector:
        """The vector plus the mask, with the noise of fresh randomness."""
        return self._shifted(self._matching(mask), self.tally.masked(self.most), b"blind")

    def unblind(self, mask: MaskLike, times: int) -> CipherVector:
        """The vector minus ``times`` times the mask. Raises as ``ckks.CipherVector.unblind`` does."""
        numbers, factor = self._matching(mask), integer_weight(times)
        tally = self.tally.unmasked(factor)
        return self._shifted(numbers * np.int64(-factor), tally, b"unblind")

    def sanitised(self, flood_bits: int = SANITISING_BITS) -> CipherVector:
        """The same values with as much noise as ``ckks.CipherVector.sanitised`` adds."""
        ready, bits = self.rescaled(), self.key.parameters.flood(flood_bits)
        ready.travels()
        deviation = self.key.parameters.flood_deviation(ready.tally.form.level, bits) * self.key._steps
        values = add_noise(ready.values.copy(), deviation, self.key.key_id, b"flood")
        return replace(ready, values=self.key._noisy(values, ready.tally.form, b"sanitise"))

    def split(self, at: int) -> tuple[CipherVector, CipherVector]:
        """The first ``at`` values and the others. Raises as ``ckks.CipherVector.split`` does."""
        head, tail = self.split_tallies(at)
        return replace(self, tally=head, values=self.values[:at]), replace(self, tally=tail, values=self.values[at:])

    def joined(self, other: CipherVectorLike) -> CipherVector:
        """These values and another vector's behind them. Raises as ``ckks.CipherVector.joined`` does."""
        theirs = _twin(other)
        tally = self.joined_tally(theirs.tally)
        return replace(self, tally=tally, values=np.concatenate((self.values, theirs.values)))

    def _matching(self, mask: MaskLike) -> Integers:
        self.key.parameters.maskable()
        if not isinstance(mask, Mask):
            raise KeyMismatchError(f"{mask!r} is no mask for emulated CKKS")
        return mask.fitting(self.key.parameters, self.tally)

    def _shifted(self, numbers: Integers, tally: Tally, purpose: bytes) -> CipherVector:
        return replace(self, tally=tally, values=self.key._noisy(self.values + numbers, tally.form, purpose))

    def to_bytes(self) -> bytes:
        """The wire form, hollow: header and values weigh ``key.wire_bytes(d, form)``; a product is rescaled first."""
        self.travels()
        ready = self.rescaled()
        header, values = wire.vector_header(ready.tally, SCHEME), np.ascontiguousarray(ready.values, "<i8")
        return hollow(self.key.wire_bytes(self.length, ready.tally.form), header, values.data.cast("B"))


def _sealed(key: PublicKey, array: Floats, tally: Tally, *, symmetric: bool = False) -> CipherVector:
    values, purpose = to_steps(array, key._steps), b"secret" if symmetric else b"public"
    return CipherVector(key, tally, key._noisy(values, tally.form, purpose, symmetric=symmetric))


def _load(data: bytes, kind: str, allow_insecure: bool) -> PublicKey:
    parameters, products, body = ckks_wire.split_key(bytes(data), SCHEME, kind, allow_insecure)
    if len(body) != _ID_BYTES:
        raise DecodeError(f"an emulated key that holds {len(body)} bytes besides its header")
    return PublicKey(bytes(body), parameters, products)


def _twin(cipher: Any) -> CipherVector:
    if not isinstance(cipher, CipherVector):
        raise KeyMismatchError(f"{cipher!r} is no emulated ciphertext")
    return cipher
