"""Composition of releases by several mechanisms, against integrals, enumeration and known values."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq

from coterie.dp.composition import by_distributions, composed
from coterie.dp.gaussian import epsilon
from coterie.dp.ledger import Ledger, Release
from coterie.protocol.errors import UserError

DELTA = 1e-5


def of_responses(epsilons: list[float], delta: float) -> float:
    """The exact epsilon of randomised responses together, by all their outcomes."""

    def excess(e: float) -> float:
        found = 0.0
        for signs in product((1, -1), repeat=len(epsilons)):
            p = math.prod(1 / (1 + math.exp(-s * each)) for s, each in zip(signs, epsilons, strict=True))
            loss = sum(s * each for s, each in zip(signs, epsilons, strict=True))
            found += max(0.0, p * (1 - math.exp(e - loss)))
        return found - delta

    return float(brentq(excess, 0.0, sum(epsilons)))


@pytest.mark.parametrize("epsilons", [[0.5] * 8, [0.1] * 10, [0.3, 0.7, 1.1, 0.3, 0.9]])
def test_pure_releases_compose_as_all_outcomes_say(epsilons: list[float]) -> None:
    counts = {e: epsilons.count(e) for e in epsilons}
    found, exact = composed({}, {}, counts, 1e-3), of_responses(epsilons, 1e-3)
    assert exact - 1e-9 <= found <= exact * 1.005
    assert found < sum(epsilons)


def of_sampled(z: float, q: float, delta: float) -> float:
    """One sampled Gaussian sum, by integration: the client is at +1/2 or -1/2 of the sensitivity, or absent."""

    def density(x: float) -> float:
        return math.exp(-0.5 * (x / z) ** 2) / (z * math.sqrt(2 * math.pi))

    def mixture(x: float, sign: int) -> float:
        return q * density(x - sign / 2) + (1 - q) * density(x)

    def excess(e: float) -> float:
        value, _ = quad(
            lambda x: max(0.0, mixture(x, 1) - math.exp(e) * mixture(x, -1)), -12 * z, 12 * z, limit=400, points=[0.0]
        )
        return float(value) - delta

    return float(brentq(excess, 0.0, 50.0)) if excess(0.0) > 0 else 0.0


LONG = [pytest.param(z, q, marks=pytest.mark.long) for z, q in ((0.5, 0.3), (2.0, 0.01), (1.0, 0.999999))]


@pytest.mark.parametrize(("z", "q"), [(1.0, 0.1), *LONG])
def test_one_sampled_release_is_that_of_the_integral(z: float, q: float) -> None:
    exact = of_sampled(z, q, DELTA)
    assert exact * (1 - 1e-5) <= composed({}, {(z, q): 1}, {}, DELTA) <= exact * 1.001 + 1e-4


def test_a_client_that_is_in_every_round_gains_nothing_by_sampling() -> None:
    assert by_distributions(0.0, (((1.5, 1.0), 7),), (), DELTA) == pytest.approx(epsilon(1.5, DELTA, 7), rel=1e-4)


def test_sampling_for_a_hundred_rounds_lies_between_that_of_adding_a_client_and_twice_that() -> None:
    """dp-accounting's for adding or removing, with the sensitivity C: a replacement is one removal and one addition."""
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    added = from_gaussian_mechanism(2.0, sampling_prob=0.1, value_discretization_interval=1e-3)
    once = added.self_compose(100).get_epsilon_for_delta(DELTA)
    assert round(once, 2) == 2.34  # a known value
    assert once < composed({}, {(1.0, 0.1): 100}, {}, DELTA) < 2 * once


@pytest.mark.parametrize(
    ("z", "q", "steps"),
    [
        (0.6, 0.05, 200),
        *(pytest.param(*one, marks=pytest.mark.long) for one in ((1.0, 50 / 600, 1200), (1.1, 0.01, 10_000))),
        pytest.param(1.1, 5 / 7, 200, marks=pytest.mark.long),
    ],
)
def test_steps_of_dp_sgd_come_to_what_dp_accounting_says_of_its_own_event(z: float, q: float, steps: int) -> None:
    """Its unit is the clip C, half of a replacement's sensitivity: multiplier z there is z / 2 here."""
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    event = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(z))
    replacing = dp_accounting.NeighboringRelation.REPLACE_ONE
    accountant = PLDAccountant(replacing, value_discretization_interval=1e-4 if steps < 5000 else 2e-5)
    expected = accountant.compose(event, steps).get_epsilon(DELTA)
    release = Release("model", "gaussian", z / 2, 2.0, sampled=q, hidden=True, draws=steps)
    assert Ledger((release,)).epsilon(DELTA) == pytest.approx(expected, rel=3e-4)


