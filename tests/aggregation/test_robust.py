"""Robust rules against slow twins that read like the papers, and what each promises of honest and malicious updates."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from coterie.aggregation import robust
from coterie.aggregation.robust import flame, fltrust, krum, krum_scores, median, multi_krum, trimmed_mean
from coterie.protocol.errors import UserError

numbers = st.integers(-1000, 1000).map(lambda n: n / 8)  # sums of these are exact
some = st.integers(4, 9).flatmap(
    lambda n: st.integers(1, 5).flatmap(lambda d: arrays(np.float64, (n, d), elements=numbers))
)


# -- slow twins --------------------------------------------------------------------------------------------------------


def slow_scores(updates: np.ndarray, f: int) -> list[float]:
    found = []
    for i, own in enumerate(updates):
        distances = sorted(
            sum((a - b) ** 2 for a, b in zip(own, other, strict=True)) for j, other in enumerate(updates) if i != j
        )
        found.append(sum(distances[: len(updates) - f - 2]))
    return found


def slow_trimmed(updates: np.ndarray, k: int) -> list[float]:
    columns = [sorted(column) for column in updates.T]
    return [math.fsum(column[k : len(column) - k]) / (len(column) - 2 * k) for column in columns]


@given(some, st.data())
def test_krum_is_its_definition(updates: np.ndarray, data: st.DataObject) -> None:
    f = data.draw(st.integers(0, len(updates) - 3))
    scores = slow_scores(updates, f)
    np.testing.assert_allclose(krum_scores(updates, f), scores, atol=1e-6)
    order = sorted(range(len(scores)), key=lambda i: (scores[i], i))
    assume(len({round(score, 3) for score in scores}) == len(scores))
    np.testing.assert_array_equal(krum(updates, f).mean, updates[order[0]])
    assert set(np.flatnonzero(krum(updates, f).flagged)) == set(order[len(order) - f :])
    m = data.draw(st.integers(1, len(updates) - f))
    several = multi_krum(updates, f, m)
    np.testing.assert_allclose(several.mean, updates[order[:m]].mean(axis=0), atol=1e-9)
    assert set(np.flatnonzero(several.influence)) == set(order[:m]) == set(np.flatnonzero(~several.flagged))


@given(some, st.data())
def test_the_trimmed_mean_is_its_definition(updates: np.ndarray, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, (len(updates) - 1) // 2))
    found = trimmed_mean(updates, k)
    np.testing.assert_allclose(found.mean, slow_trimmed(updates, k), atol=1e-9)
    assert found.influence.sum() == pytest.approx(len(updates) - 2 * k)  # so many values stay in each coordinate
    np.testing.assert_allclose(median(updates).mean, np.median(updates, axis=0), atol=1e-9)


def test_blocks_of_coordinates_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    updates = np.random.default_rng(0).normal(size=(9, 50))
    whole = trimmed_mean(updates, 2)
    monkeypatch.setattr(robust, "_BLOCK", 7)
    parts = trimmed_mean(updates, 2)
    np.testing.assert_array_equal(whole.mean, parts.mean)
    np.testing.assert_array_equal(whole.influence, parts.influence)


@given(some, st.data())
def test_fltrust_is_its_definition(updates: np.ndarray, data: st.DataObject) -> None:
    own = data.draw(arrays(np.float64, updates.shape[1], elements=numbers))
    assume(np.any(own))
    norm = math.sqrt(sum(x * x for x in own))
    total, weighted = 0.0, np.zeros(len(own))
    for update in updates:
        length = math.sqrt(sum(x * x for x in update))
        trust = (
            max(0.0, float(sum(a * b for a, b in zip(update, own, strict=True))) / (length * norm)) if length else 0.0
        )
        total += trust
        if trust:
            weighted += trust * norm / length * update
    found = fltrust(updates, own)
    assume(total == 0 or total > 1e-9)
    np.testing.assert_allclose(found.mean, weighted / total if total else weighted, atol=1e-8)
    assert np.linalg.norm(found.mean) <= norm * (1 + 1e-9)


# -- promises ----------------------------------------------------------------------------------------------------------


@given(some, st.data())
def test_the_order_of_updates_and_a_common_shift_do_not_matter(updates: np.ndarray, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(updates))))
    shift = data.draw(arrays(np.float64, updates.shape[1], elements=numbers))
    for rule in (lambda u: trimmed_mean(u, 1), median):
        np.testing.assert_allclose(rule(updates[list(order)] + shift).mean, rule(updates).mean + shift, atol=1e-9)
    np.testing.assert_allclose(
        np.sort(krum_scores(updates[list(order)] + shift, 1)), np.sort(krum_scores(updates, 1)), atol=1e-5
    )


@given(some, st.floats(-1e12, 1e12), st.data())
def test_a_coordinate_never_leaves_the_range_of_the_honest(
    updates: np.ndarray, lie: float, data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, (len(updates) - 1) // 2))
    honest = updates[k:]
    for bad in permutations([lie, -lie, 1e9], min(k, 3)):
        updates[: len(bad)] = np.array(bad)[:, None]
        for found in (trimmed_mean(updates, k).mean, median(updates).mean):
            assert (found >= honest.min(axis=0) - 1e-9).all()
            assert (found <= honest.max(axis=0) + 1e-9).all()


@pytest.mark.parametrize("rule", [lambda u, f: krum(u, f), lambda u, f: multi_krum(u, f)], ids=["krum", "multi_krum"])
@pytest.mark.parametrize("far", [10.0, -30.0, 1e9])
def test_krum_takes_none_of_f_colluding_updates_far_away(rule, far: float) -> None:
    """n = 11 > 2 f + 2 for f = 4; the attackers are closer to each other than the honest are."""
    source = np.random.default_rng(1)
    updates = source.normal(size=(11, 20))
    updates[:4] = far + source.normal(0, 0.01, (4, 20))
    found = rule(updates, 4)
    assert found.flagged[:4].all()
    assert not found.influence[:4].any()
    assert np.abs(found.mean).max() < 5


def test_krum_is_lost_with_more_colluders_than_it_is_built_for() -> None:
    """The test above can fail: six of eleven are the crowd."""
    updates = np.random.default_rng(1).normal(size=(11, 20))
    updates[:6] = 10.0
    assert krum(updates, 4).mean[0] == 10.0


def test_fltrust_takes_an_updates_direction_at_its_own_length() -> None:
    """Scaling by ten changes nothing, and an update against its own counts nothing."""
    own = np.array([3.0, 4.0])
    updates = np.array([[3.0, 4.0], [0.0, 1.0]])
    found = fltrust(updates, own)
    np.testing.assert_allclose(found.influence, [1.0, 0.8])
    np.testing.assert_allclose(found.mean, (1.0 * own + 0.8 * np.array([0, 5.0])) / 1.8)
    np.testing.assert_allclose(fltrust(updates * [[10], [1]], own).mean, found.mean)
    against = fltrust(np.array([-own, -10 * own]), own)
    assert against.flagged.all()
    np.testing.assert_array_equal(against.mean, 0)


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: krum(np.zeros((4, 2)), 2), "against 2 attackers needs at least 5 updates, not 4"),
        (lambda: krum(np.zeros((2, 2)), 0), "at least 3 updates, not 2"),
        (lambda: krum(np.zeros((4, 2)), -1), "at least 3 updates, not 4"),
        (lambda: multi_krum(np.zeros((5, 2)), 1, 5), "from 1 to 4 of 5 updates, not 5"),
        (lambda: multi_krum(np.zeros((5, 2)), 1, 0), "from 1 to 4 of 5 updates, not 0"),
        (lambda: trimmed_mean(np.zeros((4, 2)), 2), "from 0 to 1 at each end, not 2"),
        (lambda: trimmed_mean(np.zeros((4, 2)), -1), "from 0 to 1 at each end, not -1"),
        (lambda: median(np.zeros((0, 2))), "updates must be finite numbers"),
        (lambda: median(np.full((3, 2), np.nan)), "updates must be finite numbers"),
        (lambda: median(np.zeros(3)), "updates must be finite numbers"),
        (lambda: fltrust(np.zeros((3, 2)), np.zeros(2)), "not zero"),
        (lambda: fltrust(np.zeros((3, 2)), np.ones(3)), "of the model's size"),
        (lambda: fltrust(np.zeros((3, 2)), np.array([1, np.inf])), "finite"),
    ],
)
def test_what_makes_no_sense_is_refused(call, said: str) -> None:
    with pytest.raises(UserError, match=said):
        call()


# -- FLAME -------------------------------------------------------------------------------------------------------------


def in_one_direction(n: int, d: int, seed: int = 0) -> np.ndarray:
    """n updates near one direction, of lengths from 1 to 3."""
    source = np.random.default_rng(seed)
    rows = np.eye(d)[0] + source.normal(0, 0.05, (n, d))
    return np.linspace(1, 3, n)[:, None] * rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_flame_admits_a_majority_and_clips_it_to_the_median_length() -> None:
    """Six alike and three turned round: of the six the five that are closest together, at the median length of all."""
    honest = in_one_direction(6, 12)
    updates = np.vstack([honest, -5 * in_one_direction(3, 12, seed=1)])
    found = flame(updates, np.zeros(12))
    admitted = np.flatnonzero(~found.flagged)
    assert found.flagged[6:].all()
    assert len(admitted) == 5
    lengths = np.linalg.norm(updates, axis=1)
    s = sorted(lengths)[4]
    clipped = [updates[i] if lengths[i] <= s else updates[i] * s / lengths[i] for i in admitted]
    np.testing.assert_allclose(found.mean, np.mean(clipped, axis=0))
    np.testing.assert_allclose(found.influence[admitted], np.minimum(1, s / lengths[admitted]))
    assert found.influence.sum() == found.influence[admitted].sum()


def test_flames_noise_is_as_long_as_the_median() -> None:
    updates, noise = in_one_direction(7, 5), np.array([1.0, 0, -2, 0, 0.5])
    s = np.median(np.linalg.norm(updates, axis=1))
    moved = flame(updates, noise).mean - flame(updates, np.zeros(5)).mean
    np.testing.assert_allclose(moved, s * noise)
    np.testing.assert_allclose(flame(3 * updates, noise).mean, 3 * flame(updates, noise).mean)


def test_a_long_lie_of_flame_counts_no_more_than_the_median() -> None:
    """A model replacement has an honest angle, so its length is what is left to bound."""
    updates = in_one_direction(9, 8)
    longer = updates.copy()
    longer[0] *= 100
    bound = np.median(np.linalg.norm(longer, axis=1))
    assert np.linalg.norm(flame(longer, np.zeros(8)).mean) <= bound
    assert np.abs(longer.mean(axis=0)).max() > 5 * bound


def test_flame_without_a_majority_admits_all() -> None:
    """Updates at right angles to each other have no cluster."""
    found = flame(np.eye(6), np.zeros(6))
    assert not found.flagged.any()
    np.testing.assert_allclose(found.mean, np.full(6, 1 / 6))


def test_flame_needs_two_and_takes_zeros() -> None:
    with pytest.raises(UserError, match="needs at least 2, not 1"):
        flame(np.ones((1, 3)), np.zeros(3))
    found = flame(np.zeros((4, 3)), np.ones(3))
    np.testing.assert_array_equal(found.mean, 0)
