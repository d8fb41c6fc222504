"""Masks that hide CKKS vectors perfectly, and what the key's holder sees under them (PAFed, algorithm 5).

A mask is a uniform element of the ciphertexts' ring. The sum of a plaintext polynomial and a mask is uniform itself, so
whoever opens it learns nothing, and taking the mask off is exact. (The paper masks with real numbers: whatever their
size, they hide less, and cost precision. See docs/systems/pafed.md.)

**Flooding.** The opened polynomial is ``m + e + r``: value, error, mask. The error e depends on the secret key. A party
that takes the mask off later, under another key, could see it with the value (``ckks``, last paragraph). So an opened
vector that is encrypted under *another* key carries extra noise, uniform in +-2^flood_bits a coefficient, drawn once an
opening, so that not even all recipients together can average it away. At level 0 of "ckks-8192-deep" it is some 2^9
times the error of a round of additions and products and moves a value by 3.5e-5 (one standard deviation). That is not
the 2^40 of a proof by statistical distance, for which a scale of 36 bits has no room: m + e stays hidden like the
secret of a learning-with-errors sample whose error is this noise, thousands of times what the scheme itself builds on.
All of this is for ciphertexts that the protocol made: a party that has a forged one opened and knows its mask (PAFed's
aggregator with a client) reads the key off it, whatever the noise. Under *its own* key, where only ciphertexts leave,
an opened vector is encrypted as it is, so that errors don't pile up.
"""

from __future__ import annotations

import os

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from coterie.crypto import residues
from coterie.crypto.arrays import RandomBytes, drawn
from coterie.crypto.ckks_parameters import ParameterSet
from coterie.crypto.residues import Residues
from coterie.crypto.seal import ring
from coterie.crypto.seal_products import transformed
from coterie.crypto.tally import Form

SANITISING_BITS = 12
"""Noise for scalars that were masked by numbers: 2^7 times their own, and 2e-6 of a value at 36 bits of scale."""

_KEY_BYTES = 32


def draw(parameters: ParameterSet, length: int, form: Form, random_bytes: RandomBytes) -> Residues:
    """A fresh mask, ``(ciphertexts, limbs, N)``: 32 secret random bytes, stretched by AES-256 in counter mode."""
    moduli = ring(parameters).moduli_at(form.level)
    shape = parameters.ciphertexts(length), len(moduli), parameters.degree
    return _uniform(_Stream(drawn(random_bytes, _KEY_BYTES)), shape, moduli)


def flooded(parameters: ParameterSet, exact: Residues, form: Form, bits: int) -> Residues:
    """The polynomials with fresh uniform noise in ``[-2^bits, 2^bits)`` on every coefficient."""
    made, half = ring(parameters), 1 << bits
    words = _Stream(os.urandom(_KEY_BYTES)).words(len(exact) * parameters.degree)
    noise = (words & np.uint64(2 * half - 1)).astype(np.int64) - half
    numbers = transformed(made, noise.reshape(len(exact), parameters.degree), form.level)
    return residues.add(exact, numbers, made.moduli_at(form.level))


class _Stream:
    """A secret stream of uniform 64-bit numbers from a key that is used once."""

    def __init__(self, key: bytes) -> None:
        self._encryptor = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()

    def words(self, count: int) -> NDArray[np.uint64]:
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
