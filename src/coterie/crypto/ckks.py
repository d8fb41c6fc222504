"""CKKS over SEAL: encrypted vectors of real numbers, cheap to add, and with levels left, to multiply.

J. H. Cheon, A. Kim, M. Kim and Y. Song, "Homomorphic encryption for arithmetic of approximate numbers", ASIACRYPT 2017,
in the residue form of Microsoft SEAL (through ``tenseal``), which draws keys and noise from the system's randomness.
Every complex slot carries two reals, so a vector takes about four times the bytes of its float32 at level 0 and about
eight times at level 1. Sums, integer weights and products with encrypted scalars act on both reals alike.

    key = ckks.keygen("ckks-4096-add")
    total = key.public.encrypt(a) + key.public.encrypt(b)
    key.decrypt(total)                        # a + b, to within key.public.parameters.error(terms=2)

    key = ckks.keygen("ckks-8192-mul")
    chosen = key.public.encrypt(a).times(key.public.encrypt_scalar(0.25))
    key.decrypt(chosen)                       # a / 4: neither factor was seen by who multiplied

    key = ckks.keygen("ckks-8192-deep")       # three levels
    keys = key.evaluation()                   # public, for who computes
    dot = key.public.encrypt(a).dot(key.public.encrypt(b).conjugated(keys), keys)
    half = dot.times_plain(0.5) + key.public.encrypt_scalar(1.0).at_level(1)
    key.decrypt(half)                         # a @ b / 2 + 1

    mask = key.public.mask(a.size, secrets.token_bytes)                     # kept by who blinds
    opened = key.open_blinded(key.public.encrypt(a, level=0).blind(mask))   # by the key's holder: uniform numbers
    own = ckks.keygen("ckks-8192-deep", products=False)
    own.decrypt(own.public.encrypt_blinded(opened).unblind(mask, 1))        # a, under another key

**Results are approximate.** ``ckks_parameters`` states the bounds of the errors, and the room: with the shallow sets
values lie within +-64 and 4096 terms can be summed up, weights and scalars counted; with the deep ones 1024 within +-4.

**Secrecy is not integrity, and a decryption says something of the key.** Ciphertexts can be changed by anyone; sign
them. The error in a decrypted vector depends on the secret key: who sees both a ciphertext and the exact numbers that
it opens to can compute the key (B. Li and D. Micciancio, "On the security of homomorphic encryption on approximate
numbers", EUROCRYPT 2021). Give opened numbers to the key's holders only, or round or flood them first (``ckks_masks``).
Whoever chooses a ciphertext and sees what comes of it in the clear needs no such care to get the key: (c_0, c_1 + K)
opens to K s more, and neither sums, masks nor flooding change that (``attacks/key_in_sum.py``).
And a ciphertext says something of how it was computed to who can open it: ``sanitised`` takes that away.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from coterie.crypto import ckks_wire, residues, wire
from coterie.crypto.ckks_evaluation import EvaluationKey
from coterie.crypto.ckks_habits import PublicHabits, SecretHabits
from coterie.crypto.ckks_masks import Blinded, Mask, flooded, opened_with
from coterie.crypto.ckks_parameters import INSECURE, PARAMETERS, Parameters, insecure, named
from coterie.crypto.ckks_vectors import CipherVector, as_real, sealed
from coterie.crypto.packing import Floats
from coterie.crypto.residues import Residues
from coterie.crypto.seal import Handle, Ring, ring
from coterie.crypto.seal_products import opened
from coterie.crypto.tally import Form, openable
from coterie.crypto.vector import (
    BlindedLike,
    CiphertextError,
    CipherVectorLike,
    RandomBytes,
)
from coterie.protocol.errors import CryptoError, DecodeError

__all__ = [
    "INSECURE",
    "PARAMETERS",
    "CipherVector",
    "Parameters",
    "PublicKey",
    "SecretKey",
    "insecure_for_tests",
    "keygen",
]

SCHEME = "ckks"


def keygen(parameters: str = "ckks-4096-add", *, products: bool = True) -> SecretKey:
    """A fresh key from the system's randomness. Raises UserError for a name that is not in ``PARAMETERS``.

    products: False leaves out what products of ciphertexts need, most of a public key's bytes.
    """
    return _generate(named(parameters), products)


def insecure_for_tests(parameters: str = "insecure-1024-add", *, products: bool = True) -> SecretKey:
    """A small and fast key of a set in ``INSECURE``, without security."""
    return _generate(insecure(parameters), products)


def _generate(parameters: Parameters, products: bool = True) -> SecretKey:
    secret, pair, relinearise = ring(parameters).keygen(products)
    return SecretKey(secret, PublicKey(parameters, pair, relinearise))


@dataclass(frozen=True, eq=False, repr=False)
class PublicKey(PublicHabits):
    """What encrypts and multiplies.

    pair: (2, primes, N) residues.  relinearise: (k, 2, primes, N), what products need; k is 0 for a key without them.
    """

    parameters: Parameters
    pair: Residues
    relinearise: Residues

    scheme = SCHEME
    emulated = False

    @cached_property
    def fingerprint(self) -> bytes:  # type: ignore[override]
        """16 bytes that name the key, the same with and without what products need."""
        return hashlib.sha256(b"coterie/key/" + self.without_products().to_bytes()).digest()[:16]

    @property
    def products(self) -> bool:
        """Whether ciphertexts can be multiplied by each other."""
        return len(self.relinearise) > 0

    def without_products(self) -> PublicKey:
        """The same key for who only encrypts and adds: a small part of the bytes."""
        return replace(self, relinearise=self.relinearise[:0])

    @property
    def ring(self) -> Ring:
        """SEAL's context of the parameters."""
        return ring(self.parameters)

    def encrypt(self, values: ArrayLike, level: int | None = None) -> CipherVector:
        """``(d,)`` floats. Raises CapacityError naming a value that is not finite or beyond ``parameters.reach``.

        level: how many products can follow, by default as many as there are; fewer bytes where it is lower.
        """
        return sealed(self, self.encryptor, *self.prepared(values, level))

    def encrypt_scalar(self, value: float, at_most: int = 1, level: int | None = None) -> CipherVector:
        """One number in every slot, for products: a vector of length 1.

        at_most: a public bound on its magnitude; it counts as that many terms, and so does a product with it.
        """
        return sealed(self, self.encryptor, *self.prepared_scalar(value, at_most, level))

    def mask(self, length: int, random_bytes: RandomBytes, level: int = 0) -> Mask:
        """A fresh mask for ``length`` values at a level, from n -> n secret random bytes."""
        return Mask.draw(self.parameters, length, random_bytes, level)

    def encrypt_blinded(self, blinded: BlindedLike) -> CipherVector:
        """A vector that was opened under its masks, possibly with another key, under this key; masks still on."""
        opened = opened_with(self.parameters, blinded)
        tally = replace(opened.tally, fingerprint=self.fingerprint)
        fresh = self.ring.zeros(self.encryptor, len(opened.exact), tally.form.level)
        moduli = self.ring.moduli_at(tally.form.level)
        fresh[:, 0] = residues.add(fresh[:, 0], opened.under(self.fingerprint), moduli)
        return CipherVector(self, tally, fresh)

    def from_bytes(
        self,
        data: bytes,
        length: int | None = None,
        *,
        terms: int | None = None,
        blinded: int | None = None,
        form: Form | None = None,
    ) -> CipherVector:
        """A ciphertext vector from another party's bytes, all of it checked. Raises DecodeError.

        length, terms, blinded, form: what must stand in its header, None: all that fits. A fresh upload has terms=1 and
        ``form=key.fresh``, or ``key.fresh_scalar``: who adds or multiplies uploads must ask for it.
        """
        data, wanted = bytes(data), wire.Wanted(length, terms, blinded, form)
        tally, body = ckks_wire.split_vector(data, SCHEME, self.fingerprint, self.parameters, wanted)
        limbs = tally.form.level + 1
        shape = self.parameters.ciphertexts(tally.length), 2, limbs, self.parameters.degree
        numbers = residues.unpack(body, shape, self.parameters.residue_bytes[:limbs])
        if not residues.valid(numbers, self.ring.moduli_at(tally.form.level)):
            raise DecodeError("a residue is not below its prime")
        if not numbers[:, 1].any(axis=2).all():  # in every limb: lower levels have fewer
            raise DecodeError("a ciphertext without randomness: it hides nothing")
        return CipherVector(self, tally, numbers)

    def to_bytes(self) -> bytes:
        """The key for other parties; ``PublicKey.load`` reads it."""
        return ckks_wire.key_header(self.parameters, SCHEME, "public", products=self.products) + self._body()

    @classmethod
    def load(cls, data: bytes, *, allow_insecure: bool = False) -> PublicKey:
        """A key from ``to_bytes``. Raises DecodeError, also for an insecure set unless ``allow_insecure`` (tests)."""
        parameters, products, body = ckks_wire.split_key(bytes(data), SCHEME, "public", allow_insecure)
        return _public(parameters, products, body)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (PublicKey, self.to_bytes())

    def _body(self) -> bytes:
        parts = residues.pack(self.pair[None], self.parameters.residue_bytes)
        return b"".join(chain(parts, residues.pack(self.relinearise, self.parameters.residue_bytes)))

    @cached_property
    def encryptor(self) -> Handle:
        """SEAL's object that encrypts under this key."""
        return self.ring.encryptor(self.pair)

    @cached_property
    def relineariser(self) -> Handle:
        """SEAL's object that turns products back into two polynomials."""
        return self.ring.relineariser(self.relinearise)


