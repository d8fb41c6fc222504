"""Shares of two parties: products, shuffles, bits and choices, against whole numbers in the clear."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.crypto import two_party
from coterie.protocol.errors import DecodeError

SIZES = two_party.Sizes(clients=6, groups=3, length=5, comparisons=40, placings=2, bits=4)
KEYS = b"a" * 16, b"b" * 16
CORRECTIONS = two_party.deal(SIZES, lambda rows: rows[:, ::-1], KEYS)
BOTH = two_party.Dealt(0, SIZES, KEYS[0]), two_party.Dealt(1, SIZES, KEYS[1], CORRECTIONS)


def reversed_rows(rows: Any) -> Any:
    return rows[:, ::-1]


def together(first: Generator[bytes, bytes, Any], second: Generator[bytes, bytes, Any]) -> tuple[Any, Any, list[bytes]]:
    """The results of both, and all that was sent."""
    seen, ends = list[bytes](), list[Any]()
    mine, other = next(first), next(second)
    while True:
        seen += [mine, other]
        for party, got in ((first, other), (second, mine)):
            try:
                sent = party.send(got)
            except StopIteration as end:
                ends.append(end.value)
            else:
                mine, other = (sent, other) if party is first else (mine, sent)
        if ends:
            assert len(ends) == 2
            return ends[0], ends[1], seen


def split(values: Any, seed: int = 0) -> tuple[Any, Any]:
    values = np.asarray(values, np.int64).view(np.uint64)
    first = np.random.default_rng(seed).integers(0, 2**64, values.shape, np.uint64)
    return first, values - first


def run(step: Any, *shared: Any) -> tuple[Any, Any]:
    """A step at both parties, on shares."""
    parts = [split(one, at) for at, one in enumerate(shared)]
    return together(step(BOTH[0], *(p[0] for p in parts)), step(BOTH[1], *(p[1] for p in parts)))[:2]


def test_corrections_have_the_length_that_is_said() -> None:
    assert len(CORRECTIONS) == two_party.corrections_bytes(SIZES)


@pytest.mark.parametrize("count", [1, 4, 6])
def test_the_shares_of_a_square_are_its_shares(count: int) -> None:
    x = np.random.default_rng(1).integers(-(2**20), 2**20, (count, 5))
    one, other = run(lambda dealt, part: two_party.squared(dealt, part, reversed_rows), x)
    assert ((one + other).view(np.int64) == x @ x[:, ::-1].T).all()


@pytest.mark.parametrize(("count", "groups", "placing"), [(6, 3, 0), (1, 2, 1), (4, 1, 0)])
def test_the_shares_of_a_product_are_its_shares(count: int, groups: int, placing: int) -> None:
    draw = np.random.default_rng(2)
    x, y = draw.integers(-(2**20), 2**20, (count, 5)), draw.integers(-(2**20), 2**20, (groups, 5))
    one, other = run(lambda dealt, a, b: two_party.multiplied(dealt, placing, a, b, reversed_rows), x, y)
    assert ((one + other).view(np.int64) == x @ y[:, ::-1].T).all()


@given(
    st.lists(st.lists(st.integers(0, 1), min_size=4, max_size=4), min_size=1, max_size=6), st.sampled_from(SIZES.uses)
)
def test_bits_shared_mod_2_become_the_same_bits_shared_mod_2_64(bits: list[list[int]], name: str) -> None:
    wanted = np.array(bits, np.uint64)
    first = np.random.default_rng(3).integers(0, 2, wanted.shape, np.uint64)
    one, other, sent = together(
        *(two_party.lifted(BOTH[k], name, part) for k, part in ((0, first), (1, first ^ wanted)))
    )
    assert (one + other == wanted).all()
    assert one.max() > 2**32 < other.max(), "neither share is the bit"
    assert {len(data) for data in sent} == {-(-wanted.size // 8)}


@pytest.mark.parametrize("party", [0, 1])
def test_whatever_a_party_says_of_its_bits_the_sum_is_one_bit_each(party: int) -> None:
    """So a client that shares any bytes, and a server that flips bits, make no number of four bits above 15."""
    said = np.random.default_rng(4).integers(0, 2**64, (6, 4), np.uint64)
    parts = (said, np.zeros_like(said))[:: 1 if party == 0 else -1]
    one, other, _ = together(*(two_party.lifted(BOTH[k], "founding", parts[k]) for k in (0, 1)))
    assert (one + other == said % 2).all()


def test_each_bit_of_each_use_has_a_mask_of_its_own() -> None:
    zeros = np.zeros((6, 4), np.uint64)
    sent = [next(two_party.lifted(BOTH[party], name, zeros)) for party in (0, 1) for name in SIZES.uses]
    assert len(set(sent)) == len(sent)
    masks = np.unpackbits(np.frombuffer(b"".join(sent), np.uint8)).reshape(-1, 6, 4)
    assert len({row.tobytes() for row in masks.transpose(1, 0, 2).reshape(6, -1)}) == 6
    assert len({row.tobytes() for row in masks.transpose(2, 0, 1).reshape(4, -1)}) == 4


def test_what_is_sent_of_bits_does_not_depend_on_them() -> None:
    """Over many keys each sent bit is as often 0 as 1, whichever bits and shares there are, and shares are uniform."""
    for bit in (0, 1):
        sent, shares = [], []
        for seed in range(400):
            sizes = two_party.Sizes(1, 0, 0, 0, 0, 1)
            keys = seed.to_bytes(16, "big"), (seed + 1000).to_bytes(16, "big")
            dealt = two_party.Dealt(1, sizes, keys[1], two_party.deal(sizes, reversed_rows, keys))
            both = two_party.Dealt(0, sizes, keys[0]), dealt
            parts = np.array([[1]], np.uint64), np.array([[1 ^ bit]], np.uint64)
            one, other, seen = together(*(two_party.lifted(both[k], "founding", parts[k]) for k in (0, 1)))
            sent.append([data[0] >> 7 for data in seen])
            shares.append([float(part[0, 0]) / 2**64 for part in (one, other)])
        assert np.abs(np.mean(sent, axis=0) - 0.5).max() < 0.1
        assert np.abs(np.mean(shares, axis=0) - 0.5).max() < 0.06


def greatest(lists: list[list[int]], marks: list[list[int]], used: int = 0) -> tuple[Any, Any]:
    def step(dealt: two_party.Dealt, *values: Any) -> Any:
        return two_party.greatest(dealt, used, values, marks)

    return run(step, *lists)


@given(
    st.lists(st.lists(st.integers(-(2**61), 2**61), min_size=1, max_size=6), min_size=1, max_size=6),
    st.integers(0, 10),
    st.data(),
)
def test_both_learn_the_mark_of_the_first_of_the_greatest(lists: list[list[int]], used: int, data: Any) -> None:
    marks = [data.draw(st.lists(st.integers(0, 99), min_size=len(one), max_size=len(one))) for one in lists]
    one, other = greatest(lists, marks, used)
    assert one == other == [named[values.index(max(values))] for values, named in zip(lists, marks, strict=True)]


@pytest.mark.parametrize("value", [0, 1, -1, 2**62, -(2**62)])
def test_the_edges_of_a_comparison(value: int) -> None:
    assert greatest([[0, value]], [[0, 1]])[0] == [value > 0]


def test_what_is_sent_does_not_depend_on_the_numbers() -> None:
    """Masked values, the bits of each AND and what chooses the greater one are uniform: over many keys there is the
    same share of ones for any numbers, whichever is the greatest.
    """
    for values in ([1, 0, 0], [-5, 2**40, 7], [0, -1, 2**61]):
        total = np.zeros(2)
        for seed in range(120):
            keys = seed.to_bytes(16, "big"), (seed + 1000).to_bytes(16, "big")
            sizes = two_party.Sizes(1, 1, 3, 2, 0, 0)
            corrections = two_party.deal(sizes, reversed_rows, keys)
            both = two_party.Dealt(0, sizes, keys[0]), two_party.Dealt(1, sizes, keys[1], corrections)
            parts = split(values, seed)
            first, second = (two_party.greatest(both[k], 0, [parts[k]], [[1, 1, 1]]) for k in (0, 1))
            *_, seen = together(first, second)
            for party in (0, 1):  # the last message opens the mark, which is 1
                bits = np.unpackbits(np.frombuffer(b"".join(seen[party::2]), np.uint8))
                total[party] += bits.mean() / 120
        assert np.abs(total - 0.5).max() < 0.02


def test_the_signs_on_the_way_are_hidden_by_a_bit_that_neither_knows() -> None:
    """Over many keys each side's part of what chooses is as often 0 as 1, and so is what both open of it."""
    for values in ([3, 2], [2, 3]):
        opened = []
        for seed in range(400):
            keys = seed.to_bytes(16, "big"), (seed + 1000).to_bytes(16, "big")
            sizes = two_party.Sizes(1, 1, 3, 1, 0, 0)
            corrections = two_party.deal(sizes, reversed_rows, keys)
            both = two_party.Dealt(0, sizes, keys[0]), two_party.Dealt(1, sizes, keys[1], corrections)
            parts = split(values, seed)
            first, second = (two_party.greatest(both[k], 0, [parts[k]], [[0, 1]]) for k in (0, 1))
            *_, seen = together(first, second)
            opened.append([data[0] >> 7 for data in seen[-4:-2]])
        flips = np.array(opened)
        assert np.abs(np.column_stack([flips, flips[:, 0] ^ flips[:, 1]]).mean(axis=0) - 0.5).max() < 0.1


def test_a_mark_that_no_number_has_is_refused() -> None:
    step = two_party.greatest(BOTH[0], 0, [np.zeros(1, np.uint64)], [[3]])
    assert next(step) == (3).to_bytes(8, "little")
    with pytest.raises(DecodeError, match="a mark"):
        step.send((1).to_bytes(8, "little"))


def test_more_comparisons_than_were_dealt_are_refused() -> None:
    with pytest.raises(DecodeError, match="41 comparisons; 40"):
        next(two_party.greatest(BOTH[0], 40, [np.zeros(2, np.uint64)], [[0, 1]]))


@pytest.mark.parametrize("data", [b"", bytes(7), bytes(16)])
def test_bytes_of_another_length_are_refused(data: bytes) -> None:
    step = two_party.greatest(BOTH[0], 0, [np.zeros(2, np.uint64)], [[0, 1]])
    next(step)
    with pytest.raises(DecodeError):
        step.send(data)
