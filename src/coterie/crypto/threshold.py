"""One CKKS key that several parties hold shares of, so that nobody opens alone. docs/threshold.md is its page.

The public key is a ``ckks.PublicKey`` and what it encrypts is a ``ckks.CipherVector``: all of ``ckks`` works on it.

    group = Group("threshold-8192-sum", ("a", "b", "c"), label=b"run 5, key 1")    # the same facts at everybody
    own = secret(group)                                 # each holder (``threshold_generation``)
    key = joined(group, {"a": own.public(), ...})       # anybody
    share = own.share()                                 # n-of-n; t-of-n: own.dealt(), gathered()
    total = key.encrypt(x).scale(3) + key.encrypt(y)    # which ``threshold_opening`` opens

Each holder floods its partial decryption, with noise for Q_D openings. An opening is one ciphertext: a vector of d
values has ``ceil(d / N)``. Of a scalar only the constant coefficient is opened.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from os import urandom
from typing import Any, ClassVar, NamedTuple, Self

import msgspec
import numpy as np

from coterie.crypto import ckks, residues
from coterie.crypto.arrays import Immutable, RandomBytes, drawn
from coterie.crypto.ckks_parameters import _FLOAT_ROUNDING, DEVIATIONS, ParameterSet, named
from coterie.crypto.residues import Residues
from coterie.crypto.seal import Ring, ring
from coterie.crypto.tally import Form
from coterie.protocol.arrays import Integers
from coterie.protocol.codec import content, weighs, weighted
from coterie.protocol.errors import CryptoError, DecodeError, PeerError, UserError

SECURITY_BITS = 40
"""s: bits of statistical security of the flooding; encryption has 128 bits."""

OPENINGS = 1 << 16
"""Q_D unless stated: ciphertexts that one key opens."""

MOST_HOLDERS = 256
_LEAST_SCALE_BITS = 66  # of an opened vector: it is divided by a prime only if as much is left
MOST_NOISE = 2.0**59.5
"""Of a flooding: 8.6 standard deviations are an int64."""

_FLOODS = 10.0  # standard deviations of a flooding that are never exceeded: once in 10^22 values
_HEADER = struct.Struct("<4sBBxx16s16s")
_MAGIC, _VERSION = b"CoTh", 1
KINDS = (
    *("secret", "public", "first", "second", "galois", "share", "part", "request", "partial", "pad", "contribution"),
    *("sum", "half"),
)


_MILLISECONDS = {
    **{"server_dec": 8.5, "partial": 1.1, "opened": 1.3, "zero": 0.08, "c1": 0.4},
    **{"pad": 2.0, "contribution": 1.5, "joint": 0.4, "pad_partial": 2.9, "padded_sum": 3.5},
    **{"public": 4.5, "first": 9.0, "second": 5.5, "galois": 4.5, "joined": 0.3, "handed": 0.4, "gathered": 0.2},
}
"""Nominal times of one typical core with N = 8192 and three primes: for one ciphertext, or one row of a key.

