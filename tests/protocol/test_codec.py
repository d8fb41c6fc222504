"""The codec: what is sent is what arrives, and any bytes are a valid message or a DecodeError."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from codec_cases import EXAMPLE, KINDS, LIMIT, Empty, Everything, Small, crafted, mutated, peak_bytes, small
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from coterie.protocol import codec
from coterie.protocol.arrays import Bytes2D, Doubles, Flags2D, Floats, Integers
from coterie.protocol.errors import DecodeError
from coterie.protocol.messages import Message, forms, message


def same(one: Message, two: Message) -> bool:
    """Equal bit for bit: type, fields, dtypes, shapes, signs of zeros."""
    if type(one) is not type(two):
        return False
    for name in one.__struct_fields__:
        a, b = getattr(one, name), getattr(two, name)
        if isinstance(a, np.ndarray):
            if a.dtype != b.dtype or a.shape != b.shape or a.tobytes() != b.tobytes():
                return False
        elif a != b or type(a) is not type(b):
            return False
    return True


def valid(data: bytes, kinds: tuple[type[Message], ...] = KINDS) -> Message | None:
    """The decoded message after all promises were checked, or None for a DecodeError. Anything else is a failure."""
    refused = ""
    try:
        got: Message = codec.decode(data, *kinds)
    except DecodeError as error:
        refused = str(error)
    if refused:  # goes into logs and reports: the sender's text in it is short and harmless
        assert refused.isascii()
        assert refused.isprintable()
        assert len(refused) < 300
        return None
    assert type(got) in kinds
    for name, expected in forms(type(got)).arrays.items():
        array = getattr(got, name)
        if array is None:
            assert name in forms(type(got)).optional
            continue
        assert isinstance(array, np.ndarray)
        assert (array.dtype.newbyteorder("<").str, array.ndim) == (expected.dtype, expected.ndim)
        assert not array.flags.writeable
        assert array.nbytes <= len(data)
        assert array.dtype.kind != "f" or np.isfinite(array).all()
        if array.dtype.kind == "b":
            assert set(np.unique(array.view(np.uint8))) <= {0, 1}
    for name, types in forms(type(got)).scalars.items():
        assert type(getattr(got, name)) in types
    assert same(codec.decode(codec.encode(got), type(got)), got)
    return got


def arrays(dtype: Any, ndim: int) -> st.SearchStrategy[Any]:
    shapes = hnp.array_shapes(min_dims=ndim, max_dims=ndim, min_side=0, max_side=5)
    finite = {"allow_nan": False, "allow_infinity": False} if np.dtype(dtype).kind == "f" else {}
    return hnp.arrays(dtype, shapes, elements=hnp.from_dtype(np.dtype(dtype), **finite))


everything = st.builds(
    Everything,
    n=st.integers(-(2**63), 2**64 - 1),
    x=st.floats(allow_nan=False, allow_infinity=False),
    flag=st.booleans(),
    text=st.text(),
    data=st.binary(),
    w=arrays(np.float32, 1),
    d=arrays(np.float64, 1),
    i=arrays(np.int64, 1),
    b=arrays(np.uint8, 2),
    f=arrays(np.bool_, 2),
    maybe_n=st.none() | st.integers(0, 9),
    maybe_x=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    maybe_w=st.none() | arrays(np.float32, 1),
)


@given(everything)
def test_what_is_sent_arrives(sent: Everything) -> None:
    data = codec.encode(sent)
    assert same(codec.decode(data, *KINDS), sent)
    assert same(codec.decode(data, Everything), sent)
    with pytest.raises(DecodeError):
        codec.decode(data, Small, Empty)


def test_the_wire_form_is_what_is_documented() -> None:
    """Known bytes, from the msgpack specification: array of 3, str 5, fixint 7, ext 8 of 18 bytes with code 1."""
    header = struct.pack("<BBQ", 0, 1, 2)
    expected = b"\x93\xa5Small\x07\xc7\x12\x01" + header + struct.pack("<2f", 1.0, -2.5)
    assert codec.encode(Small(7, np.array([1, -2.5], np.float32))) == expected


def test_negative_zero_keeps_its_sign() -> None:
    got = codec.decode(codec.encode(Small(1, np.array([-0.0], np.float32))), Small)
    assert np.signbit(got.w[0])


def test_arrays_that_are_not_contiguous_or_not_little_endian_arrive() -> None:
    values = np.arange(10, dtype=np.float32)
    for w in (values[::2], values[::-1], values.astype(">f4"), np.asfortranarray(values)):
        np.testing.assert_array_equal(codec.decode(codec.encode(Small(1, w)), Small).w, w)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"n": "1"}, r"Everything\.n: expected int, got str"),
        ({"n": True}, r"Everything\.n: expected int, got bool"),
        ({"n": np.int64(1)}, r"Everything\.n: expected int, got int64"),
        ({"n": None}, r"Everything\.n: expected int, got NoneType"),
        ({"x": np.float64(1)}, r"Everything\.x: expected float or int, got float64"),
        ({"text": b""}, r"Everything\.text: expected str, got bytes"),
        ({"w": [1.0]}, r"Everything\.w: expected 1 dimension\(s\) of <f4, got list"),
        ({"w": None}, r"Everything\.w: expected 1 dimension\(s\) of <f4, got NoneType"),
        ({"w": np.zeros(1)}, r"Everything\.w: .* got shape \(1,\) of float64"),
        ({"b": np.zeros(1, np.uint8)}, r"Everything\.b: expected 2 dimension"),
    ],
)
def test_wrong_types_are_our_own_bug_and_never_sent(change: dict[str, Any], error: str) -> None:
    with pytest.raises(TypeError, match=error):
        codec.encode(msgspec.structs.replace(EXAMPLE, **change))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_never_sent(value: float) -> None:
    for change in ({"w": np.array([value], np.float32)}, {"d": np.array([value])}, {"x": value}, {"maybe_x": value}):
        with pytest.raises(DecodeError, match=f"Everything.{next(iter(change))}"):
            codec.encode(msgspec.structs.replace(EXAMPLE, **change))


@pytest.mark.parametrize(("name", "data"), list(crafted()), ids=[name for name, _ in crafted()])
def test_crafted_bytes(name: str, data: bytes) -> None:
    got = valid(data)
    if got is not None:
        ok = {"x = 18446744073709551615", "1 for an int", "-1 for an int"}
        ok |= {"18446744073709551615 for an int", "-9223372036854775808 for an int"}
        assert name in ok


def test_mutations_of_valid_frames() -> None:
    outcomes = [valid(data) is None for data in mutated(seed=1, count=1500)]
    assert 0.02 < np.mean(outcomes) < 0.999  # both happen


@given(st.binary(max_size=2000))
def test_any_bytes(data: bytes) -> None:
    valid(data)


leaves = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary()
values = st.recursive(leaves, lambda v: st.lists(v) | st.dictionaries(st.text(), v), max_leaves=20)


@given(values)
def test_any_msgpack(value: Any) -> None:
    valid(msgspec.msgpack.encode(value))
    valid(small(value))
    valid(msgspec.msgpack.encode(["Everything", *value] if isinstance(value, list) else ["Small", value, value]))


@given(everything, st.data())
def test_every_truncation_of_a_message_is_refused(sent: Everything, data: st.DataObject) -> None:
    """No proper prefix of a message is a message."""
    frame = codec.encode(sent)
    assert valid(frame[: data.draw(st.integers(0, len(frame) - 1))]) is None


def test_a_message_declares_its_fields_or_is_a_type_error_at_import() -> None:
    for annotation in (
        list[int],
        dict[str, int],
        Any,
        object,
        int | str,
        Floats | Doubles,
        np.ndarray,
        tuple[int, int],
    ):
        cls = msgspec.defstruct("Bad", [("x", annotation)], bases=(Message,), frozen=True)
        with pytest.raises(TypeError, match=r"Bad\.x: .* cannot travel in a message"):
            message(src="a", dst="b")(cls)
    for annotation in (int, float | None, bytes, Integers, Flags2D | None, Bytes2D):
        cls = msgspec.defstruct("Good", [("x", annotation)], bases=(Message,), frozen=True)
        assert message(src="a", dst="b")(cls).SRC == "a"
    with pytest.raises(AttributeError, match="immutable"):
        EXAMPLE.n = 3  # type: ignore[misc]


# -- hostile bytes -----------------------------------------------------------------------------------------------------


linux = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="limits the address space through /proc")


def measured(seed: int, count: int) -> dict[str, Any]:
    """Run the cases under a memory limit. A case that raises anything but DecodeError (MemoryError, say) fails here."""
    script = Path(__file__).parents[1] / "rigs" / "codec_cases.py"
    command = [sys.executable, str(script), str(seed), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    result: dict[str, Any] = json.loads(done.stdout)
    assert result["slowest_s"] < 1.0
    assert result["peak"] < 16 << 20  # 128 MiB are promised; a few copies of the megabyte are needed
    return result


@linux
def test_crafted_bytes_and_some_mutations_within_time_and_memory() -> None:
    got = measured(seed=2, count=1500)
    assert got["decoded"] + got["refused"] == 1500 + len(list(crafted())) + 1
    assert got["decoded"] > 50
    assert got["peak"] > LIMIT  # the large frame


def test_the_measure_sees_what_a_careless_decoder_needs() -> None:
    """A million elements, of a byte each, as objects: what the codec must not build before it looks at the length."""
    data = dict(crafted())["a million small elements"]
    tracemalloc.start()
    try:
        assert peak_bytes(lambda: msgspec.msgpack.decode(data, type=list[msgspec.Raw])) > 32 << 20
        assert peak_bytes(lambda: valid(data)) < 1 << 20
    finally:
        tracemalloc.stop()


@linux
@pytest.mark.long
@pytest.mark.parametrize("seed", range(10, 15))
def test_twenty_five_thousand_mutations_within_time_and_memory(seed: int) -> None:
    assert measured(seed, count=5000)["decoded"] > 100


@pytest.mark.long
def test_twenty_thousand_mutations_keep_every_promise() -> None:
    outcomes = [valid(data) is not None for data in mutated(seed=3, count=20_000)]
    assert any(outcomes)
    assert not all(outcomes)


FRAMES = [codec.encode(EXAMPLE), codec.encode(Small(7, np.ones(5, np.float32)))]
edits = st.lists(st.tuples(st.integers(0, 2**16), st.binary(max_size=12), st.integers(0, 12)), max_size=6)


@pytest.mark.long
@given(st.sampled_from(FRAMES), edits)
@settings(max_examples=20_000, deadline=None)
def test_twenty_thousand_edits_of_valid_frames(data: bytes, edits: list[tuple[int, bytes, int]]) -> None:
    for at, new, length in edits:
        at %= len(data) + 1
        data = data[:at] + new + data[at + length :]
    valid(data)


@pytest.mark.long
@given(st.binary(max_size=300).map(lambda tail: b"\x93\xa5Small\x01" + tail) | st.binary(max_size=5000))
@settings(max_examples=20_000, deadline=None)
def test_twenty_thousand_random_bytes(data: bytes) -> None:
    valid(data, KINDS)
