"""Arithmetic modulo a chain of primes below 2^61 on whole arrays ``(..., limbs, N) uint64``, one prime a limb.

``moduli`` is ``(limbs, 1) uint64``. With residues below their primes, what wraps modulo 2^64 is larger than what
doesn't, so the smaller of two candidates is the residue: no branches, and numpy's plain vector instructions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Residues = NDArray[np.uint64]


def add(a: Residues, b: Residues, moduli: Residues) -> Residues:
    """``a + b`` of two arrays ``(rows, ..., limbs, N)``."""
    total, lower = np.empty_like(a), np.empty_like(a[0])
    for x, y, out in zip(a, b, total, strict=True):  # a row at a time: it and its candidate stay in cache
        np.add(x, y, out=out)
        np.subtract(out, moduli, out=lower)
        np.minimum(out, lower, out=out)
    return total


def multiple(a: Residues, factor: int, moduli: Residues) -> Residues:
    """``factor * a`` of ``(rows, ..., limbs, N)`` for a positive factor below 2^32.

    The quotient by a prime is estimated in double precision: it is below 2^32, so it is off by one at most.
    """
    result = np.empty_like(a)
    ratio, number = factor / moduli.astype(np.float64), np.uint64(factor)
    for x, out in zip(a, result, strict=True):
        np.multiply(x, number, out=out)
        out -= (x * ratio).astype(np.uint64) * moduli  # in [-q, 2q)
        np.minimum(out, out + moduli, out=out)
        np.minimum(out, out - moduli, out=out)
    return result


def subtract(a: Residues, b: Residues, moduli: Residues) -> Residues:
    """``a - b`` of two arrays ``(rows, ..., limbs, N)``."""
    difference = np.empty_like(a)
    for x, y, out in zip(a, b, difference, strict=True):
        np.subtract(x, y, out=out)
        np.minimum(out, out + moduli, out=out)
    return difference


def halved(a: Residues, moduli: Residues) -> Residues:
    """``a / 2`` modulo the (odd) primes."""
    return (a + (a & np.uint64(1)) * moduli) >> np.uint64(1)


def valid(a: Residues, moduli: Residues) -> bool:
    """Whether every residue is below its prime."""
    return bool((a < moduli).all())


def pack(a: Residues, widths: Sequence[int]) -> list[bytes | memoryview[Any]]:
    """The low ``widths[i]`` bytes of every residue of limb i, little end first; parts to be joined."""
    little = np.ascontiguousarray(a, dtype="<u8")
    if all(width == 8 for width in widths):
        return [little.data.cast("B")]
    polynomials = little.reshape(-1, *a.shape[-2:])
    octets = polynomials.view(np.uint8).reshape(*polynomials.shape, 8)
    return [polynomial[i, :, :width].tobytes() for polynomial in octets for i, width in enumerate(widths)]


def unpack(data: bytes | memoryview[Any], shape: tuple[int, ...], widths: Sequence[int]) -> Residues:
    """The inverse of ``pack``: ``shape`` is (..., limbs, N). A view of the data where all widths are 8."""
    if all(width == 8 for width in widths):
        return np.frombuffer(data, dtype="<u8").reshape(shape)
    degree = shape[-1]
    rows = np.frombuffer(data, dtype=np.uint8).reshape(-1, degree * sum(widths))
    octets = np.zeros((len(rows), len(widths), degree, 8), dtype=np.uint8)
    start = 0
    for i, width in enumerate(widths):
        stop = start + degree * width
        octets[:, i, :, :width] = rows[:, start:stop].reshape(len(rows), degree, width)
        start = stop
    return octets.view("<u8").reshape(shape)