zero: for each other holder.  joined, handed, gathered: for each holder.  c1: for each sender.
"""


class Switched(NamedTuple):
    """levels: of the primes that a form is divided by.  divisor: their product.  scale: of the result."""

    levels: tuple[int, ...]
    scale: float
    divisor: float


@dataclass(frozen=True)
class Group:
    """Which parties hold shares of a key, and how: public, and equal at each of them.

    parameters: a set of ``ckks_parameters`` for shared keys.  holders: their names, in order.
    threshold: so many of them open (Shamir); 0: all of them (n-of-n).  openings: Q_D.  label: unique to this sharing.
    summands: ternary secrets in the key; 0: as many as holders.
    """

    parameters: str
    holders: tuple[str, ...]
    threshold: int = 0
    openings: int = OPENINGS
    label: bytes = b""
    emulated: bool = False
    allow_insecure: bool = False
    summands: int = 0

    def __post_init__(self) -> None:
        n = len(self.holders)
        if not 2 <= n <= MOST_HOLDERS or len(set(self.holders)) != n:
            raise UserError(f"a key is shared by 2 to {MOST_HOLDERS} different holders, not by {n}: {self.holders}")
        if self.threshold and not 2 <= self.threshold <= n:
            raise UserError(f"{self.threshold} of {n} holders can't open: take 2 to {n}, or 0 for all of them")
        if self.openings < 1 or not 0 <= self.summands <= MOST_HOLDERS:
            raise UserError(f"{self.openings} openings of a key of {self.summands} secrets: give at least 1 opening")
        if self.space.opened is None:
            raise UserError(f"{self.parameters} is no set for shared keys: take one whose name has threshold in it")
        if self._flood(self.fresh_deviation) > MOST_NOISE:
            raise UserError(f"{self.openings} openings need more noise than {self.parameters} has room for: take fewer")

    def handed(self, holders: tuple[str, ...], label: bytes, threshold: int = 0) -> Group:
        return replace(self, holders=holders, label=label, threshold=threshold, summands=self.secrets)

    @cached_property
    def space(self) -> ParameterSet:
        return named(self.parameters, allow_insecure=self.allow_insecure)

    @property
    def ring(self) -> Ring:
        return ring(self.space)

    @property
    def secrets(self) -> int:
        return self.summands or len(self.holders)

    @property
    def needed(self) -> int:
        return self.threshold or len(self.holders)

    @property
    def additive(self) -> bool:
        return self.threshold == 0

    @cached_property
    def digest(self) -> bytes:
        numbers = self.threshold, self.openings, self.secrets, self.emulated, len(self.label)
        names = b"".join(struct.pack("<I", len(name.encode())) + name.encode() for name in self.holders)
        data = b"".join((self.space.identity, struct.pack("<5Q", *numbers), self.label, names))
        return hashlib.sha256(b"coterie/threshold/" + data).digest()[:16]

    def place(self, name: str) -> int:
        if name not in self.holders:
            raise UserError(f"{name} holds no share: the holders are {', '.join(self.holders)}")
        return self.holders.index(name) + 1

    def answering(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The holders that open, in the group's order. Raises UserError if they can't."""
        for name in names:
            self.place(name)
        among = tuple(name for name in self.holders if name in names)
        if len(among) < self.needed or len(names) != len(among):
            raise UserError(f"{len(among)} of {len(self.holders)} holders can't open: it takes {self.needed}")
        return among

    # ---- arithmetic: real residues, or one number a prime of an emulated key

    @property
    def degree(self) -> int:
        return 1 if self.emulated else self.space.degree

    @property
    def limbs(self) -> int:
        return self.opened_limbs if self.emulated else self.space.levels + 1

    @property
    def share_size(self) -> tuple[int, int]:
        return self.space.degree, self.space.levels + 1

    @property
    def primes(self) -> int:
        return len(self.space.prime_bits)

    @property
    def opened_limbs(self) -> int:
        return (self.space.opened or 0) + 1

    def moduli(self, limbs: int) -> Residues:
        return self.ring.moduli[:limbs]

    def common(self, purpose: bytes, count: int, limbs: int) -> Residues:
        """Public uniform residues ``(count, limbs, degree)``, by group and purpose: nobody chose them."""
        key = hashlib.sha256(b"coterie/common/" + self.digest + purpose).digest()
        return residues.uniform(residues.secret_words(key), (count, limbs, self.degree), self.moduli(limbs))

    def uniform(self, key: bytes, count: int, limbs: int) -> Residues:
        """``(count, limbs, degree)``, which follow from 32 secret bytes."""
        return residues.uniform(residues.secret_words(key), (count, limbs, self.degree), self.moduli(limbs))

    def times(self, a: Residues, b: Residues) -> Residues:
        return residues.product(a, b, self.moduli(a.shape[-2]))

    def plus(self, a: Residues, b: Residues) -> Residues:
        return residues.add(a, b, self.moduli(a.shape[-2]))

    def minus(self, a: Residues, b: Residues) -> Residues:
        return residues.add(a, self.moduli(a.shape[-2]) - b, self.moduli(a.shape[-2]))

    # ---- noise

    @property
    def fresh_deviation(self) -> float:
        """Of a fresh ciphertext's noise, a coefficient."""
        return math.sqrt((2 + 2 * self.space.degree * self.secrets / 3) / 12)

    def deviation(self, form: Form, terms: int) -> float:
        """Of the error of ``terms`` summed up, or of a product, before switching: a coefficient, at its scale."""
        space = self.space
        if form.constant:  # a dot product of vectors whose norms' product is at most ``terms``, perhaps transformed
            factors = 3.5 ** (space.levels - 1 - form.level) * space.deviation(space.scale(space.fresh))
            value = 2 * math.sqrt(terms) * factors + space.constant_deviation(form.level)
            return float(value * math.sqrt(self.secrets) * space.scale(form))
        bound, error = space.limit(form), 1.0
        for level in range(space.levels - 1, form.level - form.product - 1, -1):  # as ``ParameterSet.error``
            error = (2 * bound + 2) * error + space.added(level) / space.added(space.levels)
        return float(terms * error * self.fresh_deviation * space.scale(form) / space.scale(space.fresh))

    def switched(self, form: Form) -> Switched:
        # Divided, its error becomes small next to that of rounding. Primes for which the scale is too small are
        # dropped.
        at, level, levels, divisor = self.ring.scale(form), form.level, [], 1.0
        while level > self.opened_limbs - 1:
            prime = float(self.ring.moduli[level, 0])
            if at / prime < 2.0**_LEAST_SCALE_BITS:
                break
            at, divisor = at / prime, divisor * prime
            levels.append(level)
            level -= 1
        return Switched(tuple(levels), at, divisor)

    def rounding(self, switched: Switched) -> float:
        """Of what the division leaves, a coefficient."""
        # Both polynomials are rounded at random, one is times the key.
        return math.sqrt((1 + 2 * self.space.degree * self.secrets / 3) / 6) if switched.levels else 0.0

    def flood(self, deviation: float, *, scalar: bool) -> float:
        """The standard deviation of one party's noise.

        deviation: of the error, a coefficient; below 1 it counts as 1.
        """
        return self._flood(deviation, 1 if scalar else self.space.degree)

    def _flood(self, deviation: float, coefficients: int | None = None) -> float:
        # So that all others together can't take it off: sigma = sqrt(12 Q_D) 2^(s/2) |e| (B. Li, D. Micciancio, M.
        # Schultz and J. Sorrell, "Securing approximate homomorphic encryption using differential privacy", CRYPTO
        # 2022).
        length = max(1.0, deviation) * math.sqrt(coefficients or self.space.degree)
        return float(math.sqrt(12 * self.openings) * 2.0 ** (SECURITY_BITS / 2) * length)

    def error(self, terms: int = 1, form: Form | None = None, *, among: int = 0) -> float:
        """The bound on an opened value's error. among: how many holders open it; 0: all."""
        at = form or self.space.fresh
        switched = self.switched(at)
        error = self.deviation(at, terms)
        opened = math.hypot(error / switched.divisor, self.rounding(switched))
        floods = math.hypot(
            math.sqrt(among or len(self.holders)) * self.flood(opened, scalar=at.scalar),
            self.flood(error, scalar=at.scalar) / switched.divisor,
        )
        return self.bound(opened, floods, switched.scale, terms * self.space.limit(at), scalar=at.scalar)

    def bound(self, error: float, floods: float, scale: float, largest: float, *, scalar: bool) -> float:
        return (DEVIATIONS * error + _FLOODS * floods) * self.spread(scalar) / scale + largest * _FLOAT_ROUNDING

    def spread(self, scalar: bool) -> float:
        return 1.0 if scalar else self.space.spread

    def seconds(self, what: str, length: int = 1, *, holders: int = 0, rows: int = 1) -> float:
        """Nominal seconds of the function of this name on ``length`` values, for virtual time.

        holders: how many answer (c1: send), where each costs something.  rows: of key material (galois: automorphisms).
        """
        milliseconds = _MILLISECONDS[what]
        if what in ("partial", "pad_partial"):
            milliseconds += _MILLISECONDS["zero"] * max(holders - 1, 0)
        elif what in ("joined", "handed", "gathered", "c1"):
            milliseconds *= max(holders, 1)
        if what in ("first", "second", "galois"):
            rows *= len(self.space.prime_bits) - 1
        size = self.space.degree * len(self.space.prime_bits) / (8192 * 4)
        return milliseconds * 1e-3 * size * rows * self.space.ciphertexts(length)

    # ---- bytes

    def pack(
        self,
        kind: str,
        tag: bytes,
        numbers: Residues,
        *,
        real: tuple[int, int],
        facts: bytes = b"",
        words: Integers | None = None,
    ) -> bytes:
        """The bytes of what travels. tag: 16 bytes.  real: a real one's count of numbers and primes of each.

        facts: what precedes the numbers.  words: a twin's values, which weigh as much as the real ones.
        """
        limbs = numbers.shape[-2]
        widths = (8,) * limbs if self.emulated else self.space.residue_bytes[:limbs]
        header = _HEADER.pack(_MAGIC, _VERSION, KINDS.index(kind), self.digest, tag)
        values = b"" if words is None else words.astype("<i8").tobytes()
        parts = header, facts, values, *residues.pack(numbers, widths)
        if not self.emulated:
            return b"".join(parts)
        return weighted(self._weight(b"", real, len(facts)), *parts)

    def labelled(self, kind: str, *parts: bytes) -> bytes:
        return b"".join((_HEADER.pack(_MAGIC, _VERSION, KINDS.index(kind), self.digest, bytes(16)), *parts))

    def unpack(
        self,
        kind: str,
        data: bytes | memoryview,
        shape: tuple[int, ...],
        *,
        real: tuple[int, int],
        tag: bytes = b"",
        facts: int = 0,
        length: int = 0,
    ) -> tuple[Residues, Integers | None]:
        """The numbers ``(..., limbs, degree)``, and the ``length`` values of a twin. Raises DecodeError.

        tag: required; empty: anything.  real: as in ``pack``.  facts: bytes that precede.
        """
        stated, held = self.opened_header(kind, data)
        if tag and stated != tag:
            raise DecodeError(f"a {kind} for something else than what it was asked for")
        limbs, polynomials = shape[-2], math.prod(shape[:-2])
        widths = (8,) * limbs if self.emulated else self.space.residue_bytes[:limbs]
        start = facts + (8 * length if self.emulated else 0)
        size = start + polynomials * shape[-1] * sum(widths)
        if len(held) != size or weighs(data) != self._weight(data, real, facts):
            raise DecodeError(f"a {kind} of {weighs(data)} bytes has another length than it should have")
        numbers = residues.unpack(held[start:], shape, widths)
        if not residues.valid(numbers, self.moduli(limbs)):
            raise DecodeError(f"a {kind} with a residue that is not below its prime")
        words = np.frombuffer(held[facts:start], "<i8") if self.emulated and length else None
        return np.asarray(numbers), words

    def opened_header(self, kind: str, data: bytes | memoryview) -> tuple[bytes, memoryview]:
        """The tag, and what follows the header. Raises DecodeError."""
        held = content(data)
        if len(held) < _HEADER.size:
            raise DecodeError(f"{len(held)} bytes are no {kind} of a shared key")
        magic, version, code, digest, stated = _HEADER.unpack_from(held)
        if magic != _MAGIC or version != _VERSION or code != KINDS.index(kind):
            raise DecodeError(f"no {kind} of a shared key")
        if digest != self.digest:
            raise DecodeError(f"a {kind} of another group of holders, or of an earlier one")
        return stated, held[_HEADER.size :]

    def _weight(self, data: bytes | memoryview, real: tuple[int, int], facts: int) -> int:
        count, primes = real
        return _HEADER.size + facts + count * sum(self.space.residue_bytes[:primes]) if self.emulated else len(data)


