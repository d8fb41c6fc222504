"""Sums over the slots of SEAL's ciphertexts as arrays, the keys for them, and small polynomials in NTT form.

As in ``seal``, nothing here checks residues, and ``form`` is that of what is given.

**A dot product** of v and a conjugated a multiplies slot by slot and adds up all ciphertexts, turns the one sum back
into two polynomials, adds up its slots by rotations, and the conjugate. That is the trace of the field: of a plaintext
polynomial it leaves N times the constant coefficient, twice the dot product. So everything is halved modulo q before:
halves of odd coefficients are large then, but the trace brings them back to integers, half of N times the constant one,
while the noise of the rotations comes later and stays as it is. Rescaling is last, so that this noise hardly counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import tenseal.sealapi as sealapi  # type: ignore[import-untyped]
from numpy.typing import NDArray

from coterie.crypto import residues
from coterie.crypto.residues import Residues
from coterie.crypto.seal import Handle, Ring, forged, scratch
from coterie.crypto.tally import Form


def dot(
    ring: Ring, relineariser: Handle, keys: Sequence[Handle], vector: Residues, prepared: Residues, form: Form
) -> Residues:
    """The dot product in every slot, ``(1, 2, limbs - 1, N)``; keys: of ``parameters.elements``, in their order."""
    with forged():
        total = _sum_of_products(ring, vector, prepared, form)
        ring.evaluator.relinearize_inplace(total, relineariser)
        product = ring.numbers([total], 1, 2, form.level + 1)
        halves = residues.halved(product, ring.moduli_at(form.level))
        whole = next(ring.objects(halves, form._replace(product=True)))
        times = [*(times for _, times in ring.parameters.rotations), 1]
        for element, count, key in zip(ring.parameters.elements, times, keys, strict=True):
            start = whole  # x + f(x) + f(f(x)) + ... for the automorphism f, ``count`` times applied
            for _ in range(count):
                ring.evaluator.apply_galois(whole, element, key, turned := ring.cipher())
                ring.evaluator.add_inplace(turned, start)
                whole = turned
        ring.evaluator.rescale_to_next_inplace(whole)
        return ring.numbers([whole], 1, 2, form.level)


def _sum_of_products(ring: Ring, vector: Residues, prepared: Residues, form: Form) -> Handle:
    total, product = None, ring.cipher()
    for x, y in zip(ring.objects(vector, form), ring.objects(prepared, form), strict=True):
        if total is None:
            ring.evaluator.multiply(x, y, total := ring.cipher())
        else:
            ring.evaluator.multiply(x, y, product)
            ring.evaluator.add_inplace(total, product)
    return total


def automorphism_keys(ring: Ring, secret: Residues) -> Iterator[Residues]:
    """``(k, 2, primes, N)`` of each of ``parameters.elements``, from the system's randomness."""
    generator = sealapi.KeyGenerator(ring.context, ring.secret_object(secret))
    for element in ring.parameters.elements:
        generator.create_galois_keys([element], keys := sealapi.GaloisKeys())
        yield ring.switching(keys, element)


def transformed(ring: Ring, coefficients: NDArray[np.int64], level: int) -> Residues:
    """Polynomials of small integer coefficients ``(count, N)`` as residues in NTT form, ``(count, limbs, N)``."""
    moduli = ring.moduli_at(level).astype(np.int64)
    out = np.empty((len(coefficients), len(moduli), coefficients.shape[1]), dtype=np.uint64)
    template, cipher = ring.template(Form(level), ntt=False), ring.cipher()
    pair = np.ones((2, *out.shape[1:]), dtype=np.uint64)  # SEAL refuses a second polynomial of zeros
    with scratch() as file:
        for at in range(0, len(out), 2):
            two = coefficients[at : at + 2]
            pair[: len(two)] = np.where(two[:, None] < 0, two[:, None] + moduli, two[:, None])
            file.write(template, pair)
            cipher.load(ring.context, file.path)
            ring.evaluator.transform_to_ntt_inplace(cipher)
            file.numbers(cipher, pair)
            out[at : at + 2] = pair[: len(two)]
    return out
