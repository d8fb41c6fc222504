"""Marks of the clients of a list, which add up to 0 if each has made its own, and say no name.

Every two clients have a key that both can compute (X25519 of their keys on the roster). With t_ij, 128 bits that follow
from the key of i and j, their names and the list, the mark of i is

    m_i = sum of t_ij over names j after i, less the sum of t_ij over names j before i      mod 2^128

as the masks of secure aggregation (Bonawitz et al., CCS 2017). docs/systems/coterie_appendix.md has the argument, for
lists with two honest clients or more.

**Pads** are the same of many words: t_ij are keystreams, added up mod 2^64. So vectors under them show their sum alone.

**Double masking** (Bonawitz et al., section 4): each u has a seed b_u of its own, too, and sends

    y_u = x_u + PRG(b_u) + its pad      mod 2^64.

Where v sends nothing, its pad remains in the sum, and follows from its key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from coterie.crypto import padded
from coterie.crypto.one_hot import SEED_BYTES
from coterie.crypto.signing import OpeningKey, SealingKey
from coterie.protocol.arrays import Words64
from coterie.protocol.randomness import keystream

MARK_BYTES = 16
_MODULUS = 1 << 8 * MARK_BYTES


def mark(key: OpeningKey, name: str, others: Mapping[str, SealingKey], of: bytes) -> bytes:
    """SECRET: ``MARK_BYTES`` of the client with this key and name. Raises DecodeError for a key that keeps no secrets.

    others: by name, the keys of all others.  of: 32 bytes that name the list and its use.
    """
    terms = (int.from_bytes(term[:MARK_BYTES], "little") * sign for term, sign in _terms(key, name, others, "mark", of))
    return (sum(terms) % _MODULUS).to_bytes(MARK_BYTES, "little")


def pad(key: OpeningKey, name: str, others: Mapping[str, SealingKey], of: bytes, length: int) -> Words64:
    """SECRET: (length,) words that add up to 0 with those of all others, as ``mark``."""
    total = np.zeros(length, np.uint64)
    for term, sign in _terms(key, name, others, "pad", of):
        stream = np.frombuffer(keystream(term[:SEED_BYTES], 8 * length), "<u8")
        (np.add if sign > 0 else np.subtract)(total, stream, out=total)
    return total


# SECRET: 32 bytes shared with each other client, and the sign of what follows from them.
def _terms(
    key: OpeningKey, name: str, others: Mapping[str, SealingKey], use: str, of: bytes
) -> Iterator[tuple[bytes, int]]:
    for other, public in others.items():
        pair = sorted((name, other))
        yield key.agreed(public, use, *pair, of), 1 if pair[0] == name else -1


def add_up(marks: Iterable[bytes]) -> bool:
    return sum(int.from_bytes(one, "little") for one in marks) % _MODULUS == 0


def masked(x: Words64, own: bytes, key: OpeningKey, name: str, others: Mapping[str, SealingKey], of: bytes) -> Words64:
    """y_u. own: b_u.  key: its public half is known to the others.  of: names the sum. Raises DecodeError as
    ``mark``.
    """
    return np.asarray(x + padded.pad(own, x) + pad(key, name, others, of, len(x)))


def unmasked(
    total: Words64, seeds: Iterable[bytes], gone: Mapping[str, OpeningKey], there: Mapping[str, SealingKey], of: bytes
) -> Words64:
    """The sum of x_u over ``there`` from that of y_u. seeds: their b_u.  gone: the keys of those that sent no y."""
    total = total.copy()
    for seed in seeds:
        total -= padded.pad(seed, total)
    for name, key in gone.items():
        total += pad(key, name, there, of, len(total))  # the other half of what is left
    return total