# ---- shares


SEED_BYTES = 32
_ID_BYTES = 16


@dataclass(frozen=True, eq=False, repr=False)
class SecretNumbers(Immutable):
    group: Group
    numbers: Residues

    kind: ClassVar[str]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.group.digest.hex()[:8]}>"

    @staticmethod
    def size(group: Group) -> tuple[int, int]:
        return group.share_size

    def to_bytes(self) -> bytes:
        return self.group.pack(self.kind, bytes(16), self.numbers, real=self.size(self.group))

    @classmethod
    def load(cls, group: Group, data: bytes) -> Self:
        real = cls.size(group)
        shape = group.limbs if group.emulated else real[1], group.degree
        return cls(group, group.unpack(cls.kind, data, shape, real=real)[0])


class Share(SecretNumbers):
    """SECRET: ``(limbs, degree)``."""

    kind = "share"

    def additive(self, me: str, among: Sequence[str]) -> Residues:
        """Times its Lagrange coefficient: those of all in ``among`` add up to the key."""
        names = self.group.answering(tuple(among))
        if me not in names:
            raise UserError(f"{me} is not among those that answer: {', '.join(names)}")
        if self.group.additive:
            return self.numbers
        # Before noise is added: nothing with noise is multiplied by a large coefficient.
        places = [self.group.place(name) for name in names]
        coefficient = residues.lagrange(self.group.place(me), places, self.group.moduli(self.group.limbs))
        return np.asarray(self.group.times(self.numbers[None], coefficient)[0])

    def handed(
        self, me: str, among: Sequence[str], group: Group, random_bytes: RandomBytes = urandom
    ) -> dict[str, bytes]:
        """SECRET: each new holder's part, to be sealed. among: the holders that hand over."""
        if group.space.identity != self.group.space.identity or group.digest == self.group.digest:
            raise UserError("a key is handed to a group with the same parameters and another label or other holders")
        return handed(group, self.additive(me, among), self.group.answering(tuple(among)), random_bytes)


