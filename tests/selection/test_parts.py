"""The parts of the selecting and clustering baselines: by hand, against slow twins, and with bad input."""

from __future__ import annotations

from itertools import combinations
from math import exp, inf, nan, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from coterie.clustering.cosines import agglomerated
from coterie.clustering.fuzzy import centres_of, first_centres, fuzzy_c_means, memberships
from coterie.clustering.histograms import density_clusters, hellinger
from coterie.dp.laplace import discrete_laplace, private_counts
from coterie.protocol.errors import PeerError, UserError
from coterie.protocol.randomness import Secrets
from coterie.protocols.selecting import checked_loss, checked_seconds
from coterie.selection.clusters import cluster_weights, sample_fastest

FINITE = {"allow_nan": False, "allow_infinity": False, "width": 32}

# -- Hellinger distance and density clusters ---------------------------------------------------------------------------


def test_hellinger_by_hand() -> None:
    found = hellinger(np.array([[1, 0], [0, 3], [2, 2], [10, 0]]))
    half = sqrt(1 - sqrt(0.5))  # between (1, 0) and (1/2, 1/2)
    assert found[0].tolist() == pytest.approx([0, 1, half, 0], abs=1e-7)
    assert found[1].tolist() == pytest.approx([1, 0, half, 1])


@given(arrays(np.int64, (4, 3), elements=st.integers(0, 10**9)))
def test_hellinger_is_the_sum_over_classes_and_a_metric(counts: np.ndarray) -> None:
    """Against the printed sum, one pair at a time; a histogram of zeros counts as all classes alike."""
    found = hellinger(counts)
    shares = [row / row.sum() if row.sum() else np.full(3, 1 / 3) for row in counts.astype(float)]
    for i, j in combinations(range(4), 2):
        slow = sqrt(sum((sqrt(p) - sqrt(q)) ** 2 for p, q in zip(shares[i], shares[j], strict=True)) / 2)
        assert found[i, j] == found[j, i] == pytest.approx(slow, abs=3e-8)
        assert all(found[i, j] <= found[i, k] + found[k, j] + 1e-7 for k in range(4))


@pytest.mark.parametrize("bad", [[[1.0, -1]], [[nan, 1]], [[inf, 1]], [[]], [1, 2]])
def test_what_is_no_histogram_is_refused(bad: list[list[float]]) -> None:
    with pytest.raises(UserError, match="histogram"):
        hellinger(np.array(bad))


def test_histograms_of_enormous_counts_do_not_overflow() -> None:
    assert hellinger(np.array([[1e308, 1e308], [1, 1]]))[0, 1] == pytest.approx(0, abs=1e-7)


def test_density_clusters_are_chains_within_the_radius_and_others_stand_alone() -> None:
    """Against the connected components of a slow search; numbered by their first device."""
    places = np.array([5.0, 0.0, 0.3, 9.0, 0.6, 5.2])
    distances = np.abs(places[:, None] - places)
    assert density_clusters(distances, radius=0.35).tolist() == [0, 1, 1, 2, 1, 0]
    assert density_clusters(distances, radius=0.25).tolist() == [0, 1, 2, 3, 4, 0]
    assert density_clusters(distances[:1, :1]).tolist() == [0]
    assert density_clusters(np.zeros((0, 0))).tolist() == []
    assert density_clusters(np.zeros((4, 4))).tolist() == [0, 0, 0, 0]
    assert (
        density_clusters(distances, "optics")[[1, 2, 4]].tolist().count(density_clusters(distances, "optics")[1]) == 3
    )
    with pytest.raises(UserError, match="radius"):
        density_clusters(distances, radius=0)


# -- Laplace noise -----------------------------------------------------------------------------------------------------


def secrets(seed: int = 0) -> Secrets:
    return Secrets(np.random.default_rng(seed))


@pytest.mark.parametrize("scale", [0.5, 2.0, 20.0])
def test_noise_has_the_law_that_epsilon_promises(scale: float) -> None:
    """P(k) = (1 - a) / (1 + a) a^|k|, a = exp(-1 / scale): within 5 standard errors for every k with enough mass."""
    n = 200_000
    drawn, a = discrete_laplace(secrets(), n, scale), exp(-1 / scale)
    for k in range(-20, 21):
        p = (1 - a) / (1 + a) * a ** abs(k)
        assert abs((drawn == k).mean() - p) < 5 * sqrt(p / n) + 1e-12
    assert drawn.var() == pytest.approx(2 * a / (1 - a) ** 2, rel=0.03)


def test_a_histogram_gets_noise_of_scale_two_over_epsilon_on_every_class_and_is_cut_off() -> None:
    """One sample moved from one class to another changes the counts by 2 in sum."""
    epsilon = 1.0
    a = exp(-epsilon / 2)
    noise = [private_counts(np.array([1000, 0]), epsilon, secrets(seed)) - [1000, 0] for seed in range(3000)]
    assert np.var([row[0] for row in noise]) == pytest.approx(2 * a / (1 - a) ** 2, rel=0.15)
    assert min(row[1] for row in noise) == 0, "cut off"
    assert np.mean([row[1] > 0 for row in noise]) == pytest.approx(a / (1 + a), abs=0.05), "an absent class has noise"


