"""Skellam noise: its draws against scipy's probabilities, its divergences against sums of these, and its epsilon."""

import math

import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import (
    from_gaussian_mechanism,
    from_two_probability_mass_functions,
)
from scipy import stats

from coterie.dp import gaussian, skellam
from coterie.dp.composition import composed
from coterie.protocol.errors import UserError
from coterie.protocol.randomness import Derived, Secrets, rng


def draws(seed: int = 0) -> Secrets:
    return Secrets(rng(seed, "test", "skellam"))


@pytest.mark.parametrize("variance", [100.0, 777.0])
def test_draws_have_the_distribution(variance: float) -> None:
    """Chi-square over all values with ten or more expected, and the rest together."""
    numbers = skellam.draw(200_000, variance, draws())
    reach = int(3.5 * math.sqrt(variance))
    values = np.arange(-reach, reach + 1)
    expected = stats.skellam.pmf(values, variance / 2, variance / 2) * len(numbers)
    found = np.array([(numbers == value).sum() for value in values])
    rest = len(numbers) - found.sum(), len(numbers) - expected.sum()
    assert stats.chisquare(np.append(found, rest[0]), np.append(expected, rest[1])).pvalue > 1e-3


@pytest.mark.parametrize("variance", [1e4, 1e8, 1e15])
def test_wide_draws_are_as_normal_ones(variance: float) -> None:
    """A Skellam number over its deviation is normal within 1 / (24 variance): far below what 100,000 draws show."""
    numbers = skellam.draw(100_000, variance, draws(1))
    assert stats.kstest(numbers / math.sqrt(variance), "norm").pvalue > 1e-3


def test_shares_add_up_to_the_noise_of_the_sum() -> None:
    """Also with drop-outs: k - 2 of k shares of variance v / (k - 2) have the variance v, and so on."""
    shares = np.stack([skellam.draw(50_000, 900.0, draws(seed)) for seed in range(6)])
    for present in (6, 4, 1):
        numbers = shares[:present].sum(axis=0)
        assert numbers.var() == pytest.approx(900 * present, rel=0.03)
        assert stats.kurtosis(numbers) == pytest.approx(1 / (900 * present), abs=0.06)


def test_noise_follows_from_a_key() -> None:
    one, same, other = (skellam.draw(100, 1e6, Derived(key)) for key in (b"a" * 32, b"a" * 32, b"b" * 32))
    assert (one == same).all()
    assert (one != other).any()


@pytest.mark.parametrize("variance", [0.0, 1.0, 1e20, math.nan, math.inf])
def test_noise_that_hides_nothing_is_refused(variance: float) -> None:
    with pytest.raises(UserError, match="noise of variance"):
        skellam.draw(4, variance, draws())


@pytest.mark.parametrize("variance", [9.0, 100.0, 400.0])
@pytest.mark.parametrize("moved", [1, 3, 8])
@pytest.mark.parametrize("order", [2, 3, 8])
def test_the_bound_is_above_the_divergence_and_close(variance: float, moved: int, order: int) -> None:
    """Renyi divergence of whole order, summed over all values, by logarithms."""
    values = np.arange(-int(40 * math.sqrt(variance)) - 200, int(40 * math.sqrt(variance)) + 200)
    here = log_pmf(values, variance)
    there = log_pmf(values - moved, variance)
    divergence = np.logaddexp.reduce(order * there - (order - 1) * here) / (order - 1)
    bound = float(skellam.rdp(np.array(order, float), variance, moved, moved))
    assert divergence <= bound * (1 + 1e-9)
    if variance >= 100 and moved == 1:
        assert bound <= 1.1 * divergence


def log_pmf(values: np.ndarray, variance: float) -> np.ndarray:
    from scipy.special import gammaln, ive

    exact = np.log(np.maximum(ive(np.abs(values), variance), 1e-300))
    tail = np.abs(values) * math.log(variance / 2) - gammaln(np.abs(values) + 1.0) - variance  # the series' first term
    return np.where(exact > -690, exact, tail)


def test_a_wide_one_costs_as_a_gaussian_by_divergences() -> None:
    """Epsilon is above the Gaussian's exact one, and within a tenth of it."""
    for z, count in ((2.0, 10), (1.0, 1), (5.0, 100)):
        found = composed({}, {}, {}, 1e-5, {(z, 8000.0, 3e6): count})
        exact = gaussian.epsilon(z, 1e-5, count)
        assert exact < found < 1.12 * exact
    together = composed({2.0: 3}, {}, {}, 1e-5, {(2.0, 8000.0, 3e6): 7})
    assert together == pytest.approx(composed({}, {}, {}, 1e-5, {(2.0, 8000.0, 3e6): 10}), rel=1e-4)
    assert composed({}, {}, {0.5: 2}, 1e-5, {(2.0, 8000.0, 3e6): 7}) > composed({}, {}, {}, 1e-5, {(2.0, 8e3, 3e6): 7})


@pytest.mark.parametrize(("count", "gaussians"), [(1, 0), (10, 0), (10, 4)])
def test_epsilon_is_above_that_of_the_composed_distributions(count: int, gaussians: int) -> None:
    """Of one number, whose losses dp-accounting convolves from all its probabilities: also at orders between the whole
    ones, and beside Gaussians.
    """
    variance, moved = 400.0, 15
    values = np.arange(-350, 351)
    here, there = log_pmf(values, variance), log_pmf(values - moved, variance)
    one = from_two_probability_mass_functions(
        dict(enumerate(here)), dict(enumerate(there)), value_discretization_interval=1e-3
    )
    whole = one.self_compose(count)
    if gaussians:
        whole = whole.compose(from_gaussian_mechanism(4.0, value_discretization_interval=1e-3).self_compose(gaussians))
    z = math.sqrt(variance) / moved
    found = composed({4.0: gaussians} if gaussians else {}, {}, {}, 1e-5, {(z, moved, moved): count})
    exact = whole.get_epsilon_for_delta(1e-5)
    assert 0.999 * exact < found < 1.12 * exact


@pytest.mark.parametrize("target", [0.5, 8.0, 40.0])
def test_the_least_noise_of_a_budget(target: float) -> None:
    z = skellam.noise_multiplier(target, 1e-5, 10, 8000.0, 3e6)
    assert composed({}, {}, {}, 1e-5, {(z, 8000.0, 3e6): 10}) <= target
    assert composed({}, {}, {}, 1e-5, {(z * 0.9999, 8000.0, 3e6): 10}) > target
