"""Algorithm 2 against a slow twin written from the paper's text, planted clusters, and every order of the rows."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import eigh
from sklearn.cluster import KMeans, SpectralClustering
from sklearn.metrics import adjusted_rand_score

from coterie.clustering.affinity import pairwise_distances
from coterie.clustering.spectral import (
    Soft,
    canonical_order,
    soft_membership,
    soft_spectral,
    soft_spectral_from_distances,
    without_small_clusters,
)
from coterie.protocol.errors import UserError


def planted(seed: int, per_group: int = 8, groups: int = 5, spread: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
    """Five groups at the distances that one round of training produces: .3 to .4 within, .9 between."""
    rng = np.random.default_rng(seed)
    group = rng.permutation(np.repeat(np.arange(groups), per_group))
    centres = rng.normal(size=(groups, 400))
    centres *= 0.6 / np.linalg.norm(centres, axis=1, keepdims=True)
    return centres[group] + rng.normal(size=(len(group), 400)) * spread / 20, group


def same(a, b, order=None) -> None:
    """a, clustered from rows[order], is b bit for bit."""
    order = np.arange(len(a.labels)) if order is None else order
    np.testing.assert_array_equal(a.labels, b.labels[order])
    np.testing.assert_array_equal(a.closeness, b.closeness[order])
    np.testing.assert_array_equal(a.membership, b.membership[order])
    np.testing.assert_array_equal(a.affinity, b.affinity[np.ix_(order, order)])
    assert a.fewer_because == b.fewer_because


# ---------------------------------------------------------------- the twin


def algorithm_2(B, c, gamma, *, literal):
    """Algorithm 2 line by line, rows in the order given; the mends where ``literal`` is false."""
    n = len(B)
    A = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            A[i, j] = math.exp(-math.dist(B[i], B[j]) / (2 * gamma))
    D = np.diag(np.diag(A)) if literal else np.diag([sum(A[i]) for i in range(n)])
    half = np.diag([D[i, i] ** -0.5 for i in range(n)])
    L_norm = half @ (D - A) @ half
    vectors = eigh(L_norm)[1]
    U = vectors[:, -c:] if literal else vectors[:, :c]
    U = np.array([row / math.hypot(*row) for row in U])
    labels = KMeans(c, n_init=10, random_state=0).fit_predict(U)
    E = eigh(A)[1][:, -c:]
    E *= np.where(E[np.abs(E).argmax(0), np.arange(c)] < 0, -1, 1)  # the sign matters to the literal scalar mean only
    E_norm = np.array([row / math.hypot(*row) for row in E])
    phi, a = np.zeros((n, c), dtype=bool), np.zeros((n, c))
    for j in range(n):
        for k in range(c):
            members = [E_norm[i] for i in range(n) if labels[i] == k]
            centre = np.full(c, np.mean(members)) if literal else np.mean(members, axis=0)
            a[j, k] = math.exp(-math.dist(E_norm[j], centre) / (2 * gamma))
        for k in range(c):
            phi[j, k] = a[j, k] >= np.mean(a[j])
    return labels, a, phi


def match_columns(theirs, ours):
    """The renumbering of clusters that takes the twin's labels to ours."""
    renumber = dict(zip(theirs, ours, strict=True))
    assert len(renumber) == len(set(renumber.values())), "the two label vectors are not one partition"
    return [renumber[k] for k in range(len(renumber))]


def of_unlike_degrees(seed: int) -> np.ndarray:
    """A tight, two usual and a loose group: the row sums D differ widely, and the identity in their place would give
    another clustering."""
    rng = np.random.default_rng(seed)
    group = rng.permutation(np.repeat(np.arange(4), (30, 8, 8, 8)))
    centres = rng.normal(size=(4, 400))
    centres *= np.array([[0.6], [0.6], [0.6], [3.6]]) / np.linalg.norm(centres, axis=1, keepdims=True)
    return centres[group] + rng.normal(size=(54, 400)) * np.array([0.05, 0.3, 0.5, 1.2])[group][:, None] / 20


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("make", "clusters", "literal"),
    [
        (lambda seed: planted(seed)[0], 5, False),
        (of_unlike_degrees, 4, False),
        (lambda seed: planted(seed)[0], 5, True),
    ],
)
def test_equals_the_slow_twin(make, clusters, literal, seed):
    """What k-means finds in an unclear embedding depends on the order of the rows: the twin gets the canonical one."""
    rows = make(seed)
    rows = rows[canonical_order(pairwise_distances(rows))]
    labels, a, phi = algorithm_2(rows, clusters, 0.5, literal=literal)
    soft = soft_spectral(rows, clusters, 0.5, literal=literal)
    columns = match_columns(labels, soft.labels)
    np.testing.assert_allclose(soft.closeness[:, columns], a, atol=1e-9)
    np.testing.assert_array_equal(soft.membership[:, columns], phi)


