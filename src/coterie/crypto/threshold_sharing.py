"""Shares of a key: additive (n-of-n) and Shamir's (t-of-n), handing them over, and shares of zero.

A share is an element of the ciphertexts' ring, modulo each prime. n-of-n: the shares add up to the key. t-of-n: they
are Shamir's (``shamir``). Which holders answer is fixed first; then each one's share times its Lagrange coefficient is
an additive share, and nothing with noise is ever multiplied by a large coefficient.

**Handing over.** Each of the answering holders shares its additive share anew, and a new holder adds up what it gets.
The key stays the same, the new shares are independent of the old: an old and a new share together say nothing. Who has
kept enough old shares still opens, so holders erase them, or a new key is made.

**Shares of zero.** Every two answering holders have a common secret seed. For a ciphertext each derives a uniform
polynomial from it, which one of them adds and the other subtracts: each partial decryption alone is uniform, and only
the sum of all is what it would be without. So no subset of answers says anything of a share.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import urandom

import numpy as np

from coterie.crypto import residues
from coterie.crypto.arrays import RandomBytes, drawn
from coterie.crypto.packing import Integers
from coterie.crypto.residues import Residues
from coterie.crypto.shamir import lagrange, split
from coterie.crypto.threshold_group import Group
from coterie.protocol.errors import CryptoError, DecodeError, UserError

SEED_BYTES = 32


@dataclass(frozen=True, eq=False, repr=False)
class Share:
    """SECRET: what one holder has of the key, ``(limbs, degree)``."""

    group: Group
    numbers: Residues

    def __repr__(self) -> str:
        return f"<Share of {self.group.digest.hex()[:8]}>"

    def __deepcopy__(self, memo: object) -> Share:
        return self

    def to_bytes(self) -> bytes:
        """SECRET."""
        return self.group.pack("share", bytes(16), self.numbers, real=_real(self.group))

    @classmethod
    def load(cls, group: Group, data: bytes) -> Share:
        """Raises DecodeError, also for a share of another group."""
        return cls(group, group.unpack("share", data, (group.limbs, group.degree), real=_real(group))[0])

    def additive(self, me: str, among: Sequence[str]) -> Residues:
        """This share times its Lagrange coefficient: those of all in ``among`` add up to the key."""
        names = self.group.answering(tuple(among))
        if me not in names:
            raise UserError(f"{me} is not among those that answer: {', '.join(names)}")
        if self.group.additive:
            return self.numbers
        places = [self.group.place(name) for name in names]
        coefficient = lagrange(self.group.place(me), places, self.group.moduli(self.group.limbs))
        return np.asarray(self.group.times(self.numbers[None], coefficient)[0])

    def handed(
        self, me: str, among: Sequence[str], group: Group, random_bytes: RandomBytes = urandom
    ) -> dict[str, bytes]:
        """SECRET: each new holder's part, to be sealed to it. among: the holders that hand over.

        random_bytes: n -> n secret random bytes.
        """
        if group.space.identity != self.group.space.identity or group.digest == self.group.digest:
            raise UserError("a key is handed to a group with the same parameters and another label or other holders")
        return handed(group, self.additive(me, among), self.group.answering(tuple(among)), random_bytes)


def handed(
    group: Group, numbers: Residues, senders: Sequence[str], random_bytes: RandomBytes = urandom
) -> dict[str, bytes]:
    """SECRET: ``(limbs, degree)`` shared anew: each holder's part in ``group``, to be sealed to it.

    senders: all whose parts add up to the key; recipients check it.
    """
    tag = senders_tag(senders)
    random = group.uniform(drawn(random_bytes, 32), group.needed - 1, group.limbs)
    if group.additive:
        given = _additive(group, numbers, random)
    else:
        given = split(numbers, random, range(1, len(group.holders) + 1), group.moduli(group.limbs))
    return {
        name: group.pack("part", tag, part, real=_real(group)) for name, part in zip(group.holders, given, strict=True)
    }


def gathered(group: Group, me: str, parts: Mapping[str, bytes]) -> Share:
    """The share of holder ``me``, from all senders' parts. Raises DecodeError naming a sender."""
    group.place(me)
    tag, total = senders_tag(tuple(parts)), np.zeros((1, group.limbs, group.degree), dtype=np.uint64)
    for name, data in parts.items():
        try:
            part = group.unpack("part", data, (group.limbs, group.degree), tag=tag, real=_real(group))[0]
        except DecodeError as error:
            raise DecodeError(f"{name}: {error} (or not all that share have sent)") from None
        total = group.plus(total, part[None])
    return Share(group, total[0])


def senders_tag(names: Sequence[str]) -> bytes:
    """16 bytes that name a set of parties."""
    every = b"".join(len(name.encode()).to_bytes(4, "little") + name.encode() for name in sorted(names))
    return hashlib.sha256(b"coterie/senders/" + every).digest()[:16]


@dataclass(frozen=True)
class Zero:
    """SECRET: the seeds that a holder shares with each of the others, 32 bytes each."""

    me: str
    seeds: Mapping[str, bytes]

    def __repr__(self) -> str:
        return f"<Zero of {self.me} with {len(self.seeds)} others>"

    def share(self, group: Group, among: Sequence[str], tag: bytes, shape: tuple[int, int, int]) -> Residues:
        """A share of zero ``(count, limbs, degree)``: those of all in ``among`` add up to nothing.

        tag: 16 bytes that name its purpose. Raises CryptoError if a seed is missing.
        """
        total = np.zeros(shape, dtype=np.uint64)
        for key, adds in self._keys(among, tag):
            ours = residues.uniform(residues.secret_words(key), shape, group.moduli(shape[1]))
            total = group.plus(total, ours) if adds else group.minus(total, ours)
        return total

    def words(self, among: Sequence[str], tag: bytes, length: int) -> Integers:
        """A share of zero of a twin: ``(length,) int64`` that add up to nothing modulo 2^64."""
        total = np.zeros(length, dtype=np.int64)
        for key, adds in self._keys(among, tag):
            ours = np.random.SFC64(int.from_bytes(key, "little")).random_raw(length).view(np.int64)
            total = total + ours if adds else total - ours
        return total

    def _keys(self, among: Sequence[str], tag: bytes) -> Iterator[tuple[bytes, bool]]:
        """Of each other holder: 32 common bytes, and whether this one adds."""
        set_tag = senders_tag(among)
        for other in among:
            if other == self.me:
                continue
            seed = self.seeds.get(other, b"")
            if len(seed) != SEED_BYTES:
                raise CryptoError(f"{self.me} and {other} have no common seed of {SEED_BYTES} bytes")
            yield hashlib.sha256(b"coterie/zero/" + seed + tag + set_tag).digest(), self.me < other


def _additive(group: Group, numbers: Residues, random: Residues) -> list[Residues]:
    rest = numbers[None]
    for one in random:
        rest = group.minus(rest, one[None])
    return [*random, rest[0]]


def _real(group: Group) -> tuple[int, int]:
    return group.space.degree, group.space.levels + 1
