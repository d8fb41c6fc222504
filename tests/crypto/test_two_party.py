"""Shares of two parties: products, shuffles and comparisons, against whole numbers in the clear."""

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


@pytest.mark.parametrize("count", [6, 4])
def test_a_shuffle_moves_rows_and_only_one_party_knows_how(count: int) -> None:
    values = np.arange(count * (SIZES.length + 1)).reshape(count, SIZES.length + 1)
    (one, nothing), (other, order) = run(lambda dealt, part: two_party.shuffled(dealt, "founding", part), values)
    assert not len(nothing)
    assert sorted(order.tolist()) == list(range(count))
    assert ((one + other).view(np.int64) == values[order]).all()


def test_a_shuffle_of_newcomers_gains() -> None:
    values = np.arange(16).reshape(4, 4)
    (one, _), (other, order) = run(lambda dealt, part: two_party.shuffled(dealt, "placing 1", part), values)
    assert ((one + other).view(np.int64) == values[order]).all()


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


@given(st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=12), st.integers(0, 28))
def test_both_learn_which_numbers_are_above_zero(values: list[int], used: int) -> None:
    one, other = run(lambda dealt, part: two_party.above_zero(dealt, used, part), values)
    assert one == other == [value > 0 for value in values]


@pytest.mark.parametrize("value", [0, 1, -1, 2**62, -(2**62)])
def test_the_edges_of_a_comparison(value: int) -> None:
    assert run(lambda dealt, part: two_party.above_zero(dealt, 0, part), [value])[0] == [value > 0]


def test_what_is_sent_does_not_depend_on_the_numbers() -> None:
    """Masked values and the bits of each AND are uniform: over many keys, the same share of ones for any numbers."""
    ones = {value: np.zeros(2) for value in (1, 2**40, -5)}
    for value, total in ones.items():
        for seed in range(120):
            keys = seed.to_bytes(16, "big"), (seed + 1000).to_bytes(16, "big")
            sizes = two_party.Sizes(1, 1, 3, 1, 0, 0)
            both = (
                two_party.Dealt(0, sizes, keys[0]),
                two_party.Dealt(1, sizes, keys[1], two_party.deal(sizes, reversed_rows, keys)),
            )
            parts = split([value], seed)
            *_, seen = together(two_party.above_zero(both[0], 0, parts[0]), two_party.above_zero(both[1], 0, parts[1]))
            for party in (0, 1):  # but for the last message, which opens the sign
                bits = np.unpackbits(np.frombuffer(b"".join(seen[party:-2:2]), np.uint8))
                total[party] += bits.mean() / 120
    for total in ones.values():
        assert np.abs(total - 0.5).max() < 0.02


def test_more_comparisons_than_were_dealt_are_refused() -> None:
    with pytest.raises(DecodeError, match="41 comparisons; 40"):
        next(two_party.above_zero(BOTH[0], 40, np.zeros(1, np.uint64)))


@pytest.mark.parametrize("data", [b"", bytes(7), bytes(16)])
def test_bytes_of_another_length_are_refused(data: bytes) -> None:
    step = two_party.above_zero(BOTH[0], 0, np.zeros(1, np.uint64))
    next(step)
    with pytest.raises(DecodeError):
        step.send(data)


def test_places_that_no_shuffle_has_are_refused() -> None:
    step = two_party.shuffled(BOTH[0], "founding", np.zeros((2, 5), np.uint64))
    next(step)
    with pytest.raises(DecodeError, match="2 places of 2 rows"):
        step.send(np.array([1, 1], "<u4").tobytes())