def handed(
    group: Group, numbers: Residues, senders: Sequence[str], random_bytes: RandomBytes = urandom
) -> dict[str, bytes]:
    """SECRET: each holder's part in ``group`` of ``(limbs, degree)`` shared anew, to be sealed to it.

    senders: all whose parts add up to the key; recipients check it.
    """
    tag = senders_tag(senders)
    random = group.uniform(drawn(random_bytes, 32), group.needed - 1, group.limbs)
    if group.additive:
        rest = numbers[None]
        for one in random:
            rest = group.minus(rest, one[None])
        given = [*random, rest[0]]
    else:
        places = range(1, len(group.holders) + 1)
        given = residues.split(numbers, random, places, group.moduli(group.limbs))
    return {
        name: group.pack("part", tag, part, real=group.share_size)
        for name, part in zip(group.holders, given, strict=True)
    }


def gathered(group: Group, me: str, parts: Mapping[str, bytes]) -> Share:
    """The share of holder ``me``. parts: of all senders. Raises DecodeError naming a sender."""
    group.place(me)
    tag, total = senders_tag(tuple(parts)), np.zeros((1, group.limbs, group.degree), dtype=np.uint64)
    for name, data in parts.items():
        try:
            part = group.unpack("part", data, (group.limbs, group.degree), tag=tag, real=group.share_size)[0]
        except DecodeError as error:
            raise DecodeError(f"{name}: {error} (or not all that share have sent)") from None
        total = group.plus(total, part[None])
    return Share(group, total[0])


