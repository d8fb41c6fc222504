"""Eq. (4) of OFL against scipy's linear programmes, scores, and elections."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from coterie.protocol.errors import UserError
from coterie.selection.resources import (
    KINDS,
    Costs,
    Limits,
    elected,
    ratios,
    score,
)

FREE = (0.0,) * 5
amount = st.one_of(st.just(0.0), st.floats(1e-3, 1e3))
five = st.tuples(*[amount] * 5)


def costs_of(kind: str, up: float, down: float) -> Costs:
    """Costs of one resource only."""
    place = KINDS.index(kind)
    return Costs(*((*FREE[:place], value, *FREE[place + 1 :]) for value in (up, down)))


def limits_of(kind: str, limit: float) -> Limits:
    return Limits(**{**dict.fromkeys(KINDS, inf), kind: limit})


@given(five, five, five, st.sampled_from([0.0, 0.01, 0.1, 0.5]), st.sampled_from([1, 10, 1000]))
def test_ratios_are_those_of_a_linear_programme(limits: tuple, up: tuple, down: tuple, floor: float, size: int) -> None:
    """scipy's HiGHS maximises the same programme; where the floor doesn't fit, it has no solution."""
    found = ratios(Limits(*limits), Costs(up, down), size, floor)
    matrix = size * np.array([up, down]).T
    told = linprog([-1, -1], A_ub=matrix, b_ub=limits, bounds=[(floor, 1)] * 2, method="highs")
    at_floor = (matrix.sum(1) * floor - np.array(limits)) / np.maximum(np.array(limits), 1e-9)
    if at_floor.max() < -1e-6:
        assert told.status == 0
        assert found.up + found.down == pytest.approx(-told.fun, rel=1e-6, abs=1e-7)
        assert min(found.up, found.down) >= floor
    elif at_floor.max() > 1e-6:
        assert told.status == 2
        assert found.up == 0 or found.down == 0
    used = matrix @ [found.up, found.down]
    assert (used <= np.array(limits) * (1 + 1e-12)).all()
    assert all(value == 0 or floor <= value <= 1 for value in (found.up, found.down))
    for kind, much, limit in zip(KINDS, used, limits, strict=True):
        if kind in found.binding:
            assert much == pytest.approx(limit, rel=1e-9)


@given(five, five, five)
def test_no_point_of_a_grid_is_better_or_as_good_and_more_balanced(limits: tuple, up: tuple, down: tuple) -> None:
    found = ratios(Limits(*limits), Costs(up, down), 1)
    x, y = np.meshgrid(np.linspace(0, 1, 101), np.linspace(0, 1, 101))
    fits = np.ones_like(x, bool)
    for a, b, c in zip(up, down, limits, strict=True):
        fits &= a * x + b * y <= c
    assert (x + y)[fits].max() <= found.up + found.down + 1e-12
    equal = fits & (x + y >= found.up + found.down)
    assert not equal.any() or np.abs(x - y)[equal].min() >= abs(found.up - found.down) - 1e-12


def test_equal_costs_are_shared_equally_and_a_bound_moves_the_rest() -> None:
    """By hand: 3 (x + y) <= 3 leaves x + y = 1; with 2 x <= .5 too, x is .25 at most."""
    link = costs_of("communication", 3.0, 3.0)
    assert ratios(limits_of("communication", 3.0), link, 1) == ratios(limits_of("communication", 30.0), link, 10)
    even = ratios(limits_of("communication", 3.0), link, 1)
    assert (even.up, even.down, even.binding) == (0.5, 0.5, ("communication",))
    both = Costs((2.0, 3.0, 0, 0, 0), (0, 3.0, 0, 0, 0))
    bent = ratios(Limits(0.5, 3.0, inf, inf, inf), both, 1)
    assert (bent.up, bent.down, bent.binding) == (0.25, 0.75, ("compute", "communication"))


def test_nothing_limits_a_client_without_limits_or_costs() -> None:
    assert ratios(Limits(0, 0, 0, 0, 0), Costs(FREE, FREE), 7) == ratios(
        Limits(*[inf] * 5), Costs((1,) * 5, (1,) * 5), 7
    )
    assert ratios(Limits(0, 0, 0, 0, 0), Costs(FREE, FREE), 7).up == 1


def test_the_cheaper_direction_is_filled_first_and_the_floor_keeps_the_other() -> None:
    """4 x + y <= 2: without a floor y = 1, x = 1/4; with the floor 3/8 x = 3/8, y = 1/2; with .45 y alone."""
    limits, costs = limits_of("availability", 2.0), costs_of("availability", 4.0, 1.0)
    free = ratios(limits, costs, 1)
    assert (free.up, free.down) == (0.25, 1.0)
    kept = ratios(limits, costs, 1, floor=0.375)
    assert (kept.up, kept.down) == (0.375, 0.5)
    alone = ratios(limits, costs, 1, floor=0.45)
    assert (alone.up, alone.down, alone.binding) == (0.0, 1.0, ())


def test_a_spent_budget_stops_uploads_only() -> None:
    spent = ratios(Limits(1, 1, 1, 1, privacy=0.0), costs_of("privacy", 1.0, 0.0), 100, floor=0.1)
    assert (spent.up, spent.down, spent.binding) == (0.0, 1.0, ("privacy",))


def test_a_client_that_cannot_do_anything_does_nothing() -> None:
    nothing = ratios(limits_of("compute", 0.0), costs_of("compute", 1.0, 1.0), 5, floor=0.1)
    assert (nothing.up, nothing.down) == (0.0, 0.0)


@pytest.mark.parametrize("limit", [-1.0, float("nan")])
def test_a_limit_that_is_none_is_refused(limit: float) -> None:
    with pytest.raises(UserError, match="the limit of data"):
        limits_of("data", limit)


@pytest.mark.parametrize("up", [(1.0,) * 4, (1.0, -1.0, 0, 0, 0), (inf, 0, 0, 0, 0), (float("nan"), 0, 0, 0, 0)])
def test_costs_that_are_none_are_refused(up: tuple) -> None:
    with pytest.raises(UserError, match="costs up"):
        Costs(up, FREE)


@pytest.mark.parametrize(("size", "floor"), [(0, 0.1), (5, -0.1), (5, 1.1), (5, float("nan"))])
def test_sizes_and_floors_that_are_none_are_refused(size: int, floor: float) -> None:
    with pytest.raises(UserError, match="size must be at least 1"):
        ratios(Limits(1, 1, 1, 1, 1), Costs(FREE, FREE), size, floor)


# -- scores ------------------------------------------------------------------------------------------------------------


def test_a_score_is_a_mean_and_a_step_that_does_one_model_is_worth_half() -> None:
    one = Costs((0.5,) * 5, (0.5,) * 5)
    assert score(Limits(*[10.0] * 5), one, 10) == 0.5
    assert score(Limits(*[inf] * 5), one, 10) == 1.0
    assert score(Limits(*[0.0] * 5), one, 10) == 0.0
    assert score(Limits(30.0, 0, 0, 0, 0), one, 10) == pytest.approx(0.75 / 5)


@given(five, five, five, st.integers(0, 4), st.floats(1.0, 1e6))
def test_more_of_a_resource_never_lowers_a_score(limits: tuple, up: tuple, down: tuple, at: int, more: float) -> None:
    raised = (*limits[:at], limits[at] + more, *limits[at + 1 :])
    before, after = (score(Limits(*values), Costs(up, down), 3) for values in (limits, raised))
    assert 0 <= before <= after <= 1


# -- elections ---------------------------------------------------------------------------------------------------------


def shares_of_office(scores: Mapping[str, float], terms: int, penalty: float = 1.0) -> dict[str, float]:
    """The share of ``terms`` elections that each member of one cluster wins if nobody's score changes."""
    led = dict.fromkeys(scores, 0.0)
    for _ in range(terms):
        led[elected(scores, led, penalty)] += 1
    return {name: count / max(terms, 1) for name, count in led.items()}


