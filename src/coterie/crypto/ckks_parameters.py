"""CKKS parameter sets as data, with their room, errors, sizes and nominal times.

A set is a ring degree N, a chain of primes, and a scale D. A vector of d reals is the coefficients of ``ceil(d / N)``
ciphertexts, times ``D / sqrt(N / 2)``; a scalar is a constant polynomial, D times its value.

**Levels.** The last prime serves key switching only; each other one but the first can be given up for one product. At
level l the modulus is the product of the first l + 1 primes and the scale is S_l, which is D for fresh vectors.

**Error.** A standard deviation of s a coefficient gives ``s * sqrt(N / 2) / S`` a value. With r_l for 32 deviations at
level l, exceeded once in 10^19 values, x, y for the factors' largest magnitudes and e_x, e_y for their errors, the
bounds are

    a fresh vector at level l                   r_l
    a product, rescaled                         x e_y + y e_x + 2 e_x e_y + r_(l-1), with 2 x for a vector's x
    times a number a, or lowered (a = 1)        |a| e_x + x / S_l + r_(l-1)
    a dot product                               |v| r + |a| r' + r_(l-1), norms of the vectors, errors of a value
    conjugation                                 e_x + 2 r_l
    a mask put on or taken off, a new key       e_x + r_l each; opening for another key: the flood, ``flooded(l)``
"""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from coterie.crypto.packing import as_vector, check_fit
from coterie.crypto.tally import Form, Tally
from coterie.protocol.arrays import Doubles
from coterie.protocol.errors import CryptoError, DecodeError, UserError

FINGERPRINT_BYTES = 16

DEVIATIONS = 32.0
"""Stated error bounds are so many standard deviations of a value's error."""

TWIN_BITS = 62
"""Bits of the largest sum in the emulated twin's int64."""

_FLOAT_ROUNDING = 2.0**-46  # of the largest number: encoding and decoding in double precision
_MOST_BITS = {1024: 27, 2048: 54, 4096: 109, 8192: 218, 16384: 438, 32768: 881}
"""Bits of all primes for 128-bit security with a ternary key (Homomorphic Encryption Standard, 2018, table 1)."""


@dataclass(frozen=True)
class Milliseconds:
    encrypt: float
    encrypt_symmetric: float
    decrypt: float
    times: float = 0.0
    rescale: float = 0.0


