"""The weight of bytes: an emulated ciphertext counts as many bytes as a real one, but is not padded to that length.

The difference is counted wherever bytes are counted (links, meters, views), and never written, hashed or kept. Weighted
bytes are a header and then the content, in little-endian order:

    magic C1 "hollow" 00, weight u64

Only the emulated ciphers make them. No other key or ciphertext vector begins with these eight bytes. A message weighs
as much as if each of its ``bytes`` fields were as long as its weight says. The recipient checks the weight that the
envelope states. The weight of a single field is a claim until its cipher has checked it.
"""

from __future__ import annotations

import struct

from coterie.protocol.errors import DecodeError
from coterie.protocol.messages import Message, split

_MAGIC = b"\xc1hollow\0"
_HEADER = struct.Struct("<8sQ")
MOST = (1 << 32) - 1  # bytes: no byte string of msgpack is longer


def weighted(weight: int, *parts: bytes | memoryview) -> bytes:
    """The parts as one byte string that weighs ``weight``; without a header if the parts have that length."""
    header = () if weight == sum(map(len, parts)) else (_HEADER.pack(_MAGIC, weight),)
    return b"".join((*header, *parts))


def weighs(data: bytes | memoryview) -> int:
    """How many bytes these stand for: the stated weight, or their own length where none is stated."""
    claimed = _claimed(data)
    return len(data) if claimed is None or claimed > MOST else claimed


def content(data: bytes) -> memoryview:
    """The bytes without the header of weighted bytes; other bytes as they are.

    Raises DecodeError for a weight that no message can have, and for a header that states the length of its content:
    the same content must not have two encodings.
    """
    claimed, held = _claimed(data), memoryview(data)[_HEADER.size :]
    if claimed is None:
        return memoryview(data)
    if claimed > MOST or claimed == len(held):
        raise DecodeError(f"{len(held)} bytes that claim to weigh {claimed}")
    return held


def message_weight(message: Message, size: int) -> int:
    """The weight of a message of ``size`` encoded bytes. Raises DecodeError if it is more than a message can have."""
    weight = size
    for name in message.SCALARS:
        if isinstance(field := getattr(message, name), bytes):
            weight += _packed(field_weight(message, name)) - _packed(len(field))
    if weight > MOST:
        raise DecodeError(f"a {type(message).__name__} of {weight} bytes; a message has at most {MOST}")
    return weight


def field_weight(message: Message, name: str) -> int:
    """The weight of a field of bytes. A bundle weighs as much as the bundle of the real parts would."""
    data: bytes = getattr(message, name)
    parts = split(data) if name in message.BUNDLES else None
    if parts is None:
        return weighs(data)
    return len(data) + sum(weighs(part) - len(part) for part in parts)


def _claimed(data: bytes | memoryview) -> int | None:
    """The weight that the header states, or None for bytes without such a header."""
    if len(data) < _HEADER.size or data[: len(_MAGIC)] != _MAGIC:
        return None
    return int(_HEADER.unpack_from(data)[1])


def _packed(length: int) -> int:
    """The size of a byte string in msgpack: its length takes 2, 3 or 5 bytes."""
    return length + (2 if length < 1 << 8 else 3 if length < 1 << 16 else 5)
