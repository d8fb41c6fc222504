"""Messages are frozen, typed and flat, and name the roles at their two ends.

A field is one of ``int, float, bool, str, bytes``, a ``Bundle`` of byte strings, an array type marked with ``ArrayOf``,
or one of these or ``None``. So no decoder builds more than was sent.
"""

from __future__ import annotations

import struct
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar

import msgspec

from coterie.protocol.arrays import ArrayOf
from coterie.protocol.errors import DecodeError, PeerError

ANY = "any"
"""The role of a message from, or to, any role."""
HUB = "the hub"
"""The sender of a message that only the hub may send, whatever its role is called."""

DTYPES = ("<f4", "<f8", "<i4", "<i8", "|u1", "|b1")


Bundle = Annotated[bytes, "bundle"]
"""A ``bytes`` field with a ``bundle``, whose parts have weights."""


class Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=True, eq=False):
    """Base of all messages, between any two parties unless ``@message(src=..., dst=...)`` names their roles.

    TELLS: in words, what it tells of its sender's data, if stated.  ABOUT: fields of an answer that its request must
    share.
    """

    SRC: ClassVar[str] = ANY
    DST: ClassVar[str] = ANY
    TELLS: ClassVar[tuple[str, ...] | None] = None
    ABOUT: ClassVar[tuple[str, ...]] = ("round",)


class FromTraining(str):
    """Words of ``TELLS`` for what follows from the round's training and public numbers."""


class OfRound(Message, frozen=True):
    round: int


class FromHub(OfRound, frozen=True):
    """Only the hub may send it: from others it is refused."""

    SRC = HUB


class Signed(OfRound, frozen=True, kw_only=True):
    """Its last field is the sender's signature over all others (``crypto/roster.py``)."""

    signature: bytes = b""


M = TypeVar("M", bound=Message)


def message(
    *, src: str | None = None, dst: str | None = None, tells: Sequence[str] | None = None
) -> Callable[[type[M]], type[M]]:
    """Name the roles at a message's two ends, by default its base's. Raises TypeError at import for a field that could
    not travel, and for another source of what the hub alone may send.

    tells: in words, each release of the sender's data, for the ledger; None if not stated.
    """

    def declare(cls: type[M]) -> type[M]:
        forms(cls)
        if cls.SRC == HUB and src not in (None, HUB):
            raise TypeError(f"{cls.__name__} comes from the hub, by its base: it cannot come from {src!r}")
        cls.SRC, cls.DST, cls.TELLS = src or cls.SRC, dst or cls.DST, None if tells is None else tuple(tells)
        return cls

    return declare


class Forms(NamedTuple):
    """A message's array fields, and the others' types, by name; which hold bundles; which may be None."""

    arrays: dict[str, ArrayOf]
    scalars: dict[str, frozenset[type]]
    bundles: set[str]
    optional: set[str]


@cache
def forms(kind: type[Message]) -> Forms:
    """Raises TypeError for a field that could not travel."""
    found = Forms({}, {}, set(), set())
    for field in msgspec.structs.fields(kind):
        union = typing.get_origin(field.type) in (typing.Union, types.UnionType)
        options = set(typing.get_args(field.type) if union else [field.type])
        absent = options & {type(None)}
        if absent:
            found.optional.add(field.name)
        option = next(iter(options - absent)) if len(options - absent) == 1 else None
        if option == Bundle:
            found.bundles.add(field.name)
            option = bytes
        if marks := [mark for mark in getattr(option, "__metadata__", ()) if isinstance(mark, ArrayOf)]:
            found.arrays[field.name] = marks[0]
        elif option in (int, float, bool, str, bytes):
            found.scalars[field.name] = frozenset(({option, int} if option is float else {option}) | absent)
        else:
            raise TypeError(f"{kind.__name__}.{field.name}: {field.type} cannot travel in a message; see {__name__}")
    return found


class Done(OfRound, frozen=True):
    """What was asked in this round is done."""

    TELLS = ()


def about_of(request: Message, replies: Iterable[type[Message]]) -> dict[str, Any]:
    """A request's fields, by name, that such answers must repeat."""
    names = dict.fromkeys(name for reply in replies for name in reply.ABOUT)
    return {name: getattr(request, name) for name in names if name in request.__struct_fields__}


def check_about(src: str, answer: Message, asked: Mapping[str, Any]) -> None:
    """Raises PeerError for an answer to something else.  asked: of ``about_of``."""
    for name in answer.ABOUT:
        if name in asked and name in answer.__struct_fields__ and getattr(answer, name) != asked[name]:
            stated, wanted = f"{getattr(answer, name)!r:.40}", f"{asked[name]!r:.40}"
            raise PeerError(f"{src}: an answer of {name} {stated} to a request of {name} {wanted}")


def bundle(parts: Sequence[bytes]) -> bytes:
    """All parts in one byte string: a u32 count, u64 lengths, then the parts; little-endian."""
    lengths = struct.pack(f"<I{len(parts)}Q", len(parts), *(len(part) for part in parts))
    return b"".join((lengths, *parts))


def unbundle(data: bytes, count: int) -> list[bytes]:
    """The ``count`` parts of a bundle. Raises DecodeError."""
    return [bytes(part) for part in parts_of(data, count)]


def parts_of(data: bytes, count: int) -> list[memoryview]:
    if len(data) < 4 + 8 * count:
        raise DecodeError(f"{len(data)} bytes are no bundle of {count}")
    found = int.from_bytes(data[:4], "little")
    parts = split(data) if found == count else None
    if parts is None:
        raise DecodeError(f"a bundle of {found} parts and {len(data)} bytes; {count} parts were expected")
    return list(parts)


def split(data: bytes | memoryview) -> Iterator[memoryview] | None:
    """A bundle's parts, one at a time and without a copy; None for no bundle."""
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
    return (length for (length,) in struct.iter_unpack("<Q", table))
