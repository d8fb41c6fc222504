"""AIDC against a slow twin written from the text, eq. (5) to (8) by hand, planted groups, the other readings."""

from __future__ import annotations

import math
from statistics import fmean, median, pstdev
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import clustering as study
from benchmarks import features
from benchmarks.clustering import agreement, names, population
from coterie.clustering.density import entropies, literal_parts, min_points, parts, radii
from coterie.clustering.divergence import FLOORS_PER_SCALE, modified_divergence
from coterie.clustering.isomorphic import Aidc, cluster
from coterie.clustering.labels import NOISE
from coterie.clustering.merging import heterogeneity, mean_between, merged, settled, split
from coterie.protocol.errors import UserError
from coterie.systems.fedepc.config import FedEPCConfig


def clusters_of(labels: Any) -> set[frozenset[int]]:
    return {frozenset(np.flatnonzero(np.asarray(labels) == k).tolist()) for k in set(np.asarray(labels).tolist())}


# -- the twin ----------------------------------------------------------------------------------------------------------


def mean_of(d: list[list[float]], one: set[int], two: set[int]) -> float:
    return fmean(d[i][j] for i in one for j in two)


def twin(s: list[list[float]], h: list[float], singles: bool, k: int = 5, eta: float = 1.0) -> set[frozenset[int]]:
    """Section 3.3 with the departures that docs/systems/fedepc_appendix.md lists, on sets of devices.

    singles: merging starts from single devices, and else from the dense parts of eq. (5) and (6).
    """
    n = len(s)
    mjs = modified_divergence(s).tolist()
    usual = median(h)
    pairs = [mjs[i][j] for i in range(n) for j in range(i)]
    scale = max(median(pairs), 10 * usual)
    cap = [min(x, 20 * usual) for x in h]
    d = [[0.0 if i == j else max(0.0, mjs[i][j] - (cap[i] + cap[j]) / 4) / scale for j in range(n)] for i in range(n)]
    quiet = [i for i in sorted(range(n), key=lambda i: (s[i], h[i])) if h[i] <= 2 * usual]
    found = [{i} for i in quiet] if singles else dense(s, d, quiet, k, eta)
    found = settle(d, found)
    noise = set(range(n)) - set().union(*found)
    placed: list[tuple[int, int | None]] = []
    for i in noise:
        best = min(range(len(found)), key=lambda c: mean_of(d, {i}, found[c]), default=None)
        placed.append((i, best if best is not None and mean_of(d, {i}, found[best]) < 0.18 else None))
    for i, where in placed:
        if where is None:
            found.append({i})
        else:
            found[where].add(i)
    return {frozenset(part) for part in settle(d, found)}


def dense(s: list[list[float]], d: list[list[float]], quiet: list[int], k: int, eta: float) -> list[set[int]]:
    """The parts of eq. (5) and (6)."""
    radius = {}
    for i in quiet:
        near = sorted(d[i][j] for j in quiet if j != i)[:k]
        log = math.sqrt(math.log(max(len(quiet), 2) + 1))
        radius[i] = max((fmean(near) + pstdev(near)) / log, near[min(3, len(near)) - 1]) if near else 0.0
    near_to = {i: {j for j in quiet if d[i][j] <= min(radius[i], radius[j])} for i in quiet}
    core = set()
    for i in quiet:
        entropy = sum(fmean(-x * math.log(x) if x else 0.0 for x in s[j]) for j in near_to[i])
        least = math.ceil(len(near_to[i]) / (1 + math.exp(-eta * entropy)))
        if len(near_to[i]) >= min(max(least, 2), max(math.ceil(math.sqrt(len(quiet))), 2)):
            core.add(i)
    found: list[set[int]] = []
    for i in quiet:
        if i in core and not any(i in part for part in found):
            part, waiting = {i}, [i]
            while waiting:
                j = waiting.pop()
                for m in near_to[j] - part:
                    part.add(m)
                    if m in core:
                        waiting.append(m)
            found.append(part)
    return found


def settle(d: list[list[float]], found: list[set[int]]) -> list[set[int]]:
    while True:
        before = [set(part) for part in found]
        while len(found) > 1:
            value, a, b = min(
                (mean_of(d, found[a], found[b]), a, b) for a in range(len(found)) for b in range(a + 1, len(found))
            )
            if value >= 0.15:
                break
            found[a] |= found.pop(b)
        whole, done = list(found), []
        while whole:
            part = whole.pop(0)
            if mean_of(d, part, part) <= 0.18:
                done.append(part)
                continue
            a, b = max(((i, j) for i in part for j in part), key=lambda pair: d[pair[0]][pair[1]])
            one = {i for i in part if d[a][i] <= d[b][i]}
            whole += [one, part - one]
        found = done
        if {frozenset(x) for x in found} == {frozenset(x) for x in before}:
            return found


