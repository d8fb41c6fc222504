"""Several byte strings as one, for a message field: u32 how many, then a u64 length of each, then the strings.

Little end first. A party says how many it expects, so nothing is built that nobody asked for. A bundle with hollow
parts is hollow itself: it weighs what a bundle of the real ones would.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from coterie.protocol.errors import DecodeError
from coterie.protocol.hollow import content, hollow, weighs


def bundle(parts: Sequence[bytes]) -> bytes:
    """All parts in one byte string."""
    lengths = struct.pack(f"<I{len(parts)}Q", len(parts), *(len(part) for part in parts))
    return hollow(len(lengths) + sum(map(weighs, parts)), lengths, *parts)


def unbundle(data: bytes, count: int) -> list[bytes]:
    """The ``count`` parts of a bundle. Raises DecodeError for anything else."""
    head, held = struct.Struct(f"<I{count}Q"), content(data)
    if len(held) < head.size:
        raise DecodeError(f"{len(held)} bytes are no bundle of {count}")
    found, *lengths = head.unpack_from(held)
    if found != count or head.size + sum(lengths) != len(held):
        raise DecodeError(f"a bundle of {found} parts and {len(held)} bytes; {count} parts were expected")
    parts, at = [], head.size
    for length in lengths:
        parts.append(bytes(held[at : at + length]))
        at += length
    if weighs(data) != head.size + sum(map(weighs, parts)):
        raise DecodeError(f"a bundle that claims to weigh {weighs(data)} bytes; its parts don't")
    return parts
