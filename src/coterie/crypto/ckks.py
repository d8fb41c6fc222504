"""CKKS over SEAL: encrypted vectors of real numbers, cheap to add, and to multiply while levels are left.

J. H. Cheon, A. Kim, M. Kim and Y. Song, "Homomorphic encryption for arithmetic of approximate numbers", ASIACRYPT 2017,
in the residue form of Microsoft SEAL (through ``tenseal``).

    key = ckks.keygen("ckks-8192-deep")       # three levels; "ckks-4096-add" has none: for sums only
    public, keys = key.public, key.evaluation()   # evaluation keys: public, too, for the party that computes
    key.decrypt(public.encrypt(a) + public.encrypt(b))                 # a + b, to within public.parameters.error(2)
    key.decrypt(public.encrypt(a).times(public.encrypt_scalar(0.25)))  # a / 4, neither factor known to the multiplier
    dot = public.encrypt(a).dot(public.encrypt(b).conjugated(keys), keys)

    mask = public.mask(a.size, secrets.token_bytes)                     # kept by the party that blinds
    opened = key.open_blinded(public.encrypt(a, level=0).blind(mask))   # by the key's holder: uniform numbers
    own = ckks.keygen("ckks-8192-deep", products=False)
    own.decrypt(own.public.encrypt_blinded(opened).unblind(mask, 1))    # a, under another key

Results are approximate (``ckks_parameters``). Anyone can change ciphertexts, so sign them. **A ciphertext and the exact
numbers that it opens to give the key** (B. Li and D. Micciancio, EUROCRYPT 2021): give opened numbers to the key's
holders only, or round or flood them first (``ckks_arrays``).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from numbers import Real
from os import urandom
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from coterie.crypto import ckks_arrays, twins, vector, wire
from coterie.crypto.arrays import CiphertextError, RandomBytes
from coterie.crypto.ckks_parameters import ParameterSet, named
from coterie.crypto.packing import as_vector
from coterie.crypto.tally import Form, Tally, integer_weight
from coterie.crypto.vector import BlindedVector, Key, Mask
from coterie.protocol.arrays import Doubles, Integers
from coterie.protocol.errors import CapacityError, CryptoError, KeyMismatchError

SANITISING_BITS = 12
"""Noise for scalars that were masked by numbers: 2^7 times their own, and 2e-6 of a value at 36 bits of scale."""


def keygen(
    parameters: str = "ckks-4096-add",
    *,
    products: bool = True,
    emulated: bool = False,
    random_bytes: RandomBytes = urandom,
    allow_insecure: bool = False,
) -> SecretKey:
    """A fresh key. Raises UserError for a name that is not in ``PARAMETERS`` (or, for tests, ``INSECURE``).

    products: False leaves out the keys for products, most of a public key's bytes.  random_bytes: for the name of an
    emulated key alone.
    """
    chosen = named(parameters, allow_insecure=allow_insecure)
    if emulated:
        flag = int(products and chosen.multiplies)
        return SecretKey(twins.RoundedSecret.generate(chosen, flag, random_bytes))
    return SecretKey(ckks_arrays.Secret.generate(chosen, products))


@dataclass(frozen=True, eq=False, repr=False)
class EvaluationKey(Key):
    """Public keys for dot products: one for each rotation of ``ParameterSet.rotations``, one for conjugation."""

    arrays: ckks_arrays.Evaluation | twins.RoundedEvaluation

    kind = "evaluation"
    backends: ClassVar = {"ckks": ckks_arrays.Evaluation, "rounded": twins.RoundedEvaluation}

    @property
    def fingerprint(self) -> bytes:
        return self.arrays.fingerprint


@dataclass(frozen=True, eq=False, repr=False)
class CipherVector(vector.CipherVector):
    key: PublicKey

    def times(self, scalar: CipherVector, *, at_most: int | None = None) -> CipherVector:
        """The vector times an encrypted scalar (``encrypt_scalar``). Raises CapacityError without a level.

        It has 3 polynomials until it is rescaled: sum up products first. at_most: a public bound in terms, if better
        than theirs.
        """
        theirs: CipherVector = self._checked(scalar)
        form = self.tally.form
        if not theirs.tally.form.scalar or theirs.tally.form.constant or form.constant:
            raise CryptoError(f"no product of a {form} and a {theirs.tally.form}: make the second with encrypt_scalar")
        self._factors(theirs)
        terms = self.terms * theirs.terms if at_most is None else integer_weight(at_most)
        tally = self.tally.bounded(terms, self._room, form=form._replace(product=True))
        return self._made(tally, self.key.arrays.times(self.array, theirs.array, form))

    def rescaled(self) -> CipherVector:
        """A product as two polynomials, one level lower; others unchanged."""
        form = self.tally.form
        if not form.product:
            return self
        tally = replace(self.tally, form=form._replace(level=form.level - 1, product=False))
        return self._made(tally, self.key.arrays.rescale(self.array, form))

    def times_plain(self, number: float, *, at_most: int | None = None) -> CipherVector:
        """The vector times a number, one level lower. at_most: as in ``times``. Raises CapacityError without a level.

        Not re-randomised: the vectors before and after show the number.
        """
        form = self.tally.form
        if not isinstance(number, Real) or not math.isfinite(number):
            raise CryptoError(f"a vector can be multiplied by a finite number, not by {number!r}")
        self._multiplied()
        if abs(number) >= self.key.parameters.largest_factor(form):
            raise CapacityError(f"{number} is too large a factor for a {form}")
        terms = _terms(self.terms * abs(float(number))) if at_most is None else integer_weight(at_most)
        tally = self.tally.bounded(terms, self._room, form=form._replace(level=form.level - 1))
        return self._made(tally, self.key.arrays.times_plain(self.array, float(number), form))

    def at_level(self, level: int) -> CipherVector:
        """The same values at a lower level and its scale; products are rescaled first. Raises CapacityError."""
        ready = self.rescaled()
        form = ready.tally.form
        lowest = self.key.parameters.lowest
        if not lowest <= level <= form.level:
            raise CapacityError(f"a {form} can't be brought to level {level}: levels only go down, to {lowest}")
        if level == form.level:
            return ready
        ready._multiplied()
        tally = ready.tally.bounded(self.terms, self._room, form=form._replace(level=level))
        return ready._made(tally, self.key.arrays.lower(ready.array, form, level))

    def within(self, terms: int) -> CipherVector:
        """With another number of terms: the caller guarantees values within ``terms * reach``; larger ones open to
        nonsense.
        """
        return replace(self, tally=self.tally.bounded(integer_weight(terms), self._room))

    def conjugated(self, keys: EvaluationKey) -> CipherVector:
        arrays, form = self._evaluating(keys), self.tally.form
        if form.scalar or form.conjugated:
            raise CryptoError(f"a {form} has no use in a dot product: take a vector, once conjugated")
        self._multiplied()
        tally = replace(self.tally, form=form._replace(conjugated=True))
        return self._made(tally, self.key.arrays.conjugate(self.array, arrays, form))

    def dot(
        self,
        prepared: CipherVector,
        keys: EvaluationKey,
        *,
        constant: bool = False,
        at_most: int | None = None,
        taps: Integers | None = None,
    ) -> CipherVector:
        """The dot product with a ``conjugated`` vector: a scalar, one level lower, whose terms are the product of both
        vectors'.

        at_most: as in ``times``.  constant: only in the constant coefficient, without rotations; it can only be added
        and scaled.  taps: ``(N,)`` integers, a polynomial by which each ciphertext of this vector is multiplied first,
        modulo X^N + 1. Raises CapacityError without a level, CryptoError for an unfit vector.
        """
        theirs: CipherVector = self._checked(prepared)
        arrays, form, other = self._evaluating(keys), self.tally.form, theirs.tally.form
        if form.scalar or form.conjugated or not other.conjugated:
            raise CryptoError(f"no dot product of a {form} and a {other}: give a vector and a conjugated() one")
        self._factors(theirs)
        if self.length != theirs.length:
            raise CryptoError(f"vectors of {self.length} and {theirs.length} values have no dot product")
        if not constant and not self.key.parameters.turns:
            raise CryptoError(f"dot products of {self.key.parameters.name} are constant ones: say constant=True")
        scalar = Form(form.level - 1, scalar=True, constant=constant)
        terms = self.terms * theirs.terms if at_most is None else integer_weight(at_most)
        tally = replace(self.tally.bounded(terms, self._room, form=scalar), length=1)
        return self._made(tally, self.key.arrays.dot(self.array, theirs.array, arrays, form, constant, taps))

    def sanitised(self, flood_bits: int = SANITISING_BITS) -> CipherVector:
        """The same values with fresh randomness, and noise uniform in +-2^flood_bits a coefficient; rescaled."""
        # Error and randomness show the key's holder how a vector came about; the noise drowns this.
        ready, bits = self.rescaled(), self.key.parameters.flood(flood_bits)
        ready._travels()
        return ready._made(ready.tally, self.key.arrays.sanitise(ready.array, bits, ready.tally.form))

    def split(self, at: int) -> tuple[CipherVector, CipherVector]:
        """The first ``at`` values and the others. Raises CryptoError unless ``at`` is a multiple of N."""
        self._whole()
        if not 0 < at < self.length or at % self.key.parameters.degree:
            raise CryptoError(
                f"{self.length} values can be split between ciphertexts only, at a multiple of "
                f"{self.key.parameters.degree}, not at {at}"
            )
        head, tail = self.key.arrays.split(self.array, at)
        rest = self.length - at
        return self._made(replace(self.tally, length=at), head), self._made(replace(self.tally, length=rest), tail)

    def joined(self, other: CipherVector) -> CipherVector:
        """These values, which must fill their ciphertexts, followed by another vector's."""
        theirs: CipherVector = self._checked(other)
        form, block = self.tally.form, self.key.parameters.degree
        self._whole()
        self.tally.under_one_key(theirs.tally, "can't be joined")
        if form != theirs.tally.form or theirs.blinded:
            raise CryptoError(
                f"a {form} and a {theirs.tally.form} can't be joined: bring both to one form, without mask"
            )
        if self.length % block:
            raise CryptoError(f"{self.length} values don't fill their ciphertexts of {block}: nothing can follow them")
        tally = replace(self.tally, length=self.length + theirs.length, terms=max(self.terms, theirs.terms))
        return self._made(tally, self.key.arrays.join(self.array, theirs.array))

    def to_bytes(self) -> bytes:
        """The wire form, ``key.wire_bytes(d, form)`` bytes; a product is rescaled first."""
        self._travels()
        return vector.CipherVector.to_bytes(self.rescaled())

    def _plain(self, values: ArrayLike) -> tuple[Doubles, int]:
        form = self.tally.form
        if form.conjugated or form.constant:
            raise CryptoError(f"a {form} takes no known values: add them before it is conjugated or multiplied")
        terms = _terms(float(np.abs(as_vector(values, kinds="fiu")).max())) if form.scalar else 1
        return self.key.parameters.checked(values, form, terms), terms

    def _factors(self, other: CipherVector) -> None:
        self.tally.under_one_key(other.tally, "have no product")
        form, theirs = self.tally.form, other.tally.form
        if form.level != theirs.level:
            raise CryptoError(f"a {form} and a {theirs} have no product: their levels differ, use at_level")
        self._multiplied()
        other._multiplied()
        if not self.key.products:
            raise CryptoError(f"{self.key!r} is one without products: make the key pair with them")

    def _multiplied(self) -> None:
        if self.blinded:
            raise CryptoError("a vector that carries masks can't be multiplied: unblind it first")
        if self.tally.form.product:
            raise CapacityError("a product can be multiplied again only after rescaled()")
        if self.tally.form.level <= self.key.parameters.lowest:
            raise CapacityError("no level is left for a product: choose a parameter set with more levels")

    def _travels(self) -> None:
        if self.tally.form.conjugated:
            raise CryptoError("a conjugated vector is half of a dot product: send or open the vector itself")

    def _whole(self) -> None:
        form = self.tally.form
        if form.scalar or form.product or form.conjugated or self.blinded:
            raise CryptoError(f"a {form} with {self.blinded} masks has no parts: take a plain vector")

    def _evaluating(self, keys: EvaluationKey) -> Any:
        if not isinstance(keys, EvaluationKey) or keys.scheme != self.scheme:
            raise KeyMismatchError(f"{keys!r} is no evaluation key of {self.scheme}")
        if keys.fingerprint != self.fingerprint:
            raise KeyMismatchError(
                f"an evaluation key of {keys.fingerprint.hex()[:8]} doesn't fit a vector under "
                f"{self.fingerprint.hex()[:8]}"
            )
        return keys.arrays


