"""Correlation clustering by choices: planted groups, small cases by trying all, and bounds on what is asked."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.clustering import correlation


def orders(count: int, seed: int = 0) -> list[list[int]]:
    return [np.random.default_rng([seed, k]).permutation(count).tolist() for k in range(correlation.RESTARTS)]


def planted(sizes: list[int], noise: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    truth = draw.permutation(np.repeat(np.arange(len(sizes)), sizes))
    gains = np.where(truth[:, None] == truth, 1.0, -1.0) + noise * draw.normal(size=(len(truth), len(truth)))
    return (gains + gains.T) / 2, truth


def same(one: np.ndarray, other: np.ndarray) -> bool:
    return bool(((one[:, None] == one) == (other[:, None] == other)).all())


@pytest.mark.parametrize("sizes", [[6, 6, 6, 6], [20, 3, 3], [12], [3, 3, 3, 3, 3]])
def test_planted_groups_are_found(sizes: list[int]) -> None:
    for seed in range(5):
        gains, truth = planted(sizes, 0.5, seed)
        found = correlation.labelled(
            correlation.in_the_clear(correlation.grouped(orders(len(truth), seed), 10, 3), gains), len(truth)
        )
        assert same(found, truth)


def partitions(items: list[int]) -> Iterator[list[list[int]]]:
    if not items:
        yield []
        return
    for rest in partitions(items[1:]):
        yield [[items[0]], *rest]
        for at, group in enumerate(rest):
            yield [*rest[:at], [items[0], *group], *rest[at + 1 :]]


def score(groups: list[list[int]], gains: np.ndarray) -> float:
    return float(sum(gains[np.ix_(group, group)].sum() for group in groups))


def test_no_other_partition_of_a_few_clients_is_better_in_most_cases() -> None:
    """Against all partitions of seven; a local search may miss the best one now and then."""
    best = 0
    for seed in range(20):
        gains = np.random.default_rng(seed).normal(size=(7, 7))
        gains = gains + gains.T
        found = correlation.in_the_clear(correlation.grouped(orders(7, seed), 7, 1), gains)
        most = max(score(one, gains) for one in partitions(list(range(7))))
        best += score([list(group) for group in found], gains) >= most - 1e-9
    assert best >= 17


def test_too_small_groups_join_the_others_and_one_group_may_be_small() -> None:
    gains, _ = planted([8, 8, 2], 0.1, 3)
    found = correlation.in_the_clear(correlation.grouped(orders(18), 10, 3), gains)
    assert sorted(map(len, found)) in ([8, 10], [9, 9])
    assert correlation.in_the_clear(correlation.grouped(orders(2), 2, 3), np.ones((2, 2))) == [(0, 1)]


def test_there_are_no_more_groups_than_asked_for() -> None:
    gains, _ = planted([4, 4, 4, 4], 0.1, 4)
    assert len(correlation.in_the_clear(correlation.grouped(orders(16), 2, 1), gains)) <= 2


@given(st.integers(3, 14), st.integers(2, 6), st.integers(0, 2**16))
def test_the_number_of_comparisons_is_bounded(count: int, most: int, seed: int) -> None:
    gains = np.random.default_rng(seed).normal(size=(count, count))
    gains, asked = gains + gains.T, 0

    def answer(choices: list[correlation.Question]) -> list[int]:
        nonlocal asked
        asked += sum(len(one.sums) - 1 for one in choices)
        return [correlation.chosen(one, gains) for one in choices]

    groups = correlation.answered(correlation.grouped(orders(count, seed), most, 3), answer)
    assert sorted(i for group in groups for i in group) == list(range(count))
    assert asked <= correlation.most_comparisons(count, most)


def test_a_client_that_stays_tells_nothing_else() -> None:
    """The question has two answers: whether it gains most where it is, and no other group by number."""
    told: list[tuple[int, int]] = []
    gains, _ = planted([4, 4, 4], 0.3, 5)

    def answer(choices: list[correlation.Question]) -> list[int]:
        marks = [correlation.chosen(one, gains) for one in choices]
        told.extend((mark, len(set(one.marks))) for mark, one in zip(marks, choices, strict=True))
        return marks

    groups = correlation.answered(correlation.grouped(orders(12), 6, 3), answer)
    assert sorted(map(len, groups)) == [4, 4, 4]
    stays = [mark for mark, kinds in told if kinds == 2]
    assert len(stays) >= correlation.RESTARTS * 12


def test_newcomers_join_the_group_that_gains_most() -> None:
    gains = np.array([[1.0, 3.0, 2.0], [0.0, -5.0, -1.0], [-3.0, -2.0, -1.0], [4.0, 4.0, 9.0]])
    assert correlation.in_the_clear(correlation.joined([(0,), (1,), (2,)], range(4)), gains) == [1, 0, 2, 2]


def test_searches_side_by_side_ask_together_and_end_alone() -> None:
    def search(rounds: int):  # type: ignore[no-untyped-def]
        for _ in range(rounds):
            yield [correlation.Question([[((0,), (0,))]], [1])]
        return rounds

    batches = []

    def answer(asked: list) -> list[int]:
        batches.append(len(asked))
        return [1] * len(asked)

    assert correlation.answered(correlation.side_by_side([search(1), search(3), search(0)]), answer) == [1, 3, 0]
    assert batches == [2, 1, 1]
