"""States as bytes: what is loaded is what was kept, equal arrays are kept once, and damage is a UserError."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from coterie.protocol import state
from coterie.protocol.errors import UserError


@dataclass(frozen=True)
class Pair:
    """A frozen value with an array."""

    name: str
    values: NDArray[Any]


class Full(msgspec.Struct):
    """All that a state may hold."""

    n: int = 0
    x: float = 0.0
    none: NDArray[Any] | None = None
    w: NDArray[Any] | None = None
    typed: NDArray[np.float32] | None = None
    by_name: dict[str, NDArray[Any]] = msgspec.field(default_factory=dict)
    by_number: dict[int, NDArray[Any]] = msgspec.field(default_factory=dict)
    pairs: tuple[Pair, ...] = ()
    nested: dict[str, dict[str, list[NDArray[Any]]]] = msgspec.field(default_factory=dict)
    taken: dict[str, tuple[int, float]] = msgspec.field(default_factory=dict)
    names: frozenset[str] = frozenset()
    seen: set[int] = msgspec.field(default_factory=set)
    data: bytes = b""
    free: Any = None


class Other(msgspec.Struct):
    """Of another role."""

    w: Any = None


def plain(value: Any) -> Any:
    """A value that ``==`` can compare: arrays as (dtype, shape, bytes)."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, Pair):
        return value.name, plain(value.values)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(plain(item) for item in value)
    return value


dtypes = st.sampled_from(["<f4", "<f8", "<i8", "<u8", "|u1", "|b1", "<f2", "<c16", "<i2"])
arrays = hnp.arrays(dtypes, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
names = st.text(max_size=5)
fulls = st.builds(
    Full,
    n=st.integers(-(2**63), 2**63 - 1),
    x=st.floats(allow_nan=False),
    w=st.none() | arrays,
    typed=st.none() | hnp.arrays(np.float32, 3),
    by_name=st.dictionaries(names, arrays, max_size=3),
    by_number=st.dictionaries(st.integers(0, 99), arrays, max_size=3),
    pairs=st.lists(st.builds(Pair, names, arrays), max_size=2).map(tuple),
    nested=st.dictionaries(names, st.dictionaries(names, st.lists(arrays, max_size=2), max_size=2), max_size=2),
    taken=st.dictionaries(names, st.tuples(st.integers(0, 9), st.floats(0, 1)), max_size=2),
    names=st.frozensets(names, max_size=3),
    seen=st.sets(st.integers(0, 9)),
    data=st.binary(max_size=10),
    free=st.none() | arrays | st.dictionaries(names, arrays, max_size=2),
)


@given(st.dictionaries(names, fulls, max_size=3))
def test_what_is_loaded_is_what_was_kept(structs: dict[str, Full]) -> None:
    loaded = state.load(state.dump(structs), dict.fromkeys(structs, Full))
    assert list(loaded) == list(structs)
    assert plain(loaded) == plain(structs)


def test_equal_arrays_are_kept_once_and_are_one_again() -> None:
    """100 clients with one model of 1 MB, half of them as copies of it; one with another."""
    model = np.arange(250_000, dtype=np.float32)
    states: dict[str, Any] = {f"c{i}": Other(model if i % 2 else model.copy()) for i in range(100)}
    data = state.dump({**states, "s": Full(w=model), "z": Other(model + 1)})
    assert 2_000_000 < len(data) < 2_020_000
    loaded = state.load(data, {**dict.fromkeys(states, Other), "s": Full, "z": Other})
    assert len({id(loaded[name].w) for name in states} | {id(loaded["s"].w)}) == 1
    assert loaded["z"].w is not loaded["s"].w
    assert not loaded["s"].w.flags.writeable


def test_equal_bytes_of_another_dtype_or_shape_are_another_array() -> None:
    zeros = [np.zeros(4, np.float32), np.zeros(4, np.int32), np.zeros((2, 2), np.float32), np.zeros(2, np.float64)]
    loaded = state.load(state.dump({str(i): Other(a) for i, a in enumerate(zeros)}), {str(i): Other for i in range(4)})
    assert [plain(loaded[str(i)].w) for i in range(4)] == [plain(a) for a in zeros]


def test_arrays_in_any_layout_come_back_equal() -> None:
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    for array in (base[:, ::2], base.T, base[::-1], base.astype(">f4"), base[1:1]):
        loaded = state.load(state.dump({"a": Other(array)}), {"a": Other})["a"].w
        np.testing.assert_array_equal(loaded, array)
        assert loaded.dtype == np.float32


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (np.float32(1), "float32 cannot be kept"),
        (np.array([object()]), "an array of object cannot be kept"),
        (np.array(["x"]), "cannot be kept"),
        (2**70, "ints"),
        (random.Random(), "Random cannot be kept"),
    ],
)
def test_what_would_not_come_back_is_our_own_bug(value: Any, error: str) -> None:
    with pytest.raises(TypeError, match=f"client/3, Other: .*{error}"):
        state.dump({"client/3": Other(value)})


