"""Small clusters are given up one at a time, and nobody is left without one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.clustering.spectral import Soft, without_small_clusters
from coterie.protocol.errors import UserError


def soft(membership: list[list[int]], closeness: list[list[float]]) -> Soft:
    phi = np.array(membership, bool)
    n = len(phi)
    return Soft(np.zeros(n, int), np.array(closeness, float), phi, np.ones((n, n)), "")


def test_a_lone_member_joins_the_closest_other_cluster():
    given = soft([[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1]],
                 [[1, 0, 0], [1, 0, 0], [.1, 1, .3], [0, 0, 1], [0, 0, 1]])  # fmt: skip
    assert without_small_clusters(given, 2).astype(int).tolist() == [
        [1, 0, 0],
        [1, 0, 0],
        [0, 0, 1],
        [0, 0, 1],
        [0, 0, 1],
    ]
    assert (without_small_clusters(given, 1) == given.membership).all()


def test_who_still_has_a_cluster_moves_nowhere():
    given = soft([[1, 0], [1, 1], [1, 0]], [[1, 0.9], [1, 1], [1, 0.9]])
    assert without_small_clusters(given, 2).astype(int).tolist() == [[1, 0], [1, 0], [1, 0]]


def test_sizes_are_counted_anew_so_two_small_clusters_can_save_each_other():
    given = soft([[1, 0], [0, 1]], [[1, 0.5], [0.5, 1]])
    assert without_small_clusters(given, 2).sum(axis=0).tolist() == [0, 2]


def test_one_cluster_remains_even_of_too_few():
    assert without_small_clusters(soft([[1]], [[1]]), 5).tolist() == [[True]]


@given(st.integers(1, 12), st.integers(1, 5), st.integers(1, 6), st.integers(0, 1000))
def test_every_row_keeps_a_cluster_and_every_cluster_is_large_enough(n, c, minimum, seed):
    rng = np.random.default_rng(seed)
    closeness = rng.random((n, c))
    phi = closeness >= closeness.mean(axis=1, keepdims=True)
    result = without_small_clusters(soft(phi.tolist(), closeness.tolist()), minimum)
    sizes = result.sum(axis=0)
    assert result.any(axis=1).all()
    assert (sizes[sizes > 0] >= min(minimum, n)).all()


def test_a_minimum_below_one_is_refused():
    with pytest.raises(UserError, match="at least 1"):
        without_small_clusters(soft([[1]], [[1]]), 0)
