"""Marks of the clients of a list, which add up to 0 if each has made its own, and say no name.

Every two clients have a key that both can compute (X25519 of their keys on the roster). With t_ij, 128 bits that follow
from the key of i and j, their names and the list, the mark of i is

    m_i = sum of t_ij over names j after i, less the sum of t_ij over names j before i      mod 2^128

as the masks of secure aggregation (Bonawitz et al., CCS 2017). **All marks add up to 0. Others cannot be made**: if a
row of an honest client of the list is missing, or stands twice, while another's is there, the sum has t_ij of these
two, which nobody else knows. **No names**: as long as two clients of the list are honest, their marks are uniform words
of a known sum, also for who knows the keys of all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from coterie.crypto.signing import OpeningKey, SealingKey

MARK_BYTES = 16
_MODULUS = 1 << 8 * MARK_BYTES


def mark(key: OpeningKey, name: str, others: Mapping[str, SealingKey], of: bytes) -> bytes:
    """SECRET: ``MARK_BYTES`` of the client with this key and name.

    others: the keys of all others of the list, by name.  of: 32 bytes that name the list and its use. Raises
    DecodeError for a key that keeps no secrets.
    """
    total = 0
    for other, public in others.items():
        pair = sorted((name, other))
        term = int.from_bytes(key.agreed(public, "mark", *pair, of)[:MARK_BYTES], "little")
        total += term if pair[0] == name else -term
    return (total % _MODULUS).to_bytes(MARK_BYTES, "little")


def add_up(marks: Iterable[bytes]) -> bool:
    """Whether these are the marks of all clients of one list."""
    return sum(int.from_bytes(one, "little") for one in marks) % _MODULUS == 0