class Encrypts(ABC):
    """Either half of a key pair. The secret half encrypts in half the time with less noise."""

    arrays: Any

    @property
    @abstractmethod
    def public(self) -> PublicKey: ...

    @property
    def parameters(self) -> ParameterSet:
        parameters: ParameterSet = self.arrays.space
        return parameters

    def prepared(self, values: ArrayLike, level: int | None = None) -> tuple[Doubles, Tally]:
        """Raises CapacityError naming a value that doesn't fit."""
        form = self.parameters.fresh_at(level)
        array = self.parameters.checked(values, form)
        return array, Tally(self.public.fingerprint, array.size, form=form)

    def encrypt(self, values: ArrayLike, level: int | None = None) -> CipherVector:
        """``(d,)`` floats. Raises CapacityError naming a value that is not finite or beyond ``parameters.reach``.

        level: how many products can follow, by default the most; lower levels have fewer bytes.
        """
        array, tally = self.prepared(values, level)
        return CipherVector(self.public, tally, self.arrays.encrypt(array, tally.form))

    def encrypt_scalar(self, value: float, at_most: int = 1, level: int | None = None) -> CipherVector:
        """One number, for products. at_most: a public bound on its magnitude, counted as its terms."""
        bound, form = integer_weight(at_most), self.parameters.fresh_at(level, scalar=True)
        tally = Tally(self.public.fingerprint, 1, form=form).times(bound, self.parameters.room)
        array = self.parameters.checked([float(value)], form, bound)
        return CipherVector(self.public, tally, self.arrays.encrypt(array, form))


