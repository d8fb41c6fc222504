"""The big-integer work of Paillier. None of it is constant in time: it is for parties that an attacker can't time
closely.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import chain
from typing import Any

import gmpy2
from gmpy2 import mpz

Number = Any  # gmpy2.mpz, which has no type stubs

_MIN_PART = 4  # fewer operations than this aren't worth a thread


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def spread(work: Callable[[Sequence[Any]], Sequence[Any]], items: Sequence[Any]) -> tuple[Any, ...]:
    """``work(items)`` in contiguous parts, a thread each."""
    count = min(cores(), len(items) // _MIN_PART)
    if count <= 1:
        return tuple(work(items))

    def part(index: int) -> Sequence[Any]:
        gmpy2.get_context().allow_release_gil = True  # a context belongs to one thread
        return work(items[len(items) * index // count : len(items) * (index + 1) // count])

    with ThreadPoolExecutor(count) as pool:
        return tuple(chain.from_iterable(pool.map(part, range(count))))


def random_unit(n: Number) -> Number:
    """Uniform in [1, n) up to 2^-128; invertible mod n unless it finds a factor of n."""
    return 1 + mpz(secrets.randbits(n.bit_length() + 128)) % (n - 1)


def not_a_unit(numbers: Sequence[Number], n: Number) -> int | None:
    """The index of the first number with a factor in common with n, or None."""
    product = mpz(1)
    for number in numbers:
        product = product * (number % n) % n
    if gmpy2.gcd(product, n) == 1:
        return None
    return next(index for index, number in enumerate(numbers) if gmpy2.gcd(number, n) != 1)


def blum_prime(bits: int) -> Number:
    """A random prime = 3 mod 4 of ``bits`` bits, the two top ones set."""
    while True:
        candidate = mpz(secrets.randbits(bits) | 3 << (bits - 2) | 3)
        if gmpy2.is_prime(candidate, 40):
            return candidate


@lru_cache(maxsize=4)
def fixed_base_table(n: Number, h: Number) -> tuple[tuple[Number, ...], ...]:
    """Row i, column j: ``(h^n)^(j * 256^i) mod n^2`` for exponents of half the bits of n. 18 MB for 2048 bits."""
    modulus = n * n
    base = gmpy2.powmod(h, n, modulus)
    rows = []
    for _ in range(-(-n.bit_length() // 16)):
        row = [mpz(1)]
        for _ in range(255):
            row.append(row[-1] * base % modulus)
        rows.append(tuple(row))
        base = row[-1] * base % modulus
    return tuple(rows)


def short_noise(table: Sequence[Sequence[Number]], modulus: Number) -> Number:
    """``h^(n s) mod n^2`` for a fresh random short exponent s: one product per byte of s."""
    product = mpz(1)
    for row, byte in zip(table, secrets.token_bytes(len(table)), strict=True):
        product = product * row[byte] % modulus
    return product
