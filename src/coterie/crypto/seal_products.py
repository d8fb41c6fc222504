"""Products and sums over slots of SEAL ciphertexts as arrays: by plaintext numbers, conjugates, dot products, floods.

As in ``seal``, nothing here checks residues, and ``form`` is that of what is given.

**A dot product** of v and a conjugated a multiplies slot by slot and adds up all ciphertexts, turns the one sum back
into two polynomials, adds up its slots by rotations, and the conjugate. That is the trace of the field: of a plaintext
polynomial it leaves N times the constant coefficient, twice the dot product. So everything is halved modulo q before:
halves of odd coefficients are large then, but the trace brings them back to integers, half of N times the constant one,
while the noise of the rotations comes later and stays as it is. Rescaling is last, so that this noise hardly counts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import numpy as np
import tenseal.sealapi as sealapi  # type: ignore[import-untyped]
from numpy.typing import NDArray

from coterie.crypto import residues
from coterie.crypto.residues import Residues
from coterie.crypto.seal import Handle, Ring, forged, scratch
from coterie.crypto.tally import Form
from coterie.protocol.errors import RunError

_U64 = struct.Struct("<Q")


def multiples(ring: Ring, ciphers: Residues, factor: int, form: Form) -> Residues:
    """Ciphertexts times an integer but 0, rescaled: ``(count, 2, limbs - 1, N)``. Its scale is the caller's concern."""
    plaintext, ids = sealapi.Plaintext(), ring.ids
    ring.encoder.encode(float(factor), ids[form.level], 1.0, plaintext)
    out = np.empty((*ciphers.shape[:2], form.level, ciphers.shape[3]), dtype=np.uint64)
    with scratch() as file, forged():
        for row, cipher in zip(out, ring.objects(ciphers, form), strict=True):
            ring.evaluator.multiply_plain_inplace(cipher, plaintext)
            ring.evaluator.rescale_to_next_inplace(cipher)
            file.numbers(cipher, row)
    return out


def conjugates(ring: Ring, keys: Handle, ciphers: Residues, form: Form) -> Residues:
    """The conjugate of every slot."""
    out, element = np.empty_like(ciphers), ring.parameters.elements[-1]
    with scratch() as file, forged():
        for row, cipher in zip(out, ring.objects(ciphers, form), strict=True):
            ring.evaluator.apply_galois_inplace(cipher, element, keys)
            file.numbers(cipher, row)
    return out


def dot(
    ring: Ring, relineariser: Handle, keys: Sequence[Handle], vector: Residues, prepared: Residues, form: Form
) -> Residues:
    """The dot product in every slot, ``(1, 2, limbs - 1, N)``; keys: of ``parameters.elements``, in their order."""
    product_form, degree = form._replace(product=True), ring.parameters.degree
    product = np.empty((1, 2, form.level + 1, degree), dtype=np.uint64)
    out = np.empty((1, 2, form.level, degree), dtype=np.uint64)
    with scratch() as file, forged():
        ring.evaluator.relinearize(_sum_of_products(ring, vector, prepared, form), relineariser, whole := _cipher(ring))
        file.numbers(whole, product[0])
        halves = residues.halved(product, ring.moduli_at(form.level))
        whole = next(ring.objects(halves, product_form))
        times = [*(times for _, times in ring.parameters.rotations), 1]
        for element, count, key in zip(ring.parameters.elements, times, keys, strict=True):
            whole = _summed(ring, whole, element, count, key)
        ring.evaluator.rescale_to_next_inplace(whole)
        file.numbers(whole, out[0])
    return out


def _sum_of_products(ring: Ring, vector: Residues, prepared: Residues, form: Form) -> Handle:
    """Three polynomials."""
    total, product = None, _cipher(ring)
    for x, y in zip(ring.objects(vector, form), ring.objects(prepared, form), strict=True):
        if total is None:
            ring.evaluator.multiply(x, y, total := _cipher(ring))
        else:
            ring.evaluator.multiply(x, y, product)
            ring.evaluator.add_inplace(total, product)
    return total


def _summed(ring: Ring, cipher: Handle, element: int, count: int, key: Handle) -> Handle:
    """x + f(x) + f(f(x)) + ... for an automorphism f, ``count`` times applied."""
    total = cipher
    for _ in range(count):
        ring.evaluator.apply_galois(total, element, key, turned := _cipher(ring))
        ring.evaluator.add_inplace(turned, cipher)
        total = turned
    return total


def _cipher(ring: Ring) -> Handle:
    return sealapi.Ciphertext(ring.context)


# ---- keys


def automorphism_keys(ring: Ring, secret: Residues) -> Iterator[Residues]:
    """``(k, 2, primes, N)`` of each of ``parameters.elements``, from the system's randomness."""
    generator = sealapi.KeyGenerator(ring.context, ring.secret_object(secret))
    parameters = ring.parameters
    for element in parameters.elements:
        generator.create_galois_keys([element], keys := sealapi.GaloisKeys())
        head, before, tail = _stored(ring, element)
        shape = parameters.relinearisation_keys, 2, len(ring.moduli), parameters.degree
        out = np.empty(shape, dtype=np.uint64)
        with scratch() as file:
            body = file.read(keys)
        step = len(before) + out[0].nbytes
        if len(body) != len(head) + len(out) * step + len(tail) or not (body.startswith(head) and body.endswith(tail)):
            raise RunError("this version of SEAL stores rotation keys in an unknown way")
        for i, row in enumerate(out):
            numbers = np.frombuffer(body, "<u8", row.size, len(head) + i * step + len(before))
            row[...] = numbers.reshape(row.shape)
        yield out


def automorphism(ring: Ring, element: int, numbers: Residues) -> Handle:
    """What applies an automorphism, of its keys."""
    head, before, tail = _stored(ring, element)
    keys = sealapi.GaloisKeys()
    with scratch() as file:
        file.write(head, *(part for row in numbers for part in (before, row)), tail)
        keys.load(ring.context, file.path)
    return keys


def _stored(ring: Ring, element: int) -> tuple[bytes, bytes, bytes]:
    """What SEAL stores before the keys of one automorphism, before each of them, and after: a table of N entries."""
    place, degree = element // 2, ring.parameters.degree
    first, before = ring.relinearisation_template[:2]
    head = first[:32] + _U64.pack(degree) + bytes(8 * place) + _U64.pack(ring.parameters.relinearisation_keys)
    return head, before, bytes(8 * (degree - 1 - place))


# ---- opening under masks


def opened(ring: Ring, decryptor: Handle, ciphers: Residues, form: Form) -> Residues:
    """The plaintext polynomials ``(count, limbs, N)``, noise included."""
    out, plaintext = np.empty((len(ciphers), *ciphers.shape[2:]), dtype=np.uint64), sealapi.Plaintext()
    with scratch() as file:
        for row, cipher in zip(out, ring.objects(ciphers, form), strict=True):
            decryptor.decrypt(cipher, plaintext)
            file.numbers(plaintext, row)
    return out


def transformed(ring: Ring, coefficients: NDArray[np.int64], level: int) -> Residues:
    """Polynomials of small integer coefficients ``(count, N)`` as residues in NTT form, ``(count, limbs, N)``."""
    moduli = ring.moduli_at(level).astype(np.int64)
    out = np.empty((len(coefficients), len(moduli), coefficients.shape[1]), dtype=np.uint64)
    template, cipher = ring.coefficient_template(level), _cipher(ring)
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
