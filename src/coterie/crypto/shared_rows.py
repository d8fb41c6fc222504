"""Rows of whole numbers that two servers hold in shares, and that each client can fetch one of. See
docs/systems/coterie_appendix.md.

**Numbers.** Words in Z_q, q = 2^32, little-endian. u is a client's change, w its weight, S the grid's steps:

    x = floor(w S min(1, C / |u|) u + uniform[0, 1))                                             (1)
    T_g <- T_g + sum mu x,   mu = round(16 nu (1 - a / 16)),   nu = min(2, expected / on time)     (2)
    model_g = start + T_g / (16 S D_g)                                                           (3)

a: by how many rounds an upload is late. D_g: the weight of the group's members. **Groups that are made anew** begin
with rows of zeros, and their first round with whole models (``Grid.whole``).

**Rows.** T is the sum of both servers' shares. Each server adds a keystream to its share V; both hold Y = V^A + V^B,
which a client with both keys of its group opens. It fetches its row by two-server private information retrieval
(``queries``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from coterie.crypto.one_hot import BLOCK, move
from coterie.protocol.arrays import Doubles, Flags, Words
from coterie.protocol.digests import sha256
from coterie.protocol.errors import CryptoError, UserError
from coterie.protocol.randomness import Secrets

KEY_BYTES, NONCE_BYTES, NAME_BYTES = 16, 16, 32
PARTS = 16
"""A weight, a lateness and a server's step are in sixteenths."""
OLDEST = PARTS - 1
"""Rounds that an upload may be late."""
MOST_WEIGHT = 2 * PARTS
ROOM = 1 << 30
NOISE_ROOM = 128
FINEST, COARSEST = 1 << 17, 1 << 10
"""Steps that a length of C has."""


@dataclass(frozen=True)
class Grid:
    """clip: C.  steps: S C.  length: d.  parts: of a vector, each of which is clipped."""

    clip: float
    steps: int
    length: int
    parts: int = 1

    @classmethod
    def of(cls, clip: float, clients: int, length: int, parts: int = 1, noise: float = 0.0) -> Grid:
        """The finest grid for a round of so many clients. Raises UserError if none fits.

        noise: standard deviation of each server's noise, over C. Rows have room for what 500 rounds add up to.
        """
        steps, taken = FINEST, clients + NOISE_ROOM * noise
        # One round moves a word by less than 2^30.
        while MOST_WEIGHT * taken * (steps + length**0.5) >= ROOM:
            steps //= 2
            if steps < COARSEST:
                raise UserError(
                    f"sums of {clients} clients and {length} weights do not fit words of 32 bits: of so many weights "
                    f"at most {int(ROOM / MOST_WEIGHT / (COARSEST + length**0.5))} clients can take part"
                )
        return cls(clip, steps, length, parts)

    @property
    def longest(self) -> float:
        one = self.steps**2 + self.length / 4 + self.steps + self.length**0.5 / 2
        return float((self.parts * one) ** 0.5)

    def words(self, change: Doubles, weight: float, rng: np.random.Generator, apart: Flags | None = None) -> Words:
        """(d,) words of a change (d,), clipped and rounded at random (1). apart: what is clipped by itself.

        rng: need not be secret: nobody sees x but in sums. Raises CryptoError for an impossible change.
        """
        if change.shape != (self.length,) or not np.isfinite(change).all():
            raise CryptoError(f"a change {change.shape} that is not finite, or not of {self.length} numbers")
        scale = np.empty(self.length) if apart is not None and apart.any() else np.empty(1)
        for part in (slice(None),) if apart is None or len(scale) == 1 else (apart, ~apart):
            scale[part] = weight * self.steps / max(squares(change[part]) ** 0.5, self.clip)
        scale, x = np.broadcast_to(scale, self.length), np.empty(self.length, np.int32)
        buffers = np.empty((3, min(self.length, BLOCK)))
        while True:
            total = 0.0
            for at in range(0, self.length, BLOCK):
                part = slice(at, at + BLOCK)
                whole, above, uniform = buffers[:, : self.length - at]
                np.multiply(change[part], scale[part], out=above)
                np.floor(above, out=whole)
                above -= whole
                whole += rng.random(out=uniform) < above
                total += squares(whole)
                x[part] = whole
            if total <= self.longest**2:
                return x.view(np.uint32)

    def whole(self, model: Doubles, weight: float, clients: int) -> tuple[Words, bool]:
        """(d + 1,) words of a whole model less the start (d,), and of its weight, and whether some were cut to fit."""
        # x has w S (model - start) on top, and rows one more word, to which w S C is added: so members begin from the
        # mean.
        most = ROOM // (MOST_WEIGHT * clients)
        exact = np.rint(np.append(model / self.clip, 1.0) * (weight * self.steps))
        return np.clip(exact, -most, most).astype(np.int64).astype(np.uint32), bool((np.abs(exact) > most).any())

    def change(self, total: NDArray[np.int32], weight: int) -> Doubles:
        """(d,) the mean change of a group since its rows began (3). weight: D_g, in sixteenths."""
        return np.asarray(total * (self.clip / self.steps / weight), np.float64)

    def mean(self, change: Doubles) -> Doubles:
        """(d,) the mean model less the start, of a ``change`` (d + 1,) of whole models; 0 if nobody sent one."""
        there = change[-1] / self.clip
        return change[:-1] / there if there > 1 / PARTS else np.zeros(len(change) - 1)


