"""``rounded``: CKKS's emulated twin, the same sums and products with rounding and noise of the same size.

For studies of hundreds of rounds. It gives NO secrecy and is flagged ``emulated``, but it stays within the same stated
error bound. A value is a 64-bit integer in steps of 2^-44 (of any set with 2^18 for reach times terms), so sums do not
depend on their order. Every operation that adds noise adds Gaussian noise of the real one's standard deviation. It is a
pure function of the key and the values: emulated runs repeat whatever the order of the work, and the same values give
the same bytes. The noise of a scalar is one number, where the real one differs from slot to slot. A mask is a uniform
64-bit integer a value, added modulo 2^64: it hides and comes off as exactly as the real one does. Keys and vectors
weigh as much on the wire as the real ones (``protocol/codec.py``).

Noise is taken from one table of a million numbers, at a place that follows from the key, the purpose and the values:
to draw it for each value would take longer than all the arithmetic. So noises of different operations are as good as
independent (no two start at one place, but for once in a million).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from coterie.crypto.arrays import Halves, Opened, RandomBytes, Twin, drawn, held
from coterie.crypto.ckks_parameters import FINGERPRINT_BYTES, ParameterSet
from coterie.crypto.packing import Floats, Integers
from coterie.crypto.tally import Form, Tally

_STEP_BITS = 62  # of an int64, for the largest sum: the steps lie below it
_TABLE = 1 << 20


@dataclass(frozen=True, eq=False, repr=False)
class Public(Twin):
    """The twin of ``ckks_arrays.Public``, as ``arrays.PublicArrays`` and ``ckks.CipherVector`` have it.

    key_id: seeds the noise, too.  flag: 1 for a key for products.
    """

    space: ParameterSet

    scheme = "rounded"

    def without_products(self) -> Public:
        return replace(self, flag=0)

    @property
    def steps(self) -> float:
        return float(2.0 ** (_STEP_BITS - self.space.largest_bits))

    # ---- what every scheme has

    def encrypt(self, values: Floats, form: Form) -> Integers:
        return self._noisy(to_steps(values, self.steps), form, b"public")

    def add_plain(self, a: Integers, values: Floats, form: Form) -> Integers:
        return a + to_steps(values, self.steps)

    def scale(self, a: Integers, factor: int, form: Form) -> Integers:
        return a * factor

    def draw(self, length: int, form: Form, random_bytes: RandomBytes) -> Integers:
        """Uniform numbers that follow from 32 random bytes."""
        seed = int.from_bytes(drawn(random_bytes, 32), "little")
        return np.random.SFC64(seed).random_raw(length).view(np.int64)

    def shift(self, a: Integers, numbers: Integers, factor: int, form: Form) -> Integers:
        taken = numbers if factor == 1 else numbers * np.int64(factor)
        return self._noisy(a + taken, form, b"blind" if factor > 0 else b"unblind")

    def lift(self, opened: Opened, form: Form, own: bool) -> Integers:
        return self._noisy((opened.exact if own else opened.flooded).copy(), form, b"convert")

    def add_opened(self, x: Opened, y: Opened, form: Form) -> Opened:
        return Opened(x.exact + y.exact, x.flooded + y.flooded)

    def to_arrays(self, opened: Opened) -> Opened:
        return opened

    def from_arrays(self, arrays: Sequence[Integers]) -> Opened:
        return Opened(*arrays)

    def unpack(self, body: memoryview, tally: Tally) -> Integers:
        return np.frombuffer(held(body, tally.length * 8, f"{tally.length} values"), dtype="<i8")

    # ---- products, levels, parts: the noise of each is that at the level of its result

    def times(self, a: Integers, scalar: Integers, form: Form) -> Integers:
        return to_steps(a, float(scalar[0]) / self.steps)

    def rescale(self, a: Integers, form: Form) -> Integers:
        return self._noisy(a.copy(), form._replace(level=form.level - 1, product=False), b"rescale")

    def times_plain(self, a: Integers, number: float, form: Form) -> Integers:
        return self._noisy(to_steps(a, number), form._replace(level=form.level - 1), b"plain")

    def lower(self, a: Integers, form: Form, level: int) -> Integers:
        return self._noisy(a.copy(), form._replace(level=level), b"lower")

    def conjugate(self, a: Integers, keys: Evaluation, form: Form) -> Integers:
        return self._noisy(a.copy(), form, b"conjugate")

    def dot(self, a: Integers, conjugated: Integers, keys: Evaluation, form: Form) -> Integers:
        product = np.einsum("i,i->", a.astype(np.float64), conjugated.astype(np.float64))
        values = to_steps(np.array([product]), 1 / self.steps)
        return self._noisy(values, form._replace(level=form.level - 1), b"dot")

    def sanitise(self, a: Integers, bits: int, form: Form) -> Integers:
        return self._noisy(self.flooded(a, bits, form), form, b"sanitise")

    def split(self, a: Integers, at: int) -> tuple[Integers, Integers]:
        return a[:at], a[at:]

    def join(self, a: Integers, b: Integers) -> Integers:
        return np.concatenate((a, b))

    # ---- noise

    def flooded(self, a: Integers, bits: int, form: Form) -> Integers:
        """Values with noise as large as that which is uniform in +-2^bits a coefficient."""
        return add_noise(a.copy(), self.space.flood_deviation(form.level, bits) * self.steps, self.key_id, b"flood")

    def _noisy(self, values: Integers, form: Form, purpose: bytes, *, symmetric: bool = False) -> Integers:
        """Values in steps with the noise of one encryption, or rescaling, at the level of a form; in place."""
        deviation = self.space.deviation(self.space.scale(form), symmetric=symmetric)
        return add_noise(values, deviation * self.steps, self.key_id, purpose)


@dataclass(frozen=True, eq=False, repr=False)
class Secret(Halves):
    """The twin of ``ckks_arrays.Secret``. It holds no secret."""

    public: Public

    def encrypt(self, values: Floats, form: Form) -> Integers:
        return self.public._noisy(to_steps(values, self.public.steps), form, b"secret", symmetric=True)

    def decrypt(self, a: Integers, tally: Tally) -> Floats:
        values: Floats = a / self.public.steps
        return values

    def open_blinded(self, a: Integers, tally: Tally, bits: int) -> Opened:
        return Opened(a, self.public.flooded(a, bits, tally.form))

    def evaluation(self, fingerprint: bytes) -> Evaluation:
        return Evaluation(self.space, fingerprint)

    @classmethod
    def load(cls, space: ParameterSet, flag: int, body: memoryview) -> Secret:
        return cls(Public.load(space, flag, body))


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """The twin of evaluation keys: it only says whose they are."""

    space: ParameterSet
    fingerprint: bytes

    scheme, flag = "rounded", 1

    def parts(self) -> list[bytes]:
        return [self.fingerprint]

    @classmethod
    def load(cls, space: ParameterSet, flag: int, body: memoryview) -> Evaluation:
        return cls(space, bytes(held(body, FINGERPRINT_BYTES)))


def add_noise(values: Integers, steps: float, key_id: bytes, purpose: bytes) -> Integers:
    """The values with noise of a standard deviation of ``steps``, rounded; in place."""
    table, at = _rounded_table(steps), _place(values, key_id, purpose)
    start = 0
    while start < values.size:
        taken = min(values.size - start, _TABLE - at)
        values[start : start + taken] += table[at : at + taken]
        start, at = start + taken, 0
    return values


def to_steps(values: Floats | Integers, steps: float) -> Integers:
    """Values times steps, rounded to integers."""
    scaled = values * np.float64(steps)
    return np.rint(scaled, out=scaled).astype(np.int64)


def _place(values: Integers, key_id: bytes, purpose: bytes) -> int:
    told = hashlib.sha256(key_id + purpose)
    total = np.add.reduce(values, dtype=np.int64)  # wraps, which does no harm
    told.update(int(total).to_bytes(8, "little", signed=True) + values[:64].tobytes())
    return int.from_bytes(told.digest()[:8], "little") % _TABLE


@lru_cache(maxsize=1)
def _table() -> Floats:
    return np.random.Generator(np.random.SFC64(0)).standard_normal(_TABLE)


@lru_cache(maxsize=16)
def _rounded_table(steps: float) -> Integers:
    return to_steps(_table(), steps)