@dataclass(frozen=True, eq=False, repr=False)
class PublicKey(vector.PublicKey[CipherVector], Encrypts):
    arrays: ckks_arrays.Public | twins.Rounded

    backends: ClassVar = {"ckks": ckks_arrays.Public, "rounded": twins.Rounded}
    vectors: ClassVar = CipherVector

    @cached_property
    def fingerprint(self) -> bytes:
        """16 bytes that name the key, with or without keys for products."""
        small = self.arrays.without_products()
        return sha256(b"".join((b"coterie/key/", wire.key_header("public", small), *small.parts()))).digest()[:16]

    @property
    def public(self) -> PublicKey:
        return self

    @property
    def fresh_scalar(self) -> Form:
        return self.fresh._replace(scalar=True)

    @property
    def products(self) -> bool:
        return bool(self.arrays.flag)

    def without_products(self) -> PublicKey:
        return PublicKey(self.arrays.without_products())

    def mask(self, length: int, random_bytes: RandomBytes, level: int = 0) -> Mask:
        """A fresh mask for ``length`` values at a level, from n -> n secret random bytes."""
        return self._mask(length, self.parameters.fresh_at(level), random_bytes)

    def nominal_seconds_encrypt(self, length: int) -> float:
        return self.parameters.seconds(self.parameters.nominal.encrypt, length)

    def nominal_seconds_times(self, length: int) -> float:
        return self.parameters.seconds(self.parameters.nominal.times, length)

    def nominal_seconds_rescale(self, length: int) -> float:
        return self.parameters.seconds(self.parameters.nominal.rescale, length)