@pytest.mark.parametrize("q", [0.05, 0.4])
def test_opposite_samples_of_the_clips_length_are_the_worst_that_can_replace_each_other(q: float) -> None:
    """Of all pairs of gradients within the clip, in a plane, at every epsilon: the pair that the accounting assumes."""
    z, axis = 0.8, np.linspace(-7, 7, 301)
    a, b = np.meshgrid(axis, axis)

    def outputs(gradient: complex) -> np.ndarray:
        def density(at: complex) -> np.ndarray:
            return np.exp(-((a - at.real) ** 2 + (b - at.imag) ** 2) / (2 * z * z))

        return (q * density(gradient) + (1 - q) * density(0)) / (2 * np.pi * z * z) * (axis[1] - axis[0]) ** 2

    def excess(one: complex, other: complex) -> np.ndarray:
        p, r = outputs(one), outputs(other)
        return np.array([np.maximum(0.0, p - math.exp(e) * r).sum() for e in (-2, -1, -0.3, 0, 0.3, 1, 2, 3)])

    worst = excess(1, -1)
    lengths, angles = (1.0, 0.5, 0.0), np.linspace(0, np.pi, 7)
    for one, other, angle in product(lengths, lengths, angles):
        assert (excess(one, other * np.exp(1j * angle)) <= worst + 1e-6).all()


def test_sampling_counts_only_where_nobody_sees_who_was_sampled() -> None:
    seen = Release("upload", "gaussian", 1.0, 2.0, "replace one client", sampled=0.1)
    hidden = Release("upload", "gaussian", 1.0, 2.0, "replace one client", sampled=0.1, hidden=True)
    assert Ledger((seen,) * 20).epsilon(DELTA) == epsilon(1.0, DELTA, 20)
    assert Ledger((hidden,) * 20).epsilon(DELTA) < epsilon(1.0, DELTA, 20) / 5
    assert Ledger((hidden, seen)).epsilon(DELTA) > epsilon(1.0, DELTA)


def test_mixed_releases_lie_between_each_alone_and_their_sum() -> None:
    gaussian, sampled, pure = {4.0: 30}, {(1.0, 0.05): 40}, {0.05: 60}
    together = composed(gaussian, sampled, pure, DELTA)
    alone = [composed(gaussian, {}, {}, DELTA), composed({}, sampled, {}, DELTA), composed({}, {}, pure, DELTA)]
    assert max(alone) < together < sum(alone)
    assert composed(gaussian, sampled, {0.05: 61}, DELTA) > together


def test_the_choice_of_many_parameters_costs_less_than_the_sum_of_its_draws() -> None:
    """A thousand draws of 0.01: 10 by the sum, and by the advanced composition theorem 1.62."""
    found = Ledger((Release("choice", "exponential", pure_epsilon=0.01, draws=1000),)).epsilon(DELTA)
    advanced = math.sqrt(2 * 1000 * math.log(1 / DELTA)) * 0.01 + 1000 * 0.01 * math.expm1(0.01)
    assert found < advanced < 10
    assert found > epsilon(1 / (0.01 * math.sqrt(1000)), DELTA) * 0.9  # its Gaussian limit


@pytest.mark.parametrize("pure", [{1e-7: 3, 5.0: 1}, {300.0: 2}, {1e-9: 1_000_000}])
def test_extreme_epsilons_are_bounded_by_their_sum(pure: dict[float, int]) -> None:
    total = sum(e * count for e, count in pure.items())
    assert 0 <= composed({}, {}, pure, DELTA) <= total
    assert np.isfinite(composed({1e-3: 1}, {}, pure, DELTA))


@pytest.mark.parametrize("delta", [0.0, 1.0, -1.0, math.nan])
def test_a_delta_outside_of_0_and_1_is_refused(delta: float) -> None:
    with pytest.raises(UserError, match="delta"):
        composed({}, {}, {0.1: 2}, delta)
