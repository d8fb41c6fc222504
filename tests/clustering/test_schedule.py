"""The decaying coin against closed forms and simulation."""

from fractions import Fraction

import numpy as np
import pytest

from coterie.clustering.schedule import Schedule, parse_schedule
from coterie.protocol.errors import UserError

TABLE = {  # expected clusterings in 100, 200, 300 rounds, computed by hand from the sum of Pr with round 1 forced
    0.1: (23.6, 30.1, 34.0),
    0.01: (69.1, 109.5, 138.3),
    0.005: (80.9, 138.4, 183.0),
    1: (4.7, 5.4, 5.8),
}


@pytest.mark.parametrize("alpha", TABLE)
def test_expected_events_of_the_paper_s_decays(alpha):
    for rounds, expected in zip((100, 200, 300), TABLE[alpha], strict=True):
        assert round(Schedule(alpha).expected_events(rounds), 1) == expected


@pytest.mark.parametrize(
    ("alpha", "saving"), [(0.1, (4.23, 6.65, 8.84)), (0.01, (1.45, 1.83, 2.17)), (1, (21, 37, 52))]
)
def test_savings_against_clustering_in_every_round(alpha, saving):
    for rounds, factor in zip((100, 200, 300), saving, strict=True):
        events = Schedule(alpha).expected_events(rounds)
        assert rounds / events == pytest.approx(factor, abs=0.5 if alpha == 1 else 0.005)


def test_alpha_one_is_a_harmonic_number():
    """1 + sum_{r=2}^{R} 1 / (1 + r) = H_{R+1} - 1/2."""
    harmonic = sum(Fraction(1, k) for k in range(1, 202))
    assert Schedule(1).expected_events(200) == pytest.approx(float(harmonic - Fraction(1, 2)), rel=1e-15)


def test_standard_deviations():
    assert round(Schedule(0.1).sd_events(200), 1) == 4.6
    assert round(Schedule(0.005).sd_events(200), 1) == 6.2
    assert Schedule(0).sd_events(200) == 0
    assert Schedule(5.0).sd_events(1) == 0  # round 1 is certain
    assert Schedule(1).sd_events(2) == pytest.approx((1 / 3 * 2 / 3) ** 0.5)  # one coin of probability 1/3


@pytest.mark.parametrize("alpha", [0.1, 0.005])
def test_simulated_coins_give_the_closed_form(alpha):
    runs, rounds, decay = 2000, 200, Schedule(alpha)
    coins = np.random.default_rng(0).random((runs, rounds))
    events = np.array([sum(decay.clusters_now(r, c) for r, c in enumerate(row, start=1)) for row in coins])
    expected, sd = decay.expected_events(rounds), decay.sd_events(rounds)
    assert abs(events.mean() - expected) < 4 * sd / runs**0.5
    assert 0.85 < events.std(ddof=1) / sd < 1.15
    assert abs(events.mean() - (expected + 1)) > 4 * sd / runs**0.5  # one event off would show


def test_the_first_round_and_alpha_zero_are_certain():
    last = np.nextafter(1.0, 0.0)
    assert Schedule(1e9).clusters_now(1, last)
    assert not Schedule(1e9).clusters_now(2, last)
    assert all(Schedule(0).clusters_now(r, last) for r in range(1, 50))


def test_the_coin_is_below_its_probability_exactly():
    assert Schedule(1.0).clusters_now(3, np.nextafter(0.25, 0.0))
    assert not Schedule(1.0).clusters_now(3, 0.25)


def test_kinds_of_schedules():
    assert parse_schedule("decay", 0.1) == Schedule(alpha=0.1)
    assert parse_schedule("always", 0.1) == Schedule(alpha=0.0)
    every = parse_schedule("every:10", 0.1)
    assert [r for r in range(1, 41) if every.clusters_now(r, 0.999)] == [1, 11, 21, 31]
    assert every.expected_events(200) == 20
    assert every.sd_events(200) == 0
    assert parse_schedule("always", 0.1).expected_events(200) == 200


@pytest.mark.parametrize(
    "text", ["", "never", "every", "every:", "every:x", "every:-1", "every:1.5", "decay:0.1", "Always"]
)
def test_unknown_schedules_are_refused(text):
    with pytest.raises(UserError, match="unknown clustering schedule"):
        parse_schedule(text, 0.1)


def test_impossible_numbers_are_refused():
    with pytest.raises(UserError, match="rounds count from 1"):
        Schedule(0.1).clusters_now(0, 0.5)
    for coin in (-0.1, 1.0, float("nan")):
        with pytest.raises(UserError, match="coin"):
            Schedule(0.1).clusters_now(2, coin)
    for alpha in (-0.1, float("nan"), float("inf"), "x"):
        with pytest.raises(UserError, match="alpha"):
            Schedule(alpha)
    with pytest.raises(UserError, match="interval"):
        parse_schedule("every:0", 0.1)
