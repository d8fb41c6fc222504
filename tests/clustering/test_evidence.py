"""The evidence of pairs: against the normal model's densities, and against its bilinear form."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from coterie.clustering.evidence import (
    MOST,
    ResidualSpread,
    basis,
    evidence,
    features,
    gain,
    residuals,
    row,
    row_length,
    spread,
    spread_terms,
    twisted,
)
from coterie.clustering.signature import FEATURES, Reference, mapped

Client = tuple[np.ndarray, np.ndarray]


def drawn(seed: int, counts: list[int], tau: float = 0.3, phi: float = 1.5) -> Client:
    """A client's residuals by the model: one mean a label, and scatter about it."""
    draw = np.random.default_rng(seed)
    n = np.array(counts)
    means = draw.normal(0, np.sqrt(tau), (len(n), FEATURES))
    scatter = draw.normal(0, np.sqrt(phi), (len(n), FEATURES)) * np.sqrt(n)[:, None]
    return n, n[:, None] * means + scatter


def test_the_evidence_is_that_of_normal_means_over_means_of_zero() -> None:
    """S | N is normal with variance N phi + N^2 tau in a group whose mean is drawn, N phi with a mean of 0."""
    of = ResidualSpread(np.array([0.3, 0.0, 1.2]), np.array([1.5, 0.7, 2.0]))
    counts, sums = drawn(1, [5, 3, 40])
    expected = 0.0
    for n, total, tau, phi in zip(counts, sums, of.tau, of.phi, strict=True):
        drawn_mean, zero = norm(0, np.sqrt(n * phi + n * n * tau)), norm(0, np.sqrt(n * phi))
        expected += float((drawn_mean.logpdf(total) - zero.logpdf(total)).sum())
    assert evidence(counts, sums, of) == pytest.approx(expected, rel=1e-9)


def test_a_label_that_a_client_lacks_says_nothing() -> None:
    of = ResidualSpread(np.full(3, 0.4), np.full(3, 1.0))
    one, other = drawn(2, [7, 9, 0]), drawn(3, [7, 9, 50])
    without = drawn(3, [7, 9, 50])
    without[0][2], without[1][2] = 0, 0
    assert gain(one, other, of) == pytest.approx(gain(one, without, of))


@given(st.integers(0, 2**16), st.lists(st.integers(0, MOST), min_size=4, max_size=4), st.floats(0.001, 20.0))
def test_the_product_of_two_rows_is_the_gain(seed: int, counts: list[int], tau: float) -> None:
    of = ResidualSpread(np.array([tau, 0.0]), np.array([0.8, 1.1]))
    both = drawn(seed, counts[:2], tau), drawn(seed + 1, counts[2:], tau)
    rows = np.stack([row(*one, of) for one in both])
    assert rows.shape == (2, row_length(2))
    products = rows @ twisted(rows).T
    exact = gain(*both, of)
    greater = max(abs(evidence(*one, of)) for one in both)  # the gain may be a small difference of these
    assert products[0, 1] == pytest.approx(exact, abs=0.05 + 1e-2 * abs(exact) + 1e-3 * greater)
    assert np.allclose(products, products.T)


def test_the_twist_is_its_own_inverse_and_works_on_words() -> None:
    words = np.random.default_rng(4).integers(0, 2**64, (3, row_length(2)), np.uint64)
    assert (twisted(twisted(words)) == words).all()
    assert twisted(words).dtype == np.uint64


def test_the_spread_is_found_from_halves() -> None:
    """With many clients the estimate is near the truth, for each label; without groups tau is near 0."""
    for tau, phi in ((0.5, 2.0), (0.0, 1.0)):
        total = 0.0
        for seed in range(400):
            draw = np.random.default_rng(seed)
            mean = draw.normal(0, np.sqrt(tau), (1, FEATURES))
            halves = []
            for n in (6, 5):
                scatter = draw.normal(0, np.sqrt(phi * n), (1, FEATURES))
                halves.append((np.array([n]), n * mean + scatter))
            total = total + spread_terms((halves[0], halves[1]))
        found = spread(np.asarray(total))
        assert found.tau[0] == pytest.approx(tau, abs=0.03)
        assert found.phi[0] == pytest.approx(phi, rel=0.05)


def test_a_label_in_no_pair_of_halves_has_no_spread() -> None:
    nothing = (np.array([0, 3]), np.zeros((2, FEATURES)))
    found = spread(spread_terms((nothing, nothing)))
    assert found.tau.tolist() == [0.0, 0.0]
    assert (found.phi == 1).all()


def test_a_gain_and_an_offset_of_images_change_nothing_and_tables_stay_as_they_are() -> None:
    draw = np.random.default_rng(6)
    images, table = draw.normal(size=(5, 1, 8, 8)), draw.normal(size=(5, 13))
    assert np.allclose(features(images), features(3 * images - 2))
    assert np.isfinite(features(np.ones((2, 1, 8, 8)))).all()
    assert (features(table) == mapped(table)).all()
    assert not np.allclose(features(table), features(3 * table - 2))


def test_a_basis_changes_no_gain() -> None:
    draw, to = np.random.default_rng(6), basis(7)
    clients = [(draw.integers(0, 9, 3), draw.normal(size=(3, FEATURES))) for _ in range(4)]
    of = ResidualSpread(np.full(3, 0.5), np.ones(3))
    plain, turned = (np.stack([row(n, sums @ by, of) for n, sums in clients]) for by in (np.eye(FEATURES), to))
    assert np.allclose(plain @ twisted(plain).T, turned @ twisted(turned).T)
    assert not np.allclose(plain, turned)
    assert (basis(8) != to).any()


def test_residuals_are_of_kept_labels_and_count_at_most_so_many() -> None:
    draw = np.random.default_rng(5)
    x, y = draw.normal(size=(600, FEATURES)), np.repeat([0, 1, 2], [500, 60, 40])
    to = Reference(draw.normal(size=(3, FEATURES)), np.eye(FEATURES), np.array([True, True, False]))
    counts, sums = residuals(x, y, to)
    assert counts.tolist() == [MOST, 60, 0]
    assert np.allclose(sums[1], (x[y == 1] - to.means[1]).sum(axis=0))
    assert np.allclose(sums[0], MOST * (x[y == 0].mean(axis=0) - to.means[0]))
    assert not sums[2].any()
