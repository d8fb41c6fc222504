"""CKKS on arrays: residues ``(ciphertexts, 2 or 3 polynomials, limbs, N)`` modulo a chain of primes, over SEAL.

**Masks** hide vectors perfectly (PAFed, algorithm 5): uniform elements of the ciphertexts' ring, which come off
exactly.

**Flooding.** The opened polynomial is ``m + e + r``: value, error, mask. The error depends on the secret key, and a
party that takes the mask off could see it. So for *another* key an opened vector carries noise, uniform in
+-2^flood_bits a coefficient, which hides m + e as learning with errors does, unless the ciphertext is forged by a party
that knows the mask.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from os import urandom
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tenseal.sealapi import GaloisKeys, RelinKeys  # type: ignore[import-untyped]

from coterie.crypto import residues
from coterie.crypto.arrays import ArrayVectors, CiphertextError, Halves, RandomBytes, drawn
from coterie.crypto.ckks_parameters import FINGERPRINT_BYTES, ParameterSet
from coterie.crypto.residues import Residues
from coterie.crypto.seal import Handle, Ring, ring
from coterie.crypto.tally import Form, Tally
from coterie.protocol.arrays import Doubles
from coterie.protocol.errors import DecodeError

Opened = tuple[Residues, Residues]  # as it was opened, and with noise for other keys
Taps = NDArray[np.int64] | None
_MASK_BYTES = 32


@dataclass(frozen=True, eq=False, repr=False)
class Public(ArrayVectors):
    """As ``arrays.PublicArrays``, with what ``ckks.CipherVector`` adds."""

    space: ParameterSet
    pair: Residues  # (2, primes, N)
    relinearise: Residues  # (k, 2, primes, N); k is 0 without products

    scheme = "ckks"

    @property
    def flag(self) -> int:
        return int(len(self.relinearise) > 0)

    def without_products(self) -> Public:
        return replace(self, relinearise=self.relinearise[:0])

    def encrypt(self, values: Doubles, form: Form) -> Residues:
        return self._fresh(self.ring.encoded(values, form), form)

    def add(self, a: Residues, b: Residues, form: Form) -> Residues:
        return residues.add(a, b, self._moduli(form))

    def add_plain(self, a: Residues, values: Doubles, form: Form) -> Residues:
        total = a.copy()
        total[:, 0] = residues.add(total[:, 0], self.ring.encoded(values, form), self._moduli(form))
        return total

    def scale(self, a: Residues, factor: int, form: Form) -> Residues:
        return residues.multiple(a, factor, self._moduli(form))

    def draw(self, length: int, form: Form, random_bytes: RandomBytes) -> Residues:
        """Uniform ``(ciphertexts, limbs, N)``, which follow from 32 secret random bytes."""
        shape = self.space.ciphertexts(length), form.level + 1, self.space.degree
        return residues.uniform(residues.secret_words(drawn(random_bytes, _MASK_BYTES)), shape, self._moduli(form))

    def shift(self, a: Residues, numbers: Residues, factor: int, form: Form) -> Residues:
        moduli = self._moduli(form)
        taken = numbers if abs(factor) == 1 else residues.multiple(numbers, abs(factor), moduli)
        return residues.add(a, self._fresh(taken if factor > 0 else moduli - taken, form), moduli)

    def lift(self, opened: Opened, form: Form, own: bool) -> Residues:
        return self._fresh(opened[0 if own else 1], form)

    def pack(self, a: Residues, form: Form) -> list[bytes | memoryview[Any]]:
        return residues.pack(a, self.space.residue_bytes[: form.level + 1])

    def unpack(self, body: memoryview, tally: Tally) -> Residues:
        """Residues below their primes, with randomness in every limb. Raises DecodeError."""
        limbs = tally.form.level + 1
        shape = self.space.ciphertexts(tally.length), 2, limbs, self.space.degree
        numbers = residues.unpack(body, shape, self.space.residue_bytes[:limbs])
        if not residues.valid(numbers, self._moduli(tally.form)):
            raise DecodeError("a residue is not below its prime")
        if not numbers[:, 1].any(axis=2).all():  # in every limb: lower levels have fewer
            raise DecodeError("a ciphertext without randomness: it hides nothing")
        return numbers

    # ---- products, levels, parts

    def times(self, a: Residues, scalar: Residues, form: Form) -> Residues:
        made, factor = self.ring, next(self.ring.objects(scalar, form))
        return made.changed(a, form, 3, form.level + 1, lambda c: made.evaluator.multiply_inplace(c, factor))

    def rescale(self, a: Residues, form: Form) -> Residues:
        seal = self.ring.evaluator
        steps = lambda c: seal.relinearize_inplace(c, self.relineariser), seal.rescale_to_next_inplace
        return self.ring.changed(a, form, 2, form.level, *steps)

    def times_plain(self, a: Residues, number: float, form: Form) -> Residues:
        if whole := round(number * plain_scale(self.ring, form)):
            return self._multiples(a, whole, form)
        return self.zeros(len(a), form.level - 1)

    def lower(self, a: Residues, form: Form, level: int) -> Residues:
        # Higher primes are dropped, then it is multiplied by the integer nearest to S_l q_(l+1) / S_k and rescaled.
        made, upper = self.ring, form._replace(level=level + 1)
        wanted = made.scale(form._replace(level=level)) * float(made.moduli[level + 1, 0])
        return self._multiples(a[:, :, : level + 2], round(wanted / made.scale(form)), upper)

    def conjugate(self, a: Residues, keys: Evaluation, form: Form) -> Residues:
        turn, element, key = self.ring.evaluator.apply_galois_inplace, self.space.elements[-1], keys.handles[-1]
        return self.ring.changed(a, form, 2, form.level + 1, lambda c: turn(c, element, key))

    def dot(
        self, a: Residues, conjugated: Residues, keys: Evaluation, form: Form, constant: bool, taps: Taps = None
    ) -> Residues:
        return self.ring.dot(self.relineariser, keys.handles, a, conjugated, form, constant, taps)

    def sanitise(self, a: Residues, bits: int, form: Form) -> Residues:
        nothing = np.zeros((len(a), form.level + 1, self.space.degree), dtype=np.uint64)
        return self.shift(a, self.flooded(nothing, bits, form), 1, form)

    def flooded(self, exact: Residues, bits: int, form: Form) -> Residues:
        # Drawn once an opening, so that all recipients together can't average it away. At level 0 of "ckks-8192-deep"
        # it is some 2^9 times the error of a round; a proof by statistical distance would need 2^40, for which a scale
        # of 36 bits has no room.
        words = residues.secret_words(urandom(_MASK_BYTES))(len(exact) * self.space.degree)
        noise = (words & np.uint64((2 << bits) - 1)).astype(np.int64) - (1 << bits)
        numbers = self.ring.transformed(noise.reshape(-1, self.space.degree), form.level)
        return residues.add(exact, numbers, self._moduli(form))

    def split(self, a: Residues, at: int) -> tuple[Residues, Residues]:
        count = self.space.ciphertexts(at)
        return a[:count], a[count:]

    # ---- one-time pads (``pads``): one polynomial a ciphertext

    def pad(self, values: Doubles, pad: Residues, form: Form) -> Residues:
        """Encoded values plus a pad, ``(ciphertexts, limbs, N)``, without noise."""
        return residues.add(pad, self.ring.encoded(values, form), self._moduli(form))

    def completed(self, padded: Residues, counterpart: Residues, seed: bytes, form: Form) -> Residues:
        """``(y + p, a)``, with a from the public seed."""
        made = np.empty((len(padded), 2, *padded.shape[1:]), dtype=np.uint64)
        made[:, 0] = residues.add(padded, counterpart, self._moduli(form))
        made[:, 1] = self._from_seed(len(padded), seed, form)
        return made

    def unpack_pad(self, body: memoryview, tally: Tally) -> Residues:
        limbs = tally.form.level + 1
        shape = self.space.ciphertexts(tally.length), limbs, self.space.degree
        numbers = residues.unpack(body, shape, self.space.residue_bytes[:limbs])
        if not residues.valid(numbers, self._moduli(tally.form)):
            raise DecodeError("a residue is not below its prime")
        return numbers

    def _from_seed(self, count: int, seed: bytes, form: Form) -> Residues:
        shape = count, form.level + 1, self.space.degree
        return residues.uniform(residues.secret_words(seed), shape, self._moduli(form))

    # ---- bytes of keys, and SEAL's objects

    def parts(self) -> list[Any]:
        widths = self.space.residue_bytes
        return list(chain(residues.pack(self.pair[None], widths), residues.pack(self.relinearise, widths)))

    @classmethod
    def load(cls, space: ParameterSet, flag: int, body: memoryview) -> Public:
        made, count = ring(space), 1 + (space.relinearisation_keys if flag else 0)
        pairs = residues.unpack(body, (count, 2, len(made.moduli), space.degree), space.residue_bytes)
        if not residues.valid(pairs, made.moduli) or not pairs.any(axis=(2, 3)).all():
            raise DecodeError("the numbers of this key can't be an honest CKKS key's")
        return cls(space, pairs[0], pairs[1:])

    @property
    def ring(self) -> Ring:
        return ring(self.space)

    @cached_property
    def encryptor(self) -> Handle:
        return self.ring.encryptor(self.pair)

    @cached_property
    def relineariser(self) -> Handle:
        return self.ring.switching_object(RelinKeys(), self.relinearise)

    def _fresh(self, numbers: Residues, form: Form) -> Residues:
        fresh = self.zeros(len(numbers), form.level)
        fresh[:, 0] = residues.add(fresh[:, 0], numbers, self._moduli(form))
        return fresh

    def zeros(self, count: int, level: int) -> Residues:
        return self.ring.zeros(self.encryptor.encrypt_zero, count, level)

    def _multiples(self, a: Residues, factor: int, form: Form) -> Residues:
        made, moduli = self.ring, self._moduli(form)
        numbers = np.array([[factor % int(q)] for (q,) in moduli], dtype=np.uint64)
        product = residues.product(a, numbers, moduli)
        return made.changed(product, form, 2, form.level, made.evaluator.rescale_to_next_inplace)

    def _moduli(self, form: Form) -> Residues:
        return self.ring.moduli_at(form.level)


@dataclass(frozen=True, eq=False, repr=False)
class Secret(Halves):
    """secret: (primes, N) residues of a ternary polynomial."""

    secret: Residues
    public: Public

    @classmethod
    def generate(cls, space: ParameterSet, products: bool) -> Secret:
        secret, pair, relinearise = ring(space).keygen(products)
        return cls(secret, Public(space, pair, relinearise))

    def encrypt(self, values: Doubles, form: Form) -> Residues:
        made = self.public.ring
        fresh = made.zeros(self.encryptor.encrypt_zero_symmetric, self.space.ciphertexts(values.size), form.level)
        fresh[:, 0] = residues.add(fresh[:, 0], made.encoded(values, form), made.moduli_at(form.level))
        return fresh

    def decrypt(self, a: Residues, tally: Tally) -> Doubles:
        """``(d,)`` values. Raises CiphertextError if an unused coefficient is not about 0."""
        form, made, plain = tally.form, self.public.ring, self._plain(a)
        if form.constant:
            moduli = made.moduli_at(form.level)
            return np.array([residues.centred(residues.constant(plain, moduli)[0], moduli) / made.scale(form)])
        numbers = made.decoded(plain, made.unit(form)).ravel()
        if (np.abs(numbers[tally.length :]) > self.space.tolerance(tally.terms, form)).any():
            raise CiphertextError("an unused coefficient holds something: damaged or forged")
        return numbers[: tally.length].copy()

    def _plain(self, a: Residues) -> Residues:
        moduli, secret = self.public.ring.moduli[: a.shape[2]], self.secret[None, : a.shape[2]]
        total = a[:, -1]
        for at in range(a.shape[1] - 2, -1, -1):  # Horner's rule
            total = residues.add(residues.product(total, secret, moduli), a[:, at], moduli)
        return total

    def counterpart(self, pads: Residues, seed: bytes, form: Form) -> Residues:
        """``-a s + e`` minus the pads: completes padded vectors to a ciphertext. The noise is as SEAL's."""
        public, moduli = self.public, self.public.ring.moduli_at(form.level)
        products = residues.product(public._from_seed(len(pads), seed, form), self.secret[: form.level + 1], moduli)
        taken = residues.add(products, pads, moduli)
        noise = public.ring.transformed(residues.binomial((len(pads), self.space.degree), urandom), form.level)
        return residues.add(noise, moduli - taken, moduli)

    def open_blinded(self, a: Residues, tally: Tally, bits: int) -> Opened:
        exact = self._plain(a)
        return exact, self.public.flooded(exact, bits, tally.form)

    def evaluation(self, fingerprint: bytes) -> Evaluation:
        keys = self.public.ring.automorphism_keys(self.secret)
        widths = self.space.residue_bytes
        return Evaluation(self.space, fingerprint, tuple(b"".join(residues.pack(key, widths)) for key in keys))

    def parts(self) -> list[Any]:
        return [*residues.pack(self.secret, self.space.residue_bytes), *self.public.parts()]

    @classmethod
    def load(cls, space: ParameterSet, flag: int, body: memoryview) -> Secret:
        split, made = space.secret_bytes, ring(space)
        secret = residues.unpack(body[:split], (len(made.moduli), space.degree), space.residue_bytes)
        if not residues.valid(secret, made.moduli):
            raise DecodeError("a residue of this secret key is not below its prime")
        key = cls(secret, Public.load(space, flag, body[split:]))
        if not key._belongs_together():
            raise DecodeError("the halves of this key don't belong together")
        return key

    def _belongs_together(self) -> bool:
        tally = Tally(bytes(FINGERPRINT_BYTES), 1, form=self.space.fresh)
        try:
            return bool(abs(self.decrypt(self.public.encrypt(np.zeros(1), tally.form), tally)[0]) <= self.space.error())
        except CiphertextError:
            return False

    @cached_property
    def encryptor(self) -> Handle:
        return self.public.ring.encryptor(self.public.pair, self.secret)


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    space: ParameterSet
    fingerprint: bytes
    packed: tuple[bytes | memoryview, ...]

    scheme, flag = "ckks", 1

    def parts(self) -> list[Any]:
        return [self.fingerprint, *self.packed]

    @classmethod
    def load(cls, space: ParameterSet, flag: int, body: memoryview) -> Evaluation:
        fingerprint, body = bytes(body[:FINGERPRINT_BYTES]), body[FINGERPRINT_BYTES:]
        size = len(body) // len(space.elements)
        made = cls(space, fingerprint, tuple(body[at : at + size] for at in range(0, len(body), size)))
        for part in made.packed:
            numbers = made._unpacked(part)
            if not residues.valid(numbers, ring(space).moduli) or not numbers.any(axis=(2, 3)).all():
                raise DecodeError("the numbers of this evaluation key can't be an honest CKKS key's")
        return made

    @cached_property
    def handles(self) -> tuple[Handle, ...]:
        made = ring(self.space)
        return tuple(
            made.switching_object(GaloisKeys(), self._unpacked(part), element)
            for element, part in zip(self.space.elements, self.packed, strict=True)
        )

    def _unpacked(self, part: bytes | memoryview) -> Residues:
        shape = self.space.relinearisation_keys, 2, len(self.space.prime_bits), self.space.degree
        return residues.unpack(part, shape, self.space.residue_bytes)


def plain_scale(ring: Ring, form: Form) -> float:
    """The scale of plaintexts whose products, rescaled, have the scale of the level below."""
    return ring.scale(form._replace(level=form.level - 1)) * float(ring.moduli[form.level, 0]) / ring.scale(form)