@dataclass(frozen=True)
class ParameterSet:
    name: str
    degree: int  # N
    prime_bits: tuple[int, ...]  # of the chain, special prime last
    scale_bits: int  # log2 of D
    reach_bits: int  # values lie within +-2^reach_bits
    terms_bits: int  # a sum has at most 2^terms_bits terms
    nominal: Milliseconds
    secure: bool = True  # False for tests only
    scalar_bits: int | None = None  # as terms_bits, for scalars at levels with room for so many; None: the same
    flood_bits: int | None = None  # vectors opened for another key get noise in +-2^flood_bits; None: no masks
    radix: int = 2  # automorphisms by its powers make the trace, each radix - 1 times
    lowest: int = 0  # the lowest level of vectors
    opened: int | None = None  # the level at which shared keys (``threshold``) open
    turns: bool = True  # whether evaluation keys have the automorphisms of the trace; else dot products are constant

    def __post_init__(self) -> None:
        if self.degree not in _MOST_BITS or len(self.prime_bits) < 2 or not all(20 <= b <= 60 for b in self.prime_bits):
            raise UserError(
                f"{self.name}: N is one of {sorted(_MOST_BITS)}, with at least two primes of 20 to 60 bits, not "
                f"N={self.degree} with {self.prime_bits}"
            )
        if self.secure and sum(self.prime_bits) > _MOST_BITS[self.degree]:
            raise UserError(
                f"{self.name}: {sum(self.prime_bits)} bits of primes are insecure with N={self.degree}: "
                f"at most {_MOST_BITS[self.degree]} bits have 128-bit security"
            )
        # A sum of t vectors within +-reach doesn't wrap modulo q while sqrt(2) S reach t < q / 2.
        for level in range(self.levels, self.lowest - 1, -1):  # products have as much room as when they are rescaled
            needed = self._scale_bits(level) + self.reach_bits + self.terms_bits + 1.5
            if needed >= self._modulus_bits(level):
                raise UserError(
                    f"{self.name}: values up to 2^{self.reach_bits}, 2^{self.terms_bits} of them, don't fit level "
                    f"{level}: they need {needed:g} bits; choose a smaller scale, reach or number of terms"
                )

    def _modulus_bits(self, level: int) -> float:
        return sum(self.prime_bits[: level + 1]) - 0.01  # primes lie just below a power of two

    def _scale_bits(self, level: int, *, constant: bool = False) -> float:
        if constant:
            return 2 * self._scale_bits(level + 1) - self.prime_bits[level + 1] - math.log2(self.degree / 2)
        # S_(l-1) = S_l^2 / q_l after a product is rescaled by the prime q_l. An unrescaled product has scale S_l^2.
        bits = float(self.scale_bits)
        for dropped in range(self.levels, level, -1):
            bits = 2 * bits - self.prime_bits[dropped]
        return bits

    @property
    def size(self) -> str:
        return self.name

    @property
    def levels(self) -> int:
        return len(self.prime_bits) - 2

    @property
    def multiplies(self) -> bool:
        return self.levels > self.lowest

    @property
    def reach(self) -> float:
        return float(1 << self.reach_bits)

    @property
    def max_terms(self) -> int:
        return 1 << self.terms_bits

    @property
    def fresh(self) -> Form:
        return Form(level=self.levels)

    def fresh_at(self, level: int | None, *, scalar: bool = False) -> Form:
        """By default the highest. Raises CryptoError for a level that doesn't exist."""
        at = self.levels if level is None else level
        if not self.lowest <= at <= self.levels:
            raise CryptoError(f"{self.name} has levels {self.lowest} to {self.levels}, not {level}")
        return Form(at, scalar)

    @cached_property
    def identity(self) -> bytes:
        numbers = (
            *(self.degree, self.scale_bits, self.reach_bits, self.terms_bits, self.scalar_bits or self.terms_bits),
            *(self.flood_bits or 0, self.radix, self.secure, *self.prime_bits),
        )
        if self.opened is not None or not self.turns:
            numbers += (self.lowest, self.opened or 0, 0)
        return hashlib.sha256(b"coterie/ckks/" + struct.pack(f"<{len(numbers)}I", *numbers)).digest()[:12]

    # ---- sizes and times

    def ciphertexts(self, length: int) -> int:
        return -(-length // self.degree)

    @property
    def residue_bytes(self) -> tuple[int, ...]:
        return tuple(-(-bits // 8) for bits in self.prime_bits)

    def polynomial_bytes(self, limbs: int) -> int:
        return self.degree * sum(self.residue_bytes[:limbs])

    def body_bytes(self, length: int, form: Form) -> int:
        return self.ciphertexts(length) * 2 * self.polynomial_bytes(form.level + 1)

    @property
    def secret_bytes(self) -> int:
        return self.polynomial_bytes(len(self.prime_bits))

    @property
    def relinearisation_keys(self) -> int:
        return len(self.prime_bits) - 1 if self.multiplies else 0

    def key_bytes(self, kind: str, flag: int) -> int:
        if (flag and not self.multiplies) or (kind == "evaluation" and not flag):
            raise DecodeError(f"a {kind} key of {self.name} can't be one {'for' if flag else 'without'} products")
        pair, switching = 2 * self.secret_bytes, self.relinearisation_keys
        if kind == "evaluation":
            return FINGERPRINT_BYTES + pair * switching * len(self.elements)
        return pair * (1 + switching * flag) + (self.secret_bytes if kind == "secret" else 0)

    def admits(self, tally: Tally) -> None:
        if (
            not self.lowest <= tally.form.level <= self.levels
            or (tally.form.scalar and tally.length != 1)
            or (tally.blinded and self.flood_bits is None)
        ):
            raise DecodeError(
                f"{tally.length} values with {tally.blinded} masks as a {tally.form} can't be under {self.name}"
            )

    def seconds(self, milliseconds: float, length: int) -> float:
        return self.ciphertexts(length) * milliseconds * 1e-3

    @property
    def rotations(self) -> tuple[tuple[int, int], ...]:
        """Powers of X -> X^3 that with conjugation make the trace, in order: (exponent, times)."""
        half = self.degree // 2
        count = math.ceil(math.log(half, self.radix) - 1e-9) if self.turns else 0
        powers = (self.radix**i for i in range(count))
        return tuple((step, after // step - 1) for step, after in pairwise((*powers, half)))

    @property
    def elements(self) -> tuple[int, ...]:
        return *(pow(3, step, 2 * self.degree) for step, _ in self.rotations), 2 * self.degree - 1

    # ---- room

    def room(self, form: Form) -> int:
        if not form.scalar:
            return self.max_terms
        level = max(form.level - 1 if form.product else form.level, self.lowest)
        free = self._modulus_bits(level) - self._scale_bits(level, constant=form.constant) - 1.5
        return 1 << min(self.scalar_bits or self.terms_bits, int(free))

    @property
    def twin_step(self) -> float:
        return float(2.0 ** (self.largest_bits - TWIN_BITS))

    @property
    def largest_bits(self) -> int:
        return max(self.reach_bits + self.terms_bits, self.scalar_bits or 0)

    def largest_factor(self, form: Form) -> float:
        """Factors must be below this."""
        # so numbers stay within half the modulus, and errors within the room
        most = 2.0 ** (sum(self.prime_bits[: form.level + 1]) - 2) / self.scale(form)
        return float(min(most, 2.0**self.largest_bits / self.added(form.level)))

    def limit(self, form: Form) -> float:
        return 1.0 if form.scalar else self.reach

    def checked(self, values: ArrayLike, form: Form, terms: int = 1) -> Doubles:
        """As ``(d,) float64``. Raises CapacityError naming the first that is not finite or too large."""
        array = as_vector(values, kinds="fiu").astype(np.float64)
        limit = terms * self.limit(form)
        kind = "a scalar" if form.scalar else "values"
        room = f"{self.name}: {kind} must lie in [-{limit:g}, {limit:g}]; clip or scale"
        check_fit(array, np.abs(array) <= limit, "value", room)  # False for NaN, too
        return array

    def plausible(self, values: Doubles, tally: Tally) -> bool:
        most = tally.terms * self.limit(tally.form) + self.tolerance(tally.terms, tally.form)
        return bool((np.abs(values) <= most).all())

    # ---- error

    @property
    def spread(self) -> float:
        """The standard deviation of a vector's value over that of a coefficient, at scale 1."""
        return math.sqrt(self.degree / 2)

    def scale(self, form: Form) -> float:
        """Of values (of coefficients, if constant), as if primes were powers of two."""
        bits = self._scale_bits(form.level, constant=form.constant)
        return float(2.0 ** (bits * (2 if form.product else 1)))

    def deviation(self, scale: float, *, symmetric: bool = False) -> float:
        """Of a value's error, from one encryption or rescaling at this scale."""
        # Under the secret key SEAL's centred binomial noise; else public-key encryption, or rescaling.
        variance = 10.5 + 1 / 12 if symmetric else (2 + 2 * self.degree / 3) / 12
        return math.sqrt(variance * self.degree / 2) / scale

    def switching_deviation(self, level: int) -> float:
        """Of a value's error, from one switch of keys (a rotation) at this level."""
        ratio = sum(math.ldexp(1, 2 * (bits - self.prime_bits[-1])) for bits in self.prime_bits[: level + 1])
        variance = 10.5 * self.degree / 12 * ratio + (2 + 2 * self.degree / 3) / 12
        return float(math.sqrt(variance * self.degree / 2) / 2.0 ** self._scale_bits(level))

    def constant_deviation(self, level: int) -> float:
        return math.sqrt((2 + 2 * self.degree / 3) / 12) / self.scale(Form(level, scalar=True, constant=True))

    def added(self, level: int, *, symmetric: bool = False) -> float:
        """The bound on a value's error from an encryption at this level, or a rescaling to it."""
        return DEVIATIONS * self.deviation(2.0 ** self._scale_bits(level), symmetric=symmetric) + self.twin_step / 2

    def flood_deviation(self, level: int, bits: int | None = None) -> float:
        of = self.flood_bits if bits is None else bits
        return 0.0 if of is None else 2.0**of * math.sqrt(self.degree / 6) / 2.0 ** self._scale_bits(level)

    def flood(self, bits: int | None = None) -> int:
        """Bits of flooding, by default as many as there is room for. Raises CryptoError for more."""
        self.maskable()
        most = self.flood_bits or 0
        if bits is not None and not 0 <= bits <= most:
            raise CryptoError(f"{self.name} has room for 0 to {most} bits of noise, not {bits}")
        return most if bits is None else bits

    def maskable(self) -> None:
        if self.flood_bits is None:
            raise CryptoError(f"vectors of {self.name} carry no masks: choose a deep set, or a Paillier key")

    def flooded(self, level: int) -> float:
        """The bound on flooding of a value: 10 deviations, exceeded once in 10^22 values."""
        return 10 * self.flood_deviation(level)

    def tolerance(self, terms: int, form: Form) -> float:
        """The allowed distance from what honest parties encrypt: twice the error, where that is informative."""
        error = min(2 * self.error(1, form), self.limit(form) / 2)
        return terms * (error + 2 * self.flooded(form.level))

    def error(self, terms: int = 1, form: Form | None = None) -> float:
        """The bound on a decrypted value's error, real or emulated."""
        # With e for ``added`` by an encryption and e' by a rescaling: terms * e for sums of fresh vectors, terms * ((2
        # reach + 2) e + e') for sums of products with scalars (scalars times scalars: reach 1).
        at = form or self.fresh
        bound, error = self.limit(at), self.added(self.levels)
        for level in range(self.levels - 1, at.level - at.product - 1, -1):
            error = (2 * bound + 2) * error + self.added(level)
        return terms * (error + bound * _FLOAT_ROUNDING)


_ONE_TIMES = Milliseconds(4.5, 3, 1, 1, 5)
_DEEP_TIMES, _LONG_TIMES = Milliseconds(8.5, 6, 1.8, 5, 5), Milliseconds(230, 190, 60, 150, 500)
_DEEP = True, 24, 16  # secure, bits of scalars, and of flooding
_SHARED = True, 20, None  # secure, bits of scalars; no masks
_HIGH = True, 28, None  # eight more for the taps of ``fourier``

PARAMETERS = {
    p.name: p
    for p in (
        ParameterSet("ckks-4096-add", 4096, (60, 49), 40, 6, 12, Milliseconds(1.2, 0.6, 0.2)),
        ParameterSet("ckks-8192-mul", 8192, (60, 50, 60), 45, 6, 12, Milliseconds(3.5, 2.0, 0.8, 0.5, 3.0)),
        ParameterSet("ckks-8192-deep", 8192, (50, *3 * (36,), 60), 36, 2, 10, _DEEP_TIMES, *_DEEP, 4),
        ParameterSet("ckks-32768-deep", 32768, (50, *21 * (36,), 60), 36, 2, 10, _LONG_TIMES, *_DEEP, 16),
        ParameterSet(
            "threshold-8192-sum", 8192, (48, 48, 40, 60), 110, 6, 16, Milliseconds(4.5, 3, 1), *_SHARED, 2, 2, 1
        ),
        ParameterSet("threshold-8192-mul", 8192, (50, 48, 60, 60), 68, 6, 14, _ONE_TIMES, *_SHARED, 4, 1, 1, False),
        ParameterSet("threshold-8192-high", 8192, (50, 48, 60, 60), 66, 6, 14, _ONE_TIMES, *_HIGH, 4, 1, 1, False),
    )
}
"""The 128-bit sets by name: additions only; one, three, and twenty-one products; for shared keys: sums with integer
weights, one product, and one with a filter behind it.
"""

INSECURE = {
    f"insecure-1024-{kind}": replace(
        PARAMETERS[like], name=f"insecure-1024-{kind}", degree=1024, nominal=nominal, secure=False, radix=radix
    )
    for kind, like, radix, nominal in (
        ("add", "ckks-4096-add", 2, Milliseconds(0.3, 0.2, 0.1)),
        ("mul", "ckks-8192-mul", 2, Milliseconds(0.4, 0.3, 0.1, 0.1, 0.4)),
        ("deep", "ckks-8192-deep", 4, Milliseconds(0.9, 0.7, 0.2, 0.6, 0.7)),
        ("long", "ckks-32768-deep", 8, Milliseconds(5, 4, 3, 6, 10)),
        ("threshold-sum", "threshold-8192-sum", 2, Milliseconds(0.6, 0.4, 0.2)),
        ("high", "threshold-8192-high", 4, Milliseconds(0.6, 0.4, 0.2, 0.2, 0.6)),
        ("threshold-mul", "threshold-8192-mul", 4, Milliseconds(0.6, 0.4, 0.2, 0.2, 0.6)),
    )
}
"""Small sets for tests: the same primes, a fraction of the degree, no security."""


def named(name: str, *, allow_insecure: bool = False) -> ParameterSet:
    """Raises UserError for an unknown name."""
    sets = PARAMETERS | INSECURE if allow_insecure else PARAMETERS
    if name not in sets:
        raise UserError(f"parameters {name!r} are no secure CKKS set: choose one of {sorted(PARAMETERS)}")
    return sets[name]


def known(identity: bytes) -> ParameterSet:
    for parameters in (PARAMETERS | INSECURE).values():
        if parameters.identity == identity:
            return parameters
    raise DecodeError(f"a key with unknown parameters {identity.hex()}: known are {sorted(PARAMETERS)}")
