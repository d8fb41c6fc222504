"""OFL's own noise: its clusters and scales by hand, its true epsilon by integration, and its refusal of an epsilon."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import kstest, laplace

from coterie.dp import heuristic
from coterie.dp.ledger import Ledger
from coterie.protocol.errors import UserError
from coterie.protocol.randomness import Secrets
from coterie.selection.parameters import density

DELTA = 1e-5


def secrets(seed: int = 0) -> Secrets:
    return Secrets(np.random.default_rng(seed))


def test_borders_lie_at_the_minima_of_the_density() -> None:
    values = np.array([5.0, 1.0, 1.2, 5.5, 0.8, 3.0])
    dense = np.array([0.7, 0.9, 0.5, 0.6, 0.4, 0.2])  # along the values: .4 .9 .5 .2 .7 .6
    assert heuristic.clusters(values, dense).tolist() == [1, 0, 0, 1, 0, 1]


def test_two_heaps_are_two_clusters_and_one_heap_is_one() -> None:
    generator = np.random.default_rng(0)
    heap, other = generator.normal(0, 0.1, 300), generator.normal(3, 0.1, 200)
    both = np.concatenate([heap, other])
    numbers = heuristic.clusters(both, density(both))
    assert not set(numbers[:300]) & set(numbers[300:])
    assert len(set(heuristic.clusters(heap, density(heap)))) < 10


def test_equal_values_are_never_parted() -> None:
    values = np.repeat([1.0, 2.0, 3.0], 4)
    numbers = heuristic.clusters(values, np.repeat([0.5, 0.1, 0.5], 4))
    assert numbers.tolist() == [0] * 4 + [1] * 8


def test_the_scale_is_k_delta_over_epsilon() -> None:
    """Two clusters with centroids 1 and 5.5: deviations .2 and .5, so scales 2 (2 .2) / 4 and 2 (2 .5) / 4."""
    values = np.array([0.8, 1.2, 5.0, 6.0])
    dense = np.array([0.5, 0.5, 0.1, 0.5])
    assert heuristic.scales(values, dense, 4.0) == pytest.approx([0.2, 0.2, 0.5, 0.5])
    noise = heuristic.perturbed(np.zeros(3), np.ones(3), 1.0, secrets())
    assert noise.tolist() == [0, 0, 0]


def test_equal_values_are_sent_as_they_are() -> None:
    """Also if the mean of their cluster is not exact in binary."""
    values = np.full(10, 0.1)
    assert heuristic.perturbed(values, density(values), 2.0, secrets()).tolist() == [np.float32(0.1)] * 10


def test_the_noise_has_the_law_of_laplace() -> None:
    assert kstest(heuristic.laplace(20_000, secrets()), laplace.cdf).pvalue > 0.01


def on_a_grid(ratio: float, epsilon: float) -> float:
    """delta(epsilon) of one Laplace number against a wider one, by summing densities; the worse of both directions."""
    x = np.linspace(-400, 400, 4_000_001)
    a, b = laplace.pdf(x), laplace.pdf(x, scale=ratio)
    step = x[1] - x[0]
    return float(max(np.maximum(0, p - math.exp(epsilon) * q).sum() * step for p, q in ((a, b), (b, a))))


@pytest.mark.parametrize(("ratio", "epsilon"), [(3.0, 5.0), (3.0, 12.0), (1.5, 2.0), (1.1, 0.05)])
def test_the_true_epsilon_is_that_of_the_densities(ratio: float, epsilon: float) -> None:
    assert heuristic.true_epsilon(ratio, on_a_grid(ratio, epsilon)) == pytest.approx(epsilon, abs=0.01)


def test_the_true_epsilon_of_one_value_has_a_closed_form() -> None:
    """At a claimed 2, three times wider values have 21.1, and an outlier twenty times as far out 214.8."""
    for ratio in (3.0, 20.0):
        closed = (ratio - 1) * math.log((1 - 1 / ratio) / DELTA) - math.log(ratio)
        assert heuristic.true_epsilon(ratio, DELTA) == pytest.approx(closed, abs=1e-6)
    assert round(heuristic.true_epsilon(3.0, DELTA), 1) == 21.1
    assert round(heuristic.true_epsilon(20.0, DELTA), 1) == 214.8
    assert heuristic.true_epsilon(math.inf, DELTA) == math.inf
    ratio = brentq(lambda r: heuristic.true_epsilon(r, DELTA) - 18.8, 1.5, 3.0)
    assert round(ratio, 2) == 2.79


def test_several_values_have_more_than_one_by_simulation() -> None:
    """delta at the epsilon of three values and a ratio of 2, from 200,000 draws of the log likelihood ratio."""
    ratio, delta = 2.0, 1e-2
    found = heuristic.true_epsilon(ratio, delta, 3)
    wide = np.random.default_rng(0).laplace(scale=ratio, size=(200_000, 3))
    loss = (np.abs(wide) * (1 - 1 / ratio) - math.log(ratio)).sum(axis=1)
    assert np.maximum(0, 1 - np.exp(found - loss)).mean() == pytest.approx(delta, rel=0.1)
    assert found > heuristic.true_epsilon(ratio, delta)


def test_the_claim_of_an_upload_is_the_papers_and_proves_nothing() -> None:
    """17,811 of 178,110 parameters at epsilon 1 and 1: 3.6e4."""
    release = heuristic.release(17_811, 1.0, 1.0, round=2)
    assert release.claimed_epsilon == heuristic.claimed(17_811, 1.0, 1.0) == 35_622
    assert Ledger((release,)).epsilon(DELTA) == Ledger((release,)).epsilon(DELTA, "replace one client") == math.inf
    assert heuristic.HEURISTIC in release.what


def test_a_heuristic_takes_no_epsilon() -> None:
    heuristic.refuse_epsilon(None)
    with pytest.raises(UserError, match=r"epsilon=8.* heuristic, not differential privacy.*mechanism=standard"):
        heuristic.refuse_epsilon(8.0)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: heuristic.scales(np.ones(2), np.ones(2), 0.0),
        lambda: heuristic.scales(np.ones(2), np.ones(2), math.nan),
        lambda: heuristic.scales(np.ones(2), np.ones(2), math.inf),
        lambda: heuristic.scales(np.ones(2), np.ones(3), 1.0),
        lambda: heuristic.scales(np.array([math.nan]), np.ones(1), 1.0),
        lambda: heuristic.scales(np.zeros(0), np.zeros(0), 1.0),
        lambda: heuristic.true_epsilon(1.0, DELTA),
        lambda: heuristic.true_epsilon(math.nan, DELTA),
        lambda: heuristic.true_epsilon(2.0, 1.0),
        lambda: heuristic.true_epsilon(2.0, DELTA, 0),
    ],
)
def test_bad_input_is_refused(wrong) -> None:
    with pytest.raises(UserError):
        wrong()
