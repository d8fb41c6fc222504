"""Several byte strings as one, for a message field: u32 how many, then a u64 length of each, then the strings.

Little end first. A party says how many it expects, so nothing is built that nobody asked for.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from coterie.protocol.errors import DecodeError


def bundle(parts: Sequence[bytes]) -> bytes:
    """All parts in one byte string."""
    lengths = struct.pack(f"<I{len(parts)}Q", len(parts), *(len(part) for part in parts))
    return b"".join((lengths, *parts))


def unbundle(data: bytes, count: int) -> list[bytes]:
    """The ``count`` parts of a bundle. Raises DecodeError for anything else."""
    head = struct.Struct(f"<I{count}Q")
    if len(data) < head.size:
        raise DecodeError(f"{len(data)} bytes are no bundle of {count}")
    found, *lengths = head.unpack_from(data)
    if found != count or head.size + sum(lengths) != len(data):
        raise DecodeError(f"a bundle of {found} parts and {len(data)} bytes; {count} parts were expected")
    parts, at = [], head.size
    for length in lengths:
        parts.append(data[at : at + length])
        at += length
    return parts