@dataclass(frozen=True, eq=False, repr=False)
class SecretKey(vector.SecretKey[CipherVector], Encrypts):
    arrays: ckks_arrays.Secret | twins.RoundedSecret

    backends: ClassVar = {"ckks": ckks_arrays.Secret, "rounded": twins.RoundedSecret}

    @cached_property
    def public(self) -> PublicKey:
        return PublicKey(self.arrays.public)

    def decrypt(self, cipher: CipherVector) -> Doubles:
        """The ``(d,) float64`` values, approximately, or sums of ``cipher.terms`` of them.

        Raises KeyMismatchError for another key's vector, and CiphertextError for what honest parties can't encrypt.
        """
        ours = self._openable(cipher, masked=False)
        ours._travels()
        values = self.arrays.decrypt(ours.array, ours.tally)
        if not self.parameters.plausible(values, ours.tally):
            raise CiphertextError(f"a place holds what no sum of {ours.terms} values is: damaged or forged")
        return values

    def open_blinded(self, cipher: CipherVector, *, flood_bits: int | None = None) -> BlindedVector:
        """The polynomials with masks still on, uniform. Raises as ``decrypt``, and CryptoError without a mask.

        flood_bits: of the noise under another key, by default and at most the parameters' (``ckks_arrays``). Less is
        more precise and protects this key less.
        """
        bits = self.parameters.flood(flood_bits)
        ours = self._openable(cipher, masked=True)
        return BlindedVector(self.public, ours.tally, self.arrays.open_blinded(ours.array, ours.tally, bits))

    def evaluation(self) -> EvaluationKey:
        """For dot products. Raises CryptoError for a key without products."""
        if not self.public.products:
            raise CryptoError(f"a key of {self.size} without products has no use for an evaluation key")
        return EvaluationKey(self.arrays.evaluation(self.fingerprint))

    def nominal_seconds_encrypt(self, length: int) -> float:
        return self.parameters.seconds(self.parameters.nominal.encrypt_symmetric, length)

    def nominal_seconds_decrypt(self, length: int) -> float:
        return self.parameters.seconds(self.parameters.nominal.decrypt, length)


def _terms(magnitude: float) -> int:
    return max(1, math.ceil(magnitude)) if math.isfinite(magnitude) else 1
