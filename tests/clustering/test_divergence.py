"""Eq. (3) and (4) against a twin in decimals, closed forms, the matrix form's error, the calibration, hostile input."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from coterie.clustering.divergence import (
    calibrated,
    divergence_to,
    embedded,
    modified_divergence,
    noise_floor,
)
from coterie.protocol.errors import UserError

SHARES = st.one_of(st.just(0.0), st.just(1.0), st.floats(0, 1), st.floats(0, 1e-300))


def vectors(least: int = 1, most: int = 6) -> Any:
    return st.tuples(st.integers(least, most), st.integers(1, 5)).flatmap(
        lambda shape: arrays(np.float64, shape, elements=SHARES)
    )


def twin(s: list[float], t: list[float], gamma: float) -> float:
    """Eq. (3) and (4) as they stand, with 60 digits."""
    with localcontext() as context:
        context.prec = 60

        def kl(x: list[Decimal], y: list[Decimal]) -> Decimal:
            return sum((a * (a / b).ln() for a, b in zip(x, y, strict=True) if a), Decimal(0))

        def share(x: list[Decimal]) -> list[Decimal]:
            return [a / sum(x) for a in x] if any(x) else [1 / Decimal(len(x))] * len(x)

        a, b = [Decimal(x) for x in s], [Decimal(x) for x in t]
        p, q = share(a), share(b)
        middle = [(x + y) / 2 for x, y in zip(p, q, strict=True)]
        first = (kl(p, middle) + kl(q, middle)) / 2
        both = [(x + y) / 2 for x, y in zip(a, b, strict=True)]
        return float(first + Decimal(gamma) * (kl(a, both) + kl(b, both)) / 2)


@given(s=vectors(2), gamma=st.sampled_from([0.0, 1.0, 2.5]))
def test_the_divergence_is_eq_3(s: np.ndarray, gamma: float) -> None:
    found = modified_divergence(s, gamma)
    expected = [[twin(a.tolist(), b.tolist(), gamma) for b in s] for a in s]
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-15)


def test_values_by_hand() -> None:
    """Vectors that share no channel: js = 1/2 sum of both, times ln 2. And a case with thirds."""
    assert modified_divergence([[1, 0], [0, 1]])[0, 1] == pytest.approx(2 * math.log(2))
    assert modified_divergence([[1, 0], [0, 1]], gamma=0)[0, 1] == pytest.approx(math.log(2))
    assert modified_divergence([[0.5, 0], [0, 0.5]])[0, 1] == pytest.approx(1.5 * math.log(2))
    # P = Q, so only eq. (4) is left: s = (.2, .4), t = (.1, .2)
    expected = (0.6 * math.log(4 / 3) + 0.3 * math.log(2 / 3)) / 2
    assert modified_divergence([[0.2, 0.4], [0.1, 0.2]])[0, 1] == pytest.approx(expected)


@given(s=vectors(), seed=st.integers(0, 2**32))
def test_an_entry_depends_on_its_two_rows_alone(s: np.ndarray, seed: int) -> None:
    """Bit for bit: symmetric, zero for equal rows, whatever the order, and the same for newcomers."""
    found = modified_divergence(s)
    np.testing.assert_array_equal(found, found.T)
    assert (found >= 0).all()
    assert (found.diagonal() == 0).all()
    order = np.random.default_rng(seed).permutation(len(s))
    np.testing.assert_array_equal(modified_divergence(s[order]), found[np.ix_(order, order)])
    np.testing.assert_array_equal(divergence_to(s[order], s), found[order])
    equal = (s[:, None] == s).all(axis=2)
    assert (found[equal] == 0).all()


def test_rows_that_hardly_differ_have_no_negative_divergence() -> None:
    """Its two halves cancel up to rounding."""
    s = np.random.default_rng(1).random((2000, 20))
    nearly = np.clip(s * (1 + 1e-16 * np.random.default_rng(2).integers(-3, 4, s.shape)), 0, 1)
    assert all(divergence_to([a], [b])[0, 0] >= 0 for a, b in zip(s, nearly, strict=True))


def test_dead_and_constant_channels_and_zero_vectors() -> None:
    """A channel of zeros adds nothing. A vector of zeros has the P of a constant one: eq. (4) alone is left."""
    s = np.random.default_rng(0).random((4, 6))
    np.testing.assert_allclose(modified_divergence(np.hstack([s, np.zeros((4, 3))])), modified_divergence(s))
    assert modified_divergence([[0.0, 0.0], [0.4, 0.4]])[0, 1] == pytest.approx(0.4 * math.log(2))
    assert modified_divergence([[0.0, 0.0], [0.0, 0.0]]).tolist() == [[0, 0], [0, 0]]
    assert modified_divergence([[0.3, 0.7]]).tolist() == [[0]]
    assert modified_divergence([[0.3], [0.7]], gamma=0)[0, 1] == 0  # one channel: P = Q


# -- by matrix products ------------------------------------------------------------------------------------------------


def rows(kind: str, n: int, channels: int = 128) -> np.ndarray:
    draw = np.random.default_rng(7)
    if kind == "devices":  # means of 200 samples in 5 groups
        p = draw.beta(0.6, 0.8, (5, channels))[np.arange(n) % 5]
        return draw.binomial(200, p) / 200
    if kind == "liar":
        return np.vstack([draw.binomial(200, 0.7, (n - 1, channels)) / 200, draw.integers(0, 2, channels)])
    return {"uniform": draw.random((n, channels)), "extreme": draw.beta(0.1, 0.1, (n, channels))}[kind]


@pytest.mark.parametrize("kind", ["devices", "liar", "uniform", "extreme"])
def test_matrix_products_agree_with_the_exact_form(kind: str) -> None:
    """Within 2e-4 of each entry and 1e-6 a channel: what docs/clustering.md states."""
    s = rows(kind, 150)
    exact, found = modified_divergence(s), modified_divergence(s, exact=False)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, exact, rtol=2e-4, atol=1e-6 * s.shape[1])
    np.testing.assert_array_equal(found, found.T)
    assert (found.diagonal() == 0).all()


@pytest.mark.parametrize("kind", ["devices", "liar", "uniform", "extreme"])
def test_the_embedding_keeps_its_bound(kind: str) -> None:
    """No squared distance is above 2 js, and none is below it by more than the bound, rounding aside."""
    s = rows(kind, 60)
    found, bound = embedded(s)
    squares = np.square(found[:, None].astype(float) - found).sum(axis=2)
    lost = 2 * (modified_divergence(s) - modified_divergence(s, gamma=0)) - squares
    assert bound < 1e-2
    assert lost.min() > -1e-4
    assert lost.max() < bound + 1e-4


def test_what_two_rows_lose_may_add_up() -> None:
    """A squared distance can lose up to four times what a row's squared length loses, if both lose in opposite ways."""
    for seed in range(30):
        s = np.random.default_rng(seed).beta(0.05, 0.05, (60, 3))
        found, bound = embedded(s)
        squares = np.square(found[:, None].astype(float) - found).sum(axis=2)
        lost = 2 * (modified_divergence(s) - modified_divergence(s, gamma=0)) - squares
        assert lost.max() < bound + 2e-6


