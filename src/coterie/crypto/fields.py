"""One unambiguous byte form for a list of fields, to be signed or bound to a sealed message."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from coterie.protocol.errors import CryptoError

Field = bytes | bytearray | memoryview | int | str


def digest(domain: str, *fields: Field) -> bytes:
    """SHA-256 of the domain and the fields: 32 bytes. Each byte is hashed once and none is copied.

    Every field is preceded by its kind and length, so no two different lists have the same bytes: ``("ab", "c")``
    differs from ``("a", "bc")``, ``1`` from ``"1"`` and from ``b"1"``. Raises CryptoError for fields of another type.
    """
    state = hashlib.sha256()
    for part in _encoded((domain, len(fields), *fields)):
        state.update(part)
    return state.digest()


def _encoded(fields: tuple[Field, ...]) -> Iterator[bytes | memoryview]:
    for field in fields:
        if isinstance(field, bool):
            raise CryptoError(f"a signed field is bytes, int or str, not {field!r}: a bool would read as a number")
        if isinstance(field, str):
            kind, content = b"s", memoryview(field.encode())
        elif isinstance(field, int):
            kind, content = b"i", memoryview(field.to_bytes(field.bit_length() // 8 + 1, "little", signed=True))
        elif isinstance(field, (bytes, bytearray, memoryview)):
            kind, content = b"b", memoryview(field).cast("B")
        else:
            raise CryptoError(f"a signed field is bytes, int or str, not {type(field).__name__}")
        yield kind + len(content).to_bytes(8, "little")
        yield content