def test_shares_of_office_follow_the_scores() -> None:
    """D'Hondt's rule is proportional: with n members no share is off by more than n / terms."""
    scores = {"a": 0.9, "b": 0.6, "c": 0.3, "d": 0.2}
    found = shares_of_office(scores, 1000)
    for name, value in scores.items():
        assert found[name] == pytest.approx(value / 2.0, abs=4 / 1000)


def test_without_a_penalty_the_best_always_leads_and_a_high_one_lets_all_lead() -> None:
    scores = {"a": 0.9, "b": 0.8, "c": 0.1}
    assert shares_of_office(scores, 10, penalty=0.0) == {"a": 1.0, "b": 0.0, "c": 0.0}
    assert all(shares_of_office(scores, 9, penalty=1e6).values())


def test_ties_go_to_the_less_served_and_then_to_the_first() -> None:
    assert elected({"b": 0.5, "a": 0.5}, {}) == "b"
    assert elected({"b": 0.5, "a": 0.5}, {"b": 1.0}, penalty=0.0) == "a"
    assert elected({"b": 0.0, "a": 0.0}, {"b": 2.0}) == "a"


@pytest.mark.parametrize(
    ("scores", "penalty"), [({}, 1.0), ({"a": -0.1}, 1.0), ({"a": float("nan")}, 1.0), ({"a": 1.0}, -1.0)]
)
def test_elections_that_are_none_are_refused(scores: dict, penalty: float) -> None:
    with pytest.raises(UserError, match="an election takes"):
        elected(scores, {}, penalty)
