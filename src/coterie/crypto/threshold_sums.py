"""Sums of padded vectors that a server can't lie about: every holder computes c_1 itself.

A party that has a c_1 of its choice opened gets the key. Under joint pads c_1 of each vector is public (``Pad``), and
so is that of a weighted sum. So a request names pads and weights, and a seed of 32 bytes:

    c_1 = sum of w_j a_j + u a        divided by the primes that go, to the nearest     ``SumRequest``
    c_0 = sum of w_j c_0j + u b       divided, rounded at random, flooded               ``sum_dec``, the server

(b, a) is the public key and u a sum of ``MONOMIALS`` powers of X that follow from the seed. (u b, u a) encrypts zero,
so a sum that is opened again has another c_1. In ``ServerDec``, ``Enc(0)`` hides what senders chose. Here nobody
chooses c_1, so u may be public and small: its noise is less than that of one encryption. A request without pads, an
encryption of zero, tries a key.

A server still chooses which senders' vectors are in the sum, and their weights. The holders' own rules check both
(``protocols/threshold_opening.py``). A pad that its sender has not used makes the sum uniform.

On the wire a request has no polynomial. After a header as of all parts (``Group.pack``):

    length u64, seed 32 bytes, a bit for each holder that contributed to the pads, number of senders u16,
    place u16, weight u32 and nonce 16 bytes of each sender
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from os import urandom
from typing import Any

import numpy as np

from coterie.crypto import ckks, residues, twins
from coterie.crypto.arrays import RandomBytes, drawn
from coterie.crypto.packing import Integers
from coterie.crypto.residues import Residues
from coterie.crypto.tally import integer_weight
from coterie.crypto.threshold_generation import twin_common, twin_public
from coterie.crypto.threshold_group import MOST_HOLDERS, Group
from coterie.crypto.threshold_opening import Prepared, Request, flooding, spread
from coterie.crypto.threshold_pads import NONCE_BYTES, Pad, divided_alone
from coterie.protocol.errors import CapacityError, CryptoError, DecodeError

SEED_BYTES = 32
MONOMIALS = 4
"""Of u: with N = 8192 there are 2^51 of them, and its noise has twice the deviation of the public key's."""
_HEAD = struct.Struct(f"<Q{SEED_BYTES}s{MOST_HOLDERS // 8}sH")
_SENDER = struct.Struct(f"<HI{NONCE_BYTES}s")


