"""Digests that a process remembers, and those of frames with long fields."""

from __future__ import annotations

import sys
import tracemalloc
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.protocol import codec, digests
from coterie.protocol.digests import LEAST, remembered
from coterie.protocol.messages import ANY, Bundle, OfRound, bundle, message

LONG = LEAST + 3


@message(src=ANY, dst=ANY)
class Long(OfRound, frozen=True):
    data: bytes
    several: Bundle


def test_remembered_digests_are_those_of_the_bytes_whatever_was_hashed_before() -> None:
    word = bytearray(np.random.default_rng(0).bytes(LONG))
    others = [bytes(word), bytes(word[:-1]), bytes(word[: LONG // 2] + b"\0" + word[LONG // 2 + 1 :])]
    with remembered(3 * LONG):
        several: list[Any] = [*others, *others, memoryview(word), memoryview(others[0])[1:], word, b""]
        for data in several:
            assert digests.sha256(data) == sha256(data).digest()
        assert digests.sha256(np.empty((0, 3))) == sha256(b"").digest()
        word[LONG // 2] ^= 1  # what is remembered does not change with an array
        assert digests.sha256(word) == sha256(word).digest()
        assert digests.sha256(others[0]) == sha256(others[0]).digest()


def test_parts_of_one_object_with_equal_ends_are_told_apart() -> None:
    ends, middles = bytes(range(64)), [np.random.default_rng(seed).bytes(LONG) for seed in range(3)]
    parts = [ends + middle + ends for middle in (*middles, middles[0])]
    whole, size = b"".join(parts), len(parts[0])
    with remembered(len(whole)):
        for at in (*range(4), *range(4)):
            part = memoryview(whole)[at * size : (at + 1) * size]
            assert digests.sha256(part) == sha256(part).digest()


def test_a_small_part_does_not_keep_the_whole_in_memory() -> None:
    large = bytes(10 * LONG)
    before = sys.getrefcount(large)
    with remembered(10 * LONG):
        assert digests.sha256(memoryview(large)[:LONG]) == sha256(large[:LONG]).digest()
        assert sys.getrefcount(large) == before


def test_no_more_is_remembered_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[int] = []

    def counted(data: bytes) -> Any:
        hashed.append(len(data))
        return sha256(data)

    monkeypatch.setattr("coterie.protocol.digests.hashlib", SimpleNamespace(sha256=counted))
    one, two = bytes(LONG), bytes([1]) * LONG
    with remembered(LONG):
        for data in (one, bytes(bytearray(one)), two, two, one):
            digests.sha256(data)
    assert len(hashed) == 3
    digests.sha256(one)
    assert len(hashed) == 4


def test_a_long_frame_is_hashed_by_its_fields_and_the_parts_of_bundles() -> None:
    field, several = bytes(1 << 16), [bytes([1]) * (1 << 16), b"short"]
    frame = codec.encode(Long(1, field, bundle(several)))
    told, head = [b"coterie/frame/1"], b"\xc6" + (1 << 16).to_bytes(4, "big")
    start = frame[: frame.index(head)]
    bundled = bundle(several)
    pieces = [start[:1], start[1:6], start[6:], head, field, b"\xc6" + len(bundled).to_bytes(4, "big"), bundled[:20]]
    for piece in (*pieces, *several):
        told += len(piece).to_bytes(8, "little"), sha256(piece).digest() if len(piece) >= LEAST else piece
    assert b"".join((*pieces, *several)) == frame
    assert codec.frame_digest(frame) == sha256(b"".join(told)).digest()


@given(st.binary(min_size=0, max_size=40), st.integers(0, 2**32))
def test_a_frame_is_named_by_all_of_its_bytes(tail: bytes, seed: int) -> None:
    draw = np.random.default_rng(seed)
    parts = [draw.bytes(LEAST), b"short", draw.bytes(1 << 16)]
    frame = codec.encode(Long(1, draw.bytes(1 << 16), bundle(parts)))
    named = codec.frame_digest(frame)
    at, by = int(draw.integers(len(frame))), int(draw.integers(1, 256))
    changed = frame[:at] + bytes([frame[at] ^ by]) + frame[at + 1 :]
    assert codec.frame_digest(bytes(bytearray(frame))) == named != codec.frame_digest(changed)
    assert codec.frame_digest(frame + tail) != named or not tail
    assert codec.frame_digest(frame[: -1 - len(tail)]) != named


@pytest.mark.parametrize("parts", [1 << 17, 1 << 18])
def test_a_frame_of_many_short_parts_is_cut_no_finer_than_long_ones(parts: int) -> None:
    """Anyone can send it, and it is named before its signature is checked: memory grows with its bytes alone."""
    frame = codec.encode(Long(1, b"", bundle([b""] * parts)))
    pieces = [*codec._cut(frame)]
    assert len(pieces) < 10
    assert b"".join(pieces) == frame
    tracemalloc.start()
    codec.frame_digest(frame)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < len(frame)
