"""SHA-256 of long byte strings. Parties of a simulation get equal bytes, which are hashed once in a round."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

LEAST = 1 << 14  # bytes; shorter strings are hashed sooner than found
_ENDS = 64  # bytes, by which equal strings are found before they are compared


class _Held:
    def __init__(self, room: int) -> None:
        self._room = room
        self._of = OrderedDict[tuple[int, bytes, bytes], tuple[bytes, bytes]]()

    def digest(self, data: memoryview) -> bytes:
        ends = data.nbytes, bytes(data[:_ENDS]), bytes(data[-_ENDS:])
        known = self._of.get(ends)
        if known is not None and known[0].startswith(data):  # which are of one length, so they are equal
            return known[1]
        if known is None:
            self._room -= data.nbytes
        held, found = data.obj, hashlib.sha256(data).digest()
        own = isinstance(held, bytes) and len(held) == data.nbytes
        self._of[ends] = bytes(held if own else data), found  # its own object is not copied
        while self._room < 0:
            self._room += self._of.popitem(last=False)[0][0]
        return found


_held: ContextVar[_Held | None] = ContextVar("digests", default=None)


@contextmanager
def remembered(room: int) -> Iterator[None]:
    """Within the block, this thread hashes no string again that equals one of its last ``room`` bytes of strings."""
    token = _held.set(_Held(room))
    try:
        yield
    finally:
        _held.reset(token)


def sha256(data: Any) -> bytes:
    """32 bytes, of contiguous bytes-like data."""
    view = memoryview(data)
    view = view.cast("B") if view.nbytes else memoryview(b"")
    held = _held.get() if view.nbytes >= LEAST else None
    return hashlib.sha256(view).digest() if held is None else held.digest(view)
