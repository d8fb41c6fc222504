"""Noise on sums: the grid, its bounds and its sums, in closed form."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.dp.distributed import STEPS, Distributed
from coterie.dp.ledger import Ledger
from coterie.privacy.attacks.noisy_uploads import audit_distributed
from coterie.protocol.errors import UserError
from coterie.protocol.randomness import Secrets, rng

PLAIN = Distributed(clip=0.5, length=300, noise_multiplier=1.5, missing=1)


def secrets(seed: int = 0) -> Secrets:
    return Secrets(rng(seed, "test", "distributed"))


@given(seed=st.integers(0, 2**32), length=st.integers(1, 400), size=st.sampled_from([0.0, 1e-9, 0.3, 7.0, 1e30]))
def test_numbers_are_whole_and_within_the_clip(seed: int, length: int, size: float) -> None:
    """Also for a change that is in one place only, and for one that is far too long."""
    one = Distributed(0.5, length, 1.5)
    change = np.zeros(length)
    change[seed % length] = size
    numbers = one.on_grid(change, b"r", secrets(seed))
    assert one.fits(numbers)
    assert numbers.dtype == np.int64
    assert float(numbers @ numbers) <= one.most**2
    assert 2 * one.most == one.sensitivity


def test_a_sum_of_changes_comes_back() -> None:
    """Rounding is unbiased and has at most a quarter of a step's square: the mean of many is exact to that."""
    source = np.random.default_rng(1)
    changes = source.normal(0, 0.5 / 40, (200, 300))  # of length .43
    total = sum(PLAIN.on_grid(change, b"r", secrets(i)) for i, change in enumerate(changes))
    found = PLAIN.off_grid(total, 200, b"r")
    step = PLAIN.clip / STEPS
    assert np.abs(found - changes.mean(axis=0)).max() < 5 * 0.5 * step / math.sqrt(200)
    assert np.linalg.norm(PLAIN.off_grid(total, 200, b"another") - found) > 0.01


def test_the_rotation_spreads_a_change_over_all_numbers() -> None:
    """No number of a single large coordinate exceeds the stated bound, which is far below the clip."""
    one = Distributed(1.0, 20_000, 1.0)
    change = np.zeros(20_000)
    change[7] = 1.0
    numbers = one.on_grid(change, b"r", secrets())
    assert np.abs(numbers).max() <= one.most_each < 0.15 * STEPS


@pytest.mark.parametrize(("parties", "missing"), [(2, 0), (4, 1), (5, 4)])
def test_shares_that_count_have_the_noise_that_is_claimed(parties: int, missing: int) -> None:
    one = Distributed(0.5, 20_000, 1.5, missing)
    noise = sum(one.share(parties, secrets(i)) for i in range(parties - missing))
    assert np.std(noise) == pytest.approx(1.5 * one.sensitivity, rel=0.03)
    with pytest.raises(UserError, match="nobody's would count"):
        one.share(missing, secrets())


@pytest.mark.parametrize(
    "wrong",
    [
        np.full(300, 0.5),
        np.full(301, 1.0),
        np.full(300, PLAIN.most / math.sqrt(300) + 1),
        np.append(np.zeros(299), PLAIN.most_each + 1),
        np.append(np.zeros(299), np.nan),
    ],
    ids=["not whole", "too many", "too long", "too large", "none"],
)
def test_numbers_that_no_honest_client_makes_are_seen(wrong: np.ndarray) -> None:
    assert PLAIN.fits(np.zeros(300))
    assert not PLAIN.fits(wrong)


def test_members_numbers_with_noise_fit_and_much_longer_ones_do_not() -> None:
    numbers = PLAIN.on_grid(np.ones(300), b"r", secrets()) + PLAIN.share(20, secrets(1))
    assert PLAIN.fits(numbers, makers=20)
    assert not PLAIN.fits(numbers)
    assert not PLAIN.fits(10 * numbers, makers=20)


def test_a_forged_sum_is_too_long() -> None:
    honest = sum(PLAIN.on_grid(np.ones(300), b"r", secrets(i)) + PLAIN.share(8, secrets(50 + i)) for i in range(8))
    assert not PLAIN.is_too_long(honest, 8)
    assert np.abs(honest).max() <= PLAIN.largest(8)
    assert PLAIN.is_too_long(honest * 10, 8)


@pytest.mark.parametrize(
    "wrong", [{"clip": 0.0}, {"clip": math.inf}, {"noise_multiplier": 0.0}, {"length": 0}, {"missing": -1}], ids=str
)
def test_settings_without_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UserError):
        Distributed(**{"clip": 1.0, "length": 3, "noise_multiplier": 1.0, "missing": 0, **wrong})  # type: ignore[arg-type]


def test_the_ledger_keeps_the_budget() -> None:
    one = Distributed.within(1.0, 178_110, 8.0, 1e-5, 10, missing=1)
    ten = Ledger((one.release(),) * 10)
    assert ten.epsilon(1e-5, "replace one client") == pytest.approx(8.0, rel=1e-4)
    assert ten.after(one.release()).epsilon(1e-5, "replace one client") > 8.0
    alone = one.release_alone("its own", 101)
    assert alone.noise_multiplier == pytest.approx(one.noise_multiplier / 10)


@pytest.mark.long
def test_an_audit_stays_under_the_claim_and_finds_a_sixth_of_the_noise() -> None:
    honest = Distributed.within(1.0, 64, 4.0, 1e-5, 1, missing=1)
    found = audit_distributed(honest, 1e-5)
    assert 0.5 < found.lower_bound < found.claimed <= 4.0
    little = Distributed(1.0, 64, honest.noise_multiplier / 6, missing=1)
    assert audit_distributed(little, 1e-5).lower_bound > found.claimed
