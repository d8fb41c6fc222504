"""Bytes that were changed on their way."""

from __future__ import annotations


def flipped(data: bytes, at: int = -1, bits: int = 1) -> bytes:
    """The same bytes but for one, in which these bits are the other way round. So it never equals the original."""
    changed = bytearray(data)
    changed[at] ^= bits
    return bytes(changed)
