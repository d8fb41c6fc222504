"""Encrypted CKKS vectors: their sums, products and masks. ``ckks`` says what for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike

from coterie.crypto import residues, seal_products, wire
from coterie.crypto.ckks_evaluation import evaluating
from coterie.crypto.ckks_habits import VectorHabits
from coterie.crypto.ckks_masks import SANITISING_BITS, Mask, flooded
from coterie.crypto.packing import Floats
from coterie.crypto.residues import Residues
from coterie.crypto.seal import Handle
from coterie.crypto.tally import Form, Tally, integer_weight
from coterie.crypto.vector import CipherVectorLike, EvaluationKeyLike, MaskLike
from coterie.protocol.errors import KeyMismatchError

if TYPE_CHECKING:
    from coterie.crypto.ckks import PublicKey

SCHEME = "ckks"


@dataclass(frozen=True, eq=False, repr=False)
class CipherVector(VectorHabits):
    """An encrypted ``(d,)`` vector: its public key, its tally and ``(ciphertexts, 2 or 3, limbs, N)`` polynomials."""

    key: PublicKey
    tally: Tally
    polynomials: Residues

    scheme = SCHEME
    emulated = False

    def add(self, other: CipherVectorLike) -> CipherVector:
        """The encrypted sum. Raises KeyMismatchError, CryptoError (length or form) or CapacityError (terms)."""
        theirs = as_real(other)
        tally = self.tally.plus(theirs.tally, self.most)
        return replace(self, tally=tally, polynomials=residues.add(self.polynomials, theirs.polynomials, self._moduli))

    __add__ = add

    def add_plain(self, values: ArrayLike) -> CipherVector:
        """The encrypted sum with known ``(d,)`` floats: one more term.

        Not re-randomised: who sees the vector before and after learns the values.
        """
        array, tally = self.prepared(values)
        plaintexts, count = _plaintexts(self.key, array, tally.form), len(self.polynomials)
        message = self.key.ring.residues(plaintexts, count, tally.form)
        total = self.polynomials.copy()
        total[:, 0] = residues.add(total[:, 0], message, self._moduli)
        return replace(self, tally=tally, polynomials=total)

    def scale(self, weight: SupportsIndex) -> CipherVector:
        """The vector times an integer of at least 1, which counts as that many terms."""
        factor = integer_weight(weight)
        tally = self.tally.times(factor, self.most)
        return replace(self, tally=tally, polynomials=residues.multiple(self.polynomials, factor, self._moduli))

    def times(self, scalar: CipherVectorLike, *, at_most: int | None = None) -> CipherVector:
        """The vector times an encrypted scalar (``encrypt_scalar``), at the price of one level.

        The product stays larger, 3 polynomials, until it is rescaled: sum up all products first, then rescale once.
        ``to_bytes`` does it, ``decrypt`` doesn't need it. Raises CapacityError if no level is left.
        at_most: a public bound on the product in terms, where the caller knows a better one than the product of terms.
        """
        theirs = as_real(scalar)
        tally = self.product_tally(theirs.tally, at_most)
        self.multiplies()
        product = self.key.ring.times(self.polynomials, theirs.polynomials, self.tally.form)
        return replace(self, tally=tally, polynomials=product)

    def rescaled(self) -> CipherVector:
        """A product as two polynomials, one level lower; anything else as it is."""
        if not self.tally.form.product:
            return self
        done = self.key.ring.rescaled(self.key.relineariser, self.polynomials, self.tally.form)
        return replace(self, tally=self.tally.rescaled(), polynomials=done)

    def times_plain(self, number: float, *, at_most: int | None = None) -> CipherVector:
        """The vector times a number, one level lower. at_most: as in ``times``. Raises CapacityError without a level.

        Not re-randomised: who sees the vector before and after can compute the number.
        """
        tally = self.plain_tally(number, at_most)
        factor = round(float(number) * self.key.ring.scale(self.tally.form))
        if factor:
            return replace(self, tally=tally, polynomials=self._multiples(self.polynomials, factor, self.tally.form))
        zeros = self.key.ring.zeros(self.key.encryptor, len(self.polynomials), tally.form.level)
        return replace(self, tally=tally, polynomials=zeros)

    def at_level(self, level: int) -> CipherVector:
        """The same values at a lower level, at exactly its scale; a product is rescaled first.

        Raises CapacityError for a level above this one.
        """
        ready = self.rescaled()
        tally, made = ready.lower_tally(level), self.key.ring
        if tally.form == ready.tally.form:
            return ready
        upper = tally.form._replace(level=level + 1)
        factor = round(made.scale(tally.form) * float(made.moduli[level + 1, 0]) / made.scale(ready.tally.form))
        polynomials = self._multiples(ready.polynomials[:, :, : level + 2], factor, upper)
        return replace(ready, tally=tally, polynomials=polynomials)

    def _multiples(self, polynomials: Residues, factor: int, form: Form) -> Residues:
        return seal_products.multiples(self.key.ring, polynomials, factor, form)

    def conjugated(self, keys: EvaluationKeyLike) -> CipherVector:
        """The second factor of dot products with this vector. Compute it once for all of them."""
        known = evaluating(keys)
        tally = self.conjugated_tally(known)
        turned = seal_products.conjugates(self.key.ring, known.handles[-1], self.polynomials, self.tally.form)
        return replace(self, tally=tally, polynomials=turned)

    def dot(self, prepared: CipherVectorLike, keys: EvaluationKeyLike) -> CipherVector:
        """The dot product with a vector that is ``conjugated``: a scalar, one level lower.

        Its terms are the product of both vectors' terms: each term of each is taken to be a vector of norm at most 1.
        Raises CapacityError without a level, CryptoError for a vector that isn't conjugated or at another level.
        """
        theirs, known = as_real(prepared), evaluating(keys)
        tally, form = self.dot_tally(theirs.tally, known), self.tally.form
        self.multiplies()
        ring, handles = self.key.ring, (self.key.relineariser, known.handles)
        product = seal_products.dot(ring, *handles, self.polynomials, theirs.polynomials, form)
        return replace(self, tally=tally, polynomials=product)

    def blind(self, mask: MaskLike) -> CipherVector:
        """Algorithm 5, line 4: the vector plus the mask, freshly randomised: nothing links it to this vector."""
        numbers = self._matching(mask)
        return self._shifted(numbers, self.tally.masked(self.most))

    def unblind(self, mask: MaskLike, times: int) -> CipherVector:
        """Algorithm 5, line 16: the vector minus ``times`` times the mask, freshly randomised.

        Without that, whoever sees the vector before and after could read the mask off their difference. Raises
        CryptoError if fewer masks are inside; another mask than the one inside leaves nonsense.
        """
        numbers, factor = self._matching(mask), integer_weight(times)
        tally = self.tally.unmasked(factor)
        taken = residues.multiple(numbers, factor, self._moduli)
        return self._shifted(residues.subtract(np.zeros_like(taken), taken, self._moduli), tally)

    def sanitised(self, flood_bits: int = SANITISING_BITS) -> CipherVector:
        """The same values with fresh randomness and noise, for whoever can open it; a product is rescaled first.

        Error and randomness of a vector tell its key's holder how it came about: that two scalars are multiples of one
        number, say, and by what masks. This drowns it in noise, uniform in +-2^flood_bits a coefficient.
        """
        ready, bits = self.rescaled(), self.key.parameters.flood(flood_bits)
        ready.travels()
        count, limbs = len(ready.polynomials), ready.tally.form.level + 1
        nothing = np.zeros((count, limbs, self.key.parameters.degree), dtype=np.uint64)
        return ready._shifted(flooded(self.key.parameters, nothing, ready.tally.form, bits), ready.tally)

    def split(self, at: int) -> tuple[CipherVector, CipherVector]:
        """The first ``at`` values and the others, ``at`` a multiple of N. Raises CryptoError for anything else."""
        head, tail = self.split_tallies(at)
        count = self.key.parameters.ciphertexts(at)
        return (
            replace(self, tally=head, polynomials=self.polynomials[:count]),
            replace(self, tally=tail, polynomials=self.polynomials[count:]),
        )

    def joined(self, other: CipherVectorLike) -> CipherVector:
        """These values, as many as fill their ciphertexts, and another vector's behind them."""
        theirs = as_real(other)
        tally = self.joined_tally(theirs.tally)
        return replace(self, tally=tally, polynomials=np.concatenate((self.polynomials, theirs.polynomials)))

    def _matching(self, mask: MaskLike) -> Residues:
        self.key.parameters.maskable()
        if not isinstance(mask, Mask):
            raise KeyMismatchError(f"{mask!r} is no mask for CKKS")
        return mask.fitting(self.key.parameters, self.tally)

    def _shifted(self, numbers: Residues, tally: Tally) -> CipherVector:
        """Plus a fresh encryption of these polynomials."""
        fresh = self.key.ring.zeros(self.key.encryptor, len(numbers), tally.form.level)
        fresh[:, 0] = residues.add(fresh[:, 0], numbers, self._moduli)
        return replace(self, tally=tally, polynomials=residues.add(self.polynomials, fresh, self._moduli))

    def to_bytes(self) -> bytes:
        """The wire form, ``key.wire_bytes(d, form)`` bytes; a product is rescaled first."""
        self.travels()
        ready = self.rescaled()
        limbs = ready.tally.form.level + 1
        parts = residues.pack(ready.polynomials, self.key.parameters.residue_bytes[:limbs])
        return b"".join((wire.vector_header(ready.tally, SCHEME), *parts))

    @property
    def _moduli(self) -> Residues:
        return self.key.ring.moduli_at(self.tally.form.level)


def sealed(key: PublicKey, encryptor: Handle, array: Floats, tally: Tally, *, symmetric: bool = False) -> CipherVector:
    """A fresh encryption of checked values."""
    plaintexts, count = _plaintexts(key, array, tally.form), key.parameters.ciphertexts(array.size)
    return CipherVector(key, tally, key.ring.encrypt(encryptor, plaintexts, count, tally.form.level, symmetric))


def _plaintexts(key: PublicKey, array: Floats, form: Form) -> Iterator[Handle]:
    if form.scalar:
        return key.ring.encoded_constant(float(array[0]), form)
    return key.ring.encoded(key.parameters.to_slots(array), form)


def as_real(cipher: Any) -> CipherVector:
    """A vector of this scheme. Raises KeyMismatchError for anything else."""
    if not isinstance(cipher, CipherVector):
        raise KeyMismatchError(f"{cipher!r} is no CKKS ciphertext")
    return cipher
