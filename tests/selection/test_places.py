"""The places of a round: never more than there are, by size in the long run, and nobody waits for ever."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.protocol.errors import UserError
from coterie.selection.places import dues, places, still_owed


def rounds(sizes: dict[int, int], number: int, count: int, least: int = 1) -> list[dict[int, int]]:
    """The places of so many rounds, in which every cluster has room for all of its devices."""
    before: dict[int, float] = {}
    found = []
    for _ in range(count):
        owed = dues(before, sizes, number)
        found.append(places(owed, sizes, number, least))
        before = still_owed(owed, found[-1], sizes, least)
    return found


def test_by_hand() -> None:
    """Dues of 2.4, .8 and .8 places: the four go to 0, 0, then to 1 and 2, which are owed .8 against .4."""
    owed = dues({}, {0: 6, 1: 2, 2: 2}, 4)
    assert owed == pytest.approx({0: 2.4, 1: 0.8, 2: 0.8})
    found = places(owed, {0: 6, 1: 2, 2: 2}, 4)
    assert found == {0: 2, 1: 1, 2: 1}
    assert still_owed(owed, found, {0: 6, 1: 2, 2: 2}) == pytest.approx({0: 0.4, 1: -0.2, 2: -0.2})
    assert places(owed, {0: 1, 1: 2, 2: 2}, 4) == {0: 1, 1: 2, 2: 1}, "what has no room goes to the others"
    assert places(owed, {0: 6, 1: 2, 2: 2}, 4, least=3) == {0: 4, 1: 0, 2: 0}, "a cluster begins with three"
    assert places({0: 1.0, 1: 1.0}, {0: 1, 1: 1}, 1) == {0: 1, 1: 0}, "of several the first"
    assert places({}, {}, 5) == {}


@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=8),
    st.integers(0, 30),
    st.integers(1, 4),
    st.integers(0, 2**32),
)
def test_no_more_than_there_are_nor_than_there_is_room_for(
    sizes: list[int], number: int, least: int, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    room = {k: int(draw.integers(0, size + 1)) for k, size in enumerate(sizes)}
    found = places({k: float(draw.normal()) for k in room}, room, number, least)
    assert found.keys() == room.keys()
    assert sum(found.values()) <= number
    assert all(given == 0 or least <= given <= room[k] for k, given in found.items())
    if least == 1:
        assert sum(found.values()) == min(number, sum(room.values())), "and no place is left where there is room"


@pytest.mark.parametrize(("number", "least"), [(1, 1), (3, 1), (7, 1), (6, 2)])
def test_in_the_long_run_places_are_by_size_and_nobody_waits_for_ever(number: int, least: int) -> None:
    sizes = {0: 9, 1: 4, 2: 4, 3: 3}
    found = rounds(sizes, number, 400, least)
    for k, size in sizes.items():
        mean = sum(one[k] for one in found) / len(found)
        assert mean == pytest.approx(number * size / 20, rel=0.1)
        turns = [r for r, one in enumerate(found) if one[k]]
        assert max(np.diff(turns), default=0) <= 3 * least * 20 / (number * size) + 1


def test_a_cluster_without_room_for_long_has_no_claim_on_many_later_rounds() -> None:
    sizes, before = {0: 5, 1: 5}, {}
    for _ in range(50):
        owed = dues(before, sizes, 4)
        found = places(owed, {0: 5, 1: 0}, 4)
        assert found == {0: 4, 1: 0}
        before = still_owed(owed, found, sizes)
    assert before == {0: -1.0, 1: 1.0}
    found = places(dues(before, sizes, 4), sizes, 4)
    assert found == {0: 1, 1: 3}
    assert rounds(sizes, 4, 1) == [{0: 2, 1: 2}]


def test_places_that_nobody_can_take_leave_no_cluster_waiting() -> None:
    """Of five places small clusters leave two. If those were owed to somebody, all dues would grow to their bound."""
    sizes = {**dict.fromkeys(range(20), 3), 20: 40}
    found = rounds(sizes, 5, 1000, least=3)
    had = [sum(one[k] for one in found) for k in sizes]
    for k, size in sizes.items():
        assert had[k] / sum(had) == pytest.approx(size / 100, rel=0.15)


def test_what_one_cluster_has_no_room_for_goes_to_the_others_by_their_sizes() -> None:
    sizes, before, had = {0: 30, 1: 10, 2: 20}, {}, np.zeros(3)
    for _ in range(400):
        owed = dues(before, sizes, 6)
        found = places(owed, {0: 30, 1: 10, 2: 1}, 6)
        before = still_owed(owed, found, sizes)
        had += [found[k] for k in sizes]
    assert had / 400 == pytest.approx([3.75, 1.25, 1], abs=0.02)


def test_numbers_that_can_not_be() -> None:
    with pytest.raises(UserError, match="-1 places"):
        places({0: 1.0}, {0: 1}, -1)
    with pytest.raises(UserError, match="at least 0"):
        places({0: 1.0}, {0: 1}, 1, least=0)
