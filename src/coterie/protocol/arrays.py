"""Types and checks of arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coterie.protocol.errors import PeerError, UserError


@dataclass(frozen=True)
class ArrayOf:
    """Of a message's field: little-endian dtype and number of dimensions. Floats must be finite."""

    dtype: str
    ndim: int


Array = NDArray[Any]
Floats = Annotated[NDArray[np.float32], ArrayOf("<f4", 1)]
Floats2D = Annotated[NDArray[np.float32], ArrayOf("<f4", 2)]
Doubles = Annotated[NDArray[np.float64], ArrayOf("<f8", 1)]
Integers = Annotated[NDArray[np.int64], ArrayOf("<i8", 1)]
Bytes2D = Annotated[NDArray[np.uint8], ArrayOf("|u1", 2)]
Flags2D = Annotated[NDArray[np.bool_], ArrayOf("|b1", 2)]
"""The first of these also of more dimensions, outside messages."""
Flags = NDArray[np.bool_]
Words = NDArray[np.uint32]
"""Numbers mod 2^32."""
Words64 = NDArray[np.uint64]


def finite(values: ArrayLike, what: str, *axes: str) -> NDArray[np.float64]:
    """As float64, with these axes, such as "n" and "d". Raises UserError for NaN, infinity, no or others."""
    array = np.asarray(values, np.float64)
    if array.ndim != len(axes) or not array.size or not np.isfinite(array).all():
        raise UserError(
            f"{what} must be finite numbers ({', '.join(axes)}), not an array {array.shape}, NaN or infinity"
        )
    return array


def words(data: bytes | memoryview, kind: Literal["<u4", "<u8"], *shape: int) -> NDArray[Any]:
    """Unsigned words of this kind and shape, which another party has sent. Raises PeerError for more or fewer bytes."""
    expected = np.dtype(kind).itemsize * math.prod(shape)
    if len(data) != expected:
        raise PeerError(f"{len(data)} bytes where {shape} words were expected, {expected} bytes")
    return np.frombuffer(data, kind).reshape(shape)