def test_agrees_with_an_independent_spectral_clustering():
    rows, _ = planted(1)
    A = soft_spectral(rows, 5).affinity
    theirs = SpectralClustering(5, affinity="precomputed", random_state=0).fit_predict(A)
    assert adjusted_rand_score(theirs, soft_spectral(rows, 5).labels) == 1.0


# ---------------------------------------------------------------- what it finds


@pytest.mark.parametrize("seed", range(2))
def test_planted_clusters_are_found_and_the_literal_text_misses_them(seed):
    rows, group = planted(seed)
    for options in ({}, {"gamma": "median"}, {"gamma": "median", "kernel": "rbf"}):
        soft = soft_spectral(rows, 5, **options)
        assert adjusted_rand_score(group, soft.labels) >= 0.95
        assert soft.membership.shape[1] == 5
        assert soft.membership.sum(axis=1).mean() < 1.3  # nearly hard
        assert soft.membership[np.arange(len(rows)), soft.labels].all()
    literal = soft_spectral(rows, 5, literal=True)
    assert adjusted_rand_score(group, literal.labels) < 0.4
    assert literal.membership.sum(axis=1).mean() > 1.5  # clients in many clusters: on its way to a plain average


def test_no_structure_is_not_turned_into_planted_groups():
    """The negative control: the same groups as labels of rows that know nothing of them."""
    rows, group = planted(0)
    noise = np.random.default_rng(7).normal(size=rows.shape) * 0.03
    assert abs(adjusted_rand_score(group, soft_spectral(noise, 5).labels)) < 0.2


def test_median_gamma_makes_the_result_independent_of_scale():
    rows, _ = planted(3)
    same(soft_spectral(rows * 2.0**20, 5, "median", "rbf"), soft_spectral(rows, 5, "median", "rbf"))


# ---------------------------------------------------------------- what must not matter


