"""The decaying coin against closed forms and simulation."""

from fractions import Fraction

import numpy as np
import pytest

from coterie.clustering.schedule import Schedule, parse_schedule
from coterie.protocol.errors import UserError
from papers.fedcaprivacy import clustering_events

TABLE = {  # expected clusterings in 100, 200, 300 rounds, computed by hand from the sum of Pr with round 1 forced
    0.1: (23.6, 30.1, 34.0),
    0.01: (69.1, 109.5, 138.3),
    0.005: (80.9, 138.4, 183.0),
    1: (4.7, 5.4, 5.8),
}


@pytest.mark.parametrize("alpha", TABLE)
def test_expected_events_of_the_paper_s_decays(alpha):
    for rounds, expected in zip((100, 200, 300), TABLE[alpha], strict=True):
        assert round(clustering_events(Schedule(alpha), rounds)[0], 1) == expected


def test_alpha_one_is_a_harmonic_number():
    """1 + sum_{r=2}^{R} 1 / (1 + r) = H_{R+1} - 1/2."""
    harmonic = sum(Fraction(1, k) for k in range(1, 202))
    assert clustering_events(Schedule(1), 200)[0] == pytest.approx(float(harmonic - Fraction(1, 2)), rel=1e-15)


def test_standard_deviations():
    for schedule, rounds, sd in ((Schedule(0.1), 200, 4.6), (Schedule(0.005), 200, 6.2), (Schedule(0), 200, 0)):
        assert round(clustering_events(schedule, rounds)[1], 1) == sd
    assert clustering_events(Schedule(5.0), 1)[1] == 0  # round 1 is certain
    assert clustering_events(Schedule(1), 2)[1] == pytest.approx((1 / 3 * 2 / 3) ** 0.5)  # one coin of probability 1/3


@pytest.mark.parametrize("alpha", [0.1, 0.005])
def test_simulated_coins_give_the_closed_form(alpha):
    runs, rounds, decay = 500, 200, Schedule(alpha)
    coins = np.random.default_rng(0).random((runs, rounds))
    events = np.array([sum(decay.clusters_now(r, c) for r, c in enumerate(row, start=1)) for row in coins])
    expected, sd = clustering_events(decay, rounds)
    assert abs(events.mean() - expected) < 4 * sd / runs**0.5
    assert 0.85 < events.std(ddof=1) / sd < 1.15


def test_the_coin_is_below_its_probability_exactly_and_the_first_round_is_certain():
    last = np.nextafter(1.0, 0.0)
    assert Schedule(1.0).clusters_now(3, np.nextafter(0.25, 0.0))
    assert not Schedule(1.0).clusters_now(3, 0.25)
    assert Schedule(1e9).clusters_now(1, last)
    assert not Schedule(1e9).clusters_now(2, last)
    assert all(Schedule(0).clusters_now(r, last) for r in range(1, 50))


def test_kinds_of_schedules():
    assert parse_schedule("decay", 0.1) == Schedule(alpha=0.1)
    assert parse_schedule("always", 0.1) == Schedule(alpha=0.0)
    every = parse_schedule("every:10", 0.1)
    assert [r for r in range(1, 41) if every.clusters_now(r, 0.999)] == [1, 11, 21, 31]
    assert clustering_events(every, 200) == (20, 0)


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
    with pytest.raises(UserError, match="every must be at least 1"):
        parse_schedule("every:0", 0.1)
