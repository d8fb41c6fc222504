"""Joint pads: ciphertexts whose second polynomial no sender chose.

c_1 is a polynomial ``a`` that follows from the group, the sender and a fresh nonce (``Pad``), and senders are holders.
With s_k for the share of holder k times its Lagrange coefficient, sender j encrypts by

    y_j = m_j - a_j s_j + e                      ``Padding.encrypt``, half the bytes of a ciphertext

**To compute on it**, every other holder k contributes -a_j s_k + e, and the sum is a ciphertext under the joint key
(``contribution``, ``Joining``).

**For a weighted sum alone** of an n-of-n key, each sender answers once

    w_j a_j s_j + flooding + a share of zero     ``pad_partial``

which with the weighted sum of the y_j is that of the messages (``padded_sum``).

**To open a weighted sum of completed vectors** a request names pads, weights and a public seed (``SumRequest``), and
each holder computes c_1 itself:

    c_1 = sum of w_j a_j + u a        divided by the primes that go, to the nearest
    c_0 = sum of w_j c_0j + u b       divided, rounded at random, flooded               ``sum_dec``, the server

(b, a) is the public key and u follows from the seed. Where senders hold no shares, a_j is signed by its sender
(``threshold_halves``).
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from os import urandom
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from coterie.crypto import ckks, residues, threshold, threshold_opening, twins
from coterie.crypto.arrays import RandomBytes, drawn
from coterie.crypto.residues import Residues
from coterie.crypto.tally import Tally, integer_weight
from coterie.crypto.threshold import MOST_HOLDERS, Group
from coterie.crypto.threshold_halves import Half
from coterie.protocol.arrays import Doubles, Integers
from coterie.protocol.errors import CapacityError, CryptoError, DecodeError

NONCE_BYTES = 16
_PAD = struct.Struct("<Q16s16s")  # length, nonce, who contributes


@dataclass(frozen=True)
class Pad:
    """Public; it decides the polynomial."""

    sender: str  # the encrypting holder
    context: bytes  # bytes that name the purpose
    length: int
    nonce: bytes  # 16 fresh bytes
    among: tuple[str, ...]  # the holders whose shares make it, in the group's order
    part: ClassVar[int] = 0

    @property
    def kind(self) -> tuple[object, ...]:
        return self.length, self.context, self.among

    def digest(self, group: Group) -> bytes:
        head = _PAD.pack(self.length, self.nonce, threshold.senders_tag(self.among))
        name = self.sender.encode()
        data = b"".join((group.digest, head, len(name).to_bytes(4, "little"), name, self.context))
        return hashlib.sha256(b"coterie/pad/" + data).digest()[:16]

    def polynomials(self, group: Group) -> Residues:
        """a: ``(ciphertexts, limbs, degree)``."""
        key = hashlib.sha256(b"coterie/pad/polynomials" + self.digest(group)).digest()
        return group.uniform(key, self.shape(group)[0], group.limbs)

    def shape(self, group: Group) -> tuple[int, int, int]:
        return 1 if group.emulated else group.space.ciphertexts(self.length), group.limbs, group.degree

    def size(self, group: Group) -> tuple[int, int]:
        numbers, primes = group.share_size
        return group.space.ciphertexts(self.length) * numbers, primes


Addend = Pad | Half
Addends = Mapping[str, Addend]
Weights = Mapping[str, int]


@dataclass(frozen=True, eq=False, repr=False)
class Padded:
    """array: the message's first polynomials."""

    group: Group
    pad: Pad
    array: Residues
    words: Integers | None

    def to_bytes(self) -> bytes:
        facts = _PAD.pack(self.pad.length, self.pad.nonce, threshold.senders_tag(self.pad.among))
        real = self.pad.size(self.group)
        return self.group.pack("pad", bytes(16), self.array, facts=facts, words=self.words, real=real)

    @classmethod
    def load(
        cls, group: Group, data: bytes, sender: str, context: bytes, length: int, among: tuple[str, ...] = ()
    ) -> Padded:
        _, held = group.opened_header("pad", data)
        if len(held) < _PAD.size:
            raise DecodeError("a padded vector that doesn't say under which pad")
        stated, nonce, tag = _PAD.unpack_from(held)
        pad = Pad(sender, context, length, nonce, group.answering(among or group.holders))
        if stated != length or tag != threshold.senders_tag(pad.among):
            raise DecodeError(f"a padded vector of {stated} values, or among other holders than was asked for")
        shape, real = pad.shape(group), pad.size(group)
        array, words = group.unpack("pad", data, shape, facts=_PAD.size, length=length, real=real)
        return cls(group, pad, array, words)