@st.composite
def fixed_point_rows(draw):
    """Few values in few coordinates, so that ties, symmetric figures and identical rows are common."""
    n, d = draw(st.integers(1, 14)), draw(st.integers(1, 4))
    top = draw(st.sampled_from([1, 2, 5, 2**20]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return rng.integers(0, top + 1, size=(n, d)) / draw(st.sampled_from([1, 2**16])), rng


@given(fixed_point_rows(), st.integers(1, 6), st.booleans(), st.sampled_from([0.5, "median"]))
def test_order_and_mask_move_no_bit(case, clusters, literal, gamma):
    rows, rng = case
    plain = soft_spectral(rows, clusters, gamma, literal=literal)
    order = rng.permutation(len(rows))
    mask = rng.integers(-(2**40), 2**40, size=rows.shape[1]) / 2**10
    again = soft_spectral((rows + mask)[order], clusters, gamma, literal=literal)
    np.testing.assert_array_equal(plain.affinity[np.ix_(order, order)], again.affinity)
    assert plain.membership.any(axis=1).all()
    assert plain.membership.shape[1] <= min(clusters, len(np.unique(rows, axis=0)))
    assert (plain.fewer_because == "") == (plain.membership.shape[1] == clusters)
    if len(np.unique(rows, axis=0)) == len(rows):
        same(again, plain, order)
    else:  # identical rows may swap; as a set of (row, result) the two agree bit for bit
        key = np.column_stack([rows, plain.labels, plain.closeness, plain.membership])
        shuffled = np.column_stack([rows[order], again.labels, again.closeness, again.membership])
        np.testing.assert_array_equal(np.array(sorted(map(tuple, key))), np.array(sorted(map(tuple, shuffled))))


@given(seed=st.integers(0, 2**32), n=st.integers(1, 9))
def test_canonical_order_gives_one_matrix_for_all_orders(seed, n):
    """Also with ties: rows on a small grid (twins, pairs) and the corners of a regular polygon."""
    rng = np.random.default_rng(seed)
    corners = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    polygon = np.minimum(corners, n - corners).astype(float)  # steps around a ring: all rows look alike
    twins = pairwise_distances(np.repeat(rng.permutation(20)[:n].astype(float), 2)[:, None])
    for distances in (polygon, twins, pairwise_distances(rng.normal(size=(n, 3)))):
        shuffle = rng.permutation(len(distances))
        order, again = canonical_order(distances), canonical_order(distances[np.ix_(shuffle, shuffle)])
        shuffled = shuffle[again]
        np.testing.assert_array_equal(distances[np.ix_(order, order)], distances[np.ix_(shuffled, shuffled)])


def test_a_secret_rotation_leaves_the_clusters():
    """An orthogonal transform moves the last bits of the distances and nothing else."""
    rows, _ = planted(2)
    rng = np.random.default_rng(0)
    axis = rng.normal(size=400)
    axis /= np.linalg.norm(axis)
    turned = rows * rng.choice([-1, 1], size=400)
    turned -= 2 * np.outer(turned @ axis, axis)  # sign flips and a reflection
    plain, rotated = soft_spectral(rows, 5), soft_spectral(turned, 5)
    np.testing.assert_array_equal(plain.labels, rotated.labels)
    np.testing.assert_array_equal(plain.membership, rotated.membership)
    np.testing.assert_allclose(plain.closeness, rotated.closeness, atol=1e-8)


# ---------------------------------------------------------------- small and degenerate sets


@pytest.mark.parametrize(
    ("rows", "labels", "says"),
    [
        (np.ones((1, 3)), [0], "only 1 distinct rows among 1"),
        (np.ones((5, 3)), [0] * 5, "only 1 distinct rows among 5"),
        (np.array([[0.0], [1.0]]), [0, 1], "only 2 distinct rows among 2"),
        (np.array([[9.0], [0.0], [0.0], [4.0]]), None, "only 3 distinct rows among 4"),
    ],
)
def test_fewer_distinct_rows_than_clusters(rows, labels, says):
    soft = soft_spectral(rows, 5)
    distinct = len(np.unique(rows))
    assert soft.membership.shape[1] == distinct
    assert soft.fewer_because == says
    assert soft.membership.any(axis=1).all()
    if labels is not None:
        np.testing.assert_array_equal(soft.labels, labels)
    values = rows[:, 0]
    assert all(
        (soft.labels[i] == soft.labels[j]) == (values[i] == values[j]) for i in range(len(rows)) for j in range(i)
    )


def test_equal_affinities_to_all_clusters_leave_nobody_out():
    """Corners of a simplex: every pair is equally far, and rounding of the mean must not exceed all of its parts."""
    for n in range(2, 9):
        soft = soft_spectral(np.eye(n), min(n, 3))
        assert soft.membership.any(axis=1).all()
        assert soft.membership.sum() >= n


def test_everybody_joins_a_cluster_though_rounding_lifts_the_mean():
    a = np.array([[0.1, 0.1, 0.1], [0.9, 0.2, 0.1], [0.5, 0.5, 0.1]])
    assert a[0].mean() > 0.1  # 0.10000000000000002
    np.testing.assert_array_equal(soft_membership(a), [[True, True, True], [True, False, False], [True, True, False]])


def test_vanishing_affinities_are_survived():
    """gamma far below the distances: A is the identity, which says nothing, but every row still gets a cluster."""
    for literal in (False, True):
        soft = soft_spectral(np.arange(6.0)[:, None] * 1e6, 3, literal=literal)
        np.testing.assert_array_equal(soft.affinity, np.eye(6))
        assert np.isfinite(soft.closeness).all()
        assert soft.membership.any(axis=1).all()


def test_one_far_client_does_not_spoil_the_others():
    rows, group = planted(4)
    soft = soft_spectral(np.vstack([rows, np.full((1, 400), 1e9)]), 6)
    assert adjusted_rand_score([*group, 9], soft.labels) >= 0.95


def test_one_cluster_holds_everybody():
    soft = soft_spectral(planted(0)[0], 1)
    assert soft.membership.shape[1] == 1
    assert soft.membership.all()
    assert soft.fewer_because == ""


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize("clusters", [0, -1, 2.0, True, "5", None])
def test_impossible_number_of_clusters(clusters):
    with pytest.raises(UserError, match="clusters must be a whole number"):
        soft_spectral(np.eye(3), clusters)


@pytest.mark.parametrize(
    "matrix",
    [
        np.zeros((2, 3)),
        np.zeros((0, 0)),
        np.zeros(4),
        np.array([[0.0, 1.0], [2.0, 0.0]]),
        np.array([[1.0, 1.0], [1.0, 0.0]]),
        np.array([[0.0, -1.0], [-1.0, 0.0]]),
        np.array([[0.0, np.nan], [np.nan, 0.0]]),
    ],
)
def test_what_is_no_distance_matrix_is_refused(matrix):
    with pytest.raises(UserError, match="distances must be"):
        soft_spectral_from_distances(matrix, 2)


def test_mistakes_in_kernel_gamma_and_rows_are_told():
    with pytest.raises(UserError, match="kernel"):
        soft_spectral(np.eye(3), 2, kernel="linear")
    with pytest.raises(UserError, match="gamma"):
        soft_spectral(np.eye(3), 2, gamma=0)
    with pytest.raises(UserError, match="not finite"):
        soft_spectral(np.array([[1.0], [np.nan], [2.0]]), 2)


# -- no small clusters -------------------------------------------------------------------------------------------------


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