@dataclass(frozen=True, eq=False, repr=False)
class SecretKey(SecretHabits):
    """What decrypts. secret: (primes, N) residues of a ternary polynomial. ``repr`` shows the fingerprint."""

    secret: Residues
    public: PublicKey

    scheme = SCHEME
    emulated = False

    def encrypt(self, values: ArrayLike, level: int | None = None) -> CipherVector:
        """As ``public.encrypt``, under the secret key: in half the time and with less noise."""
        return sealed(self.public, self.encryptor, *self.public.prepared(values, level), symmetric=True)

    def encrypt_scalar(self, value: float, at_most: int = 1, level: int | None = None) -> CipherVector:
        """As ``public.encrypt_scalar``, under the secret key."""
        array, tally = self.public.prepared_scalar(value, at_most, level)
        return sealed(self.public, self.encryptor, array, tally, symmetric=True)

    def decrypt(self, cipher: CipherVectorLike) -> Floats:
        """The ``(d,) float64`` values, or sums of ``cipher.terms`` of them (divide for a mean), approximately.

        Raises KeyMismatchError for another key's vector, and CiphertextError if what comes out isn't what honest
        parties encrypt: a value beyond what so many terms can reach, or something in an unused slot.
        """
        real = as_real(cipher)
        openable(real.tally, self.fingerprint, masked=False)
        real.travels()
        slots = self.public.ring.decrypt(self.decryptor, real.polynomials, real.tally.form)
        numbers = slots.view(np.float64).ravel()
        values, unused = numbers[: real.length].copy(), numbers[real.length :]
        form, terms = real.tally.form, real.terms
        expected = values[0] * (np.arange(1, numbers.size) % 2 == 0) if form.scalar else 0.0
        if (np.abs(unused - expected) > self.parameters.tolerance(terms, form)).any():
            raise CiphertextError("an unused slot holds something: damaged or forged")
        if not self.parameters.plausible(values, real.tally):
            raise CiphertextError(f"a slot holds what no sum of {terms} values is: damaged or forged")
        return values

    def open_blinded(self, cipher: CipherVectorLike, *, flood_bits: int | None = None) -> Blinded:
        """The polynomials with masks still on, uniform. Raises as ``decrypt`` does, and CryptoError without a mask.

        flood_bits: of the noise that they carry when they leave under another key, by default and at most that of the
        parameters (``ckks_masks``): less for more precision and less protection of this key.
        """
        real, bits = as_real(cipher), self.parameters.flood(flood_bits)
        openable(real.tally, self.fingerprint, masked=True)
        exact = opened(self.public.ring, self.decryptor, real.polynomials, real.tally.form)
        return Blinded(self.parameters, real.tally, exact, flooded(self.parameters, exact, real.tally.form, bits))

    def evaluation(self) -> EvaluationKey:
        """A fresh key for dot products, public. Raises CryptoError for a key without products."""
        if not self.public.products:
            raise CryptoError(f"a key of {self.size} without products has no use for an evaluation key")
        return EvaluationKey.made(self.parameters, self.fingerprint, self.secret)

    def to_bytes(self) -> bytes:
        """SECRET: the secret polynomial, and the public key. ``SecretKey.load`` reads it. At rest: mode 0600."""
        parts = residues.pack(self.secret, self.parameters.residue_bytes)
        header = ckks_wire.key_header(self.parameters, SCHEME, "secret", products=self.public.products)
        return b"".join((header, *parts, self.public._body()))

    @classmethod
    def load(cls, data: bytes, *, allow_insecure: bool = False) -> SecretKey:
        """A key from ``to_bytes``. Raises DecodeError, also for an insecure set unless ``allow_insecure`` (tests)."""
        parameters, products, body = ckks_wire.split_key(bytes(data), SCHEME, "secret", allow_insecure)
        split, made = parameters.secret_bytes, ring(parameters)
        secret = residues.unpack(body[:split], (len(made.moduli), parameters.degree), parameters.residue_bytes)
        if not residues.valid(secret, made.moduli):
            raise DecodeError("a residue of this secret key is not below its prime")
        key = cls(secret, _public(parameters, products, body[split:]))
        if not key._belongs_together():
            raise DecodeError("the halves of this key don't belong together")
        return key

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (SecretKey, self.to_bytes())

    def _belongs_together(self) -> bool:
        try:
            return bool(np.abs(self.decrypt(self.public.encrypt(np.zeros(1)))).max() <= self.parameters.error())
        except CiphertextError:
            return False

    @cached_property
    def encryptor(self) -> Handle:
        """SEAL's object that encrypts under the secret key."""
        return self.public.ring.encryptor(self.public.pair, self.secret)

    @cached_property
    def decryptor(self) -> Handle:
        """SEAL's object that opens."""
        return self.public.ring.decryptor(self.secret)


def _public(parameters: Parameters, products: bool, body: memoryview) -> PublicKey:
    """A public key from its polynomials. Raises DecodeError if no honest party can have made them."""
    made, count = ring(parameters), 1 + (parameters.relinearisation_keys if products else 0)
    shape = count, 2, len(made.moduli), parameters.degree
    pairs = residues.unpack(body, shape, parameters.residue_bytes)
    if not residues.valid(pairs, made.moduli) or not pairs.any(axis=(2, 3)).all():
        raise DecodeError("the numbers of this key can't be an honest CKKS key's")
    return PublicKey(parameters, pairs[0], pairs[1:])


def _restore(kind: type[PublicKey] | type[SecretKey], data: bytes) -> PublicKey | SecretKey:
    return kind.load(data, allow_insecure=True)
