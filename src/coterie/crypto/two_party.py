"""Two parties that hold shares of whole numbers multiply them, and learn which is the greatest.

A number z is shared as z_0 + z_1 mod 2^64. A dealer, who takes no part, has given both correlated random numbers
(``deal``). Both run the same generator; what one yields is sent to the other (``Exchange``).

- **Products** x J y of rows, J fixed and symmetric: Beaver's triples for matrices (Beaver, CRYPTO 1991; Mohassel,
  Zhang, SecureML, IEEE S&P 2017).
- **Bits**, which are shared mod 2, are shared mod 2^64: b + r is opened for a dealt bit r that is shared in both ways
  (Rotaru, Wood, INDOCRYPT 2019). So a number of k shared bits is below 2^k, whatever its owner sends.
- **Comparisons**: z + r is opened for a dealt r with shared bits. The sign of z follows from the borrow of a
  subtraction, by a tree of ANDs (Damgard, Fitzi, Kiltz, Nielsen, Toft, TCC 2006; Catrina, de Hoogh, SCN 2010).
- **The greatest** of many is found by a tree of comparisons whose signs s stay shared: a + s (b - a), by a dealt bit r
  and a dealt r d. Only a mark of the greatest is opened.

Secrecy holds against one party that follows the protocol, unconditionally but for the keystream that stretches seeds.
What a party that deviates may learn is not bounded here. No number may be used twice: a caller counts what it has used.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from coterie.crypto.one_hot import SEED_BYTES
from coterie.crypto.signing import digest
from coterie.protocol.arrays import Words64
from coterie.protocol.errors import DecodeError
from coterie.protocol.randomness import keystream

T = TypeVar("T")
Exchange = Generator[bytes, bytes, T]
"""Yields what the other party gets, is sent what that one yields, and returns a result."""
Bits = NDArray[np.uint8]

# Words of a comparison: z's mask and its bits; u, v, u v of ANDs; a bit r for the choice; r mod 2^64; d and r d.
_MASK, _BITS, _U, _V, _UV, _R, _LIFTED, _D, _RD = (
    *(slice(0, 1), slice(1, 2), slice(2, 4), slice(4, 6), slice(6, 8)),
    *(slice(8, 9), slice(9, 10), slice(10, 12), slice(12, 14)),
)
_DRAWN = _RD.stop
_CORRECTED = (_BITS, _UV, _LIFTED, _RD)  # at party 1, which has no seed that gives them
_CORRECTIONS = sum(place.stop - place.start for place in _CORRECTED)
_BLOCKS = 8 * _DRAWN // 16  # of the keystream


@dataclass(frozen=True)
class Sizes:
    """How much is dealt. clients, groups: rows and columns of products.  length: of a row.  comparisons: in all.

    placings: how often newcomers' rows can be multiplied with those of groups.  bits: of each client's number. Without
    length there is nothing but these.
    """

    clients: int
    groups: int
    length: int
    comparisons: int
    placings: int
    bits: int

    @property
    def uses(self) -> tuple[str, ...]:
        return ("founding", *(f"placing {at}" for at in range(self.placings)))

    def products(self) -> dict[str, tuple[int, int]]:
        if not self.length:
            return {}
        some = {"founding": (self.clients, self.clients)}
        for at in range(self.placings):
            some |= {f"placing {at} a": (self.clients, self.groups), f"placing {at} b": (self.groups, self.clients)}
        return some

    def corrections(self) -> dict[str, tuple[int, int]]:
        """Of party 1, in this order, before those of comparisons."""
        return {**self.products(), **{f"{name} bits": (self.clients, self.bits) for name in self.uses}}


@dataclass(frozen=True, eq=False, repr=False)
class Dealt:
    """SECRET: one party's part. party: 0 or 1.  key: of its keystreams.  corrections: of party 1, from ``deal``."""

    party: int
    sizes: Sizes
    key: bytes
    corrections: bytes = b""

    def corrected(self, at: int, *shape: int) -> Words64:
        count = int(np.prod(shape))
        return np.frombuffer(self.corrections, "<u8", count, 8 * at).reshape(shape)