@dataclass(eq=False, repr=False)
class Padding:
    """What a sender encrypts one vector with, and no second: two would show their difference.

    key: of the group, for which values fit.  context: as of ``Pad``.  among: the holders whose shares make the pads;
    empty: all.
    """

    group: Group
    key: ckks.PublicKey
    share: threshold.Share
    me: str
    context: bytes
    among: tuple[str, ...] = ()
    random_bytes: RandomBytes = urandom
    used: bool = False

    @property
    def emulated(self) -> bool:
        return self.group.emulated

    def encrypt(self, values: ArrayLike) -> Padded:
        """``(d,)`` floats. Raises as ``ckks.PublicKey.encrypt``; CryptoError the second time."""
        if self.used:
            raise CryptoError("a pad hides one vector: make another padding for the next")
        array, _ = self.key.prepared(values)
        self.used = True
        group, among = self.group, self.group.answering(self.among or self.group.holders)
        pad = Pad(self.me, self.context, array.size, drawn(self.random_bytes, NONCE_BYTES), among)
        made = _minus(group, pad, self.share.additive(self.me, among))
        if group.emulated:
            arrays: Any = self.key.arrays
            return Padded(group, pad, made, arrays.encrypt(array, group.space.fresh))
        numbers = group.ring.encoded(array, group.space.fresh)
        return Padded(group, pad, group.plus(group.plus(made, numbers), _small(group, pad, urandom(32))), None)


def contribution(group: Group, share: threshold.Share, me: str, pad: Pad) -> bytes:
    """A holder's addend to another's padded vector, which those of all others in ``pad.among`` turn into a ciphertext.

    It is always equal.
    """
    made = _minus(group, pad, share.additive(me, pad.among))
    if me == pad.sender:
        raise CryptoError(f"{me} contributes to the pads of others")
    if not group.emulated:
        numbers = share.numbers.astype("<u8").tobytes()
        key = hashlib.sha256(b"coterie/contribution/" + pad.digest(group) + numbers).digest()
        made = group.plus(made, _small(group, pad, key))
    return group.pack("contribution", pad.digest(group), made, real=pad.size(group))


class Joining:
    """A padded vector, and the contributions that have come."""

    def __init__(self, group: Group, padded: Padded) -> None:
        self._group, self._padded, self._total = group, padded, padded.array
        self._missing = {name for name in padded.pad.among if name != padded.pad.sender}

    def take(self, name: str, data: bytes | memoryview) -> None:
        """Each holder's once. Raises CryptoError for another's, DecodeError for a bad one."""
        group, pad = self._group, self._padded.pad
        if name not in self._missing:
            raise CryptoError(f"a contribution of {name}, which is not missing")
        tag, real = pad.digest(group), pad.size(group)
        part, _ = group.unpack("contribution", data, pad.shape(group), tag=tag, real=real)
        self._total = group.plus(self._total, part)
        self._missing.remove(name)

    def cipher(self, key: ckks.PublicKey) -> ckks.CipherVector:
        """Raises CryptoError unless all contributions are there."""
        if self._missing:
            raise CryptoError(f"a pad takes contributions of {', '.join(sorted(self._missing))}, too")
        group, padded, total = self._group, self._padded, self._total
        tally = Tally(key.fingerprint, padded.pad.length, form=group.space.fresh)
        a = padded.pad.polynomials(group)
        if padded.words is None:
            return ckks.CipherVector(key, tally, np.stack((total, a), axis=1))
        if (
            group.times(total, threshold.twin_common(group)) != group.times(a, threshold.twin_public(group, key))
        ).any():
            seed = int.from_bytes(hashlib.sha256(total.tobytes()).digest(), "little")
            return ckks.CipherVector(
                key, tally, np.random.SFC64(seed).random_raw(padded.pad.length).view(np.int64) >> 1
            )
        return ckks.CipherVector(key, tally, padded.words)


