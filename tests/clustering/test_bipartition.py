"""The optimal bipartition against all bipartitions, and its edge cases."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.clustering.cosines import bipartition, cosines_to
from coterie.protocol.errors import UserError


def cosines_of(rows: np.ndarray) -> np.ndarray:
    """The cosines of all pairs, 0 with a row of zeros."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    unit = rows / np.where(lengths > 0, lengths, 1.0)
    return np.asarray(unit @ unit.T)


def least_largest(rows: np.ndarray) -> float:
    """The least over all bipartitions of the largest cosine across the parts."""
    cosines, n = cosines_of(rows), len(rows)
    found = []
    for size in range(1, n // 2 + 1):
        for part in combinations(range(n), size):
            rest = [i for i in range(n) if i not in part]
            found.append(cosines[np.ix_(part, rest)].max())
    return float(min(found))


@given(n=st.integers(2, 7), seed=st.integers(0, 1 << 30))
def test_no_bipartition_is_better(n: int, seed: int) -> None:
    rows = np.random.default_rng(seed).normal(size=(n, 4))
    second, across = bipartition(rows)
    assert not second[0]
    assert second.any()
    assert cosines_of(rows)[np.ix_(~second, second)].max() == pytest.approx(across, abs=1e-12)
    assert across == pytest.approx(least_largest(rows), abs=1e-12)


@given(places=st.lists(st.integers(0, 3), min_size=2, max_size=7))
def test_no_bipartition_is_better_where_several_pairs_are_equally_similar(places: list[int]) -> None:
    rows = np.vstack([np.eye(3), np.zeros(3)])[places]  # clients that have not moved are rows of zeros
    second, across = bipartition(rows)
    assert not second[0]
    assert second.any()
    assert cosines_of(rows)[np.ix_(~second, second)].max() == across == least_largest(rows)


def test_rows_of_two_directions_are_parted_by_direction() -> None:
    rows = np.array([[1.0, 0.1], [-1, 0.1], [2, 0], [-3, 0.2]])
    second, across = bipartition(rows)
    assert second.tolist() == [False, True, False, True]
    assert across < -0.9


def test_alike_and_zero_rows() -> None:
    second, across = bipartition(np.ones((4, 3)))
    assert second.sum() in (1, 2, 3)
    assert across == pytest.approx(1)
    assert bipartition(np.zeros((2, 3)))[1] == pytest.approx(0)


@pytest.mark.parametrize("rows", [np.ones((1, 3)), np.ones(3), np.array([[1.0, np.nan], [0, 1]])])
def test_what_has_no_bipartition_is_refused(rows: np.ndarray) -> None:
    with pytest.raises(UserError, match="vectors"):
        bipartition(rows)


def test_cosines_to_directions_are_those_of_a_plain_loop() -> None:
    directions, vector = np.array([[3.0, 4.0], [-6.0, 8.0], [0.0, 0.0]]), np.array([0.0, 2.0])
    np.testing.assert_allclose(cosines_to(directions, vector), [0.8, 0.8, 0])
    np.testing.assert_array_equal(cosines_to(directions, np.zeros(2)), 0)
