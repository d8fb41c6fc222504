"""The standard mechanism, its index sets, and budgets."""

from __future__ import annotations

import math

import numpy as np
import pytest
from batch_norm_models import small
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest

from coterie.dp.budget import Budget
from coterie.dp.gaussian import epsilon
from coterie.dp.ledger import Ledger, Release
from coterie.dp.uploads import Standard, eligible, selection_release, shared_set
from coterie.protocol.errors import UserError
from coterie.protocol.randomness import Secrets
from coterie.training.model import Model

DELTA = 1e-5
SESSION = b"s" * 16


def secrets(seed: int = 0) -> Secrets:
    return Secrets(np.random.default_rng(seed))


@given(st.floats(1e-3, 1e3), st.integers(1, 30), st.integers(0, 1000))
def test_without_its_noise_an_upload_is_the_clipped_change(clip: float, size: int, seed: int) -> None:
    """The same noise on a change of zeros is what is added."""
    change = np.random.default_rng(seed).normal(size=size) * 10
    mechanism = Standard(clip, 1.0)
    noise = mechanism.noised(np.zeros(size), secrets(seed)).astype(np.float64)
    sent = mechanism.noised(change, secrets(seed)) - noise
    assert np.allclose(sent, change * min(1, clip / np.linalg.norm(change)), atol=1e-4 * clip)


def test_noise_is_gaussian_of_two_clips_times_the_multiplier() -> None:
    noise = Standard(0.5, 3.0).noised(np.zeros(20_000), secrets())
    assert kstest(noise / 3.0, "norm").pvalue > 0.01


def test_the_most_that_replaced_data_can_move_an_upload_is_its_sensitivity() -> None:
    mechanism, direction = Standard(0.7, 1e-9), np.full(50, 50**-0.5)
    a, b = (mechanism.noised(sign * 100 * direction, secrets()) for sign in (1, -1))
    assert np.linalg.norm(a - b) == pytest.approx(mechanism.sensitivity) == pytest.approx(1.4)


@pytest.mark.parametrize("uploads", [1, 5, 100])
def test_the_noise_for_a_budget_is_the_least(uploads: int) -> None:
    mechanism = Standard.within(1.0, 8.0, DELTA, uploads)
    ledger = Ledger((mechanism.release(),) * uploads)
    assert mechanism.epsilon(DELTA, uploads) == pytest.approx(ledger.epsilon(DELTA, "replace one client"))
    assert 7.99 < ledger.epsilon(DELTA, "replace one client") <= 8.0
    assert Budget(8.0, DELTA).fits(ledger)
    assert not Budget(8.0, DELTA).fits(ledger, mechanism.release())


def test_a_budget_stops_uploads_after_as_many_as_fit() -> None:
    budget, mechanism, ledger = Budget(8.0, DELTA), Standard(1.0, 4.0), Ledger()
    while budget.fits(ledger, mechanism.release(len(ledger.releases))):
        ledger = ledger.after(mechanism.release(len(ledger.releases)))
    n = len(ledger.releases)
    assert epsilon(4.0, DELTA, n) <= 8.0 < epsilon(4.0, DELTA, n + 1)
    assert n == 44
    assert budget.left(ledger) == pytest.approx(8.0 - epsilon(4.0, DELTA, n))
    assert budget.left(ledger.after(Release("model"))) == 0.0