@pytest.mark.parametrize("s", [np.zeros((3, 4)), np.ones((3, 4)), np.full((1, 4), 0.3), np.full((3, 1), 0.2)])
def test_matrix_products_of_constant_rows(s: np.ndarray) -> None:
    assert modified_divergence(s, exact=False).tolist() == np.zeros((len(s), len(s))).tolist()


# -- calibration -------------------------------------------------------------------------------------------------------


def test_calibration_by_hand() -> None:
    mjs = np.array([[0, 0.5, 4], [0.5, 0, 5], [4, 5, 0.0]])
    d, scale = calibrated(mjs, [0.1, 0.1, 0.1])
    assert scale == 4  # the median pair; 10 floors are 1
    np.testing.assert_allclose(d, np.array([[0, 0.45, 3.95], [0.45, 0, 4.95], [3.95, 4.95, 0]]) / 4)
    d, scale = calibrated(mjs, [0.6, 0.6, 2.2])
    assert scale == pytest.approx(6)  # 10 median floors
    assert d[0, 1] == pytest.approx((0.5 - 0.3) / 6)
    assert d[0, 2] == pytest.approx((4 - 0.7) / 6)
    assert calibrated(mjs, [2, 2, 2], scale=1.0)[0][0, 1] == 0  # all of it may be noise


def test_a_huge_floor_counts_two_scales_and_lowers_a_divergence_by_half_at_most() -> None:
    mjs = modified_divergence(np.random.default_rng(0).random((9, 20)))
    h = np.full(9, 0.2)
    honest, scale = calibrated(mjs, h, scale=2.0)
    h[4] = 1e9
    lied, _ = calibrated(mjs, h, scale)
    others = np.arange(9) != 4
    np.testing.assert_array_equal(lied[np.ix_(others, others)], honest[np.ix_(others, others)])
    assert 0.4 < (honest - lied)[4, others].max() <= 1 / 2


