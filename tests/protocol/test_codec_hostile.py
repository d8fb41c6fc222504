"""Hostile bytes: a valid message or a DecodeError, within 1 s and 128 MiB, measured in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from codec_cases import EXAMPLE, KINDS, LIMIT, Small, crafted, mutated, peak_bytes
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.protocol import codec
from tests.protocol.test_codec import valid

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
