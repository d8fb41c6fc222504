"""What coefficients tell: which cannot be honest, what a false one does, and how exact a rebuild can be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from mingling import MOST, coefficients, default_setting, drawn_sets

from coterie.aggregation.mingled import (
    exact_means,
    ideal_coefficients,
    implausible,
    rebuild,
    rebuild_error,
    round_counts,
)
from coterie.protocol.errors import PeerError

# The coefficients


def test_counts_are_rounded_and_refused_where_they_are_none() -> None:
    h = default_setting()[0]
    noisy = h + np.random.default_rng(0).uniform(-0.009, 0.009, h.shape)
    np.testing.assert_array_equal(round_counts(noisy), h)
    assert round_counts(noisy).dtype == np.int64
    noisy[3, 1] += 0.02
    with pytest.raises(PeerError, match=r"count \(3, 1\) is .*one-hot"):
        round_counts(noisy)
    for bad in (np.nan, np.inf, 1e300):
        with pytest.raises(PeerError, match="not all numbers"):
            round_counts(np.array([bad]))


@given(sizes=st.lists(st.integers(0, 15), min_size=1, max_size=8), seed=st.integers(0, 10**6), least=st.integers(1, 3))
def test_honest_indicators_are_never_implausible(sizes: list[int], seed: int, least: int) -> None:
    rng, k = np.random.default_rng(seed), len(sizes)
    assume(least <= k)
    true = np.repeat(np.arange(k), sizes)
    sets = drawn_sets(true, k, 0.5, least, rng)
    h = coefficients(sets, true) + rng.uniform(-1e-3, 1e-3, (k, k))
    assert implausible(h, sets.sum(axis=0), len(true), least) == ""
    for i in range(min(3, len(true))):  # nor what is left when one of them takes its own part out
        own = np.outer(sets[i], np.eye(k)[true[i]])
        assert implausible(h - own, sets.sum(axis=0) - sets[i], len(true) - 1, least) == ""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda h, g: (h + 0.3 * np.eye(5), g, 120), "no whole number within 0.01"),
        (lambda h, g: (h * np.nan, g, 120), "not all numbers"),
        (lambda h, g: (h, g + 0.5, 120), "among the sizes"),
        (lambda h, g: (h - 999 * np.eye(5)[1] + 999 * np.eye(5)[0], g, 120), "below 0"),
        (lambda h, g: (h + np.eye(5), g, 125), "members, but"),
        (lambda h, g: (h + np.outer(np.eye(5)[2], [20, 0, -20, 0, 0]), g, 100), "where all of them must be"),
        (lambda h, g: (h, g, 121), "120 clients by the diagonal, but 121 took part"),
        (lambda h, g: (np.diag(np.diag(h)), np.diag(h), 120), "not in 2 each"),
        (lambda h, g: (h[:4], g, 120), "do not belong together"),
        (lambda h, g: (h, g[:4], 120), "do not belong together"),
    ],
)
def test_what_indicators_cannot_have_given(change, words: str) -> None:  # type: ignore[no-untyped-def]
    h = default_setting()[0]
    changed, sizes, participants = change(h.astype(float), h.sum(axis=1))
    assert words in implausible(changed, sizes, participants, least=2)


def test_what_a_client_with_a_false_indicator_does_to_the_others() -> None:
    """It spoils every model, also those of clusters that it never joined; most of it shows, not all."""
    h, sums, previous = default_setting(4, d=1)
    sizes, theta = h.sum(axis=1), np.arange(1.0, 6.0)[:, None]
    joined = np.array([1, 1, 0, 0, 0])  # its set

    def with_lie(sigma: list[float]) -> tuple[np.ndarray, np.ndarray]:
        """The damage to each model, and H: its honest indicator, of cluster 0, replaced by sigma."""
        lied = h + np.outer(joined, np.array(sigma) - np.eye(5)[0])
        return np.abs(np.linalg.solve(lied, sums) - theta)[:, 0], lied

    for sigma in (
        [30, 0, 0, 0, 0],
        [0, 0, 0, 0, 0],
        [0.5, 0.5, 0, 0, 0],
        [0, 0, 5, -4, 0],
        [0, 0, 0, 1, 0],
        [26, -25, 0, 0, 0],
    ):
        damage, lied = with_lie(sigma)
        assert implausible(lied, sizes, 120), sigma
        assert damage.min() > 1e-3  # on cluster 4 too
        if sigma[0] == 30:
            assert damage.max() > 0.3
    for sigma in ([0, 1, 0, 0, 0], [7, -6, 0, 0, 0]):  # might be true: it is clients 0 to 5 of cluster 1 that are in 0
        damage, lied = with_lie(sigma)
        assert implausible(lied, sizes, 120) == ""
        assert damage.max() > 1e-3
    got = rebuild(sums, lied, previous, max_condition=MOST)
    assert got.why == ""  # and nothing else tells


def test_taking_ones_own_part_out_shows_more() -> None:
    """The liar wipes the only member of cluster 1 off the coefficients. Only that one can see it."""
    mine, others = np.array([0, 1, 1]), np.array([[1, 0, 0]] * 4 + [[0, 0, 1]] * 4)
    liar = np.array([0, 1, 1])  # truly in cluster 2
    h = np.outer(mine, [0, 1, 0]) + others.T @ others + np.outer(liar, [0, -1, 2])
    sizes = mine + liar + others.sum(axis=0)
    assert implausible(h, sizes, 10) == ""
    assert "below 0" in implausible(h - np.outer(mine, [0, 1, 0]), sizes - mine, 9)


# Theory


def test_ideal_coefficients_have_the_determinant_of_eq_12() -> None:
    for sizes, p in (([24] * 5, 0.5), ([10, 10, 10, 20, 70], 8 / 15), ([3, 8], 0.125), ([1, 2, 3, 4, 5, 6, 7, 8], 0.9)):
        h, k = ideal_coefficients(np.array(sizes), p), len(sizes)
        for a in range(k):
            for b in range(k):
                assert h[a, b] == pytest.approx(sizes[b] if a == b else p * sizes[b])  # eq. (11)
        assert np.linalg.det(h) == pytest.approx((1 + p * (k - 1)) * (1 - p) ** (k - 1) * np.prod(sizes), rel=1e-9)
    h = ideal_coefficients(np.full(5, 24), 0.5)
    assert (np.diag(h) == 24).all()
    assert (h.sum(axis=1) - np.diag(h) == 48).all()


def test_counts_scatter_around_the_ideal_ones_with_p_c_not_p() -> None:
    """k = 5, p = .5, T = 2: p_c = E|false identities| / 4 = 2 / (1 - 1/16) / 4 = .5333."""
    rng, true = np.random.default_rng(0), np.arange(120) % 5
    draws = np.array([coefficients(drawn_sets(true, 5, 0.5, 2, rng), true) for _ in range(150)])
    error = draws.std(axis=0) / np.sqrt(150) + 1e-12
    off = ~np.eye(5, dtype=bool)
    assert (np.abs(draws.mean(axis=0) - ideal_coefficients(np.full(5, 24), 8 / 15)) / error)[off].max() < 4.5
    assert abs((draws.mean(axis=0) - ideal_coefficients(np.full(5, 24), 0.5))[off].mean()) > 0.7  # .8 too many


@pytest.mark.parametrize(
    ("clients", "k", "p", "least", "condition", "median", "rms", "draws"),
    [
        (120, 5, 0.5, 2, 9.8, 0.43, 0.43, 200),
        (120, 5, 0.25, 2, 5.1, 0.31, 0.31, 200),
        (120, 5, 0.5, 3, 15.5, 0.58, 0.65, 200),
        (240, 5, 0.5, 2, 8.8, 0.29, 0.29, 150),
        (120, 8, 0.5, 2, 22, 0.81, None, 150),
        (120, 10, 0.5, 2, 42, 1.3, None, 150),
    ],
)
def test_error_of_rebuilding(
    clients: int, k: int, p: float, least: int, condition: float, median: float, rms: float | None, draws: int
) -> None:
    """Over draws of the sets, as an independent simulation found it; without an RMS where the tail is too heavy."""
    rng, true = np.random.default_rng(clients + k), np.arange(clients) % k
    conditions, errors = [], []
    for _ in range(draws):
        sets = drawn_sets(true, k, p, least, rng)
        h = coefficients(sets, true)
        conditions.append(rebuild(h, h, np.zeros((k, k)), max_condition=1e12).condition)
        errors.append(np.sqrt((rebuild_error(sets, true) ** 2).mean()))
    assert np.median(conditions) == pytest.approx(condition, rel=0.1)
    assert np.median(errors) == pytest.approx(median, rel=0.1)
    assert rms is None or np.sqrt(np.mean(np.square(errors))) == pytest.approx(rms, rel=0.1)
    ratio = np.median(np.divide(errors, conditions))
    assert 0.02 < ratio < 0.07  # what a condition number costs, as `rebuild` says


def test_error_of_rebuilding_is_what_models_show() -> None:
    """Models b + sigma noise: rebuilt ones scatter around the exact means as told; those scatter by 1 / sqrt(24)."""
    rng, true, sigma, d = np.random.default_rng(0), np.repeat(np.arange(5), 24), 0.3, 20_000
    sets = drawn_sets(true, 5, 0.5, 2, rng)
    models = true[:, None] + sigma * rng.normal(size=(120, d))
    one_hot, previous = np.eye(5)[true], np.zeros((5, d))
    rebuilt = rebuild(sets.T.astype(float) @ models, coefficients(sets, true), previous, max_condition=MOST).models
    exact = exact_means(one_hot.T @ models, one_hot.sum(axis=0), previous, 120).models
    predicted = rebuild_error(sets, true)
    np.testing.assert_allclose((rebuilt - exact).std(axis=1) / sigma, predicted, rtol=0.03)
    expected = np.arange(5)[:, None]
    np.testing.assert_allclose((exact - expected).std(axis=1) / sigma, 1 / np.sqrt(24), rtol=0.03)  # .20
    np.testing.assert_allclose((rebuilt - expected).std(axis=1) / sigma, np.sqrt(predicted**2 + 1 / 24), rtol=0.03)
    assert (predicted > 0.25).all()  # more than the exact means' own error


def test_error_of_rebuilding_where_there_is_none_or_no_end() -> None:
    true = np.array([0, 0, 1, 3])
    alone = np.eye(4, dtype=bool)[true]
    np.testing.assert_allclose(rebuild_error(alone, true), [0, 0, np.nan, 0], atol=1e-12)
    everywhere = np.ones((4, 4), dtype=bool)
    np.testing.assert_array_equal(rebuild_error(everywhere, true), [np.inf, np.inf, np.nan, np.inf])