def senders_tag(names: Sequence[str]) -> bytes:
    every = b"".join(len(name.encode()).to_bytes(4, "little") + name.encode() for name in sorted(names))
    return hashlib.sha256(b"coterie/senders/" + every).digest()[:16]


class Answered(msgspec.Struct, frozen=True, array_like=True):
    digests: bytes = b""
    ciphertexts: int = 0

    def plus(self, group: Group, digest: bytes, ciphertexts: int) -> Answered:
        """Raises PeerError for a repeated opening, or for more than flooding is sized for."""
        held = self.digests
        if digest in {held[at : at + _ID_BYTES] for at in range(0, len(held), _ID_BYTES)}:
            raise PeerError("asked to open the same ciphertext again: one partial decryption is all that is given")
        total = self.ciphertexts + ciphertexts
        if total > group.openings:
            raise PeerError(f"{total} openings under one key: its noise is sized for {group.openings}, make a new key")
        return Answered(held + digest, total)


@dataclass(frozen=True)
class Zero:
    """SECRET: the seeds that a holder shares with each of the others, 32 bytes each."""

    me: str
    seeds: Mapping[str, bytes]

    def __repr__(self) -> str:
        return f"<Zero of {self.me} with {len(self.seeds)} others>"

    def share(self, group: Group, among: Sequence[str], tag: bytes, shape: tuple[int, int, int]) -> Residues:
        """A share of zero ``(count, limbs, degree)``: those of all in ``among`` add up to nothing. Raises CryptoError
        if a seed is missing.

        tag: 16 bytes that name its purpose.
        """
        total = np.zeros(shape, dtype=np.uint64)
        for key, adds in self._keys(among, tag):
            ours = residues.uniform(residues.secret_words(key), shape, group.moduli(shape[1]))
            total = group.plus(total, ours) if adds else group.minus(total, ours)
        return total

    def words(self, among: Sequence[str], tag: bytes, length: int) -> Integers:
        """As ``share``, of a twin: ``(length,) int64``, modulo 2^64."""
        total = np.zeros(length, dtype=np.int64)
        for key, adds in self._keys(among, tag):
            ours = np.random.SFC64(int.from_bytes(key, "little")).random_raw(length).view(np.int64)
            total = total + ours if adds else total - ours
        return total

    def _keys(self, among: Sequence[str], tag: bytes) -> Iterator[tuple[bytes, bool]]:
        set_tag = senders_tag(among)
        for other in among:
            if other == self.me:
                continue
            seed = self.seeds.get(other, b"")
            if len(seed) != SEED_BYTES:
                raise CryptoError(f"{self.me} and {other} have no common seed of {SEED_BYTES} bytes")
            yield hashlib.sha256(b"coterie/zero/" + seed + tag + set_tag).digest(), self.me < other


# ---- emulated keys


def twin_common(group: Group) -> Residues:
    """Equal for all groups: an emulated key survives handing over."""
    key = hashlib.sha256(b"coterie/emulated").digest()
    return group.uniform(key, 1, group.limbs)


def twin_public(group: Group, key: ckks.PublicKey) -> Residues:
    """``(1, limbs, 1)``: -a s of an emulated key. Raises DecodeError for another kind."""
    arrays: Any = key.arrays
    size = 8 * group.limbs
    if not key.emulated or len(arrays.key_id) <= size:
        raise DecodeError("an emulated key that no group has made")
    return np.frombuffer(arrays.key_id[:size], "<u8").reshape(1, group.limbs, 1)
