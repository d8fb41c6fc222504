"""Secrets of 32 bytes of which t of n holders have to tell their shares (Shamir's secret sharing, ``residues``).

A secret is the hash of five shared uniform numbers modulo 2^61 - 1, of which fewer than t shares say nothing. Nothing
shows a false share: compare what they give with what was signed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from coterie.crypto import residues
from coterie.crypto.arrays import RandomBytes, drawn
from coterie.crypto.residues import Residues
from coterie.crypto.signing import digest
from coterie.protocol.errors import DecodeError

SHARE_BYTES = 40
_NUMBERS = SHARE_BYTES // 8
_MODULI: Residues = np.array([[(1 << 61) - 1]], np.uint64)


def shared(
    holders: Sequence[str], needed: int, random_bytes: RandomBytes, secrets: int
) -> tuple[list[bytes], dict[str, bytes]]:
    """SECRET: so many fresh secrets of 32 bytes, and by holder its shares of them, of ``SHARE_BYTES`` each, in
    order, of which ``needed`` give a secret.
    """
    words = residues.secret_words(drawn(random_bytes, 32))
    numbers, *random = residues.uniform(words, (needed, 1, secrets * _NUMBERS), _MODULI)
    given = residues.split(numbers, np.array(random, np.uint64), places(holders), _MODULI)
    made = [_hashed(one) for one in np.split(numbers, secrets, axis=1)]
    return made, {name: share.tobytes() for name, share in zip(holders, given, strict=True)}


def joined(holders: Sequence[str], shares: Mapping[str, bytes]) -> bytes:
    """SECRET: what these shares give: some other 32 bytes if they are not enough of one secret.

    holders: as when it was shared. Raises DecodeError for bytes that are no share.
    """
    place = dict(zip(holders, places(holders), strict=True))
    parts = {place[name]: _read(share) for name, share in shares.items()}
    return _hashed(residues.joined(parts, _MODULI))


def places(holders: Sequence[str]) -> range:
    return range(1, len(holders) + 1)


def _read(share: bytes) -> Residues:
    if len(share) != SHARE_BYTES:
        raise DecodeError(f"{len(share)} bytes are no share of {SHARE_BYTES}")
    numbers = np.frombuffer(share, "<u8").reshape(1, _NUMBERS)
    if not residues.valid(numbers, _MODULI):
        raise DecodeError("a share with a number beyond its modulus")
    return numbers


def _hashed(secret: Residues) -> bytes:
    return digest("coterie/shared seed/1", secret.tobytes())
