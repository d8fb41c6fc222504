"""What bytes weigh: what emulation sends counts as much as the real thing, but isn't moved.

An emulated ciphertext stands for a real one several times as long. What it lacks is counted wherever bytes are counted
(links, meters, views), and neither written, hashed nor kept. Hollow bytes are a header and then the content, little end
first:

    magic C1 "hollow" 00, weight u64

Only ciphers make hollow bytes, and no other key or ciphertext vector begins with these eight. A message weighs as much
as if its ``bytes`` fields were as long as they weigh. Its envelope states that weight, and the recipient checks it. The
weight of a single field is a claim until its cipher has checked it, and no real one is hollow.
"""

from __future__ import annotations

import struct

from coterie.protocol.bundle import split
from coterie.protocol.errors import DecodeError
from coterie.protocol.messages import Message

_MAGIC = b"\xc1hollow\0"
_HEADER = struct.Struct("<8sQ")
MOST = (1 << 32) - 1  # bytes: no byte string of msgpack is longer


def hollow(weight: int, *parts: bytes | memoryview) -> bytes:
    """The parts as one byte string that weighs ``weight``; just the parts where that is what they have."""
    header = () if weight == sum(map(len, parts)) else (_HEADER.pack(_MAGIC, weight),)
    return b"".join((*header, *parts))


def weighs(data: bytes | memoryview) -> int:
    """How many bytes they stand for: their own number, unless they are hollow."""
    claimed = _claimed(data)
    return len(data) if claimed is None or claimed > MOST else claimed


def content(data: bytes) -> memoryview:
    """What there is of them: all, unless they are hollow.

    Raises DecodeError for a weight beyond all measure, and for a header without need: there is one form of everything.
    """
    claimed, held = _claimed(data), memoryview(data)[_HEADER.size :]
    if claimed is None:
        return memoryview(data)
    if claimed > MOST or claimed == len(held):
        raise DecodeError(f"{len(held)} bytes that claim to weigh {claimed}")
    return held


def message_weight(message: Message, size: int) -> int:
    """What a message of ``size`` encoded bytes weighs. Raises DecodeError for more than any message has."""
    weight = size
    for name in message.BYTES:
        field = getattr(message, name)
        if field is not None:
            weight += _packed(field_weight(message, name)) - _packed(len(field))
    if weight > MOST:
        raise DecodeError(f"a {type(message).__name__} of {weight} bytes; a message has at most {MOST}")
    return weight


def field_weight(message: Message, name: str) -> int:
    """What a field of bytes weighs: a bundle, as much as the bundle of the real parts would."""
    data: bytes = getattr(message, name)
    parts = split(data) if name in message.BUNDLES else None
    if parts is None:
        return weighs(data)
    return len(data) + sum(weighs(part) - len(part) for part in parts)


def _claimed(data: bytes | memoryview) -> int | None:
    """What stands in the header of hollow bytes."""
    if len(data) < _HEADER.size or data[: len(_MAGIC)] != _MAGIC:
        return None
    return int(_HEADER.unpack_from(data)[1])


def _packed(length: int) -> int:
    """Bytes of a byte string in msgpack: its length takes 2, 3 or 5."""
    return length + (2 if length < 1 << 8 else 3 if length < 1 << 16 else 5)