def test_infinite_epsilon_adds_nothing_and_none_below_0_is_taken() -> None:
    assert private_counts(np.array([3, 0]), inf, secrets()).tolist() == [3, 0]
    for bad in (0.0, -1.0, nan):
        with pytest.raises(UserError, match="epsilon"):
            private_counts(np.array([1]), bad, secrets())
    with pytest.raises(UserError, match="scale"):
        discrete_laplace(secrets(), 1, inf)
    assert len(discrete_laplace(Secrets(None), 5, 1.0)) == 5


# -- HACCS's sampling --------------------------------------------------------------------------------------------------


def test_cluster_weights_by_hand() -> None:
    """Latencies 2 and 8, losses 1 and 3: rho (1 - L/8) + (1 - rho) A/4."""
    clusters, losses, seconds = np.array([0, 0, 1]), [0.5, 1.5, 3.0], [1.0, 3.0, 8.0]
    assert cluster_weights(clusters, losses, seconds, 1.0).tolist() == [0.75, 0.0]
    assert cluster_weights(clusters, losses, seconds, 0.0).tolist() == [0.25, 0.75]
    assert cluster_weights(clusters, losses, seconds, 0.5).tolist() == [0.5, 0.375]


def test_clusters_of_unknown_loss_count_as_the_worst_and_unknown_everything_as_alike() -> None:
    clusters = np.array([0, 0, 1, 2])
    assert cluster_weights(clusters, [2.0, nan, 4.0, nan], [1.0] * 4, 0.0).tolist() == [0.2, 0.4, 0.4]
    assert cluster_weights(clusters, [nan] * 4, [0.0] * 4, 0.5).tolist() == pytest.approx([1 / 6] * 3)
    assert cluster_weights(np.zeros(0, np.int64), [], [], 0.5).tolist() == []
    with pytest.raises(UserError, match="rho"):
        cluster_weights(clusters, [1] * 4, [1] * 4, 1.5)


def test_the_fastest_device_of_each_sampled_cluster_is_taken() -> None:
    rng = np.random.default_rng(0)
    first = [sample_fastest(np.array([0.8, 0.2]), [[3, 1], [2, 0]], 1, rng)[0] for _ in range(4000)]
    assert set(first) == {3, 2}
    assert np.mean(np.array(first) == 3) == pytest.approx(0.8, abs=0.03)
    assert sample_fastest(np.array([1.0, 0.0]), [[3, 1], [2, 0]], 3, rng)[:2] == (3, 1), "a weight of 0 comes last"
    assert set(sample_fastest(np.array([1.0, 0.0]), [[3, 1], [2, 0]], 9, rng)) == {0, 1, 2, 3}
    assert sample_fastest(np.array([]), [], 2, rng) == ()


# -- greedy agglomeration ----------------------------------------------------------------------------------------------


def slow_agglomeration(vectors: np.ndarray, least: float) -> list[set[int]]:
    """Merges as the words say, with nothing kept between steps."""
    groups = [{i} for i in range(len(vectors)) if np.linalg.norm(vectors[i]) > 0]

    def cosine(a: set[int], b: set[int]) -> float:
        u, v = vectors[sorted(a)].sum(axis=0), vectors[sorted(b)].sum(axis=0)
        sizes = np.linalg.norm(u) * np.linalg.norm(v)
        return float(u @ v / sizes) if sizes > 1e-12 else -inf

    while len(groups) > 1:
        best = max(combinations(range(len(groups)), 2), key=lambda pair: cosine(groups[pair[0]], groups[pair[1]]))
        if not cosine(groups[best[0]], groups[best[1]]) > least:
            break
        groups[best[0]] |= groups.pop(best[1])
    return groups


def test_the_order_of_merges_by_hand() -> None:
    """Angles 0, 10, 50 and 180 degrees: 0 and 10 merge (to 5), then 50 with 5 if 45 degrees are near enough."""
    angles = np.deg2rad([0.0, 50.0, 10.0, 180.0])
    rows = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    labels, merges = agglomerated(rows, 0.5)
    assert labels.tolist() == [0, 0, 0, 1]
    assert merges == pytest.approx([np.cos(np.deg2rad(10)), np.cos(np.deg2rad(45))])
    assert agglomerated(rows, 0.8)[0].tolist() == [0, 1, 0, 2]
    assert agglomerated(rows, 1.0)[0].tolist() == [0, 1, 2, 3]


