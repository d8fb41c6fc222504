"""What a sender may get wrong in a message, by its schema: bytes that are none, and fields that no honest one sends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from coterie.crypto import roster
from coterie.protocol import codec
from coterie.protocol.messages import Message, forms
from coterie.transport.envelope import Envelope
from coterie.transport.local import LocalTransport

replace = msgspec.structs.replace
WRONG_TYPES = (True, 7, 0.5, "text", b"bytes", None, [1], {"a": 1})


def malformed(message: Message) -> Iterator[tuple[str, bytes]]:
    """Frames that differ from this message's in one thing and are no message of its kind."""
    frame, kind = codec.encode(message), type(message)
    tag, *fields = msgspec.msgpack.decode(frame)
    yield from {
        "nothing": b"",
        "truncated": frame[:-1],
        "trailing bytes": frame + b"\0",
        "a pickle": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94.",
        "another kind": msgspec.msgpack.encode(["Other", *fields]),
        "no fields" if fields else "no tag": msgspec.msgpack.encode([tag] if fields else []),
        "a field too many": msgspec.msgpack.encode([tag, *fields, 0]),
    }.items()
    for at, name in enumerate(kind.__struct_fields__):
        types = forms(kind).scalars.get(name, frozenset())
        for value in WRONG_TYPES:
            if type(value) in types or (value is None and name in forms(kind).optional):
                continue
            changed = [*fields[:at], value, *fields[at + 1 :]]
            yield f"{name} of {type(value).__name__}", msgspec.msgpack.encode([tag, *changed])
        for label, value in wrong_arrays(message, name):
            ext = codec.array_to_ext(value)
            yield f"{name} {label}", msgspec.msgpack.encode([tag, *fields[:at], ext, *fields[at + 1 :]])
        if float in types:
            for number in (np.nan, np.inf, -np.inf):
                yield f"{name} {number}", msgspec.msgpack.encode([tag, *fields[:at], number, *fields[at + 1 :]])


def wrong_arrays(message: Message, name: str) -> Iterator[tuple[str, Any]]:
    """Arrays of another dtype or more dimensions, and floats that are none."""
    value = getattr(message, name)
    if not isinstance(value, np.ndarray):
        return
    yield "of another dtype", value.astype("<f8" if value.dtype == np.dtype("<i4") else "<i4")
    yield "of another dimension", value[None]
    if value.dtype.kind == "f" and value.size:
        for number in (np.nan, np.inf, -np.inf):
            spoilt = value.copy()
            spoilt.flat[0] = number
            yield f"with {number}", spoilt


def unexpected(message: Message) -> Iterator[tuple[str, Message]]:
    """Messages of this kind with one field that no honest sender fills so: label and message."""
    for name in type(message).__struct_fields__:
        for label, value in unexpected_values(name, getattr(message, name)):
            yield f"{name} {label}", replace(message, **{name: value})


def unexpected_values(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if name == "round":
        yield "earlier", value - 1
        yield "later", value + 1
    elif name in ("spec", "signature"):
        yield "of zeros", bytes(len(value))
    elif isinstance(value, np.ndarray) and value.size:
        yield "too short", value[:-1]
        yield "too long", np.concatenate([value, value[-1:]])
        if value.dtype.kind == "f":
            yield "huge", np.full_like(value, 1e30)
        if value.dtype.kind == "i":
            yield "negative", np.full_like(value, -1)
    elif isinstance(value, bytes) and value:
        yield "truncated", value[:-1]
        yield "empty", b""
    elif isinstance(value, int) and not isinstance(value, bool):
        yield "negative", min(value, 0) - 1  # where an honest one sends -1, another
        yield "huge", 1 << 62
    elif isinstance(value, float):
        yield "huge", 1e300


def signed_again(transport: LocalTransport, envelope: Envelope, original: Any, changed: Any) -> Any:
    """The change with its sender's good signature, or None for a kind whose signature is not over all its fields."""
    sender = transport.parties[envelope.src].own
    session = transport.hub.party.common.roster.session
    for bound in ((), (envelope.dst,), (session,)):
        if roster.signed(sender, original, *bound).signature == original.signature:
            return roster.signed(sender, changed, *bound)
    return None
