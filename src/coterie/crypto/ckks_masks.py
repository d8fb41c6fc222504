"""Masks that hide CKKS vectors perfectly, and what the key's holder sees under them (PAFed, algorithm 5).

A mask is a uniform element of the ciphertexts' ring, drawn coefficient by coefficient modulo every prime. The sum of a
plaintext polynomial and a mask is uniform itself, so whoever opens it learns nothing, and taking the mask off is exact.
(The paper masks with real numbers: whatever their size, they hide less, and cost precision. See docs/systems/pafed.md.)

**Flooding.** The opened polynomial is ``m + e + r``: value, error, mask. The error e depends on the secret key, and who
takes the mask off later, under another key, could see it with the value (``ckks``, last paragraph). So an opened vector
that is encrypted under *another* key carries extra noise, uniform in +-2^flood_bits a coefficient, drawn once an
opening, so that not even all recipients together can average it away. At level 0 of "ckks-8192-deep" it is some 2^9
times the error of a round of additions and products and moves a value by 3.5e-5 (one standard deviation). That is not
the 2^40 of a proof by statistical distance, for which a scale of 36 bits has no room: m + e stays hidden like the
secret of a learning-with-errors sample whose error is this noise, thousands of times what the scheme itself builds on.
All of this is for ciphertexts that the protocol made: who may have a forged one opened and knows its mask (PAFed's
aggregator with a client) reads the key off it, whatever the noise. Under *its own* key, where only ciphertexts leave,
an opened vector is encrypted as it is, so that errors don't pile up.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from coterie.crypto import residues
from coterie.crypto.ckks_parameters import Parameters
from coterie.crypto.residues import Residues
from coterie.crypto.seal import ring
from coterie.crypto.tally import Form, Tallied, Tally
from coterie.crypto.vector import BlindedLike, RandomBytes, drawn
from coterie.protocol.errors import CryptoError, KeyMismatchError

SANITISING_BITS = 12
"""Noise for scalars that were masked by numbers: 2^7 times their own, and 2e-6 of a value at 36 bits of scale."""

_KEY_BYTES = 32


@dataclass(frozen=True, eq=False)
class Mask:
    """SECRET of who drew it: ``(ciphertexts, limbs, N)`` residues. Fits every key of these parameters."""

    parameters: Parameters
    length: int
    level: int
    numbers: Residues

    @classmethod
    def draw(cls, parameters: Parameters, length: int, random_bytes: RandomBytes, level: int) -> Mask:
        """A fresh mask: 32 bytes of n -> n secret random bytes, stretched by AES-256 in counter mode."""
        moduli = ring(parameters).moduli_at(parameters.masked_at(length, level).level)
        shape = parameters.ciphertexts(length), len(moduli), parameters.degree
        return cls(parameters, length, level, _uniform(_Stream(drawn(random_bytes, _KEY_BYTES)), shape, moduli))

    def fitting(self, parameters: Parameters, tally: Tally) -> Residues:
        """The numbers. Raises KeyMismatchError or CryptoError if they aren't made for such vectors."""
        fits(self, parameters, tally)
        return self.numbers

    def __repr__(self) -> str:
        return f"<Mask length {self.length} level {self.level}>"

    def __deepcopy__(self, memo: object) -> Mask:
        return self


@dataclass(frozen=True, eq=False, repr=False)
class Blinded(Tallied):
    """An opened vector that still carries its masks: uniform polynomials ``(ciphertexts, limbs, N)``.

    exact: as they were opened.  flooded: with noise, for other keys.
    """

    parameters: Parameters
    tally: Tally
    exact: Residues
    flooded: Residues

    def under(self, fingerprint: bytes) -> Residues:
        """What may be encrypted under a key."""
        return self.exact if fingerprint == self.tally.fingerprint else self.flooded

    def plus(self, other: BlindedLike) -> Blinded:
        """The sum: values, masks and noises add up. Raises CapacityError if terms or masks become too many."""
        theirs = opened_with(self.parameters, other)
        tally = self.tally.plus(theirs.tally, self.parameters.room(self.tally.form))
        moduli = ring(self.parameters).moduli_at(self.tally.form.level)
        exact = residues.add(self.exact, theirs.exact, moduli)
        return replace(self, tally=tally, exact=exact, flooded=residues.add(self.flooded, theirs.flooded, moduli))

    __add__ = plus

    def minus(self, other: BlindedLike) -> NoReturn:
        """Raises CryptoError: CKKS has no exact integers to compare."""
        raise CryptoError("CKKS has no exact differences of masked vectors: use a Paillier key")


def fits(mask: Any, parameters: Parameters, tally: Tally) -> None:
    """Whether a mask is made for such vectors. Raises KeyMismatchError or CryptoError."""
    if mask.parameters.identity != parameters.identity:
        raise KeyMismatchError(f"a mask for keys of {mask.parameters.name} doesn't fit one of {parameters.name}")
    if tally.form.product or tally.form.conjugated:
        raise CryptoError(f"a {tally.form} can't carry a mask: rescale a product first, and take the vector itself")
    if mask.length != tally.length or mask.level != tally.form.level:
        raise CryptoError(
            f"a mask for {mask.length} values at level {mask.level} doesn't fit {tally.length} at {tally.form.level}"
        )


def opened_with(parameters: Parameters, blinded: Any) -> Blinded:
    """A blinded vector of these parameters. Raises KeyMismatchError for anything else."""
    parameters.maskable()
    if not isinstance(blinded, Blinded) or blinded.parameters.identity != parameters.identity:
        raise KeyMismatchError(f"{blinded!r} was not opened with a CKKS key of {parameters.name}")
    return blinded


def flooded(parameters: Parameters, exact: Residues, form: Form, bits: int) -> Residues:
    """The polynomials with fresh uniform noise in ``[-2^bits, 2^bits)`` on every coefficient."""
    from coterie.crypto.seal_products import transformed

    made, half = ring(parameters), 1 << bits
    words = _Stream(os.urandom(_KEY_BYTES)).words(len(exact) * parameters.degree)
    noise = (words & np.uint64(2 * half - 1)).astype(np.int64) - half
    numbers = transformed(made, noise.reshape(len(exact), parameters.degree), form.level)
    return residues.add(exact, numbers, made.moduli_at(form.level))


class _Stream:
    """A secret stream of numbers from a key that is used once."""

    def __init__(self, key: bytes) -> None:
        self._encryptor = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()

    def words(self, count: int) -> NDArray[np.uint64]:
        """So many uniform 64-bit numbers."""
        return np.frombuffer(self._encryptor.update(bytes(8 * count)), dtype="<u8").copy()


def _uniform(stream: _Stream, shape: tuple[int, ...], moduli: Residues) -> Residues:
    """Uniform residues ``(count, limbs, N)``: what isn't below its prime is drawn again, so there is no bias."""
    out = np.empty(shape, dtype=np.uint64)
    for limb, prime in enumerate(moduli.ravel()):
        bits = np.uint64((1 << int(prime).bit_length()) - 1)
        numbers = stream.words(shape[0] * shape[2]) & bits
        while (high := np.flatnonzero(numbers >= prime)).size:
            numbers[high] = stream.words(high.size) & bits
        out[:, limb] = numbers.reshape(shape[0], shape[2])
    return out