@given(st.integers(0, 10**6), st.integers(1, 9), st.sampled_from([-0.5, 0.0, 0.4, 0.8]))
def test_agglomeration_is_that_of_the_slow_twin(seed: int, n: int, least: float) -> None:
    rows = np.random.default_rng(seed).normal(size=(n, 3))
    labels, merges = agglomerated(rows, least)
    found = {frozenset(np.flatnonzero(labels == k).tolist()) for k in range(labels.max() + 1)}
    assert found == {frozenset(group) for group in slow_agglomeration(rows, least)}
    assert len(merges) == n - len(found)
    assert all(similarity > least for similarity in merges)
    assert [labels.tolist().index(k) for k in range(labels.max() + 1)] == sorted(
        labels.tolist().index(k) for k in range(labels.max() + 1)
    )


def test_rows_without_a_direction_stay_alone_and_size_does_not_matter() -> None:
    rows = np.array([[0, 0], [1, 0], [1e30, 0], [0, 0], [-1e-30, 0]])
    assert agglomerated(rows, 0.5)[0].tolist()[:4] == [0, 1, 1, 2]
    assert agglomerated(np.array([[1, 0], [-1, 0], [1, 0]]), -1.0)[0].max() == 1, "two opposite rows may cancel"
    for bad in (np.array([[nan, 1]]), np.array([[inf, 1]]), np.zeros(3)):
        with pytest.raises(UserError, match="finite"):
            agglomerated(bad, 0.5)
    with pytest.raises(UserError, match="cosine"):
        agglomerated(rows, 1.5)


# -- fuzzy c-means -----------------------------------------------------------------------------------------------------


@given(
    arrays(np.float64, (5, 2), elements=st.floats(-50, 50, **FINITE)),
    arrays(np.float64, (3, 2), elements=st.floats(-50, 50, **FINITE)),
    st.sampled_from([1.2, 2.0, 3.5]),
)
def test_memberships_are_those_of_the_naive_loop(points: np.ndarray, centres: np.ndarray, m: float) -> None:
    u = memberships(points, centres, m)
    assert np.abs(u.sum(axis=1) - 1).max() < 1e-12
    for i, x in enumerate(points):
        far = [float(np.sqrt(((x - c) ** 2).sum())) for c in centres]
        if min(far) < 1e-6:
            continue  # on a centre, or so near that the ratio below overflows
        for k, own in enumerate(far):
            assert u[i, k] == pytest.approx(1 / sum((own / other) ** (2 / (m - 1)) for other in far), abs=1e-9)


def test_a_point_on_centres_belongs_to_these_alone() -> None:
    u = memberships(np.array([[0.0], [1.0]]), np.array([[0.0], [0.0], [3.0]]))
    assert u[0].tolist() == [0.5, 0.5, 0.0]
    assert u[1].tolist() == pytest.approx([4 / 9, 4 / 9, 1 / 9])


def test_each_turn_lowers_the_objective_and_ends_where_centres_are_their_own_means() -> None:
    source = np.random.default_rng(3)
    points = np.concatenate([source.normal(c, 0.2, (20, 2)) for c in ((0, 0), (3, 0), (0, 3))])
    centres, before = source.normal(1, 1, (3, 2)), inf
    for _ in range(30):
        u = memberships(points, centres)
        objective = float((u**2 * np.square(points[:, None] - centres).sum(axis=2)).sum())
        assert objective <= before + 1e-9
        before, centres = objective, centres_of(points, u, centres)
    u, found = fuzzy_c_means(points, first_centres(points, 3))
    assert np.abs(centres_of(points, u, found) - found).max() < 1e-5
    assert [len(set(u[20 * g : 20 * g + 20].argmax(axis=1))) for g in range(3)] == [1, 1, 1]
    assert len(set(u.argmax(axis=1))) == 3


def test_first_centres_by_hand_and_centres_that_nobody_chose() -> None:
    points = np.array([[0.0], [1.0], [2.0], [9.0]])  # mean 3: the nearest is 2, then 9, then 0
    assert first_centres(points, 3).ravel().tolist() == [2, 9, 0]
    assert first_centres(points[:1], 2).ravel().tolist() == [0, 0]
    assert centres_of(points, np.array([[1, 0]] * 4), np.array([[0.0], [7.0]])).ravel().tolist() == [3, 7]
    for bad in (points[:0], np.array([[nan]])):
        with pytest.raises(UserError):
            first_centres(bad, 1)
    with pytest.raises(UserError, match="fuzzifier"):
        memberships(points, points, 1.0)
    with pytest.raises(UserError, match="columns"):
        memberships(points, np.zeros((1, 2)))


# -- what clients claim ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [nan, inf, -inf, -1e-9, 1e13])
def test_losses_and_seconds_that_cannot_be_are_refused_with_their_sender(value: float) -> None:
    for check in (checked_loss, checked_seconds):
        with pytest.raises(PeerError, match=r"client/7: a .* are taken"):
            check("client/7", value)
    assert (checked_loss("a", 0), checked_seconds("a", 3)) == (0.0, 3.0)