def test_another_federation_is_a_user_error() -> None:
    data = state.dump({"a": Other(1), "b": Other(2)})
    for types in ({"a": Other}, {"a": Other, "b": Other, "c": Other}, {"a": Other, "c": Other}):
        with pytest.raises(UserError, match=r"unreadable checkpoint: '[bc]' is only in one of"):
            state.load(data, types)
    with pytest.raises(UserError, match="unreadable checkpoint: Expected"):
        state.load(data, {"a": Full, "b": Full})


def test_another_version_is_a_user_error() -> None:
    body = msgspec.msgpack.encode({**msgspec.msgpack.decode(state.dump({})[16:]), "version": 99})
    digest = hashlib.blake2b(body, digest_size=16).digest()
    with pytest.raises(UserError, match="it has version 99, this is version 1"):
        state.load(digest + body, {})


def test_damaged_bytes_are_a_user_error() -> None:
    """Any flipped bit, any truncation, anything appended, and what never was a checkpoint."""
    kept = {"a": Full(w=np.arange(9.0), taken={"x": (1, 0.5)}), "b": Full(by_name={"y": np.ones(3, np.float32)})}
    data, types = state.dump(kept), dict.fromkeys(kept, Full)
    damaged = [data[:length] for length in range(len(data))] + [data + b"\0", b"PK\x03\x04" * 100]
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(flipped))
    for bytes_ in damaged:
        with pytest.raises(UserError, match="unreadable checkpoint: it is damaged, or no checkpoint; resume with"):
            state.load(bytes_, types)


def test_a_forged_checkpoint_is_a_user_error_too() -> None:
    """Right digest, wrong content: references to nothing, dtypes that run code, shapes that do not fit."""
    ext = msgspec.msgpack.Ext(2, b"0" * 16)
    for parties, arrays in [
        ({"a": msgspec.msgpack.encode({"w": ext})}, {}),
        ({"a": msgspec.msgpack.encode({"w": msgspec.msgpack.Ext(7, b"")})}, {}),
        ({"a": msgspec.msgpack.encode({"w": ext})}, {b"0" * 16: ["|O", [1], bytes(8)]}),
        ({"a": msgspec.msgpack.encode({"w": ext})}, {b"0" * 16: ["<f4", [3], bytes(8)]}),
        ({"a": msgspec.msgpack.encode({"w": ext})}, {b"0" * 16: ["<f4", [-1, -1], bytes(8)]}),
        ({"a": b"\xc1"}, {}),
        ({"a": b""}, {}),
    ]:
        body = msgspec.msgpack.encode({"version": 1, "parties": parties, "arrays": arrays})
        with pytest.raises(UserError, match="unreadable checkpoint"):
            state.load(hashlib.blake2b(body, digest_size=16).digest() + body, {"a": Other})
