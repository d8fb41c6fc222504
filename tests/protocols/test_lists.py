"""Which lists of clients may be grouped beside earlier ones: no combination of them may be of few clients."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.protocols.sealed_groups import isolates

CLIENTS = 9
Lists = Sequence[frozenset[int]]


def rank(rows: list[list[int]]) -> int:
    """Of a matrix over the rationals, exactly."""
    left, found = [[Fraction(x) for x in row] for row in rows], 0
    for column in range(len(rows[0]) if rows else 0):
        pivot = next((row for row in left if row[column]), None)
        if pivot is None:
            continue
        found += 1
        left = [
            [x - row[column] / pivot[column] * y for x, y in zip(row, pivot, strict=True)]
            for row in left
            if row is not pivot
        ]
    return found


def fewest_shown(lists: Lists) -> int:
    """Of how many clients the smallest combination is that is not 0: the slow twin, which tries every set of them.

    A combination is 0 beside these clients, and not 0 at them, if without them the lists have a smaller rank.
    """
    rows = [[int(k in one) for k in range(CLIENTS)] for one in lists]
    whole = rank(rows)
    for size in range(1, CLIENTS + 1):
        for some in combinations(range(CLIENTS), size):
            if rank([[x for k, x in enumerate(row) if k not in some] for row in rows]) < whole:
                return size
    return CLIENTS + 1


@given(
    lists=st.lists(st.frozensets(st.integers(0, CLIENTS - 1), min_size=1), min_size=1, max_size=5),
    fewest=st.integers(2, 5),
)
def test_lists_that_are_let_in_one_after_the_other_show_no_few_clients(lists: Lists, fewest: int) -> None:
    held: list[frozenset[int]] = []
    for one in lists:
        few = fewest_shown([*held, one]) < fewest
        assert isolates(one, held, fewest) == few, "exact for as few clients"
        if not few:
            held.append(one)


def names(*ranges: tuple[int, int]) -> frozenset[int]:
    return frozenset(k for first, end in ranges for k in range(first, end))


@pytest.mark.parametrize(
    ("before", "one", "few"),
    [
        ([], names((0, 7)), True),
        ([], names((0, 8)), False),
        ([names((0, 24))], names((0, 24)), False),
        ([names((0, 24))], names((1, 24)), True),
        ([names((0, 24))], names((3, 29)), False),  # three have left, and five have come
        ([names((0, 14)), names((14, 24))], names((0, 24)), False),  # newcomers, and then all
        ([names((0, 14)), names((14, 24))], names((0, 25)), True),  # each two differ by ten or more
        ([names((0, 14)), names((14, 24))], names((2, 24)), True),
        ([names((0, 20)), names((0, 30))], names((0, 19), (20, 30)), True),
        # the first less the second and with the third is this list, and then this list without one
        ([names((0, 20)), names((8, 28)), names((16, 36))], names((0, 8), (16, 20), (28, 36)), False),
        ([names((0, 20)), names((8, 28)), names((16, 36))], names((1, 8), (16, 20), (28, 36)), True),
    ],
)
def test_three_lists_show_what_two_do_not(before: Lists, one: frozenset[int], few: bool) -> None:
    assert isolates(one, before, 8) == few


def test_a_federation_whose_clients_come_and_go_can_make_groups_anew_for_years() -> None:
    """At first four come and four leave each time, then eight and eight. Soon there are too many sets of few clients to
    try all sums, and it is enough that the eight are in no way the same as before."""
    held: list[frozenset[int]] = []
    for first in (*range(0, 60, 4), *range(64, 300, 8)):
        now = names((first, first + 60))
        assert not isolates(now, held, 8)
        held.append(now)
    assert isolates(names((299, 359)), held, 8)
    assert isolates(held[-1] - {300}, held, 8)
    assert not isolates(held[20], held, 8)  # the same list shows nothing more


@pytest.mark.parametrize("count", [12, 36, 60])
def test_sums_of_many_lists_with_large_factors_are_seen(count: int) -> None:
    """A triangle of lists whose inverse has numbers of up to 10^12, which floating point takes for no combination: the
    last list is one combination of it, and one client more."""
    triangle = np.eye(count, dtype=object)
    inverse = np.eye(count, dtype=object)
    for k in range(1, count):
        triangle[:k, k] = [int((x > 0) if k % 2 else (x < 0)) for x in inverse[0, :k]]
        inverse[:k, k] = -(inverse[:k, :k] @ triangle[:k, k])

    def of(row: Sequence[int]) -> frozenset[int]:
        return frozenset(8 * j + k for j, there in enumerate(row) if there for k in range(8))

    held = [of(row) for row in triangle]
    last = of([int(x) for x in np.random.default_rng(count).integers(0, 2, count)])
    assert isolates(last | {-1}, held, 8)
    assert not isolates(last, held, 8)
    assert not isolates(last | set(range(-8, 0)), held, 8)
