"""Arithmetic modulo a chain of primes below 2^61 on arrays ``(..., limbs, N) uint64``, one prime a limb. ``moduli`` is
``(limbs, 1) uint64``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

Residues = NDArray[np.uint64]
_BITS = np.uint64((1 << 21) - 1)


def add(a: Residues, b: Residues, moduli: Residues) -> Residues:
    """``a + b`` of arrays ``(rows, ..., limbs, N)``. One of them may hold the primes for zeros."""
    total, lower = np.empty_like(a), np.empty_like(a[0])
    for x, y, out in zip(a, b, total, strict=True):  # a row at a time: it and its candidate stay in cache
        np.add(x, y, out=out)
        np.subtract(out, moduli, out=lower)
        np.minimum(out, lower, out=out)
    return total


def multiple(a: Residues, factor: int, moduli: Residues) -> Residues:
    """``factor * a`` of ``(rows, ..., limbs, N)`` for a positive factor below 2^32."""
    result = np.empty_like(a)
    ratio, number = factor / moduli.astype(np.float64), np.uint64(factor)
    for x, out in zip(a, result, strict=True):
        np.multiply(x, number, out=out)
        out -= (x * ratio).astype(np.uint64) * moduli  # in [-q, 2q)
        np.minimum(out, out + moduli, out=out)
        np.minimum(out, out - moduli, out=out)
    return result


def product(a: Residues, b: Residues, moduli: Residues) -> Residues:
    """``a * b`` of arrays ``(rows, ..., limbs, N)``, ``b`` as wide as ``a`` once broadcast."""
    result = np.empty_like(a)
    wide = np.broadcast_to(b, a.shape)
    for limb, prime in enumerate(moduli.ravel()):
        for x, y, out in zip(a[..., limb, :], wide[..., limb, :], result[..., limb, :], strict=True):
            # The quotient is estimated in double precision. Below 2^50 it is off by one at most; larger primes take two
            # steps, by the halves of ``b``, each below 2^31.
            if int(prime) < 1 << 50:
                out[...] = _reduced(x, y, prime)
                continue
            high = _reduced(_reduced(x, y >> _HALF, prime), np.uint64(1) << _HALF, prime)
            total = high + _reduced(x, y & ((np.uint64(1) << _HALF) - np.uint64(1)), prime)
            np.minimum(total, total - prime, out=out)
    return result


_HALF = np.uint64(30)
_DIGIT = 50  # bits, so that a digit of a double is an int64


def _reduced(x: Residues, y: Residues | np.uint64, prime: np.uint64) -> Residues:
    out: Residues = x * y
    out -= (x.astype(np.float64) * (y * (1.0 / float(prime)))).astype(np.uint64) * prime  # in [-q, 2q)
    np.minimum(out, out + prime, out=out)
    np.minimum(out, out - prime, out=out)
    return out


def halved(a: Residues, moduli: Residues) -> Residues:
    return (a + (a & np.uint64(1)) * moduli) >> np.uint64(1)


def of_floats(values: NDArray[np.float64], moduli: Residues) -> Residues:
    """``(rows, limbs, N)``, of the integers nearest to ``(rows, N)`` numbers below 2^150."""
    rest, digits = np.rint(values), []
    while True:
        upper = np.rint(rest * 2.0**-_DIGIT)
        digits.append((rest - upper * 2.0**_DIGIT).astype(np.int64)[:, None])
        rest = upper
        if not rest.any():
            break
    signed, base = moduli.astype(np.int64), np.uint64(1 << _DIGIT) % moduli
    total = (digits.pop() % signed).astype(np.uint64)
    while digits:
        total = add(product(total, base, moduli), (digits.pop() % signed).astype(np.uint64), moduli)
    return total


def balanced(a: Residues, moduli: Residues) -> NDArray[np.float64]:
    """``(rows, N)`` in double precision: the integers nearest to zero with residues ``(rows, limbs, N)``."""
    digits: list[NDArray[np.int64]] = []
    value, weight = np.zeros((len(a), a.shape[-1])), 1.0
    for limb, (prime,) in enumerate(moduli.tolist()):
        at, rest = np.array([[prime]], dtype=np.uint64), a[:, limb : limb + 1]
        for (lower,), digit in zip(moduli.tolist(), digits, strict=False):
            taken = (-digit % prime).astype(np.uint64)[:, None]
            rest = product(add(rest, taken, at), np.array([[pow(lower, -1, prime)]], dtype=np.uint64), at)
        digit = rest[:, 0].astype(np.int64)  # nearest to zero, so small numbers have one digit
        digits.append(np.where(digit > prime // 2, digit - prime, digit))
        value += digits[-1] * weight
        weight *= prime
    return value


def constant(a: Residues, moduli: Residues) -> Residues:
    """The constant coefficient, ``(..., limbs)``, of polynomials ``(..., limbs, N)`` in NTT form, N at most 2^32."""
    # The NTT evaluates at all odd powers of a 2N-th root of unity: the sum over all is N times the constant
    # coefficient.
    low, high = (a & np.uint64(0xFFFFFFFF)).sum(-1), (a >> np.uint64(32)).sum(-1)
    sums = [(int(x) + (int(y) << 32)) for x, y in zip(low.ravel(), high.ravel(), strict=True)]
    primes = np.broadcast_to(moduli[:, 0], low.shape).ravel().tolist()
    found = [total * pow(a.shape[-1], -1, q) % q for total, q in zip(sums, primes, strict=True)]
    return np.array(found, dtype=np.uint64).reshape(low.shape)


def centred(a: Residues, moduli: Residues) -> int:
    """The integer nearest to zero with these residues ``(limbs,)``."""
    value, modulus = 0, 1
    for residue, prime in zip(a.tolist(), moduli[:, 0].tolist(), strict=True):
        value += modulus * ((residue - value) * pow(modulus, -1, prime) % prime)
        modulus *= prime
    return value - modulus if value > modulus // 2 else value


# ---- Shamir's secret sharing, modulo each prime (A. Shamir, "How to share a secret", 1979)


def split(secret: Residues, random: Residues, places: Iterable[int], moduli: Residues) -> list[Residues]:
    """What each place, 1 or more, gets of a secret ``(limbs, N)``.

    random: ``(t - 1, limbs, N)`` secret and uniform, so that t shares give the secret, fewer nothing.
    """
    shares = []
    for place in places:
        value = np.zeros_like(secret)[None]
        for coefficient in (*reversed(random), secret):  # Horner's rule
            value = add(multiple(value, place, moduli), coefficient[None], moduli)
        shares.append(value[0])
    return shares


def lagrange(place: int, among: Sequence[int], moduli: Residues) -> Residues:
    """``(limbs, 1)``: the coefficient of one place where these answer."""
    coefficients = []
    for (prime,) in moduli.tolist():
        value = 1
        for other in among:
            if other != place:
                value = value * other * pow(other - place, -1, prime) % prime
        coefficients.append([value])
    return np.array(coefficients, dtype=np.uint64)


def joined(shares: Mapping[int, Residues], moduli: Residues) -> Residues:
    """SECRET: ``(limbs, N)``, from the shares of t places or more."""
    parts = (product(share[None], lagrange(at, tuple(shares), moduli), moduli) for at, share in shares.items())
    return np.asarray(reduce(lambda x, y: add(x, y, moduli), parts)[0])


# ---- randomness and bytes


def secret_words(key: bytes) -> Callable[[int], Residues]:
    """A secret stream of uniform 64-bit numbers from 32 bytes for one use: AES-256 in counter mode."""
    encryptor = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
    return lambda count: np.frombuffer(encryptor.update(bytes(8 * count)), dtype="<u8").copy()


def uniform(words: Callable[[int], Residues], shape: tuple[int, int, int], moduli: Residues) -> Residues:
    """Uniform residues ``(count, limbs, N)``, by rejection, so without bias."""
    out = np.empty(shape, dtype=np.uint64)
    for limb, prime in enumerate(moduli.ravel()):
        bits = np.uint64((1 << int(prime).bit_length()) - 1)
        numbers = words(shape[0] * shape[2]) & bits
        while (high := np.flatnonzero(numbers >= prime)).size:
            numbers[high] = words(high.size) & bits
        out[:, limb] = numbers.reshape(shape[0], shape[2])
    return out


def binomial(shape: tuple[int, ...], random_bytes: Callable[[int], bytes]) -> NDArray[np.int64]:
    """The scheme's noise: the difference of two sums of 21 random bits, of standard deviation sqrt(10.5)."""
    words = secret_words(random_bytes(32))(math.prod(shape)).reshape(shape)
    plus, minus = (np.bitwise_count(bits & _BITS).astype(np.int64) for bits in (words, words >> np.uint64(21)))
    return np.asarray(plus - minus)


