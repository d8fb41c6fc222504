"""The byte form of messages: msgpack through msgspec, never pickle, decoded against the expected type.

``decode`` is safe for any bytes: nested containers are refused before anything is built. Decoded arrays are read-only.

An emulated ciphertext has the **weight** of a real one without its length.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from functools import lru_cache, reduce
from operator import or_
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from coterie.protocol.digests import LEAST, sha256
from coterie.protocol.errors import DecodeError
from coterie.protocol.messages import DTYPES, M, Message, forms, split

ARRAY_CODE = 1
MAX_FIELDS = 64
MAX_DIMS = 4
MAX_REASON = 200
_MAGIC = b"\xc1hollow\0"
_HEADER = struct.Struct("<8sQ")  # of weighted bytes, before the content: magic, weight
_LONG_BYTES = 0xC6  # of msgpack: more than 65,535 bytes, after four of their length
_TREE = b"coterie/frame/1"
MOST_BYTES = (1 << 32) - 1  # bytes: no byte string of msgpack is longer


def array_to_ext(value: Any) -> msgspec.msgpack.Ext:
    """An extension: dtype index u8, dimensions u8, each length u64, then the little-endian data."""
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{type(value).__name__} cannot be encoded")
    dtype = value.dtype.newbyteorder("<").str
    if dtype not in DTYPES or value.ndim > MAX_DIMS:
        raise TypeError(f"arrays of {value.dtype} with {value.ndim} dimensions cannot be encoded; allowed: {DTYPES}")
    head = struct.pack(f"<BB{value.ndim}Q", DTYPES.index(dtype), value.ndim, *value.shape)
    return msgspec.msgpack.Ext(ARRAY_CODE, b"".join((head, np.ascontiguousarray(value, dtype).data)))


def ext_to_array(code: int, data: memoryview) -> NDArray[Any]:
    """Raises ValueError for anything malformed."""
    if code != ARRAY_CODE or len(data) < 2 or data[0] >= len(DTYPES) or data[1] > MAX_DIMS:
        raise ValueError("malformed array")
    dtype, ndim = np.dtype(DTYPES[data[0]]), data[1]
    start = 2 + 8 * ndim
    if len(data) < start:
        raise ValueError("truncated array")
    return to_array(dtype, struct.unpack_from(f"<{ndim}Q", data, 2), data[start:])


def to_array(dtype: np.dtype[Any], shape: tuple[int, ...], data: memoryview | bytes) -> NDArray[Any]:
    """These bytes as a read-only array. Raises ValueError before anything is built."""
    if any(n < 0 for n in shape) or math.prod(shape) * dtype.itemsize != len(data):
        raise ValueError(f"an array of {dtype} and shape {shape} in {len(data)} bytes")
    array = np.frombuffer(bytes(data), dtype).reshape(shape)  # the copy of a view is aligned and read-only
    if dtype.kind == "b" and (array.view(np.uint8) > 1).any():
        raise ValueError("a truth value that is neither 0 nor 1")
    return array


_encoder = msgspec.msgpack.Encoder(enc_hook=array_to_ext)
_elements = msgspec.msgpack.Decoder(Annotated[list[msgspec.Raw], msgspec.Meta(max_length=MAX_FIELDS)])


@lru_cache(maxsize=1024)
def _decoder(kinds: tuple[type[Message], ...]) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(reduce(or_, kinds), dec_hook=lambda _, value: value, ext_hook=ext_to_array)


def encode(message: Message) -> bytes:
    """Raises TypeError for a field of the wrong type, DecodeError for non-finite values."""
    _check(message, TypeError)
    return _encoder.encode(message)


def decode(data: bytes, *kinds: type[M]) -> M:
    """The message in these bytes, of one of ``kinds``. Raises DecodeError alone."""
    decoder = _decoder(kinds)
    try:
        for element in _elements.decode(data):
            head = memoryview(element)[0]
            if 0x80 <= head <= 0x9F or 0xDC <= head <= 0xDF:
                raise DecodeError("a message holds a nested container; fields are flat")
        message: M = decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError, OverflowError) as error:
        names = " or ".join(kind.__name__ for kind in kinds)
        reason = ascii(str(error))[1:-1]  # it may quote the sender's text: no control characters, and no megabyte of it
        raise DecodeError(f"not a valid {names}: {reason[:MAX_REASON]}") from None
    _check(message, DecodeError)
    return message


def frame_digest(frame: bytes) -> bytes:
    """32 bytes: the SHA-256 of a short frame; of a long one, of its fields' lengths, its short fields, and SHA-256 of
    each long one, so that a field which a party also names by its SHA-256 is hashed once.
    """
    if len(frame) < LEAST:
        return sha256(frame)
    told: list[bytes | memoryview] = [_TREE]
    for part in _cut(frame):
        told += len(part).to_bytes(8, "little"), sha256(part) if len(part) >= LEAST else part
    return sha256(b"".join(told))


def _cut(frame: bytes) -> Iterator[memoryview]:
    try:
        # One piece for each field of bytes, and for each part of a bundle of long ones; one for all of what is no
        # message.
        lengths = [len(memoryview(element)) for element in _elements.decode(frame)]
    except (msgspec.MsgspecError, RecursionError):
        lengths = []
    rest = memoryview(frame)
    yield rest[: (at := len(frame) - sum(lengths))]
    for length in lengths:
        element, at = rest[at : at + length], at + length
        parts = None
        if element[0] == _LONG_BYTES:
            yield element[:5]
            element = element[5:]
            if LEAST * int.from_bytes(element[:4], "little") <= len(
                element
            ):  # else there are more parts than long ones
                parts = split(element)
        if parts is None:
            yield element
        else:
            yield element[: 4 + 8 * int.from_bytes(element[:4], "little")]
            yield from parts


def _check(message: Message, mistyped: type[Exception]) -> None:
    kind = type(message)
    for name, types in forms(kind).scalars.items():
        value, field = getattr(message, name), f"{kind.__name__}.{name}"
        if type(value) not in types:
            options = " or ".join(sorted(option.__name__ for option in types))
            raise mistyped(f"{field}: expected {options}, got {type(value).__name__}")
        if isinstance(value, float) and not math.isfinite(value):
            raise DecodeError(f"{field}: {value} is not finite")
    for name, expected in forms(kind).arrays.items():
        array, field = getattr(message, name), f"{kind.__name__}.{name}"
        if array is None and name in forms(kind).optional:
            continue
        if not isinstance(array, np.ndarray):
            got = type(array).__name__
        elif array.dtype.newbyteorder("<").str != expected.dtype or array.ndim != expected.ndim:
            got = f"shape {array.shape} of {array.dtype}"
        elif array.dtype.kind == "f" and not np.isfinite(array).all():
            raise DecodeError(f"{field}: NaN or infinite values")
        else:
            continue
        raise mistyped(f"{field}: expected {expected.ndim} dimension(s) of {expected.dtype}, got {got}")


def weighted(weight: int, *parts: bytes | memoryview) -> bytes:
    """The parts as one byte string of this weight, without a header if that is their length."""
    header = () if weight == sum(map(len, parts)) else (_HEADER.pack(_MAGIC, weight),)
    return b"".join((*header, *parts))


def weighs(data: bytes | memoryview) -> int:
    """The stated weight of these bytes, or else their length."""
    claimed = _claimed(data)
    return len(data) if claimed is None or claimed > MOST_BYTES else claimed


def content(data: bytes | memoryview) -> memoryview:
    """Weighted bytes without their header; others unchanged. Raises DecodeError for an impossible weight, and for one
    that equals the content's length: no content has two encodings.
    """
    claimed, held = _claimed(data), memoryview(data)[_HEADER.size :]
    if claimed is None:
        return memoryview(data)
    if claimed > MOST_BYTES or claimed == len(held):
        raise DecodeError(f"{len(held)} bytes that claim to weigh {claimed}")
    return held


def message_weight(message: Message, size: int) -> int:
    """Of a message of ``size`` encoded bytes. Raises DecodeError for an impossible one."""
    weight = size
    for name in forms(type(message)).scalars:
        if isinstance(field := getattr(message, name), bytes):
            weight += _packed(field_weight(message, name)) - _packed(len(field))
    if weight > MOST_BYTES:
        raise DecodeError(f"a {type(message).__name__} of {weight} bytes; a message has at most {MOST_BYTES}")
    return weight


def field_weight(message: Message, name: str) -> int:
    data: bytes = getattr(message, name)
    parts = split(data) if name in forms(type(message)).bundles else None
    if parts is None:
        return weighs(data)
    return len(data) + sum(weighs(part) - len(part) for part in parts)


def _claimed(data: bytes | memoryview) -> int | None:
    if len(data) < _HEADER.size or data[: len(_MAGIC)] != _MAGIC:
        return None
    return int(_HEADER.unpack_from(data)[1])


def _packed(length: int) -> int:
    return length + (2 if length < 1 << 8 else 3 if length < 1 << 16 else 5)