def pad_partial(
    group: Group,
    share: threshold.Share,
    me: str,
    pads: Mapping[str, Pad],
    weights: Weights,
    zero: threshold.Zero,
    answered: threshold.Answered,
) -> tuple[bytes, threshold.Answered]:
    """A sender's part in opening the weighted sum of ``pads``. Raises PeerError the second time for a pad,
    CryptoError for an impossible sum.
    """
    request = _request(group, pads, weights)
    own = pads.get(me)
    if own is None or own.sender != me:
        raise CryptoError(f"{me} has sent nothing that this sum is of")
    after = answered.plus(group, own.digest(group), request.ciphertexts)
    made = group.times(own.polynomials(group), share.additive(me, group.holders)[None])
    made = _weighted(group, made, weights[me])
    if not group.emulated:
        made = divided_alone(group, made, _switched(group))
    deviation = group.flood(request.deviation, scalar=False)
    return threshold_opening.answer(group, made, request, me, tuple(sorted(pads)), zero, deviation), after


def padded_sum(
    group: Group, key: ckks.PublicKey, padded: Mapping[str, Padded], weights: Weights, answers: Mapping[str, bytes]
) -> Doubles:
    """``(d,) float64``: the weighted sum of what all senders encrypted. Raises as ``opened``."""
    request = _request(group, {name: one.pad for name, one in padded.items()}, weights)
    if set(answers) != set(padded):
        raise CryptoError(f"the sum takes an answer of each sender: {', '.join(sorted(padded))}")
    total, words = None, None
    for name, one in padded.items():
        ours = _weighted(group, one.array, weights[name])
        total = ours if total is None else group.plus(total, ours)
        if one.words is not None:
            words = one.words * weights[name] if words is None else words + one.words * weights[name]
    assert total is not None
    c0 = total if group.emulated else divided_alone(group, total, _switched(group))
    prepared = threshold_opening.Prepared(request, c0, words, group.space.fresh, (request.deviation, 0.0))
    total, words = threshold_opening.read_answers(group, prepared, answers, tuple(sorted(padded)))
    return threshold_opening.decoded(group, total, words, prepared, len(padded))


def padded_error(group: Group, weights: Weights) -> float:
    deviation, terms = _sum_deviation(group, weights), sum(weights.values())
    floods = math.sqrt(len(weights)) * group.flood(deviation, scalar=False)
    return group.bound(deviation, floods, _switched(group).scale, terms * group.space.reach, scalar=False)


def sum_name(group: Group, pads: Addends, weights: Weights) -> bytes:
    told = hashlib.sha256(b"coterie/padded sum/")
    for name in sorted(pads):
        told.update(pads[name].digest(group) + weights[name].to_bytes(8, "little"))
    return told.digest()


def _sum_deviation(group: Group, weights: Weights) -> float:
    noise = math.sqrt(_SMALL_VARIANCE * sum(weight * weight for weight in weights.values()))
    rounded = math.sqrt((len(weights) + 1) / 6) if _switched(group).levels else 0.0
    return math.hypot(noise / _switched(group).divisor, rounded)


def _request(group: Group, pads: Mapping[str, Pad], weights: Weights) -> threshold_opening.Request:
    if not group.additive:
        raise CryptoError("where t of n holders open, a sum of padded vectors is opened as joined ciphertexts")
    if len(pads) < 2 or set(pads) != set(weights):
        raise CryptoError("a sum of padded vectors takes two senders at least, and a weight of each")
    lengths = {pad.length for pad in pads.values()}
    if len(lengths) != 1 or any(pad.among != group.holders or name != pad.sender for name, pad in pads.items()):
        raise CryptoError("padded vectors of different lengths, or under pads among some of the holders only")
    terms = _terms(group, weights)
    length, name_of_it = lengths.pop(), np.frombuffer(sum_name(group, pads, weights), "<u8").reshape(1, 4, 1)
    deviation = _sum_deviation(group, weights)
    return _PadRequest(group, length, terms, len(pads), False, deviation, _switched(group).scale, name_of_it)


@dataclass(frozen=True, eq=False, repr=False)
class _PadRequest(threshold_opening.Request):
    @property
    def shape(self) -> tuple[int, int, int]:
        return 1 if self.group.emulated else self.ciphertexts, self.group.opened_limbs, self.group.degree


def _terms(group: Group, weights: Weights) -> int:
    terms, most = sum(map(integer_weight, weights.values())), group.space.max_terms
    if terms > most:
        raise CapacityError(f"weights of {terms} in all are too many: {group.parameters} has room for {most}")
    return terms


def _switched(group: Group) -> threshold.Switched:
    return group.switched(group.space.fresh)


def _minus(group: Group, pad: Pad, numbers: Residues) -> Residues:
    return group.times(pad.polynomials(group), group.minus(np.zeros_like(numbers[None]), numbers[None]))