@dataclass(frozen=True, eq=False, repr=False)
class SumRequest(Request):
    """Of a weighted sum of padded vectors, or of zero: c_1 follows from the rest, and does not travel.

    pads, weights: by sender, in the group's order; none for zero.  seed: 32 bytes.
    """

    pads: Mapping[str, Pad]
    weights: Mapping[str, int]
    seed: bytes

    @classmethod
    def of(
        cls,
        group: Group,
        key: ckks.PublicKey,
        pads: Mapping[str, Pad],
        weights: Mapping[str, int],
        seed: bytes,
    ) -> SumRequest:
        """Raises CryptoError for pads and weights that make no sum, CapacityError for too large weights."""
        length = _length(group, pads, weights)
        ordered = [name for name in group.holders if name in pads]
        pads, weights = {name: pads[name] for name in ordered}, {name: weights[name] for name in ordered}
        terms = sum(map(integer_weight, weights.values())) or 1
        if terms > group.space.max_terms:
            most = group.space.max_terms
            raise CapacityError(f"weights of {terms} in all are too many: {group.parameters} has room for {most}")
        form = group.space.fresh
        switched = group.switched(form)
        deviation = math.hypot(group.deviation(form, terms) / switched.divisor, group.rounding(switched))
        c1 = _c1(group, key, pads, weights, length, seed)
        return cls(group, length, terms, len(pads), False, deviation, switched.scale, c1, pads, weights, seed)

    def to_bytes(self) -> bytes:
        """Some 22 bytes a sender."""
        group, among = self.group, bytearray(MOST_HOLDERS // 8)
        for name in next(iter(self.pads.values())).among if self.pads else ():
            at = group.place(name) - 1
            among[at // 8] |= 1 << at % 8
        head = _HEAD.pack(self.length, self.seed, bytes(among), len(self.pads))
        rows = (_SENDER.pack(group.place(name), self.weights[name], pad.nonce) for name, pad in self.pads.items())
        return group.labelled("sum", head, *rows)

    @classmethod
    def read(cls, group: Group, key: ckks.PublicKey, data: bytes, context: bytes) -> SumRequest:
        """context: of the pads, as the holder knows it. Raises DecodeError, and as ``of``."""
        _, held = group.opened_header("sum", data)
        if len(held) < _HEAD.size:
            raise DecodeError("a request to open a sum that doesn't say of what")
        length, seed, bits, count = _HEAD.unpack_from(held)
        if len(held) != _HEAD.size + count * _SENDER.size or (count == 0) != (length == 1 and not any(bits)):
            raise DecodeError(f"{len(held)} bytes are no request to open the sum of {count} vectors of {length} values")
        among = tuple(name for at, name in enumerate(group.holders) if bits[at // 8] >> at % 8 & 1)
        if sum(bin(one).count("1") for one in bits) != len(among):
            raise DecodeError(f"pads of holders beyond the {len(group.holders)} that there are")
        pads, weights = dict[str, Pad](), dict[str, int]()
        for place, weight, nonce in _SENDER.iter_unpack(held[_HEAD.size :]):
            if not 1 <= place <= len(group.holders) or (name := group.holders[place - 1]) in pads:
                raise DecodeError(f"sender {place} of {len(group.holders)} holders, or one that is named twice")
            pads[name] = Pad(name, context, length, nonce, group.answering(among))
            weights[name] = weight
        return cls.of(group, key, pads, weights, seed)


def sum_dec(
    group: Group,
    key: ckks.PublicKey,
    total: ckks.CipherVector | None,
    pads: Mapping[str, Pad],
    weights: Mapping[str, int],
    *,
    random_bytes: RandomBytes = urandom,
) -> Prepared:
    """``ServerDec`` of a weighted sum of ``joint`` ciphertexts; without any, of an encryption of zero.

    total: their sum by these weights. Raises CryptoError if it can't be. random_bytes: n -> n bytes, for the public
        seed.
    """
    request, form = SumRequest.of(group, key, pads, weights, drawn(random_bytes, SEED_BYTES)), group.space.fresh
    if (total is None) != (not pads) or (
        total is not None and (total.tally.form, total.length, total.terms) != (form, request.length, request.terms)
    ):
        raise CryptoError(f"{total!r} is not the sum of {len(pads)} padded vectors by these weights")
    switched = group.switched(form)
    flood = group.flood(group.deviation(form, request.terms), scalar=False)
    errors = request.deviation, flood / switched.divisor
    if group.emulated:
        words: Integers = np.zeros(request.length, np.int64) if total is None else total.array.copy()
        arrays: Any = key.arrays
        noise = errors[1] * spread(group, False) / switched.scale / group.space.twin_step
        words = twins.add_noise(words, noise, arrays.key_id, b"server")
        c0 = group.times(group.uniform(request.seed, 1, group.limbs), twin_public(group, key))
        return Prepared(request, c0, words, form, errors)
    c0 = _zero(group, key, request.c1.shape[0], request.seed, 0)
    if total is not None:
        c0 = group.plus(c0, np.ascontiguousarray(total.array[:, 0]))
    c0 = divided_alone(group, c0, switched)
    return Prepared(request, group.plus(c0, flooding(group, c0.shape, errors[1])), None, form, errors)


def _length(group: Group, pads: Mapping[str, Pad], weights: Mapping[str, int]) -> int:
    """How many values the vectors have; 1 without pads."""
    if set(pads) != set(weights) or any(name != pad.sender for name, pad in pads.items()):
        raise CryptoError("a sum of padded vectors takes a weight and a pad of each sender")
    if len({(pad.length, pad.context, pad.among) for pad in pads.values()}) > 1:
        raise CryptoError("padded vectors of different lengths or contexts, or among different holders")
    return next(iter(pads.values())).length if pads else 1


def _c1(
    group: Group, key: ckks.PublicKey, pads: Mapping[str, Pad], weights: Mapping[str, int], length: int, seed: bytes
) -> Residues:
    if group.emulated:
        return group.times(group.uniform(seed, 1, group.limbs), twin_common(group))
    total = _zero(group, key, group.space.ciphertexts(length), seed, 1)
    for name, pad in pads.items():
        part = residues.multiple(pad.polynomials(group), weights[name], group.moduli(group.limbs))
        total = group.plus(total, part)
    return divided_alone(group, total, group.switched(group.space.fresh), at_random=False)


def _zero(group: Group, key: ckks.PublicKey, count: int, seed: bytes, half: int) -> Residues:
    """u b (half 0) or u a (half 1), ``(count, limbs, N)``: equal for all ciphertexts of a vector."""
    arrays: Any = key.arrays
    u = group.ring.transformed(_monomials(group, seed)[None], group.limbs - 1)
    part = group.times(u, arrays.pair[half, : group.limbs][None])
    return np.ascontiguousarray(np.broadcast_to(part, (count, *part.shape[1:])))


def _monomials(group: Group, seed: bytes) -> Integers:
    """The coefficients of u, ``(N,)``: of each power a sign, X^N being -1."""
    words = residues.secret_words(hashlib.sha256(b"coterie/sum/" + group.digest + seed).digest())(MONOMIALS)
    u = np.zeros(group.degree, np.int64)
    for power in (words % np.uint64(2 * group.degree)).tolist():
        u[power % group.degree] += 1 if power < group.degree else -1
    return u
