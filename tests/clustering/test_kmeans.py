"""Dynamic K-means against a slow twin, planted clusters and the cases without an answer of their own."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from coterie.clustering.agreement import Agreement, grouping
from coterie.clustering.kmeans import BETTER, Clusters, nearest, regrouped
from coterie.clustering.labels import members_of
from coterie.protocol.errors import UserError
from coterie.protocol.state import dump, load

Floats = NDArray[np.float64]


def named(n: int) -> list[str]:
    return [f"client/{i}" for i in range(n)]


def planted(sizes: list[int], seed: int = 0) -> tuple[list[str], Floats, list[int]]:
    """Rows around well separated centres."""
    rng = np.random.default_rng(seed)
    truth = [k for k, size in enumerate(sizes) for _ in range(size)]
    centres = np.array([[0.0, 0.0], [100.0, 0.1], [0.0, 0.2], [100.0, 0.3]])
    return named(len(truth)), centres[truth] + rng.normal(size=(len(truth), 2)) * [1.0, 0.01], truth


def members(clusters: Clusters) -> dict[int, tuple[str, ...]]:
    return members_of(tuple(clusters.numbers), np.array(tuple(clusters.numbers.values())))


def partition_of(clusters: Clusters) -> set[tuple[str, ...]]:
    return set(members(clusters).values())


def squares(points: Floats, labels: list[int]) -> float:
    total = 0.0
    for k in set(labels):
        own = points[[label == k for label in labels]]
        total += float(((own - own.mean(axis=0)) ** 2).sum())
    return total


@example([(0, 0), (0, 3), (-1, 0), (1, 1), (0, -2), (1, 0), (1, -3)], 3)  # a seventh worse than the best
@given(st.lists(st.tuples(*[st.integers(-3, 3)] * 2), min_size=2, max_size=7, unique=True), st.integers(1, 3))
def test_no_point_is_nearer_to_another_cluster(points: list, k: int) -> None:
    rows, k = np.array(points, float), min(k, len(points))
    found = regrouped(named(len(rows)), rows, k)
    labels = np.array([found.numbers[name] for name in named(len(rows))])
    scaled = rows * found.weights
    means = np.stack([scaled[labels == number].mean(axis=0) for number in range(k)])
    distances = ((scaled[:, None] - means) ** 2).sum(axis=2)
    assert (distances[np.arange(len(rows)), labels] <= distances.min(axis=1) + 1e-9).all()


def test_small_clusterings_are_mostly_the_best_of_all_and_seldom_far_from_it() -> None:
    """Every labelling of 7 points is tried. Ten starts find the best of more than nine sets in ten."""
    rng, grid = np.random.default_rng(0), np.array(list(product(range(-3, 4), repeat=2)), float)
    labellings = np.eye(3)[list(product(range(3), repeat=7))]  # (3^7, 7, 3)
    ratios = []
    for _ in range(40):
        rows = rng.permutation(grid)[:7]
        found = regrouped(named(7), rows, 3)
        scaled = rows * found.weights
        sums = np.einsum("lnk,nd->lkd", labellings, scaled)
        between = ((sums**2).sum(axis=2) / np.maximum(labellings.sum(axis=1), 1)).sum(axis=1)
        best = float((scaled**2).sum() - between.max())
        ratios.append(squares(scaled, [found.numbers[name] for name in named(7)]) / best)
    assert min(ratios) > 1 - 1e-9
    assert np.mean(np.array(ratios) < 1 + 1e-9) > 0.9
    assert np.mean(ratios) < 1.01


def test_planted_clusters_are_found_and_columns_of_any_unit_count_alike() -> None:
    """Both columns are needed: one in hundreds, one in tenths."""
    names, rows, truth = planted([5, 4, 3, 6])
    found = regrouped(names, rows, 4)
    expected = {tuple(n for n, t in zip(names, truth, strict=True) if t == k) for k in range(4)}
    assert partition_of(found) == expected
    assert partition_of(regrouped(names, rows * [1e-6, 1e9], 4)) == expected


def test_numbers_last_through_joining_leaving_and_moving() -> None:
    names, rows, truth = planted([5, 4, 3, 6])
    first = regrouped(names, rows, 4)
    number = {truth[i]: first.numbers[name] for i, name in enumerate(names)}
    there = [i for i in range(len(names)) if i not in (0, 5)]  # two leave
    moved = rows.copy()
    moved[1] = rows[10]  # one moves from the first cluster to the third
    later_names = [names[i] for i in there] + ["client/new"]
    later = regrouped(later_names, np.vstack([moved[there], rows[17]]), 4, first)
    assert set(later.numbers) == set(later_names)
    for i in there:
        assert later.numbers[names[i]] == number[2 if i == 1 else truth[i]]
    assert later.numbers["client/new"] == number[3]
    assert later.following == first.following


def test_a_cluster_whose_members_have_all_left_gives_its_number_up_for_good() -> None:
    names, rows, truth = planted([4, 4, 4])
    first = regrouped(names, rows, 3)
    gone = first.numbers[names[0]]
    stay = [i for i in range(12) if truth[i]]
    later = regrouped([names[i] for i in stay], rows[stay], 3, first)
    assert gone not in later.numbers.values()
    assert max(later.numbers.values()) == 3
    assert len(members(later)) == 3


def test_last_centres_are_kept_unless_a_fresh_start_is_better_by_the_stated_part() -> None:
    """Points on a square have two equally good halves: each clustering goes on as it began."""
    corners = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    names = named(4)
    for pairs in ([(0, 1), (2, 3)], [(0, 2), (1, 3)]):
        centres = np.array([corners[list(pair)].mean(axis=0) for pair in pairs])
        before = Clusters(
            {names[i]: k for k, pair in enumerate(pairs) for i in pair}, np.arange(2), centres, np.ones(2), 2
        )
        assert regrouped(names, corners, 2, before).numbers == before.numbers
    columns = np.array([[x, y] for x in (0.0, 10.0) for y in (0.0, 1.0, 2.0, 3.0)])
    before = Clusters(
        dict(zip(named(8), [0, 0, 1, 1] * 2, strict=True)), np.arange(2), np.array([[5, 0.5], [5, 2.5]]), np.ones(2), 2
    )
    kept, fresh = (
        squares(columns / columns.std(axis=0), [0, 0, *rest]) for rest in ([1, 1, 0, 0, 1, 1], [0, 0] + [1] * 4)
    )
    assert kept > (1 + BETTER) * fresh
    assert partition_of(regrouped(named(8), columns, 2, before)) == {tuple(named(8)[:4]), tuple(named(8)[4:])}


@pytest.mark.parametrize(("n", "k", "sizes"), [(1, 1, [1]), (1, 4, [1]), (3, 5, [1, 1, 1]), (8, 2, [4, 4])])
def test_few_and_identical_clients(n: int, k: int, sizes: list[int]) -> None:
    """One client, fewer clients than clusters, and clients that do not differ."""
    found = regrouped(named(n), np.ones((n, 3)), k)
    assert sorted(map(len, members(found).values())) == sizes
    assert found.weights.tolist() == [0, 0, 0]
    again = regrouped(named(n), np.ones((n, 3)), k, found)
    assert again.following == found.following
    assert set(again.numbers.values()) == set(found.numbers.values())


def test_identical_points_are_halved_where_there_are_too_few_distinct_ones() -> None:
    rows = np.array([[0.0]] * 5 + [[1.0]])
    assert partition_of(regrouped(named(6), rows, 3)) == {tuple(named(6)[:3]), tuple(named(6)[3:5]), ("client/5",)}


def test_nobody_is_in_no_cluster_and_numbers_go_on_afterwards() -> None:
    first = regrouped(named(3), np.eye(3), 2)
    empty = regrouped([], [], 2, first)
    assert (empty.numbers, empty.following) == ({}, 2)
    assert set(regrouped(named(3), np.eye(3), 2, empty).numbers.values()) == {2, 3}


@given(
    st.lists(st.tuples(*[st.floats(-1e300, 1e300)] * 2), min_size=1, max_size=12),
    st.integers(1, 6),
    st.randoms(use_true_random=False),
)
def test_there_are_always_as_many_clusters_as_asked_for_and_none_is_empty(points: list, k: int, random: object) -> None:
    names = named(len(points))
    first = regrouped(names, points, k)
    some = [i for i in range(len(points)) if random.random() < 0.7] or [0]  # type: ignore[attr-defined]
    later = regrouped([names[i] for i in some], [points[i] for i in some], k, first)
    for found, n in ((first, len(points)), (later, len(some))):
        assert len(members(found)) == min(k, n) == len(found.order)
        assert all(members(found).values())
        assert len(found.numbers) == n


def test_small_clusters_take_the_nearest_members_of_those_that_can_spare_some() -> None:
    """A point far away from the others is a cluster by itself; with two members each it takes its nearest one."""
    rows = np.array([[0.0], [1.0], [3.0], [2.0], [100.0]])
    assert partition_of(regrouped(named(5), rows, 2)) == {tuple(named(5)[:4]), ("client/4",)}
    assert ("client/2", "client/4") in partition_of(regrouped(named(5), rows, 2, least=2))


@given(st.lists(st.tuples(*[st.floats(-1e6, 1e6)] * 2), min_size=1, max_size=14), st.integers(1, 5), st.integers(1, 4))
def test_no_cluster_has_fewer_members_than_the_least(points: list, k: int, least: int) -> None:
    """For n clients there are min(k, n // least) clusters, one at least."""
    found = members(regrouped(named(len(points)), points, k, least=least))
    assert len(found) == max(1, min(k, len(points) // least))
    assert min(map(len, found.values())) >= min(least, len(points))


def test_each_group_of_columns_counts_alike() -> None:
    """Three columns say one thing and one column another: alone the three win, in groups they are even."""
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(50, 4))
    weights = regrouped(named(50), rows, 2, groups=(3, 1)).weights * rows.std(axis=0)
    assert weights == pytest.approx([3**-0.5] * 3 + [1.0])
    rows[:, 1] = 7.0
    weights = regrouped(named(50), rows, 2, groups=(3, 1)).weights * rows.std(axis=0)
    assert weights == pytest.approx([2**-0.5, 0, 2**-0.5, 1.0])


def test_a_newcomer_joins_the_nearest_centre_in_scaled_units() -> None:
    names, rows, truth = planted([5, 4, 3, 6])
    found = regrouped(names, rows, 4)
    for i, name in enumerate(names):
        assert nearest(found, rows[i]) == found.numbers[name]
    assert nearest(found, [40.0, 0.2]) == found.numbers[names[truth.index(2)]]


def test_clusters_survive_a_party_s_state() -> None:
    found = regrouped(named(5), np.random.default_rng(0).normal(size=(5, 3)), 2)
    (again,) = load(dump({"server": found}), {"server": Clusters}).values()
    assert again.numbers == found.numbers
    assert np.array_equal(again.centres, found.centres)
    assert nearest(again, [1.0, 2.0, 3.0]) == nearest(found, [1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    ("names", "features", "k", "words"),
    [
        (named(2), np.ones((2, 1)), 0, "at least 1"),
        (["a", "a"], np.ones((2, 1)), 1, "twice"),
        (named(2), np.ones((3, 1)), 1, "2 rows"),
        (named(2), [[1.0], [np.nan]], 1, "finite"),
        (named(2), np.ones((2, 0)), 1, "finite"),
    ],
)
def test_what_cannot_be_clustered_is_refused(names: list, features: object, k: int, words: str) -> None:
    with pytest.raises(UserError, match=words):
        regrouped(names, features, k)  # type: ignore[arg-type]


def test_clusters_of_nobody_are_refused() -> None:
    with pytest.raises(UserError, match="members must be at least 1, not 2 and 0"):
        regrouped(named(3), np.eye(3), 2, least=0)


def test_rows_and_groups_that_do_not_fit_are_refused() -> None:
    found = regrouped(named(3), np.eye(3), 2)
    for row in ([1.0], [1.0, np.inf, 0.0]):
        with pytest.raises(UserError, match="there must be a cluster"):
            nearest(found, row)
    with pytest.raises(UserError, match="there must be a cluster"):
        nearest(Clusters(), [])
    with pytest.raises(UserError, match="do not make up 3"):
        regrouped(named(3), np.eye(3), 2, groups=(1, 1))


# -- agreement ---------------------------------------------------------------------------------------------------------


MEMBERSHIPS = st.lists(st.integers(0, 4), max_size=3)
CLIENTS = st.lists(st.tuples(MEMBERSHIPS, st.integers(0, 3)), max_size=12)


def by_pairs(labels: list[frozenset[int]], groups: list[int]) -> float:
    """Hubert and Arabie, equation 5, one pair of clients at a time."""
    both = same = together = 0
    pairs = list(combinations(range(len(labels)), 2))
    for i, j in pairs:
        same += groups[i] == groups[j]
        together += labels[i] == labels[j]
        both += groups[i] == groups[j] and labels[i] == labels[j]
    if same == together == both:  # the same division, be it into one or into as many as there are clients
        return 1.0
    expected = same * together / len(pairs)
    return (both - expected) / ((same + together) / 2 - expected)


@given(CLIENTS)
def test_the_index_is_that_of_pairs_among_those_who_have_a_cluster(clients: list[tuple[list[int], int]]) -> None:
    found = grouping([own for own, _ in clients], [group for _, group in clients])
    placed = [(frozenset(own), group) for own, group in clients if own]
    assert found.without == len(clients) - len(placed)
    if len(placed) > 1:
        assert found.ari == pytest.approx(by_pairs(*map(list, zip(*placed, strict=True))))
    else:
        assert found.ari is None  # one client agrees with itself, whatever its cluster
    if not placed:
        assert found == Agreement(None, 0, 0.0, (), len(clients))


@given(CLIENTS)
def test_a_client_counts_in_each_of_its_clusters(clients: list[tuple[list[int], int]]) -> None:
    found = grouping([own for own, _ in clients], None)
    sets = [set(own) for own, _ in clients]
    assert found.ari is None
    assert found.sizes == tuple(n for k in range(5) if (n := sum(k in own for own in sets)))
    assert found.clusters == len(found.sizes)
    placed = [own for own in sets if own]
    assert found.per_client == (sum(map(len, placed)) / len(placed) if placed else 0)


def test_soft_clusters_are_labels_as_whole_sets() -> None:
    """Three groups; the last pair sits in both of the others' clusters, and is a division of its own."""
    soft = [[0], [0], [1], [1], [0, 1], [1, 0]]
    assert grouping(soft, [0, 0, 1, 1, 2, 2]) == Agreement(1.0, 2, 8 / 6, (4, 4), 0)
    assert grouping(soft, [0, 0, 1, 1, 0, 1]).ari < 0.5
    assert grouping([[0], [0], [1], [1]], [0, 1, 0, 1]).ari == -0.5  # the least there is


def test_groups_of_other_clients_are_refused() -> None:
    with pytest.raises(UserError, match="clusters of 2 clients, but groups of 3"):
        grouping([[0], [1]], [0, 0, 1])
