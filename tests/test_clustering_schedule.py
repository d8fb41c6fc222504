"""The decaying coin against closed forms and simulation."""

from fractions import Fraction

import numpy as np
import pytest

from coterie.clustering import Schedule, clusters_now, expected_events, parse_schedule, sd_events
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
        assert round(expected_events(alpha, rounds), 1) == expected


@pytest.mark.parametrize(
    ("alpha", "saving"), [(0.1, (4.23, 6.65, 8.84)), (0.01, (1.45, 1.83, 2.17)), (1, (21, 37, 52))]
)
def test_savings_against_clustering_in_every_round(alpha, saving):
    for rounds, factor in zip((100, 200, 300), saving, strict=True):
        assert rounds / expected_events(alpha, rounds) == pytest.approx(factor, abs=0.5 if alpha == 1 else 0.005)


def test_alpha_one_is_a_harmonic_number():
    """1 + sum_{r=2}^{R} 1 / (1 + r) = H_{R+1} - 1/2."""
    harmonic = sum(Fraction(1, k) for k in range(1, 202))
    assert expected_events(1, 200) == pytest.approx(float(harmonic - Fraction(1, 2)), rel=1e-15)


def test_standard_deviations():
    assert round(sd_events(0.1, 200), 1) == 4.6
    assert round(sd_events(0.005, 200), 1) == 6.2
    assert sd_events(0, 200) == 0
    assert sd_events(5.0, 1) == 0  # round 1 is certain
    assert sd_events(1, 2) == pytest.approx((1 / 3 * 2 / 3) ** 0.5)  # one coin of probability 1/3


@pytest.mark.parametrize("alpha", [0.1, 0.005])
def test_simulated_coins_give_the_closed_form(alpha):
    runs, rounds = 2000, 200
    coins = np.random.default_rng(0).random((runs, rounds))
    events = np.array([sum(clusters_now(r, alpha, c) for r, c in enumerate(row, start=1)) for row in coins])
    sd = sd_events(alpha, rounds)
    assert abs(events.mean() - expected_events(alpha, rounds)) < 4 * sd / runs**0.5
    assert 0.85 < events.std(ddof=1) / sd < 1.15
    assert abs(events.mean() - (expected_events(alpha, rounds) + 1)) > 4 * sd / runs**0.5  # one event off would show


def test_the_first_round_and_alpha_zero_are_certain():
    last = np.nextafter(1.0, 0.0)
    assert clusters_now(1, 1e9, last)
    assert not clusters_now(2, 1e9, last)
    assert all(clusters_now(r, 0, last) for r in range(1, 50))


def test_the_coin_is_below_its_probability_exactly():
    assert clusters_now(3, 1.0, np.nextafter(0.25, 0.0))
    assert not clusters_now(3, 1.0, 0.25)


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
        clusters_now(0, 0.1, 0.5)
    for coin in (-0.1, 1.0, float("nan")):
        with pytest.raises(UserError, match="coin"):
            clusters_now(2, 0.1, coin)
    for alpha in (-0.1, float("nan"), float("inf"), "x"):
        with pytest.raises(UserError, match="alpha"):
            Schedule(alpha)
    with pytest.raises(UserError, match="interval"):
        parse_schedule("every:0", 0.1)