def squares(x: Doubles) -> float:
    # The threads of BLAS, once woken, stay busy for longer than this takes.
    return float(np.einsum("i,i", x, x))


def upload_weight(age: int, expected: int, on_time: int) -> int:
    """mu of (2), at least 1. Raises CryptoError for too old an upload."""
    if not 0 <= age <= OLDEST or expected < 1:
        raise CryptoError(f"an upload {age} rounds late; at most {OLDEST} are possible")
    step = min(2.0, expected / max(on_time, 1))
    return max(1, round(PARTS * step * (1 - age / PARTS)))


def may_wrap(total: NDArray[np.int32]) -> bool:
    """Whether the next round's sum could wrap."""
    return bool(total.max(initial=0) >= ROOM or total.min(initial=0) <= -ROOM)


def noise(shape: tuple[int, ...], deviation: float, secrets: Secrets) -> Words:
    if not deviation:
        return np.zeros(shape, np.uint32)
    drawn = secrets.normal(int(np.prod(shape)))
    drawn *= deviation
    return np.rint(drawn, out=drawn).astype(np.int64).astype(np.uint32).reshape(shape)


def masked(totals: Words, masks: Sequence[bytes], nonce: bytes) -> Words:
    """V: a server's share (G, d) under keys, one a row. A nonce is used once."""
    sealed = totals.copy()
    for row, key in zip(sealed, masks, strict=True):
        move(row, np.add, key, nonce)
    return sealed


def unmasked(row: Words, masks: Sequence[bytes], nonces: Sequence[bytes]) -> NDArray[np.int32]:
    """T_g (d,) from its sealed row."""
    total = row.copy()
    for key, nonce in zip(masks, nonces, strict=True):
        move(total, np.subtract, key, nonce)
    return total.view(np.int32)


def row_names(rows: Words) -> bytes:
    """SHA-256 of each row (G, d), in order."""
    return b"".join(sha256(np.ascontiguousarray(row, "<u4")) for row in rows)


def is_query(query: bytes, groups: int) -> bool:
    return len(query) == -(-groups // 8) and int.from_bytes(query, "little") < 1 << groups


def queries(group: int, groups: int, secrets: Secrets) -> tuple[bytes, bytes]:
    size = -(-groups // 8)
    # Uniform bits to one server, the same but for the group's to the other (Chor, Goldreich, Kushilevitz, Sudan, FOCS
    # 1995).
    one = int.from_bytes(secrets.bytes(size), "little") % (1 << groups)
    return one.to_bytes(size, "little"), (one ^ 1 << group).to_bytes(size, "little")


def answer(rows: Words, query: bytes) -> Words:
    named = int.from_bytes(query, "little")
    chosen = [row for j, row in enumerate(rows) if named >> j & 1] or [np.zeros_like(rows[0])]
    total: Words = chosen[0].copy()
    for row in chosen[1:]:
        total ^= row
    return total


def fetched(answers: Sequence[Words]) -> Words:
    return reduce(np.bitwise_xor, answers)
