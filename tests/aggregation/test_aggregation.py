"""Sums and means against exact rational arithmetic, in every order."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.aggregation.sums import Sum, WeightedMean
from coterie.protocol.errors import UserError

# float32 weights whose non-zero magnitudes span 2^50, as the module promises to add exactly
weights = st.one_of(st.just(0.0), st.floats(2.0**-40, 2.0**10, width=32), st.floats(-(2.0**10), -(2.0**-40), width=32))
models = st.integers(1, 4).flatmap(
    lambda d: st.lists(st.lists(weights, min_size=d, max_size=d), min_size=1, max_size=12)
)


@given(models, st.data())
def test_weighted_mean_is_the_rounded_exact_one_in_every_order(rows, data):
    samples = data.draw(st.lists(st.integers(1, 60_000), min_size=len(rows), max_size=len(rows)))
    order = data.draw(st.permutations(range(len(rows))))
    mean = WeightedMean(len(rows[0]))
    for i in order:
        mean.take(np.array(rows[i], dtype=np.float32), samples[i])
    for j, got in enumerate(mean.mean()):
        exact = sum(Fraction(r[j]) * s for r, s in zip(rows, samples, strict=True))
        assert got == float(exact) / sum(samples)  # float(Fraction) rounds once, to nearest
    assert mean.samples == sum(samples)
    assert mean.count == len(rows)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50))
def test_sum_is_as_good_as_fsum(values):
    total = Sum(1)
    for v in values:
        total.take(np.array([v]))
    assert total.value()[0] == pytest.approx(math.fsum(values), rel=1e-15, abs=1e-25)


def test_a_plain_float64_sum_would_fail_these_tests():
    """What the second number is for."""
    values = [1.0, 2.0**-60, -1.0]
    total = Sum(1)
    for v in values:
        total.take(np.array([v]))
    assert sum(values) == 0.0
    assert total.value()[0] == 2.0**-60


def test_long_vectors_cross_blocks():
    x = np.random.default_rng(0).normal(size=(7, 20_001)).astype(np.float32)
    mean = WeightedMean(20_001)
    for row in x:
        mean.take(row, 3)
    np.testing.assert_array_equal(mean.mean(), [math.fsum(c) * 3 / 21 for c in x.astype(float).T])


def test_taking_leaves_the_argument_and_earlier_results_alone():
    row = np.ones(3, dtype=np.float32)
    row.flags.writeable = False
    mean = WeightedMean(3)
    mean.take(row, 1)
    before = mean.mean()
    mean.take(row * 5, 1)
    np.testing.assert_array_equal(before, 1)
    np.testing.assert_array_equal(mean.mean(), 3)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (np.ones(2), "expected 3"),
        (np.ones((3, 1)), "expected 3"),
        (np.array([1.0, np.nan, 1.0]), "NaN"),
        (np.array([1.0, np.inf, 1.0]), "infinity"),
        (np.array(["a", "b", "c"]), "real numbers"),
        (np.array([1j, 1, 1]), "real numbers"),
    ],
)
def test_models_that_do_not_fit_are_refused_and_leave_no_trace(values, says):
    mean = WeightedMean(3)
    mean.take(np.ones(3), 2)
    with pytest.raises(UserError, match=says):
        mean.take(values, 2)
    np.testing.assert_array_equal(mean.mean(), 1)
    assert (mean.samples, mean.count) == (2, 1)


def test_other_mistakes():
    for samples in (0, -1, 1.5, True, "3"):
        with pytest.raises(UserError, match="whole number of samples"):
            WeightedMean(1).take(np.ones(1), samples)
    with pytest.raises(UserError, match="no models"):
        WeightedMean(1).mean()
    with pytest.raises(UserError, match="at least one coordinate"):
        Sum(0)