def random_devices(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """3 to 16 devices of a few blurred kinds, some with loud or no floors."""
    draw = np.random.default_rng(seed)
    n, channels = int(draw.integers(3, 17)), int(draw.integers(2, 8))
    centres = draw.beta(0.8, 0.8, (int(draw.integers(1, 5)), channels))
    s = np.clip(
        centres[draw.integers(len(centres), size=n)] + draw.normal(0, draw.choice([0.01, 0.05, 0.2]), (n, channels)),
        0,
        1,
    )
    return s, draw.choice([0.001, 0.004, 0.03]) * draw.gamma(2, 1, n)


@pytest.mark.parametrize("singles", [True, False])
@pytest.mark.parametrize("block", [0, *(pytest.param(block, marks=pytest.mark.long) for block in range(1, 6))])
def test_the_groups_are_those_of_the_twin(block: int, singles: bool) -> None:
    seen = set()
    for seed in range(40 * block, 40 * block + 40):
        s, h = random_devices(seed)
        found = clusters_of(cluster(names(len(s)), s, h, Aidc(singles_to=len(s) if singles else 0))[0].labels)
        assert found == twin(s.tolist(), h.tolist(), singles), seed
        seen.add(len(found))
    assert len(seen) > 2


# -- eq. (5) to (8) by hand --------------------------------------------------------------------------------------------

LINE = np.abs(np.subtract.outer(np.array([0.0, 1, 2, 4, 8]), np.array([0.0, 1, 2, 4, 8])))


def test_radii_are_eq_5() -> None:
    """Two neighbours: mean and deviation over them, by sqrt(log 6), or the second neighbour's divergence."""
    shrink = math.sqrt(math.log(6))
    spread = np.array([1.5 + 0.5, 1 + 0, 1.5 + 0.5, 2.5 + 0.5, 5 + 1]) / shrink
    np.testing.assert_allclose(radii(LINE, 2), np.maximum(spread, [2, 1, 2, 3, 6]))
    np.testing.assert_allclose(
        radii(LINE, 4)[4], max((6.25 + math.sqrt(2.1875)) / shrink, 7)
    )  # the third's, not the 4th's
    assert radii(np.zeros((1, 1)), 5).tolist() == [0]


def test_above_2000_devices_the_logarithm_is_dropped() -> None:
    """All divergences are 1, so mu + sigma = 1, and so is the third neighbour's; a wide spread tells the two apart."""
    d = np.zeros((2001, 2001), np.float32)
    d[:, :6] = d[:6] = 100
    d[0, 1] = d[1, 0] = 1
    np.fill_diagonal(d, 0)
    nearest = np.array([1, 100, 100, 100, 100])
    assert radii(d, 5)[0] == pytest.approx(nearest.mean() + nearest.std())
    assert radii(d[:2000, :2000], 5)[0] == 100


def test_min_points_are_eq_6() -> None:
    """ceil(|C| / (1 + exp(-eta H))): half of them where H = 0, all where it is large; never more than the set."""
    assert min_points(np.array([10, 11, 10, 1]), np.array([0, 0, math.log(4), 9]), 1.0).tolist() == [5, 6, 8, 1]
    assert min_points(np.array([10, 1, 400]), np.array([0, 0, 50.0]), 2.0, most=20).tolist() == [5, 2, 20]
    assert min_points(np.array([10]), np.array([1e9]), 1e9).tolist() == [10]
    np.testing.assert_allclose(entropies(np.array([[0, 1, 0.5, 0.5]])), [0.25 * math.log(2)])


def test_a_far_device_reaches_nobody() -> None:
    """Its radius takes in all others, but they do not take it in."""
    place = np.array([0, 1, 2, 3, 4, 50, 51, 52, 53, 54, 27.0])
    d = np.abs(np.subtract.outer(place, place))
    labels = parts(d, np.full((11, 3), 0.5), 5, 1.0)
    assert labels.tolist() == [0] * 5 + [1] * 5 + [NOISE]
    assert radii(d, 5)[10] == 24  # the third neighbour's


def test_means_are_eq_7_and_8() -> None:
    assert mean_between(LINE, np.array([0, 1]), np.array([3, 4])) == (4 + 8 + 3 + 7) / 4
    assert heterogeneity(LINE, np.array([0, 1, 3])) == 2 * (1 + 4 + 3) / 9
    assert heterogeneity(LINE, np.array([0, 1, 3]), diagonal=False) == 2 * (1 + 4 + 3) / 6
    assert heterogeneity(LINE, np.array([2])) == heterogeneity(LINE, np.array([2]), diagonal=False) == 0


def test_the_nearest_clusters_merge_first_and_strictly_below_the_threshold() -> None:
    labels, changes = merged(LINE, np.arange(5), 3.0)
    assert labels.tolist() == [0, 0, 0, 1, 2]  # 0 and 1, then 2 at 1.5; then 4 is at the mean of 4, 3, 2 = 3, not below
    assert [round(change.value, 3) for change in changes] == [1.0, 1.5]
    assert merged(LINE, np.arange(5), 3.001)[0].tolist() == [0, 0, 0, 0, 1]
    assert merged(LINE, np.array([0, NOISE, NOISE, 0, 1]), 100)[0].tolist() == [0, NOISE, NOISE, 0, 0]


def test_a_cluster_is_split_by_its_most_different_pair() -> None:
    labels, changes = split(LINE, np.zeros(5, np.int64), 1.7)
    assert clusters_of(labels) == {frozenset({0, 1, 2, 3}), frozenset({4})}  # 4 is as near to 0 as to 8
    assert changes[0].value == heterogeneity(LINE, np.arange(5))
    assert clusters_of(split(LINE, np.zeros(5, np.int64), 0.9)[0]) == {
        frozenset({0, 1, 2}),
        frozenset({3}),
        frozenset({4}),
    }
    assert split(LINE, np.zeros(5, np.int64), heterogeneity(LINE, np.arange(5)))[1] == []  # strictly above


@given(seed=st.integers(0, 2**32), diagonal=st.booleans())
def test_what_has_settled_is_a_fixed_point_after_three_passes(seed: int, diagonal: bool) -> None:
    draw = np.random.default_rng(seed)
    d = np.abs(draw.normal(0.17, 0.1, (12, 12)))
    d = (d + d.T) * (1 - np.eye(12))
    start = draw.integers(-1, 4, 12)
    labels, _ = settled(d, np.unique(start, return_inverse=True)[1] - (start == NOISE).any(), 0.15, 0.18, diagonal, 3)
    found = [np.flatnonzero(labels == k) for k in range(labels.max() + 1)]
    assert all(heterogeneity(d, own, diagonal) <= 0.18 + 1e-12 for own in found)
    assert all(mean_between(d, a, b) >= 0.15 - 1e-12 for i, a in enumerate(found) for b in found[:i])
    np.testing.assert_array_equal(labels == NOISE, start == NOISE)


# -- planted groups ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", study.POPULATIONS)
def test_planted_groups_are_found(kind: str) -> None:
    """One, two, five and ten groups of 50 devices, even and uneven; the study has more seeds."""
    labels, _, (s, h) = population(kind, 0)
    found = cluster(names(len(s)), s, h)[0].labels
    assert agreement(labels, found) >= 0.95
    assert len(set(found.tolist())) == int(kind.split()[0])


def test_devices_with_like_data_are_one_cluster() -> None:
    """Many seeds of devices with all classes, with few samples and with many."""
    world = study.World(0, channels=64)
    for seed in range(10):
        draw = np.random.default_rng(seed)
        samples = draw.integers(*[(8, 20), (60, 400)][seed % 2], 20)
        s, h = world.devices(np.full((20, 10), 0.1), samples.tolist(), draw)
        assert cluster(names(20), s, h)[0].labels.tolist() == [0] * 20


def test_from_single_devices_groups_that_share_classes_stay_apart() -> None:
    """Each device has two of ten classes. The parts of eq. (5) and (6) chain groups that have one class in common."""
    draw = np.random.default_rng(1)
    mixtures, groups = features.mixed("pairs", 10, 50, draw)
    s, h = study.World(1).devices(mixtures, [200] * 50, draw)
    assert agreement(groups, cluster(names(50), s, h)[0].labels) == 1
    assert agreement(groups, cluster(names(50), s, h, Aidc(singles_to=0))[0].labels) < 0.9


def test_beyond_so_many_devices_merging_starts_from_the_parts() -> None:
    s, h = random_devices(3)
    n = len(s)
    of = {k: cluster(names(n), s, h, Aidc(singles_to=k))[0].labels.tolist() for k in (0, n - 1, n)}
    assert of[0] == of[n - 1]
    assert clusters_of(of[n]) == twin(s.tolist(), h.tolist(), True)


def test_a_difference_of_shares_is_seen_with_ten_floors_and_not_with_twenty() -> None:
    """Two groups, of which each has 75 % of its samples from its own half of the classes."""
    draw = np.random.default_rng(0)
    mixtures, groups = features.mixed("shares:75", 10, 50, draw)
    s, h = study.World(0).devices(mixtures, [200] * 50, draw)
    assert Aidc().floors_per_scale == FLOORS_PER_SCALE == FedEPCConfig().floors_per_scale == 10
    assert agreement(groups, cluster(names(50), s, h)[0].labels) == 1
    assert agreement(groups, cluster(names(50), s, h, Aidc(floors_per_scale=20))[0].labels) == 0


# -- other readings ----------------------------------------------------------------------------------------------------


def test_the_text_as_printed_finds_nothing() -> None:
    """Its ARI is 0 on groups that the mended text finds: all is noise where MJS is large, one cluster where small."""
    labels, _, (s, h) = population("5 even", 0)
    as_printed, events = cluster(names(50), s, h, Aidc(literal=True))
    assert agreement(labels, as_printed.labels) == 0
    assert agreement(labels, cluster(names(50), s, h)[0].labels) == 1
    assert len(set(as_printed.labels.tolist())) == 50
    assert {event.kind for event in events} == {"alone"}
    assert as_printed.scale == 1
    small = 0.5 + (s[:, :32] - 0.5) / 10  # of milder and fewer channels, MJS is far below the radius
    assert cluster(names(50), small, np.zeros(50), Aidc(literal=True))[0].labels.tolist() == [0] * 50
    assert agreement(labels, cluster(names(50), small, np.zeros(50))[0].labels) > 0.9


def test_literal_radius_and_min_points_by_hand() -> None:
    """mu = .5, sigma = .25, n = 3: epsilon = .75 / sqrt(ln 3) = .7156; H = 3 (.25 ln 4 + .75 ln 4/3) / 2; MinPts 3."""
    s = np.array([[0.25, 0.75]] * 3)
    d = np.array([[0, 0.7, 0.71], [0.7, 0, 0.72], [0.71, 0.72, 0]])
    assert literal_parts(s, d, 1.0).tolist() == [0, 0, 0]  # 0 has all three near, and reaches both
    assert literal_parts(s, d + 0.01 * (1 - np.eye(3)), 1.0).tolist() == [NOISE] * 3  # two near are fewer than three
    epsilon = 0.75 / math.sqrt(math.log(3))
    assert literal_parts(s, epsilon * (1 - np.eye(3)), 1.0).tolist() == [NOISE] * 3  # near is strictly nearer


def test_reference_mode_tells_devices_by_their_distance_to_one() -> None:
    """Two groups at different distances are told apart; two at the same distance are not, whatever is between them."""
    s = np.array([[0.1, 0.1, 0.1]] * 4 + [[0.9, 0.1, 0.1]] * 4 + [[0.1, 0.9, 0.1]] * 4)
    settings_ = Aidc(reference=True, seed=next(k for k in range(50) if _reference(s, k) in names(4)))
    made, _ = cluster(names(12), s, np.zeros(12), settings_)
    assert clusters_of(made.labels) == {frozenset(range(4)), frozenset(range(4, 12))}
    assert len(clusters_of(cluster(names(12), s, np.zeros(12))[0].labels)) == 3


def _reference(s: np.ndarray, seed: int) -> str:
    return cluster(names(len(s)), s, np.zeros(len(s)), Aidc(reference=True, seed=seed))[0].reference


def test_the_reference_reading_costs_agreement() -> None:
    found = [study.grouped("10 even", seed) for seed in range(2)]
    assert all(row["default"] >= 0.95 for row in found)
    assert fmean(row["reference"] for row in found) < 0.7


def test_every_row_of_table_2_can_be_run_and_two_need_force() -> None:
    _, _, (s, h) = population("dirichlet 0.1", 0, 20)
    for theta_merge, theta_split in study.TABLE_2:
        forced = Aidc(theta_merge=theta_merge, theta_split=theta_split, force_thresholds=True)
        assert cluster(names(20), s, h, forced)[0].labels.shape == (20,)
        if theta_split < theta_merge:
            with pytest.raises(UserError, match="force_thresholds"):
                Aidc(theta_merge=theta_merge, theta_split=theta_split)
        else:
            free = Aidc(theta_merge=theta_merge, theta_split=theta_split)
            np.testing.assert_array_equal(
                cluster(names(20), s, h, free)[0].labels, cluster(names(20), s, h, forced)[0].labels
            )


# -- many devices ------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_smaller_version_of_the_large_study() -> None:
    found = study.large(400, 0)
    assert found["ari"] == 1
    assert found["relative"] < 2e-4
    assert found["cluster"] < 120 / 5  # a two-hundredth of the pairs of 10,000


@pytest.mark.long
def test_ten_thousand_devices_fit_the_budget() -> None:
    found = study.large(10_000, 0)
    assert found["ari"] >= 0.95
    assert found["cluster"] < 120
    assert found["peak"] < 3
