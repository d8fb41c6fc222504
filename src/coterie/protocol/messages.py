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
from typing import Annotated, Any, ClassVar, TypeVar

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


@dataclass(frozen=True)
class Bundled:
    """Marks a ``bytes`` field that holds a bundle (``bundle.py``), so that the weights of its parts count."""


Bundle = Annotated[bytes, Bundled()]

_SCALARS: frozenset[type] = frozenset({int, float, bool, str, bytes})


class Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=True, eq=False):
    """Base of all messages; declare one with ``@message(src=..., dst=...)``."""

    SRC: ClassVar[str]
    DST: ClassVar[str]
    ARRAYS: ClassVar[dict[str, ArrayOf]]
    SCALARS: ClassVar[dict[str, frozenset[type]]]
    FLOATS: ClassVar[tuple[str, ...]]
    BYTES: ClassVar[tuple[str, ...]]
    BUNDLES: ClassVar[frozenset[str]]
    OPTIONAL: ClassVar[frozenset[str]]


class OfRound(Message, frozen=True):
    """Base of messages of one round, which is their first field."""

    round: int


M = TypeVar("M", bound=Message)


def _options(annotation: Any) -> tuple[Any, ...]:
    """The alternatives of ``X | None``; ``(X,)`` for a plain X. ``Annotated`` wrappers are kept."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return typing.get_args(annotation)
    return (annotation,)


def message(*, src: str, dst: str) -> Callable[[type[M]], type[M]]:
    """Name the roles at the two ends of a message and check that its fields are flat.

    Raises TypeError at import for a field that could not travel: a programming error, not an input.
    """

    def declare(cls: type[M]) -> type[M]:
        arrays: dict[str, ArrayOf] = {}
        scalars: dict[str, frozenset[type]] = {}
        optional: set[str] = set()
        bundles: set[str] = set()
        for field in msgspec.structs.fields(cls):
            options = [option for option in _options(field.type) if option is not type(None)]
            if len(options) < len(_options(field.type)):
                optional.add(field.name)
            option = options[0] if len(options) == 1 else None
            marks = [m for m in getattr(option, "__metadata__", ()) if isinstance(m, ArrayOf)]
            if option == Bundle:
                bundles.add(field.name)
                option = bytes
            if marks:
                arrays[field.name] = marks[0]
            elif option in _SCALARS:
                accepted = {option, int} if option is float else {option}
                scalars[field.name] = frozenset(accepted | ({type(None)} if field.name in optional else set()))
            else:
                raise TypeError(f"{cls.__name__}.{field.name}: {field.type} cannot travel in a message; see {__name__}")
        cls.SRC, cls.DST, cls.ARRAYS, cls.SCALARS, cls.OPTIONAL = src, dst, arrays, scalars, frozenset(optional)
        cls.FLOATS = tuple(name for name, types in scalars.items() if float in types)
        cls.BYTES = tuple(name for name, types in scalars.items() if bytes in types)
        cls.BUNDLES = frozenset(bundles)
        return cls

    return declare
