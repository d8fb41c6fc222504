"""What another party has sent as bytes: bundles of several strings, and arrays of words of an expected shape."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.protocol.arrays import words
from coterie.protocol.errors import DecodeError, PeerError
from coterie.protocol.messages import bundle, split, unbundle


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_any_parts_come_back(parts: list[bytes]) -> None:
    assert unbundle(bundle(parts), len(parts)) == parts


def test_the_layout_is_as_stated() -> None:
    assert bundle([b"ab", b"", b"c"]) == struct.pack("<IQQQ", 3, 2, 0, 1) + b"abc"
    assert bundle([]) == bytes(4)


@given(st.lists(st.binary(max_size=20), max_size=5), st.integers(0, 8))
def test_another_number_of_parts_than_expected_is_refused(parts: list[bytes], count: int) -> None:
    if count != len(parts):
        with pytest.raises(DecodeError, match="bundle of"):
            unbundle(bundle(parts), count)


@given(st.binary(max_size=200), st.integers(0, 5))
def test_any_bytes_are_a_bundle_or_refused_and_only_a_bundle_is_one(data: bytes, count: int) -> None:
    try:
        parts = unbundle(data, count)
    except DecodeError:
        return
    assert bundle(parts) == data


@given(st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=4), st.data())
def test_what_is_cut_or_longer_is_refused(parts: list[bytes], data: st.DataObject) -> None:
    whole = bundle(parts)
    cut = data.draw(st.integers(0, len(whole) - 1))
    for wrong in (whole[:cut], whole + b"\0"):
        with pytest.raises(DecodeError):
            unbundle(wrong, len(parts))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\1\0\0",
        struct.pack("<IQ", 1, 2**64 - 1) + b"ab",  # would be 16 exabytes
        struct.pack("<IQQ", 2, 2**64 - 2, 4) + b"ab",  # sums up to 2 modulo 2^64
        struct.pack("<IQ", 2**32 - 1, 0),
        struct.pack(">IQ", 1, 2) + b"ab",
    ],
    ids=["nothing", "short", "huge", "wraps", "many", "big end first"],
)
def test_lengths_that_lie_are_refused(data: bytes) -> None:
    for count in (1, 2):
        with pytest.raises(DecodeError):
            unbundle(data, count)


def test_a_table_of_lengths_takes_no_room_of_its_own() -> None:
    """100,000 empty parts are 800 kB of message. Nothing is built of them before somebody expects so many."""
    data = bundle([b""] * 10**5)
    tracemalloc.start()
    with pytest.raises(DecodeError, match="3 parts were expected"):
        unbundle(data, 3)
    assert sum(len(part) for part in split(data) or ()) == 0
    assert tracemalloc.get_traced_memory()[1] < 1 << 17
    tracemalloc.stop()


def test_lengths_may_not_shift_bytes_between_parts_unnoticed() -> None:
    """Two bundles with the same bytes behind other lengths are two byte strings: a signature tells them apart."""
    assert bundle([b"ab", b"c"]) != bundle([b"a", b"bc"])


@pytest.mark.parametrize(("kind", "of"), [("<u4", np.uint32), ("<u8", np.uint64)])
def test_words_have_the_shape_that_is_expected(kind: Literal["<u4", "<u8"], of: type) -> None:
    sent = np.arange(6, dtype=of).reshape(2, 3)
    np.testing.assert_array_equal(words(memoryview(sent.tobytes()), kind, 2, 3), sent)
    for data in (b"", sent.tobytes()[:-1], sent.tobytes() + b"\0"):
        with pytest.raises(PeerError, match=f"{len(data)} bytes where .2, 3. words were expected"):
            words(data, kind, 2, 3)
