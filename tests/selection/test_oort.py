"""Oort by hand-made cases and by counting: utilities, pacer, exploration, blacklist, and liars."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.protocol.errors import UserError
from coterie.protocol.state import dump, load
from coterie.selection import oort
from coterie.selection.oort import pool

SETTINGS = oort.Oort()
GREEDY = oort.Oort(exploration=0.0, least_exploration=0.0, cutoff=1.0)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def tried(utility: list[float], duration: list[float], *, r: int = 1, last: list[int] | None = None) -> oort.Pool:
    """A pool in which everybody was told of once, before round r + 1."""
    n = len(utility)
    state = msgspec.structs.replace(pool(n, GREEDY), round=1)
    state = oort.told(state, range(n), utility, duration)
    return msgspec.structs.replace(state, round=r, last=np.array(last or [1] * n))


# -- utility -----------------------------------------------------------------------------------------------------------


def test_statistical_utility_is_samples_times_the_root_mean_square_of_losses():
    assert oort.utility_of_mean(2, 12.5**0.5) == pytest.approx(2 * 12.5**0.5)
    assert oort.utility_of_mean(7, 0.5) == pytest.approx(3.5)
    for samples, loss in ((5, np.nan), (5, np.inf), (-3, 1.0), (0, 9.0)):
        assert oort.utility_of_mean(samples, loss) == 0


def test_utilities_of_a_hand_made_pool():
    """Statistical utility over the highest, staleness sqrt(.1 ln R / L), and (T / t)^2 for those slower than T."""
    state = tried([10.0, 5.0, 8.0], [1.0, 2.0, 4.0], r=9, last=[9, 3, 8])
    settings = oort.Oort(clip=1.0, pace_step=0.5)
    assert oort.preferred_duration(state, settings) == 2.0  # the median
    stale = np.sqrt(0.1 * np.log(9) / np.array([9, 3, 8]))
    expected = (np.array([1.0, 0.5, 0.8]) + stale) * np.array([1.0, 1.0, (2.0 / 4.0) ** 2])
    assert oort.utilities(state, settings) == pytest.approx(expected)


def test_clients_never_tried_have_no_utility_and_before_all_t_is_infinite():
    assert np.isnan(oort.utilities(pool(3), SETTINGS)).all()
    assert oort.preferred_duration(pool(3), SETTINGS) == np.inf
    state = oort.told(msgspec.structs.replace(pool(3), round=1), [1], [2.0], [5.0])
    assert np.isnan(oort.utilities(state, SETTINGS)).tolist() == [True, False, True]


def test_one_liar_counts_as_the_next_highest():
    honest = [float(x) for x in range(10, 20)]
    liar = tried([*honest, 1e12], [1.0] * 11)
    found = oort.utilities(liar, SETTINGS)
    assert found[-1] == found[-2] == found.max()
    assert found[0] == pytest.approx(10 / 19)  # and the others keep their distances


@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
def test_slow_clients_are_penalised_by_a_power(penalty):
    state = tried([1.0] * 5, [1.0, 1.0, 1.0, 1.0, 10.0])
    found = oort.utilities(state, oort.Oort(penalty=penalty))
    assert found[4] / found[0] == pytest.approx(0.1**penalty)


# -- selection ---------------------------------------------------------------------------------------------------------


def test_exploitation_takes_the_best_and_exploration_the_untried_by_speed():
    state = tried([1.0, 9.0, 3.0, 8.0, 2.0], [1.0] * 5)
    assert oort.select(state, 2, np.ones(5), rng(), GREEDY)[0] == (1, 3)
    counts = np.zeros(6)
    fresh = pool(6)
    for seed in range(2000):
        counts[list(oort.select(fresh, 1, [1, 1, 1, 1, 1, 5.0], rng(seed))[0])] += 1
    assert counts.sum() == 2000
    assert abs(counts[5] - 1000) < 5 * 500**0.5
    assert (abs(counts[:5] - 200) < 5 * 180**0.5).all()


def test_the_share_of_exploration_decays_to_its_least():
    state, settings = pool(1000), oort.Oort(exploration=0.9, exploration_decay=0.5, least_exploration=0.2)
    seen = []
    for r in range(1, 6):
        before = np.isnan(state.utility)
        chosen, state = oort.select(state, 20, np.ones(1000), rng(r), settings)
        seen.append(int(before[list(chosen)].sum()))
        state = oort.told(state, chosen, np.ones(len(chosen)), np.ones(len(chosen)), settings)
    assert seen == [20, 9, 4, 4, 4]  # nobody is known in round 1; then 45 %, 22.5 % and 20 % of 20
    assert state.exploration == 0.2


def test_the_cut_off_admits_those_near_the_last_and_no_others():
    state = tried([100.0, 99.0, 98.0, 50.0], [1.0] * 4)
    drawn = {
        oort.select(state, 1, np.ones(4), rng(seed), oort.Oort(exploration=0, least_exploration=0))[0]
        for seed in range(99)
    }
    assert drawn == {(0,), (1,), (2,)}


def test_a_client_left_out_for_long_comes_back():
    state, settings = tried([10.0, 9.0, 8.9], [1.0] * 3), oort.Oort(0.0, 1.0, 0.0, cutoff=1.0, clip=1.0)
    rounds = [0, 0, 0]
    for r in range(60):
        (chosen,), state = oort.select(state, 1, np.ones(3), rng(r), settings)
        state = oort.told(state, [chosen], [(10.0, 9.0, 8.9)[chosen]], [1.0], settings)
        rounds[chosen] += 1
    assert min(rounds) >= 2  # without the bonus: never


def test_the_blacklist_is_kept_while_enough_others_are_left():
    settings, state = oort.Oort(0.0, 1.0, 0.0, most_selected=3), tried([9.0, 8.0, 1.0, 1.0], [1.0] * 4)
    turns = []
    for r in range(9):
        chosen, state = oort.select(state, 2, np.ones(4), rng(r), settings)
        turns.append(chosen)
        state = oort.told(state, chosen, state.utility[list(chosen)], np.ones(2), settings)
    assert turns[:3] == [(0, 1)] * 3
    assert turns[3:6] == [(2, 3)] * 3
    assert all(len(chosen) == 2 for chosen in turns)  # all are over the limit: those selected least often
    assert np.ptp(state.selected) <= 1


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 10**6), st.booleans())
def test_as_many_as_asked_or_as_many_as_there_are(n, k, seed, limited):
    draw, settings = rng(seed), oort.Oort(most_selected=2 if limited else 0)
    state = pool(n, settings)
    for _ in range(8):
        there = np.flatnonzero(draw.random(n) < 0.7).tolist()
        chosen, state = oort.select(state, k, draw.random(n), draw, settings, there)
        assert len(chosen) == len(set(chosen)) == min(k, len(there))
        assert set(chosen) <= set(there)
        answered = chosen[: len(chosen) // 2 + 1]
        state = oort.told(state, answered, draw.random(len(answered)), draw.random(len(answered)), settings)
    assert state.round == 8


# -- the pacer ---------------------------------------------------------------------------------------------------------


def test_the_pacer_moves_on_when_a_window_brings_less_than_the_one_before():
    settings = oort.Oort(window=3, pace_step=0.25)
    state = msgspec.structs.replace(tried([1.0] * 4, [1.0, 2.0, 3.0, 4.0]), round=6)
    falling = msgspec.structs.replace(state, gains=(5.0, 5.0, 5.0, 1.0, 1.0, 1.0))
    assert oort.preferred_duration(falling, settings) == 2.0
    moved = oort.paced(falling, settings)
    assert (moved.pace, moved.paced) == (2, 6)
    assert oort.preferred_duration(moved, settings) == 3.0
    assert oort.paced(msgspec.structs.replace(moved, round=8), settings).pace == 2  # once in W rounds
    assert oort.paced(msgspec.structs.replace(moved, round=9), settings).pace == 3
    for gains in ((1.0,) * 6, (1.0, 1.0, 1.0, 2.0, 2.0, 2.0), (9.0, 9.0, 9.0, 1.0, 1.0)):
        assert oort.paced(msgspec.structs.replace(state, gains=gains), settings).pace == 1
    last = msgspec.structs.replace(falling, pace=4)
    assert oort.paced(last, settings).pace == 4
    assert oort.preferred_duration(last, settings) == np.inf


def test_gains_are_those_of_the_last_two_windows():
    settings, state = oort.Oort(window=2), pool(3)
    for r in range(7):
        _, state = oort.select(state, 1, np.ones(3), rng(r), settings)
        state = oort.told(state, [0], [float(r)], [1.0], settings)
    assert state.gains == (3.0, 4.0, 5.0, 6.0)
    assert oort.told(state, [], [], [], settings).gains[-1] == 0


# -- hostile input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, -3.0])
def test_what_is_no_number_makes_a_client_no_use(bad):
    state = msgspec.structs.replace(pool(4), round=1)
    state = oort.told(state, [0, 1, 2, 3], [1.0, bad, 2.0, 3.0], [1.0, 1.0, bad if bad != np.inf else np.nan, 1.0])
    assert state.utility.tolist() == [1.0, 0.0, 2.0, 3.0]
    assert state.duration[2] == np.inf
    found = oort.utilities(state, SETTINGS)
    assert np.isfinite(found).all()
    assert found[2] == 0  # infinitely slow
    chosen, _ = oort.select(state, 2, [bad, 1, 1, 1], rng(), GREEDY)
    assert chosen == (0, 3)


def test_a_liar_about_its_loss_is_selected_no_more_often_than_the_best_honest_client():
    """Over 20 seeds, 12 clients, 4 a round, 60 rounds: the liar says 10^6 times the loss."""
    counts = np.zeros((20, 12))
    for seed in range(20):
        state, losses = pool(12), rng(seed).uniform(0.5, 1.5, 12)
        for r in range(60):
            chosen, state = oort.select(state, 4, np.ones(12), rng(100 * seed + r))
            said = [losses[i] * (1e6 if i == 0 else 1) for i in chosen]
            state = oort.told(state, chosen, [100 * loss for loss in said], np.ones(4))
        counts[seed] = state.selected
    best = np.sort(counts[:, 1:], axis=1)[:, -1]
    assert counts[:, 0].mean() <= 1.1 * best.mean()


def test_wrong_arguments_are_refused():
    with pytest.raises(UserError, match="at least 1 client"):
        pool(0)
    with pytest.raises(UserError, match="at least 1 client"):
        oort.select(pool(3), 0, np.ones(3), rng())
    with pytest.raises(UserError, match="speeds must"):
        oort.select(pool(3), 1, np.ones(2), rng())
    with pytest.raises(UserError, match="one each"):
        oort.told(pool(3), [0, 1], [1.0], [1.0, 2.0])
    for clients in ([3], [-1], [1, 1]):
        with pytest.raises(UserError, match="different numbers from 0 to 2"):
            oort.told(pool(3), clients, np.ones(len(clients)), np.ones(len(clients)))
        with pytest.raises(UserError, match="different numbers from 0 to 2"):
            oort.select(pool(3), 1, np.ones(3), rng(), available=clients)
    for wrong in (
        {"exploration": 2.0},
        {"clip": np.nan},
        {"penalty": -1.0},
        {"window": 0},
        {"pace_step": 0.0},
        {"most_selected": -1},
    ):
        with pytest.raises(UserError, match="Oort's"):
            oort.Oort(**wrong)


def test_the_state_survives_as_bytes():
    class Server(msgspec.Struct):
        pool: oort.Pool

    _, state = oort.select(tried([1.0, 2.0], [1.0, 3.0]), 1, np.ones(2), rng())
    again = load(dump({"server": Server(state)}), {"server": Server})["server"].pool
    assert oort.select(again, 1, np.ones(2), rng(5))[0] == oort.select(state, 1, np.ones(2), rng(5))[0]
    assert again.gains == state.gains