def valid(a: Residues, moduli: Residues) -> bool:
    return bool((a < moduli).all())


def pack(a: Residues, widths: Sequence[int]) -> list[bytes | memoryview[Any]]:
    """The low ``widths[i]`` bytes of every residue of limb i, in parts."""
    little = np.ascontiguousarray(a, dtype="<u8")
    if all(width == 8 for width in widths):
        return [little.data.cast("B")] if little.size else []
    polynomials = little.reshape(-1, *a.shape[-2:])
    octets = polynomials.view(np.uint8).reshape(*polynomials.shape, 8)
    return [polynomial[i, :, :width].tobytes() for polynomial in octets for i, width in enumerate(widths)]


def unpack(data: bytes | memoryview[Any], shape: tuple[int, ...], widths: Sequence[int]) -> Residues:
    """The inverse of ``pack``, ``(..., limbs, N)``. A view of the data where all widths are 8."""
    if all(width == 8 for width in widths):
        return np.frombuffer(data, dtype="<u8").reshape(shape)
    degree, size = shape[-1], shape[-1] * sum(widths)
    held = bytes(data) + bytes(8)  # each residue is read with what follows it, which is taken off
    out = np.empty((len(data) // size, len(widths), degree), dtype=np.uint64)
    start = 0
    for i, width in enumerate(widths):
        wide = np.ndarray((len(out), degree), "<u8", held, start, (size, width))
        np.bitwise_and(wide, np.uint64((1 << (8 * width)) - 1), out=out[:, i])
        start += degree * width
    return out.reshape(shape)
