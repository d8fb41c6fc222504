"""The evidence of pairs: against the normal model's densities, and against its bilinear form."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from coterie.clustering.evidence import (
    BONUS,
    MOST,
    ResidualSpread,
    axes,
    basis,
    evidence,
    features,
    gain,
    parts,
    residuals,
    row,
    row_length,
    spread,
    spread_terms,
    twisted,
)
from coterie.clustering.signature import FEATURES, Reference, halves, mapped, reference, statistics

Client = tuple[np.ndarray, np.ndarray]


def drawn(seed: int, counts: list[int], of: ResidualSpread) -> Client:
    """A client's residuals by the model: one mean a label, and scatter about it."""
    draw = np.random.default_rng(seed)
    n = np.array(counts)
    means = draw.normal(size=(len(n), FEATURES)) * np.sqrt(along(of.tau, len(n)))
    scatter = draw.normal(size=(len(n), FEATURES)) * np.sqrt(along(of.phi, len(n)) * n[:, None])
    return n, n[:, None] * means + scatter


def of_labels(labels: int, tau: list[float], phi: list[float]) -> ResidualSpread:
    """Where all labels are kept."""
    return ResidualSpread(parts(np.ones(labels, bool)), np.array(tau), np.array(phi))


def along(of_part: np.ndarray, labels: int) -> np.ndarray:
    """(FEATURES,) of each coordinate, from tau or phi."""
    found = np.full(FEATURES, of_part[1])
    found[: labels - 1] = of_part[0]
    return found


def test_the_evidence_is_that_of_normal_means_over_means_of_zero() -> None:
    """S | N is normal with variance N phi + N^2 tau in a group whose mean is drawn, N phi with a mean of 0."""
    of = of_labels(3, [0.3, 1.2], [1.5, 0.7])
    counts, sums = drawn(1, [5, 3, 40], of)
    expected = 0.0
    for n, total in zip(counts, sums, strict=True):
        for value, tau, phi in zip(total, along(of.tau, 3), along(of.phi, 3), strict=True):
            of_drawn, zero = norm(0, np.sqrt(n * phi + n * n * tau)), norm(0, np.sqrt(n * phi))
            expected += float(of_drawn.logpdf(value) - zero.logpdf(value))
    assert evidence(counts, sums, of) == pytest.approx(expected, rel=1e-9)


def test_labels_that_few_hold_widen_no_part() -> None:
    """Of 62 labels three are kept, so groups that name labels otherwise differ in two directions."""
    kept = np.isin(np.arange(62), [4, 9, 50])
    assert parts(kept) == (slice(0, 2), slice(2, FEATURES))
    assert parts(np.zeros(62, bool))[0] == slice(0, 0)
    few, many = (
        of_labels(3, [0.5, 0.1], [2.0, 0.4]),
        ResidualSpread(parts(kept), np.array([0.5, 0.1]), np.array([2.0, 0.4])),
    )
    (n, sums), counts, padded = drawn(1, [5, 3, 40], few), np.zeros(62, np.int64), np.zeros((62, FEATURES))
    counts[kept], padded[kept] = n, sums
    assert evidence(counts, padded, many) == pytest.approx(evidence(n, sums, few))


def test_a_label_that_a_client_lacks_says_nothing() -> None:
    of = of_labels(3, [0.4, 0.2], [1, 1])
    one, other = drawn(2, [7, 9, 0], of), drawn(3, [7, 9, 50], of)
    without = drawn(3, [7, 9, 50], of)
    without[0][2], without[1][2] = 0, 0
    assert gain(one, other, of) == pytest.approx(gain(one, without, of))


@given(st.integers(0, 2**16), st.lists(st.integers(0, MOST), min_size=4, max_size=4), st.floats(0.001, 20.0))
def test_the_product_of_two_rows_is_the_gain(seed: int, counts: list[int], tau: float) -> None:
    of = of_labels(2, [tau, tau / 7], [0.8, 1.1])
    both = drawn(seed, counts[:2], of), drawn(seed + 1, counts[2:], of)
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
    """With many clients the estimate is near the truth, in each part; without groups tau is near 0.

    Coordinates that no data have, as where images or rows of a table have few numbers, are of the second part alone.
    """
    for of in (
        of_labels(9, [0.5, 0.1], [2.0, 0.4]),
        of_labels(9, [0, 0], [1, 1]),
        of_labels(9, [0.3, 0], [1, 0]),
    ):
        total = 0.0
        for seed in range(400):
            draw = np.random.default_rng(seed)
            means = draw.normal(size=(9, FEATURES)) * np.sqrt(along(of.tau, 9))
            halves = []
            for n in (6, 5):
                scatter = draw.normal(size=(9, FEATURES)) * np.sqrt(along(of.phi, 9) * n)
                halves.append((np.full(9, n), n * means + scatter))
            total = total + spread_terms((halves[0], halves[1]), np.ones(9, bool))
        found = spread(np.asarray(total), np.ones(9, bool))
        assert found.tau == pytest.approx(of.tau, abs=0.02)
        assert found.phi == pytest.approx(np.where(of.phi > 0, of.phi, 1.0), rel=0.05)