def _weighted(group: Group, array: Residues, weight: int) -> Residues:
    return residues.multiple(array, weight, group.moduli(array.shape[-2]))


def divided_alone(
    group: Group, polynomials: Residues, switched: threshold.Switched, *, at_random: bool = True
) -> Residues:
    """``(count, limbs, N)``, as ``divided``, two at a time."""
    odd = len(polynomials) % 2
    filled = np.concatenate((polynomials, polynomials[:1])) if odd else polynomials
    pairs = threshold_opening.divided(group, filled.reshape(-1, 2, *filled.shape[1:]), switched, at_random=at_random)
    return np.ascontiguousarray(pairs.reshape(-1, *pairs.shape[2:])[: len(polynomials)])


_SMALL_VARIANCE = 10.5  # of residues.binomial, which SEAL draws, too


def _small(group: Group, pad: Pad, key: bytes) -> Residues:
    count, limbs, degree = pad.shape(group)
    return group.ring.transformed(residues.binomial((count, degree), lambda _: key), limbs - 1)


# ---- sums whose c_1 every holder computes


SEED_BYTES = 32
MONOMIALS = 4
"""Of u: there are 2^51 with N = 8192, and its noise has twice the deviation of the public key's."""
# Length, seed, a bit for each contributor, number of senders.
_HEAD = struct.Struct(f"<Q{SEED_BYTES}s{MOST_HOLDERS // 8}sH")
_SENDER = struct.Struct(f"<HI{NONCE_BYTES}s")  # place, weight, nonce
_TERM = struct.Struct("<I32s")  # weight, name of a half


