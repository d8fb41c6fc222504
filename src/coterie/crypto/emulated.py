"""What the two emulated twins share: keys that are names, and bodies that hold plain numbers."""

from __future__ import annotations

from coterie.crypto.arrays import RandomBytes, drawn
from coterie.protocol.errors import DecodeError

_ID_BYTES = 32


def fresh_id(random_bytes: RandomBytes) -> bytes:
    """32 bytes that tell keys apart."""
    return drawn(random_bytes, _ID_BYTES)


def id_of(body: memoryview) -> bytes:
    """The name in an emulated key. Raises DecodeError."""
    if len(body) != _ID_BYTES:
        raise DecodeError(f"an emulated key that holds {len(body)} bytes besides its header")
    return bytes(body)


def numbers_of(body: memoryview, length: int, width: int) -> memoryview:
    """The ``length`` numbers of an emulated vector, of ``width`` bytes each. Raises DecodeError."""
    if len(body) != length * width:
        raise DecodeError(f"{len(body)} emulated bytes for {length} values: {length * width} were expected")
    return body
