"""Messages are frozen, typed and flat. Each names the roles at its two ends.

A field is one of ``int, float, bool, str, bytes``, a ``Bundle`` of byte strings, an array type marked with ``ArrayOf``,
or one of these or ``None``. There are no lists and no dicts. Several values travel as an array, or as one ``bytes``
with a stated layout. So no byte string can make a decoder build more than was sent. Ciphertexts stay ``bytes`` until
their sender is verified.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

ANY = "any"
"""The role of a message that may come from, or go to, any role."""

DTYPES = ("<f4", "<f8", "<i4", "<i8", "|u1", "|b1")


@dataclass(frozen=True)
class ArrayOf:
    """The type of an array field: its little-endian dtype and number of dimensions. Floats must be finite."""

    dtype: str
    ndim: int


Floats = Annotated[NDArray[np.float32], ArrayOf("<f4", 1)]
Doubles = Annotated[NDArray[np.float64], ArrayOf("<f8", 1)]
Integers = Annotated[NDArray[np.int64], ArrayOf("<i8", 1)]
Bytes2D = Annotated[NDArray[np.uint8], ArrayOf("|u1", 2)]
Flags2D = Annotated[NDArray[np.bool_], ArrayOf("|b1", 2)]
Bundle = Annotated[bytes, "bundle"]
"""A ``bytes`` field that holds a bundle (``bundle.py``), so that the weights of its parts count."""


class Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=True, eq=False):
    """Base of all messages; declare one with ``@message(src=..., dst=...)``.

    By name, the fields that are arrays, and the types that other fields may have. BUNDLES, OPTIONAL: those that are so.
    """

    SRC: ClassVar[str]
    DST: ClassVar[str]
    ARRAYS: ClassVar[dict[str, ArrayOf]]
    SCALARS: ClassVar[dict[str, frozenset[type]]]
    BUNDLES: ClassVar[frozenset[str]]
    OPTIONAL: ClassVar[frozenset[str]]


class OfRound(Message, frozen=True):
    """Base of messages of one round, which is their first field."""

    round: int


class Signed(OfRound, frozen=True, kw_only=True):
    """Base of messages with their sender's signature over all other fields (``crypto/roster.py``), their last field."""

    signature: bytes = b""


M = TypeVar("M", bound=Message)


def message(*, src: str, dst: str) -> Callable[[type[M]], type[M]]:
    """Name the roles at the two ends of a message and check that its fields are flat.

    Raises TypeError at import for a field that could not travel: a programming error, not an input.
    """

    def declare(cls: type[M]) -> type[M]:
        arrays: dict[str, ArrayOf] = {}
        scalars: dict[str, frozenset[type]] = {}
        optional, bundles = set(), set()
        for field in msgspec.structs.fields(cls):
            union = typing.get_origin(field.type) in (typing.Union, types.UnionType)
            options = set(typing.get_args(field.type) if union else [field.type])
            if type(None) in options:
                optional.add(field.name)
            option = next(iter(options - {type(None)})) if len(options - {type(None)}) == 1 else None
            if option == Bundle:
                bundles.add(field.name)
                option = bytes
            if marks := [mark for mark in getattr(option, "__metadata__", ()) if isinstance(mark, ArrayOf)]:
                arrays[field.name] = marks[0]
            elif option in (int, float, bool, str, bytes):
                accepted = {option, int} if option is float else {option}
                scalars[field.name] = frozenset(accepted | (options & {type(None)}))
            else:
                raise TypeError(f"{cls.__name__}.{field.name}: {field.type} cannot travel in a message; see {__name__}")
        cls.SRC, cls.DST, cls.ARRAYS, cls.SCALARS = src, dst, arrays, scalars
        cls.BUNDLES, cls.OPTIONAL = frozenset(bundles), frozenset(optional)
        return cls

    return declare
