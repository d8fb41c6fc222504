"""Paillier on arrays: tuples of numbers modulo N^2, one a packed plaintext."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import gmpy2
import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from coterie.crypto.arrays import CiphertextError, Halves, RandomBytes, drawn
from coterie.crypto.bigint import Number, blum_prime, fixed_base_table, not_a_unit, random_unit, short_noise, spread
from coterie.crypto.packing import NOT_OF_MODELS, RANDOMNESS, Layout
from coterie.crypto.tally import Form, Tally
from coterie.protocol.arrays import Integers
from coterie.protocol.errors import DecodeError

Units = tuple[Number, ...]


@dataclass(frozen=True, eq=False, repr=False)
class Public:
    """As ``arrays.PublicArrays``. n: the modulus.  h: base of the short randomness."""

    n: Number
    h: Number
    space: Layout
    flag: int

    scheme = "paillier"

    @cached_property
    def n_squared(self) -> Number:
        return self.n * self.n

    def encrypt(self, integers: Integers, form: Form) -> Units:
        return self._seal(self.space.pack(integers))

    def add(self, a: Units, b: Units, form: Form) -> Units:
        return self._product(a, b)

    def add_plain(self, a: Units, integers: Integers, form: Form) -> Units:
        n, modulus, plaintexts = self.n, self.n_squared, self.space.pack(integers)
        return tuple(unit * (1 + m % n * n) % modulus for unit, m in zip(a, plaintexts, strict=True))

    def scale(self, a: Units, factor: int, form: Form) -> Units:
        modulus = self.n_squared
        return spread(lambda part: gmpy2.powmod_base_list(list(part), factor, modulus), a)

    def draw(self, length: int, form: Form, random_bytes: RandomBytes) -> tuple[int, ...]:
        """Eq. (6): per plaintext a uniform integer below ``2^mask_bits``."""
        bits = self.space.mask_bits
        size, surplus = -(-bits // 8), -bits % 8
        data = drawn(random_bytes, size * self.space.plaintexts(length))
        return tuple(int.from_bytes(data[at : at + size], "little") >> surplus for at in range(0, len(data), size))

    def shift(self, a: Units, numbers: Sequence[int], factor: int, form: Form) -> Units:
        return self._product(a, self._seal([factor * number for number in numbers]))

    def lengthened(self, a: Units, pads: int) -> Units:
        return a  # a sum is as long as a vector

    def lift(self, opened: Sequence[int], form: Form, own: bool) -> Units:
        return self._seal(opened)

    def add_opened(self, x: Sequence[int], y: Sequence[int], form: Form) -> tuple[int, ...]:
        return tuple(a + b for a, b in zip(x, y, strict=True))

    def to_arrays(self, opened: Sequence[int]) -> tuple[NDArray[np.uint8]]:
        size = (max(opened).bit_length() + 7) // 8
        data = b"".join(number.to_bytes(size, "little") for number in opened)
        return (np.frombuffer(data, np.uint8).reshape(len(opened), size),)

    def from_arrays(self, arrays: Sequence[NDArray[np.uint8]]) -> tuple[int, ...]:
        return tuple(int.from_bytes(row.tobytes(), "little") for row in arrays[0])

    def minus(self, x: Sequence[int], y: Sequence[int], length: int, terms: int) -> Integers:
        """Eq. (8): ``(length,)`` differences under one mask. terms: how many more x has. Raises CiphertextError."""
        lanes, half = self.space.lanes, 1 << (self.space.lanes.width - 1)
        lift = self.space.ones * (half - terms * lanes.offset)
        lifted = [a - b + lift for a, b in zip(x, y, strict=True)]
        if min(lifted) < 0 or max(lifted) >> self.space.packed_bits:
            raise CiphertextError(NOT_OF_MODELS)
        every_lane = self.space.unpack(lifted, half)
        if every_lane[length:].any():
            raise CiphertextError(NOT_OF_MODELS)
        return every_lane[:length]

    def pack(self, a: Units, form: Form) -> list[bytes]:
        size = self.space.ciphertext_bytes
        return [unit.to_bytes(size, "little") for unit in a]

    def unpack(self, body: memoryview, tally: Tally) -> Units:
        """Units modulo N in [1, N^2). Raises DecodeError for others."""
        size = self.space.ciphertext_bytes
        units = tuple(_number(body[at : at + size]) for at in range(0, len(body), size))
        for index, unit in enumerate(units):
            if not 1 <= unit < self.n_squared:
                raise DecodeError(f"ciphertext {index} is not in [1, N^2)")
        if (first := not_a_unit(units, self.n)) is not None:
            raise DecodeError(f"ciphertext {first} is no unit modulo N: no honest one is, and opening it betrays N")
        return units

    def parts(self) -> list[bytes]:
        return [int(number).to_bytes(self.space.key_bits // 8, "little") for number in (self.n, self.h)]

    @classmethod
    def load(cls, layout: Layout, flag: int, body: memoryview) -> Public:
        half = len(body) // 2
        return cls._checked(_number(body[:half]), _number(body[half:]), layout, flag)

    @classmethod
    def _checked(cls, n: Number, h: Number, layout: Layout, flag: int) -> Public:
        if n.bit_length() != layout.key_bits or n % 4 != 1 or not 1 < h < n - 1 or gmpy2.jacobi(h, n) != 1:
            raise DecodeError("the numbers of this key can't be an honest Paillier key's")
        return cls(n, h, layout, flag)

    def _product(self, a: Units, b: Units) -> Units:
        modulus = self.n_squared
        return tuple(x * y % modulus for x, y in zip(a, b, strict=True))

    def _seal(self, plaintexts: Sequence[int]) -> Units:
        n, modulus = self.n, self.n_squared
        full = RANDOMNESS[self.flag] == "full"
        table = () if full else fixed_base_table(n, self.h)  # once, before the threads want it

        def noise() -> Number:
            return gmpy2.powmod(random_unit(n), n, modulus) if full else short_noise(table, modulus)

        return spread(lambda part: [(1 + m * n) * noise() % modulus for m in part], plaintexts)


@dataclass(frozen=True, eq=False, repr=False)
class Secret(Halves):
    p: Number
    q: Number
    public: Public

    @classmethod
    def generate(cls, layout: Layout, flag: int) -> Secret:
        while True:
            p, q = blum_prime(layout.key_bits // 2), blum_prime(layout.key_bits // 2)
            if p != q and gmpy2.gcd(p - 1, q - 1) == 2:  # for the short randomness
                break
        n = p * q
        return cls(p, q, Public(n, -(random_unit(n) ** 2) % n, layout, flag))

    def decrypt(self, units: Units, tally: Tally) -> Integers:
        """``(d,)`` sums. Raises CiphertextError for a plaintext beyond its lanes, or with something in an unused
        one.
        """
        plaintexts, lanes = self.open(units), self.space.lanes
        if max(plaintexts) >> self.space.packed_bits:
            raise CiphertextError("a plaintext is larger than its lanes: damaged, forged or wrongly unblinded")
        sums: Integers = self.space.unpack(plaintexts, tally.terms * lanes.offset)
        if sums[tally.length :].any():
            raise CiphertextError("an unused lane holds something: damaged, forged or wrongly unblinded")
        return sums[: tally.length]

    def open_blinded(self, units: Units, tally: Tally) -> tuple[int, ...]:
        """Eq. (7). Raises CiphertextError."""
        plaintexts = self.open(units)
        if max(plaintexts) >= (1 << self.space.packed_bits) + (tally.blinded << self.space.mask_bits):
            raise CiphertextError(f"a plaintext is larger than {tally.blinded} masks make it: damaged or forged")
        return plaintexts

    def parts(self) -> list[bytes]:
        half = self.space.key_bits // 16
        numbers = (self.p, half), (self.q, half), (self.public.h, 2 * half)
        return [int(number).to_bytes(size, "little") for number, size in numbers]

    @classmethod
    def load(cls, layout: Layout, flag: int, body: memoryview) -> Secret:
        half = len(body) // 4
        p, q, h = (_number(part) for part in (body[:half], body[half : 2 * half], body[2 * half :]))
        if p == q or not gmpy2.is_prime(p, 40) or not gmpy2.is_prime(q, 40):
            raise DecodeError("the numbers of this secret key are not two primes")
        return cls(p, q, Public._checked(p * q, h, layout, flag))

    @cached_property
    def _crt(self) -> tuple[Number, Number, Number]:
        p, q = self.p, self.q
        return gmpy2.invert(-q, p), gmpy2.invert(-p, q), gmpy2.invert(p, q)

    def open(self, units: Units) -> tuple[int, ...]:
        p, q = self.p, self.q
        at_p, at_q, p_inverse = self._crt

        def part(units: Sequence[Number]) -> list[int]:
            powers_p = gmpy2.powmod_base_list(list(units), p - 1, p * p)
            powers_q = gmpy2.powmod_base_list(list(units), q - 1, q * q)
            halves_p = [(x - 1) // p * at_p % p for x in powers_p]
            halves_q = [(x - 1) // q * at_q % q for x in powers_q]
            return [int(a + p * ((b - a) * p_inverse % q)) for a, b in zip(halves_p, halves_q, strict=True)]

        return spread(part, units)


def _number(part: memoryview) -> Number:
    return mpz.from_bytes(bytes(part), "little")
