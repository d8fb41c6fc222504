"""Slow clients are asked in turn: as often as their pace says, and no more are left out than may be."""

from __future__ import annotations

from itertools import pairwise
from math import ceil

import pytest

from coterie.selection.turns import left_out


def played(seconds: dict[str, float], most: int, rounds: int) -> dict[str, list[int]]:
    """By client, the rounds that ask it. All are asked in round 1."""
    paces: dict[str, tuple[int, float]] = {}
    asked: dict[str, list[int]] = {name: [] for name in seconds}
    for r in range(1, rounds + 1):
        out = left_out(paces, 2.0, r, most)
        assert len(out) <= most
        for name in seconds.keys() - out:
            paces[name] = r, seconds[name]
            asked[name].append(r)
    return asked


def test_a_client_that_needs_k_budgets_is_asked_once_in_k_rounds() -> None:
    seconds = {"fast": 0.5, "just": 2.0, "over": 2.1, "slow": 9.0}
    asked = played(seconds, 4, 40)
    for name, rounds in asked.items():
        turn = ceil(seconds[name] / 2)
        assert rounds == list(range(1, 41, turn))


@pytest.mark.parametrize("most", [0, 1, 3])
def test_no_more_are_left_out_than_may_be_and_those_that_waited_longest_are_asked(most: int) -> None:
    seconds = {f"slow {k}": 20.0 + k for k in range(6)}
    asked = played(seconds, most, 60)
    assert sum(map(len, asked.values())) == 60 * 6 - most * 59  # with so many slow ones, as many as may be
    gaps = [b - a for rounds in asked.values() for a, b in pairwise(rounds)]
    assert max(gaps) <= 13
    assert len(asked["slow 0"]) >= len(asked["slow 5"])  # the slowest wait first