def test_like_data_are_about_zero_and_the_floor_is_twice_their_divergence() -> None:
    """h_i of halves of 100 samples; the divergence between means of 200 is half of it, and calibrated it is noise."""
    draw = np.random.default_rng(3)
    p = draw.uniform(0.1, 0.9, 400)
    halves = draw.binomial(100, p, (60, 2, 400)) / 100
    h = np.array([noise_floor(a, b) for a, b in halves])
    mjs = modified_divergence(halves.mean(axis=1))
    pairs = np.triu_indices(60, 1)
    assert mjs[pairs].mean() == pytest.approx(h.mean() / 2, rel=0.03)
    d, scale = calibrated(mjs, h)
    assert scale == pytest.approx(10 * np.median(h))
    assert d[pairs].max() < 0.04


def test_the_scale_where_the_median_says_nothing() -> None:
    assert calibrated(np.zeros((3, 3)), [0, 0, 0])[1] == 1
    assert calibrated(np.zeros((1, 1)), [0])[1] == 1
    mostly = np.zeros((5, 5))
    mostly[0, 1:] = mostly[1:, 0] = 0.5  # four duplicates and one other
    d, scale = calibrated(mostly, np.zeros(5))
    assert scale == 0.5
    assert d[0].tolist() == [0, 1, 1, 1, 1]


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("s", "words"),
    [
        ([[0.5, math.nan]], "row 0 in channel 1 is nan"),
        ([[0.5, 0.5], [0.5, 1.5]], "row 1 in channel 1 is 1.5"),
        ([[-0.1, 0.5]], "row 0 in channel 0 is -0.1"),
        ([[math.inf, 0.5]], "row 0 in channel 0 is inf"),
        ([[0.1, 0.2], [0.1]], "and all rows of one length"),
        ([["a", "b"]], "real numbers"),
        ([[1j, 0]], "real numbers"),
        ([0.1, 0.2], "(devices, channels)"),
        ([[]], "(devices, channels)"),
        ([], "(devices, channels)"),
        (None, "real numbers"),
    ],
)
def test_what_is_no_sparsity_vector_is_refused(s: Any, words: str) -> None:
    for call in (modified_divergence, lambda s: divergence_to(s, s), lambda s: modified_divergence(s, exact=False)):
        with pytest.raises(UserError) as error:
            call(s)
        assert words in str(error.value)


@pytest.mark.parametrize("gamma", [-1, math.nan, math.inf, "1", True])
def test_a_gamma_that_is_none_is_refused(gamma: Any) -> None:
    with pytest.raises(UserError, match="gamma"):
        modified_divergence([[0.5]], gamma)


def test_unlike_lengths_are_refused() -> None:
    with pytest.raises(UserError, match="of 2 and of 3 channels"):
        divergence_to([[0.1, 0.2]], [[0.1, 0.2, 0.3]])
    with pytest.raises(UserError, match="of 2 and of 3 channels"):
        noise_floor([0.1, 0.2], [0.1, 0.2, 0.3])
    with pytest.raises(UserError, match="shape"):
        noise_floor([[0.1, 0.2], [0.3, 0.4]], [0.1, 0.2])


@pytest.mark.parametrize(
    ("mjs", "floors", "scale", "words"),
    [
        (np.zeros((2, 2)), [0.1], None, "one a device"),
        (np.zeros((2, 2)), [0.1, -0.1], None, "row 1 is -0.1"),
        (np.zeros((2, 2)), [math.nan, 0], None, "row 0 is nan"),
        (np.zeros((2, 2)), [math.inf, 0], None, "row 0 is inf"),
        (np.zeros((2, 3)), [0, 0], None, "square"),
        (np.zeros((2, 2), int), [0, 0], None, "square"),
        (np.array([[0, -1.0], [-1, 0]]), [0, 0], None, "not negative"),
        (np.array([[0, np.nan], [np.nan, 0]]), [0, 0], None, "finite"),
        (np.zeros((2, 2)), [0, 0], 0.0, "positive"),
        (np.zeros((2, 2)), [0, 0], math.nan, "positive"),
    ],
)
def test_what_cannot_be_calibrated_is_refused(mjs: np.ndarray, floors: Any, scale: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        calibrated(mjs, floors, scale)
