"""Opening a ciphertext by parts: the server prepares it, each holder answers, the server combines the answers.

OFL, section 4.3 (``ServerDec``, ``PartDec``, ``FinDec``), after A. Passelegue and D. Stehle, "Low communication
threshold fully homomorphic encryption", ASIACRYPT 2025, for the approximate numbers of CKKS:

    ServerDec   c <- c + Enc(0), both polynomials divided by the primes that go, rounded at random; c_0 + flooding
    PartDec     p_i = c_1 s_i + z_i + flooding        s_i: share times Lagrange coefficient; z_i: a share of zero
    FinDec      c_0 + sum of p_i

**One partial decryption of a ciphertext at most**: many would average the floodings away, and two sets of answering
holders would give the flooding itself. ``Answered`` refuses the second.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import urandom
from typing import Any

import numpy as np

from coterie.crypto import ckks, residues, twins
from coterie.crypto.arrays import CiphertextError, RandomBytes, drawn
from coterie.crypto.residues import Residues
from coterie.crypto.tally import Form
from coterie.crypto.threshold import (
    MOST_NOISE,
    Answered,
    Group,
    Share,
    Switched,
    Zero,
    senders_tag,
    twin_common,
    twin_public,
)
from coterie.protocol.arrays import Doubles, Integers
from coterie.protocol.errors import CapacityError, CryptoError, DecodeError

_FACTS = struct.Struct("<QQBxxxIdd")  # length, terms, scalar, senders, deviation of the error, scale


@dataclass(frozen=True, eq=False, repr=False)
class Request:
    """What a holder is sent: the component that the key multiplies, and facts about it. Public."""

    group: Group
    length: int
    terms: int  # weights counted
    senders: int
    scalar: bool
    deviation: float  # of the error to be drowned, a coefficient
    scale: float
    c1: Residues  # (count, limbs, degree)

    @property
    def ciphertexts(self) -> int:
        return 1 if self.scalar else self.group.space.ciphertexts(self.length)

    @property
    def facts(self) -> bytes:
        return _FACTS.pack(self.length, self.terms, self.scalar, self.senders, self.deviation, self.scale)

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(b"coterie/opening/" + self.group.digest + self.c1.astype("<u8").tobytes()).digest()[:16]

    @property
    def shape(self) -> tuple[int, int, int]:
        count, limbs, degree = self.c1.shape
        return count, limbs, 1 if self.scalar else degree

    @property
    def answer_size(self) -> tuple[int, int]:
        return self.ciphertexts * (1 if self.scalar else self.group.space.degree), self.group.opened_limbs

    def tag(self, names: Sequence[str]) -> bytes:
        return hashlib.sha256(self.digest + senders_tag(names)).digest()[:16]

    def to_bytes(self) -> bytes:
        return self.group.pack("request", bytes(16), self.c1, facts=self.facts, real=self.real)

    @property
    def real(self) -> tuple[int, int]:
        return self.ciphertexts * self.group.space.degree, self.group.opened_limbs

    @classmethod
    def load(cls, group: Group, data: bytes) -> Request:
        _, held = group.opened_header("request", data)
        if len(held) < _FACTS.size:
            raise DecodeError("a request to open that doesn't say what")
        length, terms, scalar, senders, deviation, scale = _FACTS.unpack_from(held)
        if not length or not terms or not senders or scalar > 1 or (scalar and length != 1):
            raise DecodeError(f"a request to open {length} values of {terms} terms, by {senders} senders")
        fits = deviation >= 0 and group.flood(deviation, scalar=bool(scalar)) <= MOST_NOISE
        if not fits or not 1 <= scale < 2.0**300:  # False for NaN, too
            raise DecodeError("a request to open with a noise or a scale that no ciphertext has")
        made = cls(group, length, terms, senders, bool(scalar), deviation, scale, np.empty((0, 0, 0), dtype=np.uint64))
        count = 1 if group.emulated else made.ciphertexts
        shape = count, group.opened_limbs, group.degree
        c1 = group.unpack("request", data, shape, facts=_FACTS.size, real=made.real)[0]
        if not c1.any(axis=2).all():
            raise DecodeError("a ciphertext without randomness can't be opened by parts")
        return replace(made, c1=c1)


@dataclass(frozen=True, eq=False, repr=False)
class Prepared:
    """What the server keeps for the answers: c_0 (of a scalar its constant coefficient) and the request."""

    request: Request
    c0: Residues
    words: Integers | None  # an emulated one's values
    form: Form
    errors: tuple[float, float]  # deviations of error and flooding, a coefficient


def server_dec(
    group: Group, cipher: ckks.CipherVector, *, random_bytes: RandomBytes = urandom, deviation: float | None = None
) -> Prepared:
    """ServerDec. A product need not be rescaled. Raises CryptoError for what can't be opened.

    deviation: of the polynomials' error, a coefficient, where it isn't that of its form.  random_bytes: for an emulated
    one.
    """
    form, terms = cipher.tally.form, cipher.terms
    if cipher.key.parameters.identity != group.space.identity or cipher.emulated != group.emulated:
        raise CryptoError(f"a vector under {cipher.key!r} isn't one of {group.parameters}")
    if cipher.blinded or form.conjugated:
        raise CryptoError(f"a {form} with {cipher.blinded} masks can't be opened")
    switched = group.switched(form)
    error = group.deviation(form, terms) if deviation is None else deviation
    flood = group.flood(error, scalar=form.scalar)
    opened = math.hypot(error / switched.divisor, group.rounding(switched))
    errors = opened, flood / switched.divisor
    make = _twin if group.emulated else _real
    c0, c1, words = make(group, cipher, switched, flood, random_bytes)
    request = Request(group, cipher.length, terms, cipher.tally.vectors, form.scalar, opened, switched.scale, c1)
    return Prepared(request, c0, words, form, errors)


def partial(
    group: Group, share: Share, request: Request, me: str, among: Sequence[str], zero: Zero, answered: Answered
) -> tuple[bytes, Answered]:
    """PartDec: the answer of holder ``me``, and ``answered`` with this one. Raises PeerError and UserError.

    among: the holders that answer, fixed beforehand.
    """
    names = group.answering(tuple(among))
    after = answered.plus(group, request.digest, request.ciphertexts)
    if share.group.digest != group.digest:
        raise CryptoError("a share of another group, or of an earlier one")
    least = group.rounding(group.switched(group.space.fresh)) or group.fresh_deviation  # whatever the server states
    deviation = max(request.deviation, least)
    made = group.times(request.c1, share.additive(me, names)[None, : group.opened_limbs])
    if request.scalar and not group.emulated:
        made = constant(group, made)
    return answer(group, made, request, me, names, zero, group.flood(deviation, scalar=request.scalar)), after


def answer(
    group: Group, made: Residues, request: Request, me: str, names: Sequence[str], zero: Zero, deviation: float
) -> bytes:
    """A share times c_1, plus a share of zero and flooding."""
    tag, real = request.tag(names), request.answer_size
    if group.emulated:
        noisy = deviation * group.spread(request.scalar) / request.scale / group.space.twin_step
        words = zero.words(names, tag, request.length)
        noise = twins.add_noise(np.zeros_like(words), noisy, hashlib.sha256(me.encode()).digest(), tag)
        return group.pack("partial", tag, made, words=words + noise, real=real)
    made = group.plus(made, zero.share(group, names, tag, request.shape))
    return group.pack("partial", tag, group.plus(made, flooding(group, request.shape, deviation)), real=real)


def opened(group: Group, prepared: Prepared, answers: Mapping[str, bytes]) -> Doubles:
    """FinDec: ``(d,) float64`` sums of ``terms`` values; (1,) of a scalar.

    answers: of all holders asked. Raises DecodeError naming a holder, and CiphertextError if a share is wrong.
    """
    names = group.answering(tuple(answers))
    total, words = read_answers(group, prepared, answers, names)
    return decoded(group, total, words, prepared, len(names))


def read_answers(
    group: Group, prepared: Prepared, answers: Mapping[str, bytes], names: Sequence[str]
) -> tuple[Residues, Integers | None]:
    """With c_0. Raises DecodeError naming a holder."""
    request = prepared.request
    tag, total, words = request.tag(names), prepared.c0, prepared.words
    for name in names:
        try:
            numbers, theirs = group.unpack(
                "partial", answers[name], total.shape, tag=tag, length=request.length, real=request.answer_size
            )
        except DecodeError as error:
            raise DecodeError(f"{name}: {error}") from None
        total = group.plus(total, numbers)
        if words is not None and theirs is not None:
            words = words + theirs
    return total, words


def decoded(group: Group, total: Residues, words: Integers | None, prepared: Prepared, among: int) -> Doubles:
    """Of what all have added up to. Raises CiphertextError."""
    request, space = prepared.request, group.space
    most = request.terms * space.limit(prepared.form)
    error, flood = prepared.errors
    floods = math.hypot(flood, math.sqrt(among) * group.flood(error, scalar=request.scalar))
    bound = group.bound(error, floods, request.scale, most, scalar=request.scalar)
    if words is not None:
        if total.any():  # the shares don't add up to the key
            seed = int.from_bytes(hashlib.sha256(total.tobytes()).digest(), "little")
            words = words + np.random.SFC64(seed).random_raw(words.size).view(np.int64)
        values, unused = words * np.float64(group.space.twin_step), np.zeros(0)
    elif request.scalar:
        number = residues.centred(total[0, :, 0], group.moduli(group.opened_limbs))
        values, unused = np.array([number / request.scale]), np.zeros(0)
    else:
        numbers = group.ring.decoded(total, request.scale / space.spread).ravel()
        values, unused = numbers[: request.length].copy(), numbers[request.length :]
    if (np.abs(values) > most + 2 * bound).any() or (np.abs(unused) > 2 * bound).any():
        raise CiphertextError("the sum opens to nonsense: a share is wrong, or a ciphertext is forged")
    return values


# ---- residues


def flooding(group: Group, shape: tuple[int, int, int], deviation: float) -> Residues:
    """Gaussian integers on each coefficient, as residues ``shape``."""
    count, limbs, degree = shape
    noise = gaussian(deviation, count * degree).reshape(count, degree)
    if degree == 1:
        moduli = group.moduli(limbs).astype(np.int64)
        return np.asarray((noise[:, None, :] % moduli).astype(np.uint64))
    return group.ring.transformed(noise, limbs - 1)


def gaussian(deviation: float, count: int) -> Integers:
    """Integers near a Gaussian, from the system's randomness. Raises CapacityError for what an int64 can't hold."""
    if not 0 <= deviation <= MOST_NOISE:
        raise CapacityError(f"no room for noise of deviation {deviation:.1e}: take fewer openings or terms")
    words = residues.secret_words(urandom(32))
    low = max(0, math.ceil(math.log2(max(deviation, 1.0))) - 44)
    radius, angle = (words(count) >> np.uint64(11)).astype(np.float64), words(count).astype(np.float64)
    # The radius reaches 8.5 standard deviations.
    normal = np.sqrt(-2 * np.log((radius + 1) * 2.0**-53)) * np.cos(angle * (2 * math.pi * 2.0**-64))
    scaled, rest = normal * (deviation / (1 << low)), words(count)
    if not low:  # rounded at random: down, or up, so that the mean is right
        return np.asarray(np.floor(scaled + rest.astype(np.float64) * 2.0**-64).astype(np.int64))
    integers = np.floor(scaled).astype(np.int64) << low
    return np.asarray(integers + (rest & np.uint64((1 << low) - 1)).astype(np.int64))


def divided(group: Group, pairs: Residues, switched: Switched, *, at_random: bool = True) -> Residues:
    """``(count, 2, limbs, N)`` divided by primes, both polynomials rounded; higher primes are dropped.

    at_random: round at random, else to the nearest, with equal results everywhere.
    """
    made = group.ring
    for level in switched.levels:
        if at_random:
            prime = int(made.moduli[level, 0])
            words = residues.secret_words(urandom(32))(pairs[:, :, 0].size)
            offsets = (words % np.uint64(prime)).astype(np.int64) - prime // 2
            moved = made.transformed(offsets.reshape(-1, group.space.degree), level).reshape(pairs.shape)
            pairs = residues.add(pairs, moved, made.moduli_at(level))
        pairs = made.changed(pairs, Form(level), 2, level, made.evaluator.rescale_to_next_inplace)
    return np.ascontiguousarray(pairs[:, :, : group.opened_limbs])


def constant(group: Group, polynomials: Residues) -> Residues:
    """``(count, limbs, 1)`` of polynomials in NTT form."""
    return residues.constant(polynomials, group.moduli(polynomials.shape[1]))[..., None]


def _real(
    group: Group, cipher: ckks.CipherVector, switched: Switched, flood: float, random_bytes: RandomBytes
) -> tuple[Residues, Residues, None]:
    made, form, array = group.ring, cipher.tally.form, cipher.array
    arrays: Any = cipher.key.arrays
    limbs = form.level + 1
    if array.shape[1] == 3:
        turn = made.evaluator.relinearize_inplace
        array = made.changed(array, form, 2, limbs, lambda c: turn(c, arrays.relineariser))
    array = residues.add(array, arrays.zeros(len(array), form.level), made.moduli_at(form.level))
    pair = divided(group, array, switched)
    c1 = np.ascontiguousarray(pair[:, 1])
    c0 = group.plus(pair[:, 0], flooding(group, c1.shape, flood / switched.divisor))
    return constant(group, c0) if form.scalar else c0, c1, None


def _twin(
    group: Group, cipher: ckks.CipherVector, switched: Switched, flood: float, random_bytes: RandomBytes
) -> tuple[Residues, Residues, Integers]:
    noise = flood / switched.divisor * group.spread(cipher.tally.form.scalar) / switched.scale
    key_id: bytes = cipher.key.arrays.key_id  # type: ignore[union-attr]
    words = twins.add_noise(cipher.array.copy(), noise / group.space.twin_step, key_id, b"server")
    random = group.uniform(drawn(random_bytes, 32), 1, group.limbs)
    return group.times(random, twin_public(group, cipher.key)), group.times(random, twin_common(group)), words