def test_without_a_pair_of_halves_there_is_no_spread_and_no_gain() -> None:
    nothing = (np.array([0, 3]), np.zeros((2, FEATURES))), (np.array([2, 0]), np.ones((2, FEATURES)))
    found = spread(spread_terms(nothing, np.ones(2, bool)), np.ones(2, bool))
    assert found.tau.tolist() == [0.0, 0.0]
    assert found.phi.tolist() == [1.0, 1.0]
    assert gain(*nothing, found) == 0


@pytest.mark.parametrize("kept", [[True] * 10, [False, True, True, False, True, True], [True] * 80, [True]])
def test_the_first_axes_span_the_differences_of_labels(kept: list[bool]) -> None:
    """So that residuals of a group with other names of labels lie in them, whichever labels are kept."""
    draw, shown = np.random.default_rng(3), np.array(kept)
    means = np.where(shown[:, None], draw.normal(size=(len(kept), FEATURES)), 0)
    to = Reference(means, draw.normal(size=(FEATURES, FEATURES)), shown)
    found, (between, rest) = axes(to), parts(shown)
    assert np.allclose(found.T @ found, np.eye(FEATURES))
    assert between.stop == min(sum(kept) - 1, FEATURES)
    apart = (means[shown] - means[shown].mean(axis=0)) @ to.whiten
    assert np.allclose(apart @ found[:, rest], 0)
    assert np.allclose(axes(to), axes(Reference(means + 1e-12 * draw.normal(size=means.shape), to.whiten, shown)))


def test_what_lies_between_labels_counts_more_where_groups_differ_there() -> None:
    """Two clients of one group that names labels otherwise: the same residuals elsewhere are noise."""
    of = of_labels(10, [0.5, 0], [1, 1])
    counts, sums = np.full(10, 5), np.zeros((10, FEATURES))
    within, beside = sums.copy(), sums.copy()
    within[:, 0], beside[:, -1] = 4.0, 4.0
    assert gain((counts, within), (counts, within), of) > gain((counts, sums), (counts, sums), of)
    assert gain((counts, beside), (counts, beside), of) == gain((counts, sums), (counts, sums), of)


def test_a_gain_and_an_offset_of_images_change_nothing_and_tables_stay_as_they_are() -> None:
    draw = np.random.default_rng(6)
    images, table = draw.normal(size=(5, 1, 8, 8)), draw.normal(size=(5, 13))
    assert np.allclose(features(images), features(3 * images - 2))
    assert np.isfinite(features(np.ones((2, 1, 8, 8)))).all()
    assert (features(table) == mapped(table)).all()
    assert not np.allclose(features(table), features(3 * table - 2))


@pytest.mark.parametrize("labels", [3, 80])
def test_a_basis_changes_no_gain(labels: int) -> None:
    draw, kept = np.random.default_rng(6), np.ones(labels, bool)
    to = basis(7, kept)
    clients = [(draw.integers(0, 9, labels), draw.normal(size=(labels, FEATURES))) for _ in range(4)]
    of = of_labels(labels, [0.5, 0.2], [1, 1])
    plain, turned = (np.stack([row(n, sums @ by, of) for n, sums in clients]) for by in (np.eye(FEATURES), to))
    assert np.allclose(plain @ twisted(plain).T, turned @ twisted(turned).T)
    assert not np.allclose(plain, turned)
    assert (basis(8, kept) != to).any()


def test_residuals_are_of_kept_labels_and_count_at_most_so_many() -> None:
    draw = np.random.default_rng(5)
    x, y = draw.normal(size=(600, FEATURES)), np.repeat([0, 1, 2], [500, 60, 40])
    to = Reference(draw.normal(size=(3, FEATURES)), np.eye(FEATURES), np.array([True, True, False]))
    counts, sums = residuals(x, y, to)
    assert counts.tolist() == [MOST, 60, 0]
    assert np.allclose(sums[1], (x[y == 1] - to.means[1]).sum(axis=0) @ axes(to))
    assert np.allclose(sums[0], MOST * (x[y == 0].mean(axis=0) - to.means[0]) @ axes(to))
    assert not sums[2].any()


@pytest.mark.parametrize(("columns", "labels"), [(8, 3), (8, 2), (4, 2)])
def test_clients_of_one_task_stay_together_in_tables_of_few_columns(columns: int, labels: int) -> None:
    """Most coordinates of FEATURES are empty then, and must not lower the scatter along the labels' means."""
    apart = []
    for seed in range(8):
        draw = np.random.default_rng(seed)
        means, y = draw.normal(0, 1.5, (labels, columns)), np.repeat(np.arange(labels), 20)
        samples = [features(means[y] + draw.normal(size=(len(y), columns))) for _ in range(12)]
        kept = np.ones(labels, np.bool_)
        to = reference(np.sum([statistics(x, y, kept) for x in samples], axis=0), kept)
        first = halves(y, np.random.default_rng(seed))
        pairs = [(residuals(x[first], y[first], to), residuals(x[~first], y[~first], to)) for x in samples]
        of = spread(np.sum([spread_terms(pair, to.kept) for pair in pairs], axis=0), to.kept)
        whole = [residuals(x, y, to) for x in samples]
        gains = [gain(one, other, of) + BONUS for one, other in combinations(whole, 2)]
        apart.append(np.mean(np.array(gains) < 0))
    assert np.mean(apart) < 0.12
