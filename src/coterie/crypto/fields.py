"""What signing and sealing share: keys of 32 bytes, and one unambiguous byte form for a list of fields."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

from coterie.crypto.arrays import RandomBytes, drawn
from coterie.protocol.errors import CryptoError, DecodeError

Field = bytes | bytearray | memoryview | int | str
KEY_BYTES = 32


@dataclass(frozen=True)
class RawKey:
    """A public key of 32 bytes. Raises DecodeError for another number of them. named: in errors."""

    key: bytes

    named: ClassVar[str]

    def __post_init__(self) -> None:
        if len(self.key) != KEY_BYTES:
            raise DecodeError(f"{self.named} has {KEY_BYTES} bytes, not {len(self.key)}")

    def to_bytes(self) -> bytes:
        """32 bytes. SECRET of a secret key; at rest: a file of mode 0600."""
        return self.key

    @classmethod
    def load(cls, data: bytes) -> Self:
        """A key from ``to_bytes``. Raises DecodeError."""
        return cls(bytes(data))


@dataclass(frozen=True, eq=False, repr=False)
class RawSecret(RawKey):
    """A secret key of 32 bytes, which is not compared, and shown by its public half."""

    @property
    def public(self) -> RawKey:
        """The public half."""
        raise NotImplementedError

    @classmethod
    def generate(cls, random_bytes: RandomBytes = os.urandom) -> Self:
        """A fresh key. random_bytes: n -> n secret random bytes; another than the system's for emulated runs only."""
        return cls(drawn(random_bytes, KEY_BYTES))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.public.key.hex()[:8]}>"


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