def deal(sizes: Sizes, twisted: Callable[[Words64], Words64], keys: tuple[bytes, bytes]) -> bytes:
    """Party 1's corrections, for the keys of both (16 bytes each). twisted: rows -> J rows."""
    parts = list[Words64]()
    for name, (rows, columns) in sizes.products().items():
        own, other = _matrix(keys[0], name, rows, sizes.length), _matrix(keys[1], name, columns, sizes.length)
        parts.append(own @ twisted(other).T - _matrix(keys[0], f"{name} product", rows, columns))
    for name in sizes.uses:
        own, other = (_matrix(key, f"{name} bits", sizes.clients, sizes.bits) for key in keys)
        parts.append(((own ^ other) & np.uint64(1)) - _matrix(keys[0], f"{name} lifted", sizes.clients, sizes.bits))
    one, two = (_drawn(key, 0, sizes.comparisons) for key in keys)
    bits = (one[:, _MASK] + two[:, _MASK]) ^ one[:, _BITS]
    ands = (one[:, _U] ^ two[:, _U]) & (one[:, _V] ^ two[:, _V]) ^ one[:, _UV]
    r = (one[:, _R] ^ two[:, _R]) & np.uint64(1)
    chosen = r * (one[:, _D] + two[:, _D]) - one[:, _RD]
    parts.append(np.concatenate([bits, ands, r - one[:, _LIFTED], chosen], axis=1))
    return b"".join(part.astype("<u8").tobytes() for part in parts)


def corrections_bytes(sizes: Sizes) -> int:
    words = sum(rows * columns for rows, columns in sizes.corrections().values())
    return 8 * (words + _CORRECTIONS * sizes.comparisons)


# ------------------------------------------------------------------------------------------------------------- products


def squared(dealt: Dealt, x: Words64, twisted: Callable[[Words64], Words64]) -> Exchange[Words64]:
    """(n, n) this party's share of x J x for the shared rows x (n, length), n at most ``clients``."""
    cross = yield from _crossed(dealt, ("founding",), (x,), twisted)
    return x @ twisted(x).T + cross[0] + cross[0].T


def multiplied(
    dealt: Dealt, placing: int, x: Words64, y: Words64, twisted: Callable[[Words64], Words64]
) -> Exchange[Words64]:
    """(n, k) this party's share of x J y for shared rows x (n, length) and y (k, length), by the placing's numbers."""
    names = f"placing {placing} a", f"placing {placing} b"
    own = (x, y) if dealt.party == 0 else (y, x)
    cross = yield from _crossed(dealt, names, own, twisted)
    return x @ twisted(y).T + cross[0] + cross[1].T


def _crossed(
    dealt: Dealt, names: tuple[str, ...], own: tuple[Words64, ...], twisted: Callable[[Words64], Words64]
) -> Exchange[list[Words64]]:
    length = dealt.sizes.length
    masks = [_matrix(dealt.key, name, len(rows), length) for name, rows in zip(names, own, strict=True)]
    hidden = [rows - mask for rows, mask in zip(own, masks, strict=True)]
    data = yield b"".join(one.astype("<u8").tobytes() for one in hidden)
    counts = _others([len(rows) for rows in own])
    theirs = np.split(_words(data, sum(counts), length), np.cumsum(counts)[:-1])
    shares = list[Words64]()
    for name, rows, mask, other in zip(names, own, masks, theirs, strict=True):
        if dealt.party == 0:
            wide = dealt.sizes.products()[name][1]
            product = _matrix(dealt.key, f"{name} product", len(rows), wide)[:, : len(other)]
            shares.append(rows @ twisted(other).T + product)
        else:
            product = _correction(dealt, name)[: len(other), : len(rows)]
            shares.append(other @ twisted(mask).T + product)
    return shares


def _others(counts: list[int]) -> list[int]:
    return counts[::-1]


