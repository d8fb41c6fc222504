"""The states of parties as bytes: msgpack through msgspec, never pickle. Equal arrays are kept once, and are one
read-only object after loading.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, MutableMapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from coterie.protocol.codec import to_array
from coterie.protocol.errors import UserError

_VERSION = 1
_DIGEST = 16  # bytes; one of everything that follows stands first
_REFERENCE = 2  # the extension that stands for an array: 16 bytes, the digest of what it holds
_MAX_DIMS = 32
_DTYPES = frozenset(np.dtype(code).newbyteorder("<").str for code in "?bhilqBHILQefdFD")


def _digest(*parts: bytes | memoryview) -> bytes:
    hashed = hashlib.blake2b(digest_size=_DIGEST)
    for part in parts:
        hashed.update(part)
    return hashed.digest()


class _Array(msgspec.Struct, frozen=True, array_like=True):
    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def digest(self) -> bytes:
        return _digest(f"{self.dtype}{self.shape}".encode(), self.data)

    def to_array(self, digest: bytes) -> NDArray[Any]:
        if self.dtype not in _DTYPES or len(self.shape) > _MAX_DIMS:
            raise ValueError(f"an array of {self.dtype} and {len(self.shape)} dimensions")
        if self.digest() != digest:
            raise ValueError("an array that is not the one that is meant")
        return to_array(np.dtype(self.dtype), self.shape, self.data)


class _Saved(msgspec.Struct, frozen=True):
    version: int
    parties: dict[str, bytes]
    arrays: dict[bytes, _Array]


def dump(structs: Mapping[str, msgspec.Struct]) -> bytes:
    """These parties' states (or secrets): what msgspec encodes, and arrays of numbers or truth values.

    Raises TypeError for others, such as a numpy scalar.
    """
    arrays: dict[bytes, _Array] = {}
    known: dict[int, bytes] = {}  # the structs hold the arrays, so their ids stay theirs

    def refer(value: Any) -> msgspec.msgpack.Ext:
        if not isinstance(value, np.ndarray):
            raise TypeError(f"{type(value).__name__} cannot be kept in a checkpoint")
        if id(value) not in known:
            dtype = value.dtype.newbyteorder("<").str
            if dtype not in _DTYPES:
                raise TypeError(f"an array of {value.dtype} cannot be kept in a checkpoint")
            array = _Array(dtype, value.shape, np.ascontiguousarray(value, dtype).tobytes())
            known[id(value)] = array.digest()
            arrays.setdefault(known[id(value)], array)
        return msgspec.msgpack.Ext(_REFERENCE, known[id(value)])

    encoder = msgspec.msgpack.Encoder(enc_hook=refer)
    parties: dict[str, bytes] = {}
    for name, struct in structs.items():
        try:
            parties[name] = encoder.encode(struct)
        except (TypeError, OverflowError) as error:
            raise TypeError(f"{name}, {type(struct).__qualname__}: {error}") from error
    body = msgspec.msgpack.encode(_Saved(_VERSION, parties, arrays))
    return _digest(body) + body


def load(data: bytes, types: Mapping[str, type], shared: MutableMapping[bytes, Any] | None = None) -> dict[str, Any]:
    """Of ``dump``.  types: each party's state.  shared: known arrays by digest, for several loads; extended. Raises
    UserError.
    """
    arrays: dict[bytes, NDArray[Any]] = {}
    known: MutableMapping[bytes, Any] = {} if shared is None else shared

    def find(code: int, reference: memoryview) -> NDArray[Any]:
        if code != _REFERENCE or bytes(reference) not in arrays:
            raise ValueError("an array is missing")
        return arrays[bytes(reference)]

    def decoded(struct: bytes, kind: type) -> Any:
        return msgspec.msgpack.decode(struct, type=kind, dec_hook=lambda _, value: value, ext_hook=find)

    try:
        body = memoryview(data)[_DIGEST:]
        if _digest(body) != data[:_DIGEST]:
            raise ValueError("it is damaged, or no checkpoint")
        saved = msgspec.msgpack.decode(body, type=_Saved)
        if saved.version != _VERSION:
            raise ValueError(f"it has version {saved.version}, this is version {_VERSION}")
        if saved.parties.keys() != types.keys():
            differ = sorted(saved.parties.keys() ^ types.keys())
            raise ValueError(f"{differ[0]!r} is only in one of the checkpoint and this federation")
        for digest, array in saved.arrays.items():
            same = known.get(digest)
            arrays[digest] = known[digest] = array.to_array(digest) if same is None else same
        return {name: decoded(struct, types[name]) for name, struct in saved.parties.items()}
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise UserError(
            f"unreadable checkpoint: {error}; resume with the settings it was made with, or start anew without it"
        ) from error