@dataclass(frozen=True, eq=False, repr=False)
class SumRequest(threshold_opening.Request):
    """Of a weighted sum of vectors, or of zero: c_1 follows from the rest, and does not travel.

    pads, weights: by sender; none for zero.  seed: 32 bytes.
    """

    pads: Addends
    weights: Weights
    seed: bytes

    @classmethod
    def of(cls, group: Group, key: ckks.PublicKey, pads: Addends, weights: Weights, seed: bytes) -> SumRequest:
        """Raises CryptoError for what makes no sum, CapacityError for too large weights."""
        if set(pads) != set(weights) or any(name != pad.sender for name, pad in pads.items()):
            raise CryptoError("a sum of padded vectors takes a weight and a pad of each sender")
        if len({pad.kind for pad in pads.values()}) > 1:
            raise CryptoError("vectors of different lengths or contexts, or under pads among different holders")
        length = next(iter(pads.values())).length if pads else 1
        terms, form = _terms(group, weights) or 1, group.space.fresh
        switched = _switched(group)
        deviation = math.hypot(group.deviation(form, terms) / switched.divisor, group.rounding(switched))
        c1 = _c1(group, key, pads, weights, length, seed)
        return cls(group, length, terms, len(pads), False, deviation, switched.scale, c1, pads, weights, seed)

    @property
    def halves(self) -> dict[bytes, Half]:
        return {pad.name: pad for pad in self.pads.values() if isinstance(pad, Half)}

    def to_bytes(self) -> bytes:
        group, among = self.group, bytearray(MOST_HOLDERS // 8)
        first = next(iter(self.pads.values()), None)
        for at in [group.place(name) - 1 for name in first.among] if isinstance(first, Pad) else ():
            among[at // 8] |= 1 << at % 8
        rows = [
            _TERM.pack(self.weights[name], pad.name)
            if isinstance(pad, Half)
            else _SENDER.pack(group.place(name), self.weights[name], pad.nonce)
            for name, pad in self.pads.items()
        ]
        return group.labelled("sum", _HEAD.pack(self.length, self.seed, bytes(among), len(self.pads)), *rows)

    @classmethod
    def read(
        cls, group: Group, key: ckks.PublicKey, data: bytes, context: bytes, halves: Mapping[bytes, Half] | None = None
    ) -> SumRequest:
        """context: of the pads, as the holder knows it.  halves: by name, where senders sign them. Raises
        DecodeError, and as ``of``.
        """
        _, held = group.opened_header("sum", data)
        if len(held) < _HEAD.size:
            raise DecodeError("a request to open a sum that doesn't say of what")
        length, seed, bits, count = _HEAD.unpack_from(held)
        row = _SENDER if halves is None else _TERM
        padded = any(bits) if halves is None else count > 0
        if len(held) != _HEAD.size + count * row.size or (count == 0) != (length == 1 and not padded):
            raise DecodeError(f"{len(held)} bytes are no request to open the sum of {count} vectors of {length} values")
        among = tuple(name for at, name in enumerate(group.holders) if bits[at // 8] >> at % 8 & 1)
        if sum(bin(one).count("1") for one in bits) != len(among):
            raise DecodeError(f"pads of holders beyond the {len(group.holders)} that there are")
        pads, weights = dict[str, Addend](), dict[str, int]()
        for values in row.iter_unpack(held[_HEAD.size :]):
            pad: Addend | None
            if halves is None:
                place, weight, nonce = values
                sender = group.holders[place - 1] if 1 <= place <= len(group.holders) else ""
                pad = Pad(sender, context, length, nonce, group.answering(among))
            else:
                weight, digest = values
                pad = halves.get(digest)
            if pad is None or not pad.sender or pad.sender in pads or pad.length != length:
                raise DecodeError("a sender that has sent nothing such, or one that is named twice")
            pads[pad.sender], weights[pad.sender] = pad, weight
        return cls.of(group, key, pads, weights, seed)


def sum_dec(
    group: Group,
    key: ckks.PublicKey,
    total: ckks.CipherVector | None,
    pads: Addends,
    weights: Weights,
    *,
    random_bytes: RandomBytes = urandom,
) -> threshold_opening.Prepared:
    """``ServerDec`` of a weighted sum of ciphertexts, joined or signed; without any, of an encryption of zero.

    total: their sum by these weights. Raises CryptoError if it can't be.  random_bytes: for the public seed.
    """
    request, form = SumRequest.of(group, key, pads, weights, drawn(random_bytes, SEED_BYTES)), group.space.fresh
    if (total is None) != (not pads) or (
        total is not None and (total.tally.form, total.length, total.terms) != (form, request.length, request.terms)
    ):
        raise CryptoError(f"{total!r} is not the sum of {len(pads)} padded vectors by these weights")
    switched = _switched(group)
    flood = group.flood(group.deviation(form, request.terms), scalar=False)
    errors = request.deviation, flood / switched.divisor
    if group.emulated:
        words: Integers = np.zeros(request.length, np.int64) if total is None else total.array.copy()
        arrays: Any = key.arrays
        noise = errors[1] * group.spread(False) / switched.scale / group.space.twin_step
        words = twins.add_noise(words, noise, arrays.key_id, b"server")
        c0 = group.times(group.uniform(request.seed, 1, group.limbs), threshold.twin_public(group, key))
        return threshold_opening.Prepared(request, c0, words, form, errors)
    c0 = _zero(group, key, request.c1.shape[0], request.seed, 0)
    if total is not None:
        c0 = group.plus(c0, np.ascontiguousarray(total.array[:, 0]))
    c0 = divided_alone(group, c0, switched)
    return threshold_opening.Prepared(
        request, group.plus(c0, threshold_opening.flooding(group, c0.shape, errors[1])), None, form, errors
    )


def _c1(group: Group, key: ckks.PublicKey, pads: Addends, weights: Weights, length: int, seed: bytes) -> Residues:
    if group.emulated:
        return group.times(group.uniform(seed, 1, group.limbs), threshold.twin_common(group))
    total = _zero(group, key, group.space.ciphertexts(length), seed, 1)
    for name, pad in pads.items():
        total = group.plus(total, _weighted(group, pad.polynomials(group), weights[name]))
    return divided_alone(group, total, _switched(group), at_random=False)


# u b (half 0) or u a (half 1), (count, limbs, N): equal for all ciphertexts of a vector.
def _zero(group: Group, key: ckks.PublicKey, count: int, seed: bytes, half: int) -> Residues:
    arrays: Any = key.arrays
    u = group.ring.transformed(_monomials(group, seed)[None], group.limbs - 1)
    part = group.times(u, arrays.pair[half, : group.limbs][None])
    return np.ascontiguousarray(np.broadcast_to(part, (count, *part.shape[1:])))


def _monomials(group: Group, seed: bytes) -> Integers:
    # (u b, u a) encrypts zero, so a sum that is opened again has another c_1.
    words = residues.secret_words(hashlib.sha256(b"coterie/sum/" + group.digest + seed).digest())(MONOMIALS)
    u = np.zeros(group.degree, np.int64)
    for power in (words % np.uint64(2 * group.degree)).tolist():
        u[power % group.degree] += 1 if power < group.degree else -1
    return u
