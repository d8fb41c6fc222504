"""Several byte strings as one, for a message field: a u32 count, then a u64 length of each, then the strings.

Numbers are little-endian. The recipient states how many parts it expects, so a sender cannot make it build more. A
field with a bundle is declared ``Bundle`` (``messages.py``), so that the weights of its parts count.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from coterie.protocol.errors import DecodeError


def bundle(parts: Sequence[bytes]) -> bytes:
    """All parts in one byte string."""
    lengths = struct.pack(f"<I{len(parts)}Q", len(parts), *(len(part) for part in parts))
    return b"".join((lengths, *parts))


def unbundle(data: bytes, count: int) -> list[bytes]:
    """The ``count`` parts of a bundle. Raises DecodeError for anything else."""
    if len(data) < 4 + 8 * count:
        raise DecodeError(f"{len(data)} bytes are no bundle of {count}")
    (found,) = struct.unpack_from("<I", data)
    parts = split(data) if found == count else None
    if parts is None:
        raise DecodeError(f"a bundle of {found} parts and {len(data)} bytes; {count} parts were expected")
    return [bytes(part) for part in parts]


def split(data: bytes) -> Iterator[memoryview] | None:
    """The parts of a bundle of any number, one at a time and without a copy; None for what is no bundle."""
    count = int.from_bytes(data[:4], "little")
    start = 4 + 8 * count
    if len(data) < 4 or len(data) < start:
        return None
    view = memoryview(data)
    if start + sum(_lengths(view[4:start])) != len(data):
        return None
    return _parts(view, start)


def _parts(view: memoryview, start: int) -> Iterator[memoryview]:
    at = start
    for length in _lengths(view[4:start]):
        yield view[at : at + length]
        at += length


def _lengths(table: memoryview) -> Iterator[int]:
    """One at a time: a table may be as long as a message, and its numbers take more room than its bytes."""
    return (length for (length,) in struct.iter_unpack("<Q", table))
