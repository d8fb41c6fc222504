"""CKKS's emulated twin: the same results up to the scheme's noise, without the encryption.

It gives NO secrecy and is flagged ``emulated``. On the wire it weighs what the real scheme does (``wire``). Values are
64-bit integers in steps, so sums don't depend on their order. Noise is Gaussian, of the real standard deviation, and
follows from key, purpose and values.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Self

import numpy as np

from coterie.crypto.arrays import Array, ArrayVectors, RandomBytes, Space, drawn
from coterie.crypto.ckks_parameters import FINGERPRINT_BYTES, TWIN_BITS, ParameterSet
from coterie.crypto.tally import Form, Tally
from coterie.protocol.arrays import Doubles, Integers
from coterie.protocol.errors import DecodeError

_LARGEST = 1.5 * 2.0**TWIN_BITS  # more than there is room for, so it is noticed, and it fits an int64 with its noise
_TABLE = 1 << 20  # numbers; noise is a place in one table of them


@dataclass(frozen=True, eq=False, repr=False)
class Twin(ArrayVectors):
    """key_id: names the key, and seeds the noise."""

    key_id: bytes
    space: Any
    flag: int

    id_bytes = 32

    @classmethod
    def generate(cls, space: Space, flag: int, random_bytes: RandomBytes) -> Self:
        return cls(drawn(random_bytes, cls.id_bytes), space, flag)

    @classmethod
    def load(cls, space: Space, flag: int, body: memoryview) -> Self:
        return cls(bytes(_held(body, cls.id_bytes, "a key")), space, flag)

    def parts(self) -> list[bytes]:
        return [self.key_id]

    def add(self, a: Array, b: Array, form: Form) -> Array:
        return a + b

    def pack(self, a: Array, form: Form) -> list[memoryview]:
        return [np.ascontiguousarray(a, a.dtype.newbyteorder("<")).data.cast("B")]

    def unpack(self, body: memoryview, tally: Tally) -> Array:
        return np.frombuffer(_held(body, 8 * tally.length, f"{tally.length} values"), "<i8")


@dataclass(frozen=True, eq=False, repr=False)
class Rounded(Twin):
    space: ParameterSet

    scheme = "rounded"

    def without_products(self) -> Rounded:
        return replace(self, flag=0)

    @property
    def steps(self) -> float:
        return 1 / self.space.twin_step

    def encrypt(self, values: Doubles, form: Form) -> Integers:
        return self._noisy(to_steps(values, self.steps), form, b"public")

    def add_plain(self, a: Integers, values: Doubles, form: Form) -> Integers:
        return a + to_steps(values, self.steps)

    def scale(self, a: Integers, factor: int, form: Form) -> Integers:
        return a * factor

    def draw(self, length: int, form: Form, random_bytes: RandomBytes) -> Integers:
        seed = int.from_bytes(drawn(random_bytes, 32), "little")
        return np.random.SFC64(seed).random_raw(length).view(np.int64)

    def shift(self, a: Integers, numbers: Integers, factor: int, form: Form) -> Integers:
        taken = numbers if factor == 1 else numbers * np.int64(factor)
        return self._noisy(a + taken, form, b"blind" if factor > 0 else b"unblind")

    def lift(self, opened: tuple[Integers, ...], form: Form, own: bool) -> Integers:
        return self._noisy(opened[0 if own else -1].copy(), form, b"convert")

    # ---- products, levels, parts: the noise of each is that at the level of its result

    def times(self, a: Integers, scalar: Integers, form: Form) -> Integers:
        return to_steps(a, float(scalar[0]) / self.steps)

    def rescale(self, a: Integers, form: Form) -> Integers:
        return self._noisy(a.copy(), form._replace(level=form.level - 1, product=False), b"rescale")

    def times_plain(self, a: Integers, number: float, form: Form) -> Integers:
        return self._noisy(to_steps(a, number), form._replace(level=form.level - 1), b"plain")

    def lower(self, a: Integers, form: Form, level: int) -> Integers:
        return self._noisy(a.copy(), form._replace(level=level), b"lower")

    def conjugate(self, a: Integers, keys: RoundedEvaluation, form: Form) -> Integers:
        return self._noisy(a.copy(), form, b"conjugate")

    def dot(
        self,
        a: Integers,
        conjugated: Integers,
        keys: RoundedEvaluation,
        form: Form,
        constant: bool,
        taps: Integers | None = None,
    ) -> Integers:
        first = a.astype(np.float64) if taps is None else filtered(a.astype(np.float64), taps)
        product = np.einsum("i,i->", first, conjugated.astype(np.float64))
        values = to_steps(np.clip([product / self.steps], -_LARGEST, _LARGEST), 1.0)
        if not constant:
            return self._noisy(values, form._replace(level=form.level - 1), b"dot")
        deviation = self.space.constant_deviation(form.level - 1)
        return add_noise(values, deviation * self.steps, self.key_id, b"constant")

    def sanitise(self, a: Integers, bits: int, form: Form) -> Integers:
        return self._noisy(self.flooded(a, bits, form), form, b"sanitise")

    def split(self, a: Integers, at: int) -> tuple[Integers, Integers]:
        return a[:at], a[at:]

    # ---- one-time pads

    def pad(self, values: Doubles, pad: Integers, form: Form) -> Integers:
        return to_steps(values, self.steps) + pad

    def completed(self, padded: Integers, counterpart: Integers, seed: bytes, form: Form) -> Integers:
        return padded + counterpart

    def unpack_pad(self, body: memoryview, tally: Tally) -> Integers:
        made: Integers = self.unpack(body, tally)
        return made

    def flooded(self, a: Integers, bits: int, form: Form) -> Integers:
        return add_noise(a.copy(), self.space.flood_deviation(form.level, bits) * self.steps, self.key_id, b"flood")

    def _noisy(self, values: Integers, form: Form, purpose: bytes, *, symmetric: bool = False) -> Integers:
        deviation = self.space.deviation(self.space.scale(form), symmetric=symmetric)
        return add_noise(values, deviation * self.steps, self.key_id, purpose)


class RoundedSecret(Rounded):
    """The twin of ``ckks_arrays.Secret``: with less noise, and no secret."""

    @property
    def public(self) -> Rounded:
        return Rounded(self.key_id, self.space, self.flag)

    def encrypt(self, values: Doubles, form: Form) -> Integers:
        return self._noisy(to_steps(values, self.steps), form, b"secret", symmetric=True)

    def decrypt(self, a: Integers, tally: Tally) -> Doubles:
        values: Doubles = a / self.steps
        return values

    def counterpart(self, pads: Integers, seed: bytes, form: Form) -> Integers:
        return self._noisy(-pads, form, b"pads", symmetric=True)

    def open_blinded(self, a: Integers, tally: Tally, bits: int) -> tuple[Integers, Integers]:
        return a, self.flooded(a, bits, tally.form)

    def evaluation(self, fingerprint: bytes) -> RoundedEvaluation:
        return RoundedEvaluation(fingerprint, self.space, self.flag)


class RoundedEvaluation(Twin):
    scheme, id_bytes = "rounded", FINGERPRINT_BYTES

    @property
    def fingerprint(self) -> bytes:
        return self.key_id


def _held(body: memoryview, size: int, what: str) -> memoryview:
    if len(body) != size:
        raise DecodeError(f"{len(body)} emulated bytes for {what} besides its header: {size} were expected")
    return body


def add_noise(values: Integers, steps: float, key_id: bytes, purpose: bytes) -> Integers:
    """Adds noise of a standard deviation of ``steps``, rounded; in place."""
    table, at = _rounded_table(steps), _place(values, key_id, purpose)
    start = 0
    while start < values.size:
        taken = min(values.size - start, _TABLE - at)
        values[start : start + taken] += table[at : at + taken]
        start, at = start + taken, 0
    return values


def filtered(values: Doubles, taps: Integers) -> Doubles:
    """``(d,)`` reals, in blocks of N, each times the polynomial with these N coefficients, modulo X^N + 1."""
    degree = len(taps)
    blocks = np.zeros((-(-values.size // degree), degree))
    blocks.ravel()[: values.size] = values
    turn = np.exp(1j * np.pi * np.arange(degree) / degree)
    product = np.fft.ifft(np.fft.fft(blocks * turn) * np.fft.fft(taps * turn)) / turn
    return np.asarray(product.real.ravel()[: values.size])


def to_steps(values: Doubles | Integers, steps: float) -> Integers:
    scaled = values * np.float64(steps)
    return np.rint(scaled, out=scaled).astype(np.int64)


def _place(values: Integers, key_id: bytes, purpose: bytes) -> int:
    told = hashlib.sha256(key_id + purpose)
    total = np.add.reduce(values, dtype=np.int64)  # wraps, which does no harm
    told.update(int(total).to_bytes(8, "little", signed=True) + values[:64].tobytes())
    return int.from_bytes(told.digest()[:8], "little") % _TABLE


@lru_cache(maxsize=1)
def _table() -> Doubles:
    return np.random.Generator(np.random.SFC64(0)).standard_normal(_TABLE)


@lru_cache(maxsize=16)
def _rounded_table(steps: float) -> Integers:
    return to_steps(_table(), steps)
