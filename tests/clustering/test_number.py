"""How many clusters there are: planted ones are counted, clouds and lone rows are not, in whatever order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.clustering.affinity import pairwise_distances
from coterie.clustering.number import CLOUDS, count_clusters
from coterie.protocol.errors import UserError


def count(rows: np.ndarray, seed: int = 0, **options: object) -> int:
    return count_clusters(pairwise_distances(rows), np.random.default_rng(seed), **options)


def groups(sizes: list[int], *, apart: float, within: float = 1.0, d: int = 40, seed: int = 0) -> np.ndarray:
    """Rows around one centre a group; the length of a row's own part is about ``within``, that of centres ``apart``."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(0, apart / np.sqrt(d), (len(sizes), d))
    return np.repeat(centres, sizes, axis=0) + rng.normal(0, within / np.sqrt(d), (sum(sizes), d))


def test_planted_groups_of_any_sizes_are_counted() -> None:
    """In nine of ten drawings: centres may lie near each other, and the test takes one cloud in ten for two."""
    draw, right = np.random.default_rng(0), 0
    for seed in range(40):
        sizes = draw.integers(4, 13, draw.integers(2, 7)).tolist()
        right += count(groups(sizes, apart=4, seed=seed), seed) == len(sizes)
    assert right >= 36


@pytest.mark.parametrize("k", [1, 2, 3, 5])
@pytest.mark.parametrize("between", [1.0, 30.0])
def test_points_are_as_many_clusters_as_points(k: int, between: float) -> None:
    """Two distances only, 0 and ``between``: A has k blocks, and L_norm k small eigenvalues."""
    label = np.repeat(np.arange(k), 4)
    distances = between * (label[:, None] != label[None])
    assert count_clusters(distances, np.random.default_rng(0)) == k


def test_a_cloud_is_one_cluster_however_long_it_is() -> None:
    """Clouds whose largest variances are those of four groups: at most as many are taken apart as the test allows.

    40 clouds at a level of 1 in CLOUDS + 1: within 4 standard deviations.
    """
    level, clouds, apart = 1 / (CLOUDS + 1), 40, 0
    planted = groups([6] * 4, apart=4, d=200)
    spread = np.linalg.svd(planted - planted.mean(axis=0), compute_uv=False)[:-1]
    assert spread[2] > 2 * spread[3]
    assert count(planted) == 4
    for seed in range(clouds):
        rng = np.random.default_rng([seed, 1])
        apart += count(rng.normal(size=(24, len(spread))) * spread, seed) > 1
    assert apart < clouds * level + 4 * np.sqrt(clouds * level * (1 - level))


def test_clusters_within_clusters_are_counted_too() -> None:
    """The widest gap is between two; one of them is two again, as far apart as in the closer case."""
    near = groups([8, 8], apart=4)
    far = groups([8], apart=0, seed=1) + 100.0
    assert count(near) == 2
    assert count(np.vstack([near, far])) == 3


def test_a_row_or_two_that_stand_apart_are_no_cluster() -> None:
    rows = np.vstack([groups([12], apart=0), groups([2], apart=0, seed=1) + 10])
    assert count(rows) == 1
    assert count(rows, smallest=2) == 2
    assert [count(rows[:n]) for n in (1, 2, 5)] == [1, 1, 1]  # too few for two clusters


@settings(max_examples=10)
@given(st.permutations(range(18)), st.floats(0.5, 4), st.integers(0, 99))
def test_neither_order_nor_place_nor_direction_matter(order: list[int], apart: float, seed: int) -> None:
    rows = groups([6, 6, 6], apart=apart, d=12, seed=seed)
    turn = np.linalg.qr(np.random.default_rng(seed).normal(size=(12, 12)))[0]
    distances = pairwise_distances(rows)
    found = count_clusters(distances, np.random.default_rng(1))
    assert count_clusters(distances[np.ix_(order, order)], np.random.default_rng(1)) == found
    moved = pairwise_distances((rows + 7) @ turn)
    first, second = (count_clusters(each.round(9), np.random.default_rng(1)) for each in (distances, moved))
    assert first == second


@pytest.mark.parametrize(("gamma", "kernel"), [(0.1, "laplacian"), (5.0, "laplacian"), ("median", "rbf"), (2.0, "rbf")])
def test_other_affinities(gamma: float | str, kernel: str) -> None:
    assert count(groups([6] * 4, apart=5), gamma=gamma, kernel=kernel) == 4
    assert count(groups([24], apart=0), gamma=gamma, kernel=kernel) == 1


@pytest.mark.parametrize(
    ("distances", "smallest", "says"),
    [
        (np.zeros((2, 3)), 3, "square"),
        (np.array([[0.0, 1.0], [2.0, 0.0]]), 3, "symmetric"),
        (np.array([[0.0, np.nan], [np.nan, 0.0]]), 3, "finite"),
        (np.zeros((4, 4)), 0, "at least 1 row"),
    ],
)
def test_what_has_no_clusters_to_count(distances: np.ndarray, smallest: int, says: str) -> None:
    with pytest.raises(UserError, match=says):
        count_clusters(distances, np.random.default_rng(0), smallest=smallest)