def test_what_protects_samples_only_fits_no_budget_for_clients() -> None:
    vector = Release("vector", "gaussian", 100.0, 1.0)
    assert not Budget(8.0).fits(Ledger(), vector)
    assert Budget(8.0, neighbours="replace one sample").fits(Ledger(), vector)
    assert not Budget(1e6).fits(Ledger(), Release("model"))


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        ({"epsilon": 0.0}, "epsilon 0.0: it is positive"),
        ({"epsilon": -1.0}, "positive"),
        ({"epsilon": math.nan}, "positive"),
        ({"epsilon": math.inf}, "at most"),
        ({"epsilon": 1.0, "delta": 1.0}, "with delta 1 everything may be told"),
        ({"epsilon": 1.0, "delta": 0.0}, "delta is at least 1e-15"),
        ({"epsilon": 1.0, "delta": math.nan}, "delta"),
    ],
)
def test_a_budget_that_promises_nothing_is_refused(budget: dict[str, float], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Budget(**budget)


@pytest.mark.parametrize("numbers", [(0.0, 1.0), (math.nan, 1.0), (math.inf, 1.0), (1.0, 0.0), (1.0, math.nan)])
def test_a_mechanism_without_clip_or_noise_is_refused(numbers: tuple[float, float]) -> None:
    with pytest.raises(UserError, match="of uploads must"):
        Standard(*numbers)


@pytest.mark.parametrize(
    "wrong", [(0.0, DELTA, 1), (math.nan, DELTA, 1), (1.0, 1.0, 1), (1.0, 0.0, 1), (1.0, DELTA, 0)]
)
def test_noise_for_no_budget_is_refused(wrong: tuple[float, float, int]) -> None:
    with pytest.raises(UserError):
        Standard.within(1.0, *wrong)


@pytest.mark.parametrize("change", [[math.nan, 1.0], [math.inf]])
def test_a_change_that_is_no_number_is_refused(change: list[float]) -> None:
    with pytest.raises(UserError, match="finite"):
        Standard(1.0, 1.0).noised(change, secrets())


def test_buffers_are_not_eligible() -> None:
    spec = Model(small((1, 8, 8), 3), (1, 8, 8)).spec
    assert spec.buffers.any()
    assert not spec.buffers[eligible(spec)].any()
    assert len(eligible(spec)) == (~spec.buffers).sum()


def test_all_parties_of_a_process_hold_one_array_of_places() -> None:
    """It is as large as two models, and a simulation has a thousand clients."""
    one, other = (eligible(Model(small((1, 8, 8), 3), (1, 8, 8)).spec) for _ in range(2))
    assert one is other
    assert not one.flags.writeable


def test_a_shared_set_is_the_same_for_all_and_another_for_each_client_and_upload() -> None:
    places = np.arange(100, 300)
    one = shared_set(places, 40, SESSION, "client/1", 3)
    assert np.array_equal(one, shared_set(places, 40, SESSION, "client/1", 3))
    assert np.array_equal(one, np.unique(one))
    assert set(one) <= set(places)
    others = [(SESSION, "client/1", 4), (SESSION, "client/2", 3), (b"t" * 16, "client/1", 3)]
    assert all(not np.array_equal(one, shared_set(places, 40, *other)) for other in others)
    assert np.array_equal(shared_set(places, 200, SESSION, "c", 0), places)
    for k in (0, 201):
        with pytest.raises(UserError, match="cannot be chosen"):
            shared_set(places, k, SESSION, "c", 0)


def test_every_place_is_in_a_shared_set_equally_often() -> None:
    """A chi-square test of 2,000 sets of 10 of 40 places: mean 39 degrees less the negative correlation of a set."""
    drawn = np.concatenate([shared_set(np.arange(40), 10, SESSION, "c", i) for i in range(2000)])
    counts = np.bincount(drawn, minlength=40)
    spread = ((counts - 500) ** 2 / (500 * 0.75)).sum()
    assert 15 < spread < 75  # 1e-4 on either side of chi-square with 39 degrees of freedom


def test_a_selection_that_is_paid_for_is_so_many_draws() -> None:
    ledger = Ledger((selection_release(100, 0.02, 3),))
    assert ledger.epsilon(DELTA, "replace one client") < 2.0
    assert ledger.releases[0].draws == 100
    assert ledger.after(Standard(1.0, 4.0).release(3)).epsilon(DELTA, "replace one client") > ledger.epsilon(DELTA)