def _correction(dealt: Dealt, name: str) -> Words64:
    at = 0
    for one, shape in dealt.sizes.corrections().items():
        if one == name:
            return dealt.corrected(at, *shape)
        at += shape[0] * shape[1]
    raise KeyError(name)


# ---------------------------------------------------------------------------------------------------------------- bits


def lifted(dealt: Dealt, name: str, bits: Words64) -> Exchange[Words64]:
    """(n, k) shares mod 2^64 of bits (n, k) that are shared mod 2. name: for what they were dealt."""
    shape = dealt.sizes.clients, dealt.sizes.bits
    own = ((bits ^ _matrix(dealt.key, f"{name} bits", *shape)[: len(bits)]) & 1).astype(np.uint8)
    data = yield np.packbits(own).tobytes()
    opened = own ^ _unpacked(data, own.size).reshape(own.shape)
    random = _matrix(dealt.key, f"{name} lifted", *shape) if dealt.party == 0 else _correction(dealt, f"{name} bits")
    share = random[: len(bits)]
    flipped = np.negative(share) + np.uint64(dealt.party == 0)  # of 1 - r
    return np.where(opened == 1, flipped, share)


# --------------------------------------------------------------------------------------------------------- comparisons


def greatest(dealt: Dealt, used: int, values: Sequence[Words64], marks: Sequence[Sequence[int]]) -> Exchange[list[int]]:
    """Of each list of shared numbers (k,), read as signed, the mark of the greatest, or of the first of these.

    Both learn these marks alone. Numbers of a list must be less than 2^63 apart. used: comparisons so far; a list takes
    k - 1.
    """
    left = [
        np.column_stack([own, np.array(named, np.uint64) * (dealt.party == 0)])
        for own, named in zip(values, marks, strict=True)
    ]
    while any(len(one) > 1 for one in left):
        halves = [len(one) // 2 for one in left]
        pairs = np.concatenate([one[: 2 * half].reshape(half, 2, 2) for one, half in zip(left, halves, strict=True)])
        greater = yield from _greater(dealt, used, pairs[:, 0], pairs[:, 1])
        used += len(pairs)
        parts = np.split(greater, np.cumsum(halves)[:-1])
        left = [np.concatenate([part, one[2 * len(part) :]]) for part, one in zip(parts, left, strict=True)]
    own = np.stack([one[0, 1] for one in left])
    data = yield own.astype("<u8").tobytes()
    opened: list[int] = (own + _words(data, 1, len(own))[0]).tolist()
    if not all(mark in named for mark, named in zip(opened, marks, strict=True)):
        raise DecodeError("a mark that none of the numbers has")
    return opened


def _greater(dealt: Dealt, used: int, a: Words64, b: Words64) -> Exchange[Words64]:
    """(p, 2) shares of the rows of b (p, 2) whose first number is above that of a's row, and of a's rows otherwise."""
    numbers, apart = _comparisons(dealt, used, len(a)), b - a
    above = yield from _above_zero(dealt.party, numbers, apart[:, 0])
    flips, hidden = above ^ _bits(numbers[:, _R])[:, 0], apart - numbers[:, _D]
    data = yield np.packbits(flips).tobytes() + hidden.astype("<u8").tobytes()
    size = -(-len(a) // 8)
    flipped = flips ^ _unpacked(data[:size], len(a))
    product = numbers[:, _LIFTED] * (hidden + _words(data[size:], *hidden.shape)) + numbers[:, _RD]  # r (b - a)
    return a + np.where(flipped[:, None] == 1, apart - product, product)


def _comparisons(dealt: Dealt, used: int, count: int) -> Words64:
    """(count, _DRAWN) dealt for the comparisons after so many. Raises DecodeError for too many."""
    if used + count > dealt.sizes.comparisons:
        raise DecodeError(f"{used + count} comparisons; {dealt.sizes.comparisons} were dealt")
    numbers = _drawn(dealt.key, used, count)
    if dealt.party == 1:
        at = len(dealt.corrections) // 8 - _CORRECTIONS * (dealt.sizes.comparisons - used)
        fixed, numbers = dealt.corrected(at, count, _CORRECTIONS), numbers.copy()
        for place in _CORRECTED:
            width = place.stop - place.start
            numbers[:, place], fixed = fixed[:, :width], fixed[:, width:]
    return numbers


def _above_zero(party: int, numbers: Words64, values: Words64) -> Exchange[Bits]:
    """(b,) shares mod 2 of whether the shared numbers (b,), read as signed, are above 0."""
    own = numbers[:, 0] - values  # -z is negative where z is above 0
    data = yield own.astype("<u8").tobytes()
    opened = _bits((own + _words(data, 1, len(own))[0])[:, None])
    secret = _bits(numbers[:, _BITS])
    leading = secret[:, 63] ^ (opened[:, 63] if party == 0 else 0)
    triples = [_bits(numbers[:, place]) for place in (_U, _V, _UV)]
    borrow = yield from _borrow(party, opened[:, :63], secret[:, :63], triples)
    return np.asarray(leading ^ borrow, np.uint8)


def _borrow(party: int, opened: Bits, secret: Bits, triples: list[Bits]) -> Exchange[Bits]:
    """(b,) shares of whether the opened numbers are below the secret ones. Both are bits (b, 63), lowest first."""
    generate = (1 ^ opened) & secret
    propagate: Bits = (secret ^ 1 ^ opened).astype(np.uint8) if party == 0 else secret
    generate = np.pad(generate, ((0, 0), (0, 1)))
    propagate = np.pad(propagate, ((0, 0), (0, 1)), constant_values=1 - party)
    at = 0
    while generate.shape[1] > 1:
        high, half = propagate[:, 1::2], generate.shape[1] // 2
        some = [triple[:, at : at + 2 * half] for triple in triples]
        at += 2 * half
        left = np.concatenate([high, high], axis=1)
        right = np.concatenate([generate[:, ::2], propagate[:, ::2]], axis=1)
        product = yield from _and(party, left, right, some)
        generate, propagate = generate[:, 1::2] ^ product[:, :half], product[:, half:]
    return np.ascontiguousarray(generate[:, 0])


def _and(party: int, left: Bits, right: Bits, triple: list[Bits]) -> Exchange[Bits]:
    """Shares of the bitwise AND of shared bits (b, m): Beaver's triple u v = w."""
    u, v, w = triple
    own = np.stack([left ^ u, right ^ v])
    data = yield np.packbits(own).tobytes()
    d, e = own ^ _unpacked(data, own.size).reshape(own.shape)
    return np.asarray(w ^ (d & v) ^ (e & u) ^ (d & e & (1 - party)), np.uint8)


# ------------------------------------------------------------------------------------------------------------- streams


def _matrix(key: bytes, name: str, rows: int, columns: int) -> Words64:
    """(rows, columns) random words; more rows leave the first ones as they are."""
    own = digest("coterie/two-party/1", key, name)[:SEED_BYTES]
    return np.frombuffer(keystream(own, 8 * rows * columns), "<u8").reshape(rows, columns)


def _drawn(key: bytes, used: int, count: int) -> Words64:
    own = digest("coterie/comparisons/1", key)[:SEED_BYTES]
    data = keystream(own, 8 * _DRAWN * count, (_BLOCKS * used).to_bytes(16, "big"))
    return np.frombuffer(data, "<u8").reshape(count, _DRAWN)


def _words(data: bytes, rows: int, columns: int) -> Words64:
    if len(data) != 8 * rows * columns:
        raise DecodeError(f"{len(data)} bytes where {rows} x {columns} words were expected")
    return np.frombuffer(data, "<u8").reshape(rows, columns)


def _bits(words: Words64) -> Bits:
    return np.unpackbits(np.ascontiguousarray(words).astype("<u8").view(np.uint8), axis=1, bitorder="little")


def _unpacked(data: bytes, count: int) -> Bits:
    if len(data) != -(-count // 8):
        raise DecodeError(f"{len(data)} bytes for {count} bits")
    return np.unpackbits(np.frombuffer(data, np.uint8), count=count)
