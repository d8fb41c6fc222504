"""Contexts and costs: closed forms, hostile values, and selections that learn nothing."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from benchmarks.plain_selection import at_random, by_data_size
from coterie.protocol.errors import UserError
from coterie.selection.contexts import COLUMNS, FARTHEST, standardised, standardised_rewards, time_costs, usable

ANY = st.floats(allow_nan=True, allow_infinity=False, width=64)


def contexts(n: int, seed: int = 0) -> np.ndarray:
    """n ordinary devices."""
    draw = np.random.default_rng(seed)
    columns = draw.uniform((1, 2, 50, 0.2, 0.0), (4, 16, 900, 3.0, 0.3), (n, 5))
    columns[:, 2] = np.floor(columns[:, 2])
    return columns


def test_columns_have_mean_0_and_deviation_1():
    rows = contexts(40)
    assert np.abs(standardised(rows)) == pytest.approx(np.abs((rows - rows.mean(axis=0)) / rows.std(axis=0)))
    units = np.array([1000.0, 2.0**30, 1.0, 1e-6, 7.0])
    assert standardised(rows * units + 3) == pytest.approx(standardised(rows))  # units and zeros do not matter


def test_a_device_with_an_absurd_value_does_not_squeeze_the_others():
    rows = contexts(12)
    honest = standardised(rows)
    rows[3, 2] = 1e12
    lying = standardised(rows)
    assert lying[3, 2] == lying[:, 2].max() <= FARTHEST
    others = np.delete(np.arange(12), 3)
    assert np.ptp(lying[others, 2]) > 0.5 * np.ptp(honest[others, 2])
    plain = (rows[:, 2] - rows[:, 2].mean()) / rows[:, 2].std()
    assert np.ptp(plain[others]) < 1e-6  # what a plain z-score makes of it
    assert np.delete(lying, 2, axis=1) == pytest.approx(np.delete(honest, 2, axis=1))


@given(arrays(np.float64, st.tuples(st.integers(0, 8), st.just(5)), elements=ANY))
def test_any_finite_contexts_give_numbers_in_a_bounded_range(rows):
    found = standardised(rows)
    assert found.shape == rows.shape
    assert np.isfinite(found).all()
    assert (np.abs(found) <= FARTHEST).all()
    assert (found[np.isnan(rows)] == 0).all()  # not known: neither high nor low


def test_constant_columns_one_device_and_none_are_0():
    assert (standardised(np.full((7, 5), 3.7)) == 0).all()
    assert (standardised(contexts(1)) == 0).all()
    assert standardised(np.zeros((0, 5))).shape == (0, 5)
    assert (standardised(np.full((3, 5), np.nan)) == 0).all()


def test_infinite_contexts_and_wrong_shapes_are_named():
    rows = contexts(4)
    rows[2, 1] = -np.inf
    with pytest.raises(UserError, match="device 2 has memory_gib = -inf"):
        standardised(rows)
    for wrong in (np.zeros((4, 4)), np.zeros(5), [["a"] * 5], [[1, 2], [3]]):
        with pytest.raises(UserError, match="contexts must"):
            standardised(wrong)


def test_rewards_are_standardised_and_can_be_brought_back():
    rewards = np.random.default_rng(0).normal(3, 0.1, 30)
    values, centre, unit = standardised_rewards(rewards)
    assert (values.mean(), values.std()) == pytest.approx((0, 1), abs=1e-9)
    inside = np.abs(rewards - np.median(rewards)) < 0.2
    assert (centre + unit * values)[inside] == pytest.approx(rewards[inside])
    for equal in ([], [5.0], [-2.0, -2.0], [0.0]):
        values, centre, unit = standardised_rewards(np.array(equal))
        assert (values == 0).all()
        assert (centre, unit) == (equal[0] if equal else 0, 1)


@pytest.mark.parametrize("outlier", [1e9, -1e300, 1.7e308])
def test_one_absurd_reward_leaves_the_others_apart(outlier):
    rewards = np.append(np.linspace(0, 1, 21), outlier)
    values, _, unit = standardised_rewards(rewards)
    assert np.ptp(values[:-1]) > 1
    assert np.isfinite(values).all()
    assert unit < 10


def test_costs_are_samples_per_ghz_and_impossible_devices_cost_infinity():
    rows = np.array([[2.0, 1, 100, 0, 0], [0.5, 1, 100, 0, 0], [3.0, 1, 0, 0, 0]])
    assert time_costs(rows).tolist() == [50, 200, 0]
    for cpu in (0.0, -1.0, np.nan, -np.inf):
        assert time_costs([[cpu, 1, 100, 0, 0]]).tolist() == [np.inf]
    assert time_costs([[np.inf, 1, np.inf, 0, 0]]).tolist() == [np.inf]
    assert time_costs([[2.0, 1, -4, 0, 0]]).tolist() == [-2.0]
    assert not usable(np.zeros((4, 5)), np.array([-2.0, np.inf, np.nan, -np.inf])).any()


# -- selections that learn nothing -------------------------------------------------------------------------------------


@given(st.lists(st.floats(0, 50), min_size=1, max_size=8), st.floats(0, 120), st.integers(0, 99))
def test_random_selections_keep_the_budget_and_leave_no_room(costs, budget, seed):
    chosen = at_random(costs, budget, np.random.default_rng(seed))
    spent = sum(costs[i] for i in chosen)
    assert list(chosen) == sorted(set(chosen))
    assert spent <= budget * (1 + 1e-6)
    assert all(spent + cost > budget for i, cost in enumerate(costs) if i not in chosen)


def test_random_selections_are_even():
    draws = [at_random([1.0] * 6, 2.0, np.random.default_rng(seed)) for seed in range(3000)]
    counts = [draws.count(pair) for pair in combinations(range(6), 2)]
    assert sum(counts) == 3000
    assert max(abs(count - 200) for count in counts) < 5 * 200**0.5


def test_the_largest_data_come_first_then_whatever_fits():
    assert by_data_size([100, 400, 300, 50], [10, 80, 30, 5], 100) == (0, 1, 3)
    assert by_data_size([5, 5, 5], [3, 1, 2], 3) == (1, 2)  # among equals the cheaper one
    assert by_data_size([9, 5], [np.nan, 1], 10) == (1,)
    assert by_data_size([9, 5], [-1, 1], 10) == (1,)
    assert by_data_size([9, 5], [3, 2], 1) == ()


def test_wrong_lists_are_refused():
    rng = np.random.default_rng(0)
    for budget in (-1.0, np.nan):
        with pytest.raises(UserError, match="time budget"):
            at_random([1.0], budget, rng)
    with pytest.raises(UserError, match="samples must be 2 numbers"):
        by_data_size([1], [1, 2], 3)
    with pytest.raises(UserError, match="costs must"):
        at_random([[1.0], [2.0]], 3, rng)


def test_there_are_five_contexts():
    assert COLUMNS == ("cpu_ghz", "memory_gib", "samples", "gradient_norm", "loss_reduction")
