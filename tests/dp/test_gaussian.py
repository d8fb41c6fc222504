"""Gaussian releases against the analytic Gaussian mechanism, and an audit of the real release."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm

from coterie.dp.gaussian import clipped, epsilon, mean_sensitivity, noise_multiplier, noised
from coterie.privacy.attacks.noisy_uploads import lower_bound
from coterie.protocol.errors import UserError


def delta_of(epsilon: float, z: float) -> float:
    """Balle and Wang 2018, theorem 8, for sensitivity 1: Phi(1/2z - eps z) - e^eps Phi(-1/2z - eps z)."""
    return float(norm.cdf(1 / (2 * z) - epsilon * z) - math.exp(epsilon + norm.logcdf(-1 / (2 * z) - epsilon * z)))


def analytic_epsilon(z: float, delta: float) -> float:
    """The slow twin: the epsilon at which the analytic delta is the given one."""
    if delta_of(0.0, z) <= delta:
        return 0.0
    return float(brentq(lambda e: delta_of(e, z) - delta, 0.0, 10 / z**2 + 20 / z, xtol=1e-12))


@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-8])
@pytest.mark.parametrize("z", [0.1, 0.3, 1.0, 3.7, 30.0, 1000.0])
def test_epsilon_is_that_of_the_analytic_mechanism_and_never_below(z, delta):
    twin = analytic_epsilon(z, delta)
    assert epsilon(z, delta) == pytest.approx(twin, rel=1e-5, abs=1e-9)
    assert epsilon(z, delta) >= twin * (1 - 1e-9)


def test_known_values():
    """A Gaussian with z = 1 once, and one with z = 4 fifty times, at delta 1e-5."""
    assert round(epsilon(1.0, 1e-5), 2) == 4.38
    assert round(epsilon(4.0, 1e-5, 50), 2) == 8.60


@example(z=0.5, releases=284)
@given(z=st.floats(0.5, 50), releases=st.integers(1, 400))
def test_releases_compose_to_one_with_less_noise(z, releases):
    """By the loss distribution composed with itself, not by the formula that the code uses.

    Its e^epsilon does not fit in a float above an epsilon of 709, and it says infinity. The twin has no such bound.
    """
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    composed = from_gaussian_mechanism(z, value_discretization_interval=2e-3 / z).self_compose(releases)
    expected = composed.get_epsilon_for_delta(1e-5)
    if math.isinf(expected):
        expected = analytic_epsilon(z / math.sqrt(releases), 1e-5)
        assert expected > math.log(sys.float_info.max)
    assert epsilon(z, 1e-5, releases) == pytest.approx(expected, rel=1e-3, abs=1e-5)


@given(target=st.floats(1e-3, 1e4), exponent=st.floats(-12, -1.5), releases=st.integers(1, 1000))
def test_the_noise_multiplier_keeps_epsilon_and_wastes_nothing(target, exponent, releases):
    delta = 10**exponent
    z = noise_multiplier(target, delta, releases)
    assert epsilon(z, delta, releases) <= target * (1 + 1e-9)
    assert epsilon(z * (1 - 1e-4), delta, releases) > target


@pytest.mark.parametrize("z", [1e-9, 1e-4, 0.049, 1e6, 1e12])
def test_extreme_noise_takes_no_memory_and_has_an_epsilon(z):
    """A grid of fixed step would take gigabytes for the smallest of these."""
    assert 0 <= epsilon(z, 1e-5) < math.inf


def test_no_noise_and_no_release():
    assert epsilon(0.0, 1e-5) == math.inf
    assert epsilon(0.0, 1e-5, 0) == epsilon(1.0, 1e-5, 0) == epsilon(math.inf, 1e-5) == 0.0


@pytest.mark.parametrize("target", [0.0, -1.0, math.inf, math.nan])
def test_an_epsilon_that_no_noise_gives_is_refused(target):
    with pytest.raises(UserError, match="epsilon is positive and finite"):
        noise_multiplier(target, 1e-5)


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, math.nan])
def test_a_delta_outside_0_and_1_is_refused(delta):
    for function in (noise_multiplier, epsilon):
        with pytest.raises(UserError, match="delta lies between 0 and 1"):
            function(1.0, delta)


def test_other_bad_numbers_are_refused():
    for call in (
        lambda: epsilon(-1.0, 1e-5),
        lambda: epsilon(math.nan, 1e-5),
        lambda: epsilon(1.0, 1e-5, -1),
        lambda: noise_multiplier(1.0, 1e-5, 0),
        lambda: noise_multiplier(1.0, 1e-5, 1.5),  # type: ignore[arg-type]
        lambda: mean_sensitivity(1.0, 0),
        lambda: clipped(np.ones((2, 3)), 0.0),
        lambda: clipped([[1.0, math.nan]], 1.0),
        lambda: clipped(np.ones(3), 1.0),
        lambda: noised(np.ones(3), -1.0, 1.0, np.random.default_rng(0).standard_normal),
        lambda: noised(np.ones(3), 1.0, math.inf, np.random.default_rng(0).standard_normal),
    ):
        with pytest.raises(UserError):
            call()


@given(st.integers(0, 2**32 - 1), st.floats(0.01, 100))
def test_clipping_shortens_long_rows_and_leaves_the_others(seed, clip):
    rows = np.random.default_rng(seed).normal(size=(20, 5)) * np.logspace(-3, 3, 20)[:, None]
    rows[0] = 0.0
    short, length = clipped(rows, clip), np.linalg.norm(rows, axis=1)
    assert (np.linalg.norm(short, axis=1) <= clip * (1 + 1e-12)).all()
    assert np.array_equal(short[length <= clip], rows[length <= clip])
    np.testing.assert_allclose(short * length[:, None], rows * np.linalg.norm(short, axis=1)[:, None], atol=1e-9)


def test_the_sensitivity_of_a_mean_is_reached_and_never_exceeded():
    rng, clip, n = np.random.default_rng(0), 0.7, 9
    most = 0.0
    for _ in range(300):
        rows = clipped(rng.normal(size=(n, 4)), clip)
        other = rows.copy()
        other[0] = -rows[0]
        most = max(most, float(np.linalg.norm(rows.mean(0) - other.mean(0))))
    assert most <= mean_sensitivity(clip, n) * (1 + 1e-12)
    assert most == pytest.approx(mean_sensitivity(clip, n), rel=1e-6)


def test_noise_has_the_stated_spread_and_follows_its_generator():
    drawn = [noised(np.full((4, 5000), 3.0), 2.0, 0.25, np.random.default_rng(7).standard_normal) for _ in range(2)]
    assert np.array_equal(*drawn)
    assert drawn[0].shape == (4, 5000)
    assert drawn[0].mean() == pytest.approx(3.0, abs=5 * 0.5 / math.sqrt(20000))
    assert drawn[0].std() == pytest.approx(0.5, rel=0.03)


# -- the audit ---------------------------------------------------------------------------------------------------------

CLIP, DRAWS = 1.0, 40_000


def released(rows: np.ndarray, z: float, seed: int) -> np.ndarray:
    """The noisy mean of clipped rows, again and again: (draws, d)."""
    mean = clipped(rows, CLIP).mean(axis=0)
    normal = np.random.default_rng(seed).standard_normal
    return np.stack([noised(mean, z, mean_sensitivity(CLIP, len(rows)), normal) for _ in range(DRAWS)])


def audited(z: float, seed: int = 0, delta: float = 1e-5) -> float:
    """The proven epsilon, on the neighbours that are worst: a row at the clip and its opposite, the others 0."""
    data, other = np.zeros((12, 3)), np.zeros((12, 3))
    data[0], other[0] = [5.0, 0.0, 0.0], [-5.0, 0.0, 0.0]
    direction = data[0] / 5
    return lower_bound(released(data, z, seed) @ direction, released(other, z, seed + 1) @ direction, delta)


@pytest.mark.parametrize("claim", [1.0, *(pytest.param(claim, marks=pytest.mark.long) for claim in (0.5, 4.0))])
def test_the_audit_proves_much_of_the_claim_and_never_more(claim):
    found = [audited(noise_multiplier(claim, 1e-5), seed) for seed in (0, 10, 20)]
    assert max(found) <= claim
    assert min(found) > 0.2 * claim


@pytest.mark.parametrize("claim", [1.0, *(pytest.param(claim, marks=pytest.mark.long) for claim in (0.5, 4.0))])
def test_the_audit_refutes_a_release_with_too_little_noise(claim):
    """A third of the noise: what calling the sensitivity clip / n x 2/3, say, would give."""
    assert audited(noise_multiplier(claim, 1e-5) / 3) > claim


def test_the_bound_is_that_of_its_closed_form():
    """Randomised response: a coin that is right with probability e^eps / (1 + e^eps) has exactly this epsilon."""
    claim, rng = 1.5, np.random.default_rng(0)
    right = math.exp(claim) / (1 + math.exp(claim))
    first, second = (rng.random(200_000) < p for p in (right, 1 - right))
    proven = lower_bound(first.astype(float), second.astype(float), 0.0)
    assert claim - 0.05 < proven <= claim


def test_outputs_that_do_not_depend_on_the_data_prove_nothing():
    rng = np.random.default_rng(0)
    wrong = [lower_bound(rng.normal(size=400), rng.normal(size=400), 0.0) > 0 for _ in range(200)]
    assert sum(wrong) <= 18  # 5 % are allowed by the confidence: 10 expected at most, and 18 at 2.5 standard deviations


def test_an_audit_needs_scores():
    for first, second in (([1.0], [1.0, 2.0]), ([1.0, math.nan], [1.0, 2.0]), ([[1.0, 2.0]], [1.0, 2.0])):
        with pytest.raises(UserError, match="two finite scores"):
            lower_bound(np.array(first), np.array(second), 1e-5)
    with pytest.raises(UserError, match="delta lies"):
        lower_bound(np.ones(3), np.ones(3), 1.0)
