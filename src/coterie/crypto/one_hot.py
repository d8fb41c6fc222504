"""Shares of a vector at one of G places, of which neither of two servers learns the vector or the place.

A point function over few leaves, shared as its list of leaves (Boyle, Gilboa, Ishai, "Function secret sharing",
EUROCRYPT 2015): seeds a_j for one server and b_j for the other, equal for all j but the client's place g, and one
correction word. P(s) is a keystream of key s, bit(s) the lowest bit of its first byte.

    cw = (-1)^(1 - bit(a_g)) (x - P(a_g) + P(b_g))                                             (4)
    T_j += P(a_j) + bit(a_j) cw          T_j -= P(b_j) + bit(b_j) cw                           (7)

For j other than g both servers add the same; at g the difference is x. The **tag** shows that the seeds differ at most
at one place (de Castro, Polychroniadou, "Lightweight, maliciously secure verifiable function secret sharing", EUROCRYPT
2022, section 3):

    cs = H(a_g) xor H(b_g)                                                                     (5)
    pi_j = H(s_j) xor bit(s_j) cs,   tag = SHA-256(context, cs, SHA-256(cw), pi_0 ... pi_{G-1})  (6)

The upload counts if both servers' tags are equal. A server can compute an honest client's tag alone, so the other's
shows nothing. H is SHA-512 of context, place and seed. Two places, or another cw at one server, need a collision of
four of its values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

from coterie.protocol.arrays import Words
from coterie.protocol.digests import sha256
from coterie.protocol.errors import CryptoError
from coterie.protocol.randomness import Secrets, keystream

SEED_BYTES, CHECK_BYTES, TAG_BYTES = 16, 64, 32
BLOCK = 1 << 14  # words at a time, so that the passes of one sum stay in the cache
_ZEROS = memoryview(bytes(4 * BLOCK))


@dataclass(frozen=True, eq=False, repr=False)
class Shares:
    """word: cw (d,).  check: cs.  master: of one server's seeds.  seeds: the other's, SECRET from the first."""

    word: Words
    check: bytes
    master: bytes
    seeds: bytes


def streamed(key: bytes, count: int, start: bytes = bytes(16)) -> Iterator[tuple[slice, Words]]:
    """P(key), (count,) words: parts with their places. The next part overwrites the last."""
    cipher, held = Cipher(AES(key), CTR(start)).encryptor(), np.empty(min(count, BLOCK), "<u4")
    for at in range(0, count, BLOCK):
        words = held[: count - at]
        cipher.update_into(_ZEROS[: words.nbytes], words.view(np.uint8).data)
        yield slice(at, at + len(words)), words


def move(words: Words, by: np.ufunc, key: bytes, start: bytes = bytes(16)) -> None:
    """Add P(key) to words (d,) in place, or subtract it. by: ``np.add`` or ``np.subtract``."""
    for place, stream in streamed(key, len(words), start):
        by(words[place], stream, out=words[place])


def seeds_of(master: bytes, groups: int) -> bytes:
    """a_0 ... a_{G-1}, 16 bytes each."""
    return keystream(master, SEED_BYTES * groups)


def shared(x: Words, group: int, groups: int, context: bytes, secrets: Secrets) -> Shares:
    """x (d,) words at this place. context: 32 bytes, for the tag. Raises CryptoError for no place."""
    if not 0 <= group < groups or x.dtype != np.uint32 or x.ndim != 1:
        raise CryptoError(f"a vector {x.dtype} {x.shape} at place {group} of {groups}")
    master, other = secrets.bytes(SEED_BYTES), bytearray(secrets.bytes(SEED_BYTES))
    # With one place the second server adds P(b_0) alone, and the name of cw is enough for its tag.
    while groups == 1 and not _bit(seeds_of(master, 1)):
        master = secrets.bytes(SEED_BYTES)
    seeds = seeds_of(master, groups)
    own = _seed(seeds, group)
    other[0] = other[0] & 0xFE | (1 - _bit(own))
    word = x.copy()
    move(word, np.subtract, own)  # (4)
    move(word, np.add, bytes(other))
    if not _bit(own):
        np.negative(word, out=word)
    check = _xor(_hash(context, group, own), _hash(context, group, bytes(other)))  # (5)
    at = SEED_BYTES * group
    return Shares(word, check, master, seeds[:at] + bytes(other) + seeds[at + SEED_BYTES :])


def word_name(word: bytes | Words) -> bytes:
    """SHA-256 of cw."""
    return sha256(word if isinstance(word, bytes) else np.ascontiguousarray(word, "<u4"))


def tag(context: bytes, seeds: bytes, check: bytes, named: bytes) -> bytes:
    """32 bytes, equal at both servers for a well-formed upload (6). named: ``word_name`` of cw.

    Raises CryptoError for other lengths.
    """
    if len(seeds) % SEED_BYTES or not seeds or len(check) != CHECK_BYTES or {len(context), len(named)} != {32}:
        lengths = len(check), len(context), len(named)
        raise CryptoError(f"{len(seeds)} bytes of seeds, and {lengths} of a check, a context and a word's name")
    told = hashlib.sha256(b"coterie/tag/" + context + check + named)
    for j in range(len(seeds) // SEED_BYTES):
        seed = _seed(seeds, j)
        proof = _hash(context, j, seed)
        told.update(_xor(proof, check) if _bit(seed) else proof)
    return told.digest()


def no_word(seeds: bytes, length: int) -> Words:
    """In place of cw, for the second server with one place. Raises CryptoError for seeds that would add cw."""
    if len(seeds) != SEED_BYTES or _bit(seeds):
        raise CryptoError("seeds that add cw, of which there is only the name")
    return np.broadcast_to(np.uint32(0), (length,))


def share(seeds: bytes, word: Words) -> Words:
    """(d,) the sum of a server's leaves: its share of x, negative at the second."""
    total = word * np.uint32(sum(_bit(_seed(seeds, j)) for j in range(len(seeds) // SEED_BYTES)))
    for j in range(len(seeds) // SEED_BYTES):
        move(total, np.add, _seed(seeds, j))
    return total


def fold(totals: Words, seeds: bytes, word: Words, weight: int) -> None:
    """Add ``weight`` times an upload to every row of ``totals`` (G, d), in place (7); a negative weight subtracts.

    Raises CryptoError for other numbers of seeds or words.
    """
    if len(seeds) != SEED_BYTES * len(totals) or word.shape != totals.shape[1:]:
        raise CryptoError(f"{len(seeds)} bytes of seeds and words {word.shape} for rows {totals.shape}")
    factor = np.uint32(weight % 2**32)
    for j, row in enumerate(totals):
        seed = _seed(seeds, j)
        for place, leaves in streamed(seed, len(row)):
            if _bit(seed):
                leaves += word[place]
            leaves *= factor
            row[place] += leaves


def _seed(seeds: bytes, j: int) -> bytes:
    return seeds[SEED_BYTES * j : SEED_BYTES * (j + 1)]


def _bit(seed: bytes) -> int:
    return seed[0] & 1


def _hash(context: bytes, j: int, seed: bytes) -> bytes:
    return hashlib.sha512(b"coterie/one-hot/" + context + j.to_bytes(2, "little") + seed).digest()


def _xor(a: bytes, b: bytes) -> bytes:
    return (int.from_bytes(a, "little") ^ int.from_bytes(b, "little")).to_bytes(len(a), "little")
