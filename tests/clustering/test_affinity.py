"""Distances and eq. (8): exact integers, hand-computed values, independence from order, mask and company."""

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.clustering.affinity import affinity, cross_distances, lexicographic_order, pairwise_distances
from coterie.protocol.errors import UserError


def test_distances_of_integers_are_the_rounded_roots_of_exact_integers():
    """2500 coordinates cross the block boundary twice; the sums of squares stay below 2^53, so nothing may be lost."""
    x = np.random.default_rng(0).integers(-(2**20), 2**20, size=(6, 2500))
    exact = [[math.sqrt(sum((int(a) - int(b)) ** 2 for a, b in zip(p, q, strict=True))) for q in x] for p in x]
    np.testing.assert_array_equal(pairwise_distances(x), exact)
    np.testing.assert_array_equal(cross_distances(x[:2], x[1:]), np.array(exact)[:2, 1:])


@given(seed=st.integers(0, 2**32), n=st.integers(1, 12), d=st.integers(1, 2100))
def test_an_entry_depends_on_its_two_rows_alone(seed, n, d):
    """Bit for bit, for floats of all sizes: not on the order of the rows nor on which others there are."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d)) * 10.0 ** rng.integers(-9, 9, size=(n, 1))
    full = pairwise_distances(x)
    some = rng.permutation(n)[: rng.integers(1, n + 1)]
    np.testing.assert_array_equal(pairwise_distances(x[some]), full[np.ix_(some, some)])
    np.testing.assert_array_equal(pairwise_distances(np.asfortranarray(x)), full)
    np.testing.assert_array_equal(full, full.T)


@given(seed=st.integers(0, 2**32), n=st.integers(1, 10))
def test_a_common_mask_moves_no_bit_of_fixed_point_rows(seed, n):
    """Rows are multiples of 2^-16 below 2^6, the mask is one of 2^-16 below 2^30: all differences are exact."""
    rng = np.random.default_rng(seed)
    x = rng.integers(-(2**22), 2**22, size=(n, 50)) / 2**16
    masked = x + rng.integers(-(2**46), 2**46, size=50) / 2**16
    np.testing.assert_array_equal(pairwise_distances(masked), pairwise_distances(x))
    np.testing.assert_array_equal(lexicographic_order(masked), lexicographic_order(x))


def test_close_rows_far_from_the_origin_keep_their_distance():
    """The expansion |a|^2 + |b|^2 - 2ab returns 0 or nonsense here."""
    x = np.array([[1e8, 1e8], [1e8 + 2**-10, 1e8]])
    assert pairwise_distances(x)[0, 1] == 2**-10


def test_rows_are_read_in_blocks_of_coordinates():
    x = np.ones((20, 200_000), dtype=np.float32)  # 16 MB; as float64, 32
    tracemalloc.start()
    pairwise_distances(x)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2e6


def test_rows_on_disk(tmp_path):
    x = np.random.default_rng(0).normal(size=(4, 3000)).astype(np.float32)
    x.tofile(tmp_path / "rows")
    mapped = np.memmap(tmp_path / "rows", dtype=np.float32, shape=x.shape, mode="r")
    np.testing.assert_array_equal(pairwise_distances(mapped), pairwise_distances(x))


def test_centred_distances_lose_each_side_s_mask():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(5, 1500)), rng.normal(size=(7, 1500))
    expected = np.linalg.norm((x - x.mean(0))[:, None] - (y - y.mean(0)), axis=2)
    masked = cross_distances(x + rng.normal(size=1500) * 1e3, y + rng.normal(size=1500) * 1e3, centred=True)
    np.testing.assert_allclose(masked, expected, rtol=1e-10)
    assert not np.allclose(cross_distances(x, y), expected, rtol=1e-3)


def test_affinity_by_hand():
    """Distance 5 of a 3-4-5 triangle: exp(-5 / (2 * .5)) as printed, exp(-25 / (2 * 4)) as a Gaussian of gamma 2."""
    distances = pairwise_distances(np.array([[0.0, 0.0], [3.0, 4.0]]))
    np.testing.assert_allclose(affinity(distances), [[1, math.exp(-5)], [math.exp(-5), 1]], rtol=1e-15)
    np.testing.assert_allclose(affinity(distances, 2, "rbf")[0, 1], math.exp(-25 / 8), rtol=1e-15)
    np.testing.assert_allclose(affinity(distances, 2)[0, 1], math.exp(-5 / 4), rtol=1e-15)


def test_median_gamma_ignores_the_diagonal_and_identical_rows():
    distances = pairwise_distances(np.array([[0.0], [0.0], [1.0], [4.0]]))  # 0, 1, 1, 4, 4, 3: 3
    np.testing.assert_allclose(affinity(distances, "median", "rbf")[2, 3], math.exp(-1 / 2), rtol=1e-15)
    np.testing.assert_array_equal(affinity(np.zeros((3, 3)), "median"), np.ones((3, 3)))


def test_affinity_survives_extreme_distances():
    np.testing.assert_array_equal(affinity(np.array([0.0, 1e200]), 1e-9, "rbf"), [1.0, 0.0])
    np.testing.assert_array_equal(affinity(np.array([0.0, 1e300])), [1.0, 0.0])


def test_lexicographic_order_equals_python_s_own():
    rng = np.random.default_rng(1)
    x = rng.integers(0, 2, size=(40, 5)).astype(float)  # many ties, many equal rows
    x = np.hstack([np.zeros((40, 1500)), x])  # the first difference lies in the second block
    order = lexicographic_order(x)
    assert sorted(order) == list(range(40))
    assert [x[i].tolist() for i in order] == sorted(r.tolist() for r in x)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (np.zeros(3), "shape"),
        (np.zeros((0, 3)), "non-empty"),
        (np.zeros((3, 0)), "non-empty"),
        ([[1.0]], "list"),
        (np.array([[1.0, np.nan]]), "row 0 is not finite at coordinate 1"),
        (np.array([[np.inf, 1.0]]), "not finite"),
        (np.array([[2**70, 1]], dtype=object), "object"),
        (np.array([["a"]]), "real numbers"),
        (np.array([[1j]]), "real numbers"),
        (np.array([[2**53, 0]]), "2\\^53"),
        (np.array([[-1e200], [1e200]]), "too far apart"),
    ],
)
def test_rows_that_cannot_be_measured_are_refused(rows, says):
    with pytest.raises(UserError, match=says):
        pairwise_distances(rows)


@pytest.mark.parametrize("gamma", [0, -1, math.nan, math.inf, "mean", True, None])
def test_impossible_gamma(gamma):
    with pytest.raises(UserError, match="gamma"):
        affinity(np.zeros((2, 2)), gamma)


def test_other_impossible_arguments():
    with pytest.raises(UserError, match="unknown kernel 'cosine'"):
        affinity(np.zeros((2, 2)), 1.0, "cosine")
    for bad in (-1.0, math.nan, math.inf):
        with pytest.raises(UserError, match="finite and not negative"):
            affinity(np.array([bad]))
    with pytest.raises(UserError, match="2 and of 3"):
        cross_distances(np.zeros((1, 2)), np.zeros((1, 3)))
