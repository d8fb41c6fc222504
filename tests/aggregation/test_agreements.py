"""Agreements of mode hardened: by hand, without an attack, and within the noise of the opened numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.aggregation import detection as d
from tests.aggregation.test_detection import mean_of, plain


def test_agreements_by_hand():
    """Median .3, absolute deviations .2, .1, 0, .1, .8, of which the median is .1: sd = .1 x 1.4826 x 1.206."""
    scale = 3 * 0.1 * 1.4826 * 1.206
    cosines = [0.5, 0.4, 0.3, 0.2, -0.5]
    np.testing.assert_allclose(d.agreements(cosines), [1, 1, 1, 1 - 0.1 / scale, 0])
    np.testing.assert_allclose(d.agreements(cosines, 0.04), [1, 1, 1, 1 - 0.06 / scale, 0])
    np.testing.assert_allclose(d.agreements(np.array(cosines) - 0.6), [1, 1, 1, 1 - 0.1 / scale, 0])  # nor the sign
    np.testing.assert_allclose(d.agreements([0.9, 0.9, 0.9, 0.6, -0.1]), [1, 1, 1, 0.6 / 0.9, 0])  # the median is more
    np.testing.assert_allclose(
        d.agreements([-0.2, -0.2, -0.2, -0.3]), [1, 1, 1, 0.5]
    )  # as far below it as it is from 0
    assert d.agreements([-0.2, -0.2, -0.2, -0.3], [0, 0, 0, math.inf]).tolist() == [1, 1, 1, 1]
    assert d.agreements([0.0, 0, 0, -0.1]).tolist() == [1, 1, 1, 0]


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 7, 8, 9, 16, 40])
def test_the_deviation_of_few_values_is_that_of_their_distribution(n: int) -> None:
    draws = np.random.default_rng(n).normal(3, 2, (20_000, n))
    assert np.mean([d.deviation_of(row) for row in draws]) == pytest.approx(2, rel=0.02)


@pytest.mark.parametrize("common", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("k", [4, 8, 16])
def test_honest_leaders_keep_their_weight_however_little_they_agree(k: int, common: float) -> None:
    """Near the end updates cancel (common=0): each points away from the mean of the others, by about -1 / (k - 1).

    Where an agreement was the cosine over the median, half of all leaders got no weight then.
    """
    rng, low, size = np.random.default_rng(k), [], 200
    for _ in range(100):
        updates = rng.normal(size=(k, size))
        updates += common * rng.normal(size=size) - updates.mean(axis=0)
        weights = mean_of(updates)[1].weights
        low.append(np.mean(weights <= 0.1 * weights.max()))
    assert np.mean(low) < (0.06 if k == 4 else 0.03)


@given(st.integers(2, 12), st.integers(0, 2**32), st.booleans())
def test_only_an_outlier_that_opposes_the_others_counts_nothing(k: int, seed: int, wild: bool) -> None:
    """And half of all count fully, whatever their cosines are."""
    rng = np.random.default_rng(seed)
    cosines = np.tanh(rng.standard_cauchy(k) if wild else rng.normal(rng.normal(), 0.1, k))
    found = d.agreements(cosines)
    assert ((found >= 0) & (found <= 1)).all()
    assert 2 * (found == 1).sum() >= k
    out = found == 0
    assert (cosines[out] <= 1e-12).all()
    assert (cosines[out] <= np.median(cosines) - 3 * d.deviation_of(cosines) + 1e-12).all()
    assert (cosines[out] <= np.median(cosines) - abs(np.median(cosines)) + 1e-12).all()


def test_the_stated_error_of_a_cosine_is_that_of_the_noise() -> None:
    """Opened numbers with noise: cosines are off by as much as stated, and by no more than five deviations."""
    rng = np.random.default_rng(0)
    updates = 0.15 * (np.ones(300) + rng.normal(size=(4, 300))) / math.sqrt(600) * np.array([[1], [1], [1.5], [2]])
    squares, _ = plain(updates, np.ones(4))
    factors = d.cut(squares)
    squares, dots = plain(updates, factors)
    exact, stated = d.others_cosines(squares, dots, factors), d.cosine_errors(squares, dots, factors, 1.0)
    off = []
    for _ in range(2000):
        noise = rng.normal(0, d._DEVIATION * 4, (2, 4))
        off.append(d.others_cosines(squares + noise[0], dots + noise[1], factors) - exact)
    np.testing.assert_allclose(np.std(off, axis=0), stated, rtol=0.1)
    assert not d.cosine_errors(squares, dots, factors, 0).any()
    assert np.isinf(d.cosine_errors([0.0, 1, 1], [0.0, 1, 1], [63, 63, 63], 5)[0])


def test_noise_of_the_opened_numbers_cuts_no_honest_leader() -> None:
    """Short updates that all point one way: their cosines differ by noise alone, as much as from 0 to 1."""
    rng, size = np.random.default_rng(1), 50
    updates = np.full((4, size), 0.04 / math.sqrt(size))
    for _ in range(200):
        noise = rng.normal(0, d._DEVIATION * 4, (2, 4))
        squares = (updates**2).sum(axis=1) + noise[0]
        factors = d.cut(squares)
        found = d.robust(squares, updates @ (factors @ updates) + noise[1], factors, deviations=5)
        agreed = (1 - found.suspicion) / np.minimum(1, np.sqrt(d.lower_median(squares) / squares))
        assert agreed == pytest.approx(1)
