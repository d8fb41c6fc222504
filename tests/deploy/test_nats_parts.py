"""How a packet is cut in parts and how parts become packets again, against a slow twin that knows what was sent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.deploy import nats_parts
from coterie.deploy.nats_parts import (
    CONTRADICTS,
    GIVEN_UP,
    MESSAGE,
    PART,
    Assembly,
    PacketPart,
    Stored,
    Upload,
    parts_of,
)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_parts, "PART", 4)


def cut(upload: int, body: bytes) -> list[tuple[PacketPart, bytes]]:
    size, count = len(body), max(1, -(-len(body) // 4))
    name = f"{upload:016x}"
    return [(PacketPart(name, index, count, size), body[4 * index : 4 * index + 4]) for index in range(count)]


@pytest.mark.parametrize(("size", "count"), [(0, 1), (1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_the_number_of_parts(size: int, count: int) -> None:
    assert parts_of(size) == count


def test_a_part_and_its_headers_fit_in_a_message() -> None:
    text = PacketPart("f" * 16, 10**9 - 1, 10**9 - 1, 10**12 - 1).text()
    assert PART + len(text) + 2048 < MESSAGE


@given(st.binary(max_size=40), st.integers(0, 2**64 - 1))
def test_what_a_part_says_is_read_back(body: bytes, upload: int) -> None:
    for part, data in cut(upload, body):
        assert PacketPart.read(part.text(), len(data), 40) == part
        assert PacketPart.read(part.text(), len(data) + 1, 40) is None
        assert PacketPart.read(part.text(), len(data), len(body) - 1) is None
        assert PacketPart.read(part.text() + " 1", len(data), 40) is None


@given(
    st.none() | st.text(max_size=60) | st.from_regex(r"[0-9a-f]{16} -?[0-9]{1,3} [0-9]{1,3} [0-9]{1,3}", fullmatch=True)
)
def test_a_header_that_says_anything_gives_a_part_that_fits_or_none(text: str | None) -> None:
    for length in (0, 1, 4):
        part = PacketPart.read(text, length, 40)
        if part is not None:
            assert part.size <= 40
            assert 0 <= part.index < part.count == parts_of(part.size)
            assert length == (4 if part.index < part.count - 1 else part.size - 4 * part.index)


def add(
    assembly: Assembly, src: str, part: PacketPart, sequence: int, data: bytes, at_s: float = 0.0
) -> tuple[list[int], object]:
    """What is overtaken by a part, as numbers of its messages, and what becomes of the part."""
    message = Stored(sequence, at_s)
    return [one.sequence for one in assembly.overtaken(src, part, message)], assembly.add(src, part, message, data)


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.binary(max_size=14), st.integers(0, 4), st.randoms(use_true_random=False)),
        max_size=12,
    ),
    st.randoms(use_true_random=False),
)
def test_packets_of_several_senders_come_whole_and_in_order(attempts: list, dice: object) -> None:  # type: ignore[type-arg]
    """Each sender pushes one after the other, some stop half way, and the server mixes the senders.

    Parts of one attempt but the last come in any order.
    """
    ways: dict[str, list[tuple[PacketPart, bytes]]] = {"a": [], "b": [], "c": []}
    expected: dict[str, list[bytes]] = {"a": [], "b": [], "c": []}
    for number, (src, body, stops, shuffled) in enumerate(attempts):
        parts = cut(number, body)
        first, last = parts[:-1], parts[-1]
        shuffled.shuffle(first)
        if stops == 0:
            ways[src].extend(first)
        else:
            ways[src].extend([*first, last])
            expected[src].append(body)
    waiting: dict[str, Iterator[tuple[PacketPart, bytes]]] = {src: iter(way) for src, way in ways.items() if way}
    assembly, came, dropped, sequence = Assembly(), {"a": [], "b": [], "c": []}, [], 0
    while waiting:
        src = dice.choice(sorted(waiting))  # type: ignore[attr-defined]
        try:
            part, data = next(waiting[src])
        except StopIteration:
            del waiting[src]
            continue
        sequence += 1
        overtaken, found = add(assembly, src, part, sequence, data)
        dropped.extend(overtaken)
        assert found is None or isinstance(found, Upload)
        if isinstance(found, Upload):
            came[src].append(found.read())
            dropped.extend(one.sequence for one in found.messages.values())
    assert came == expected
    left = [one.sequence for one in assembly.messages()]
    assert sorted([*dropped, *left]) == list(range(1, sequence + 1)), "each message is accounted for"
    assembly.close()


def test_a_part_of_an_attempt_that_was_given_up_is_dropped() -> None:
    assembly = Assembly()
    old, new = cut(1, b"12345678"), cut(2, b"abcdefgh")
    assert add(assembly, "a", *with_sequence(new[0], 5)) == ([], None)
    assert add(assembly, "a", *with_sequence(old[0], 3)) == ([], GIVEN_UP)
    overtaken, found = add(assembly, "a", *with_sequence(new[1], 6))
    assert overtaken == []
    assert isinstance(found, Upload)
    assert found.read() == b"abcdefgh"


def test_an_attempt_in_a_store_that_was_put_back_overtakes_one_with_higher_numbers() -> None:
    """The store has lost the parts of the older attempt, and gives lower numbers again, at later times."""
    assembly = Assembly()
    old, new = cut(1, b"12345678"), cut(2, b"abcdefgh")
    assert add(assembly, "a", *with_sequence(old[0], 9), at_s=1.0) == ([], None)
    assert add(assembly, "a", *with_sequence(new[0], 5), at_s=2.0) == ([9], None)
    overtaken, found = add(assembly, "a", *with_sequence(new[1], 6), at_s=3.0)
    assert overtaken == []
    assert isinstance(found, Upload)
    assert found.read() == b"abcdefgh"


def test_a_small_packet_that_was_stored_before_parts_does_not_end_them() -> None:
    assembly = Assembly()
    large, small = cut(1, b"12345678"), cut(2, b"xyz")
    add(assembly, "a", *with_sequence(large[0], 5))
    overtaken, found = add(assembly, "a", *with_sequence(small[0], 4))
    assert overtaken == []
    assert isinstance(found, Upload)
    assert isinstance(add(assembly, "a", *with_sequence(large[1], 6))[1], Upload)


def test_parts_that_contradict_each_other_are_dropped() -> None:
    assembly = Assembly()
    first = cut(1, b"12345678")[0]
    add(assembly, "a", *with_sequence(first, 1))
    assert add(assembly, "a", *with_sequence(first, 2)) == ([], CONTRADICTS)
    assert add(assembly, "a", *with_sequence(cut(1, b"123456789")[1], 3)) == ([], CONTRADICTS)
    assert list(assembly.messages()) == [Stored(1, 0.0)]


def test_what_is_not_complete_lies_in_the_folder_and_not_in_memory(tmp_path: Path) -> None:
    assembly = Assembly(tmp_path)
    parts = cut(1, bytes(range(20)))
    for sequence, (part, data) in enumerate(parts[:-1]):
        add(assembly, "a", part, sequence, data)
    file = assembly.uploads["a"].file
    assert os.fstat(file.fileno()).st_dev == tmp_path.stat().st_dev
    found = add(assembly, "a", parts[-1][0], 9, parts[-1][1])[1]
    assert isinstance(found, Upload)
    assert found.read() == bytes(range(20))
    assert list(tmp_path.iterdir()) == [], "a file with a name outlives a crash"


def with_sequence(cut_part: tuple[PacketPart, bytes], sequence: int) -> tuple[PacketPart, int, bytes]:
    return cut_part[0], sequence, cut_part[1]
