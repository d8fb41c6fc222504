"""Bytes that weigh more than there are: what emulation sends counts as much as the real thing, but isn't moved.

An emulated ciphertext stands for a real one several times as long. What it lacks is counted wherever bytes are counted
(links, meters, views), and neither written, hashed nor kept. Hollow bytes are a header and then the content, little end
first:

    magic C1 "hollow" 00, weight u64

C1 is no first byte of a msgpack message; nor do bundles, keys or ciphertext vectors begin with these eight. A message,
bundle or sealed frame that holds hollow bytes is hollow itself. A weight is a claim until whoever opens the bytes has
checked it: messages and bundles weigh what their parts do, emulated ciphertexts what the real ones would, and no real
one is hollow.
"""

from __future__ import annotations

import struct

from coterie.protocol.errors import DecodeError

_MAGIC = b"\xc1hollow\0"
_HEADER = struct.Struct("<8sQ")
MOST = (1 << 32) - 1  # bytes: no byte string of msgpack is longer


def hollow(weight: int, *parts: bytes | memoryview) -> bytes:
    """The parts as one byte string that weighs ``weight``; just the parts where that is what they have."""
    header = () if weight == sum(map(len, parts)) else (_HEADER.pack(_MAGIC, weight),)
    return b"".join((*header, *parts))


def weighs(data: bytes) -> int:
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


def _claimed(data: bytes) -> int | None:
    """What stands in the header of hollow bytes."""
    if len(data) < _HEADER.size or data[: len(_MAGIC)] != _MAGIC:
        return None
    return int(_HEADER.unpack_from(data)[1])
