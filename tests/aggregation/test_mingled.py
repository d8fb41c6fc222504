"""Rebuilding of mingled cluster models against exact fractions, normal equations and models that must come back."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from mingling import MOST, coefficients, default_setting, drawn_sets

from benchmarks.ridge import rebuild_error
from coterie.aggregation import mingled
from coterie.protocol.errors import PeerError, UserError


def solved_in_fractions(h: np.ndarray, s: np.ndarray) -> list[list[Fraction]]:
    """Gauss-Jordan elimination without rounding."""
    rows = [[Fraction(int(v)) for v in (*a, *b)] for a, b in zip(h, s, strict=True)]
    for i in range(len(rows)):
        pivot = next(r for r in range(i, len(rows)) if rows[r][i])
        rows[i], rows[pivot] = rows[pivot], [v / rows[pivot][i] for v in rows[pivot]] if pivot == i else rows[i]
        if pivot != i:
            rows[i] = [v / rows[i][i] for v in rows[i]]
        for r in range(len(rows)):
            if r != i:
                rows[r] = [v - rows[r][i] * w for v, w in zip(rows[r], rows[i], strict=True)]
    return [row[len(rows) :] for row in rows]


# Rebuilding


def test_two_clusters_by_hand() -> None:
    """3 x + y = 5, 2 x + 4 y = 10: x = 1, y = 2; and 3 x + y = -3, 2 x + 4 y = 8: x = -2, y = 3."""
    got = mingled.rebuild(
        np.array([[5, -3], [10, 8.0]]), np.array([[3, 1], [2, 4]]), np.zeros((2, 2)), max_condition=MOST
    )
    np.testing.assert_array_equal(got.models, np.float32([[1, -2], [2, 3]]))
    assert got.models.dtype == np.float32
    assert not got.kept.any()
    assert not got.refused
    assert got.why == ""


@pytest.mark.parametrize("seed", range(5))
def test_means_come_back_and_the_printed_algorithm_shrinks_them(seed: int) -> None:
    h, sums, previous = default_setting(seed)
    got = mingled.rebuild(sums, h, previous, max_condition=MOST)
    np.testing.assert_array_equal(got.models, np.tile(np.float32([1, 2, 3, 4, 5])[:, None], 7))
    literal = mingled.rebuild_literal(sums, h, previous, h.sum(axis=1), max_condition=MOST)
    assert literal.condition == got.condition
    assert 0 < literal.models.mean() < 0.06  # 3 before
    np.testing.assert_allclose(  # what it solves: H theta = S / |G|
        h @ literal.models.astype(float), sums / h.sum(axis=1, keepdims=True), rtol=1e-5
    )


@given(data=st.data(), k=st.integers(1, 6))
def test_any_whole_system_as_in_fractions(data: st.DataObject, k: int) -> None:
    h = np.array(data.draw(st.lists(st.lists(st.integers(0, 30), min_size=k, max_size=k), min_size=k, max_size=k)))
    assume(abs(np.linalg.det(h)) > 0.5)  # not singular, so no column is empty
    s = np.array(data.draw(st.lists(st.lists(st.integers(-99, 99), min_size=3, max_size=3), min_size=k, max_size=k)))
    got = mingled.rebuild(s, h, np.zeros((k, 3)), max_condition=1e9)
    expected = np.array([[float(v) for v in row] for row in solved_in_fractions(h, s)])
    np.testing.assert_allclose(got.models, expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())


@given(
    sizes=st.lists(st.integers(0, 12), min_size=2, max_size=7),
    p=st.sampled_from([0.5, 0.25, 0.125]),
    seed=st.integers(0, 10**6),
)
def test_without_spread_every_cluster_with_members_comes_back(sizes: list[int], p: float, seed: int) -> None:
    """Also where true clusters are empty (they keep their model) and mingled ones too (they say nothing).

    Of an H that is all but singular, at least nothing is worse than before: a ridge moves the models towards theta and
    never past it, in the lengths of H's columns.
    """
    rng, k = np.random.default_rng(seed), len(sizes)
    true = np.repeat(np.arange(k), sizes)
    theta, previous = rng.normal(size=(k, 4)), rng.normal(size=(k, 4)).astype(np.float32)
    sets = drawn_sets(true, k, p, 1, rng)
    h = coefficients(sets, true)
    assert mingled.implausible(h, sets.sum(axis=0), len(true)) == ""
    got = mingled.rebuild(sets.T.astype(float) @ theta[true], h, previous, max_condition=MOST)
    some = np.array(sizes) > 0
    np.testing.assert_array_equal(got.kept, ~some)
    np.testing.assert_array_equal(got.models[~some], previous[~some])
    assert (got.ridge > 0) == (sum(sizes) > 0 and got.condition > MOST)
    if got.ridge:
        lengths = np.linalg.norm(h[:, some], axis=0)[:, None]
        off, before = (np.linalg.norm(lengths * (models[some] - theta[some])) for models in (got.models, previous))
        assert off <= before * (1 + 1e-5)
    else:
        np.testing.assert_allclose(got.models[some], theta[some], rtol=1e-6, atol=1e-4)
    assert all(f"{b}" in got.why for b in np.flatnonzero(~some)) or not some.any()
    assert bool(got.why) == bool((~some).any())


def test_false_members_of_an_empty_cluster_are_equations_too() -> None:
    """Cluster 2 is empty but has false members: three equations for two models, solved by least squares."""
    h = np.array([[4, 1, 0], [2, 5, 0], [1, 3, 0]])
    sums = np.random.default_rng(0).normal(size=(3, 5)) * 10
    got = mingled.rebuild(sums, h, np.full((3, 5), 9.0), max_condition=MOST)
    a = h[:, :2].astype(float)
    np.testing.assert_allclose(got.models[:2], np.linalg.solve(a.T @ a, a.T @ sums), rtol=1e-6)
    np.testing.assert_array_equal(got.models[2], np.float32([9] * 5))
    np.testing.assert_array_equal(got.kept, [False, False, True])
    assert "cluster 2" in got.why
    assert not np.allclose(got.models[:2], np.linalg.solve(a[:2], sums[:2]), rtol=0.01)  # the third one counts


TWINS = np.array([[3, 2, 1], [3, 2, 1], [0, 1, 4]])  # mingled clusters 0 and 1 have the same members
NEAR = np.array([[1000, 999, 1], [999, 999, 1], [0, 1, 4]])
FEWER = np.array([[2, 1, 1], [1, 2, 1], [0, 0, 0]])  # two equations, three models


def test_without_a_ridge_ill_conditioned_systems_are_refused_and_say_so() -> None:
    """As printed there is none."""
    previous = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
    condition = mingled.rebuild(np.ones((3, 4)), NEAR, previous, max_condition=MOST).condition
    assert 1e3 < condition < MOST
    for refuse in (
        lambda h, most: mingled.rebuild(np.ones((3, 4)), h, previous, max_condition=most, ridge=False),
        lambda h, most: mingled.rebuild_literal(np.ones((3, 4)), h, previous, h.sum(axis=1), max_condition=most),
    ):
        got = refuse(TWINS, 1e12)
        assert (got.refused, got.condition, got.ridge) == (True, np.inf, 0)
        assert "condition number is inf" in got.why
        np.testing.assert_array_equal(got.models, previous)
        refused = refuse(NEAR, condition * 0.999)
        assert refused.refused
        assert refused.condition == condition
        assert f"{condition:.3g}" in refused.why
        assert f"{condition * 0.999:g}" in refused.why
        assert not refuse(NEAR, condition).refused
        assert refuse(FEWER, 1e12).condition == np.inf


@pytest.mark.parametrize(("h", "condition"), [(TWINS, np.inf), (NEAR, 4182), (FEWER, np.inf)])
@pytest.mark.parametrize("most", [1.5, 30.0, 1e3])
def test_the_smallest_ridge_that_brings_the_condition_down_against_its_normal_equations(
    h: np.ndarray, condition: float, most: float
) -> None:
    """(H'H + lambda D) theta = H'S + lambda D previous, D the squared lengths of H's columns."""
    rng = np.random.default_rng(3)
    sums, previous = rng.normal(size=(3, 4)), rng.normal(size=(3, 4)).astype(np.float32)
    got = mingled.rebuild(sums, h, previous, max_condition=most)
    assert got.condition == pytest.approx(condition, rel=0.1)
    assert not got.refused
    assert got.why == ""
    a, d = h.astype(float), np.diag((h.astype(float) ** 2).sum(axis=0))
    expected = np.linalg.solve(a.T @ a + got.ridge * d, a.T @ sums + got.ridge * d @ previous)
    np.testing.assert_allclose(got.models, expected, rtol=1e-4, atol=1e-4)
    scaled = np.linalg.inv(np.sqrt(d)) @ (a.T @ a) @ np.linalg.inv(np.sqrt(d))
    assert np.sqrt(np.linalg.cond(scaled + got.ridge * np.eye(3))) == pytest.approx(most, rel=1e-6)


def test_the_condition_sees_mingling_and_not_sizes() -> None:
    """Ideal coefficients have condition (1 + (k-1) p) / (1 - p), whatever the sizes."""
    for k, p in ((5, 0.5), (5, 8 / 15), (8, 0.25), (2, 0.125)):
        for sizes in (np.full(k, 24), np.arange(1, k + 1) ** 4):
            h = mingled.ideal_coefficients(sizes, p)
            got = mingled.rebuild(h @ np.ones((k, 2)), h, np.zeros((k, 2)), max_condition=100).condition
            assert got == pytest.approx((1 + (k - 1) * p) / (1 - p), rel=1e-9)
    assert (
        np.linalg.cond(mingled.ideal_coefficients(np.arange(1, 6) ** 4, 0.5)) > 1000
    )  # the plain one is scared by sizes


def test_ridge_moves_only_what_a_singular_system_says() -> None:
    """Clusters 0 and 1 are never told apart: their sum is learnt, their difference stays as it was."""
    h = np.array([[3, 3, 0], [3, 3, 0], [0, 0, 5]])
    theta, previous = np.array([[4.0], [2.0], [7.0]]), np.float32([[1], [3], [0]])
    got = mingled.rebuild(h @ theta, h, previous, max_condition=1e4)
    assert not got.refused
    np.testing.assert_allclose(got.models[:2].sum(), 6, rtol=1e-5)
    np.testing.assert_allclose(got.models[1] - got.models[0], 2, rtol=1e-5)
    np.testing.assert_allclose(got.models[2], 7, rtol=1e-5)


def test_nobody_took_part() -> None:
    previous = np.float32([[1, 2], [3, 4]])
    for got in (
        mingled.rebuild(np.zeros((2, 2)), np.zeros((2, 2), int), previous, max_condition=10),
        mingled.mingled_means(np.zeros((2, 2)), np.zeros(2, int), previous),
        mingled.exact_means(np.zeros((2, 2)), np.zeros(2), previous, 0),
    ):
        assert got.refused
        assert got.why
        np.testing.assert_array_equal(got.models, previous)


def test_results_share_no_memory_with_the_previous_models() -> None:
    h, sums, previous = default_setting()
    previous.flags.writeable = False  # as decoded messages are
    for got in (
        mingled.rebuild(sums, h, previous, max_condition=10**3),
        mingled.rebuild(sums, h, previous, max_condition=1.1),
        mingled.rebuild(sums, h, previous, max_condition=1.1, ridge=False),
        mingled.kept_all(previous, "x"),
    ):
        got.models[:] = 7
    assert (previous == -1).all()


# Means without a rebuild


def test_mingled_means_and_exact_means_by_hand() -> None:
    sums, previous = np.array([[6.0, 9], [0, 0], [-1, 4]]), np.float32([[1, 1], [5, 6], [1, 1]])
    expected = np.float32([[2, 3], [5, 6], [-0.5, 2]])
    plain = mingled.mingled_means(sums, np.array([3, 0, 2]), previous)
    exact = mingled.exact_means(sums, np.array([3 + 1e-7, -1e-7, 2 - 1e-7]), previous, 5)
    for got in (plain, exact):
        np.testing.assert_array_equal(got.models, expected)
        np.testing.assert_array_equal(got.kept, [False, True, False])
        assert "cluster 1" in got.why
        assert not got.refused
        assert got.condition == 1


@pytest.mark.parametrize(
    ("counts", "participants", "words"),
    [
        ([3, 0, 2.5], 5, "is 2.5, no whole number"),
        ([3, -1, 3], 5, "below 0"),
        ([3, 0, 3], 5, "6 clients by the diagonal, but 5 took part"),
        ([3, np.nan, 2], 5, "not all numbers"),
        ([1e300, 0, 2], None, "not all numbers below 2^53"),
    ],
)
def test_exact_counts_that_cannot_be(counts: list[float], participants: int | None, words: str) -> None:
    previous = np.float32([[1], [2], [3]])
    got = mingled.exact_means(np.ones((3, 1)), np.array(counts), previous, participants)
    assert got.refused
    assert words in got.why
    np.testing.assert_array_equal(got.models, previous)


# Mistakes


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_broken_sums_are_a_peers_fault(bad: float) -> None:
    h, sums, previous = default_setting()
    sums[2, 3] = bad
    for call in (
        lambda: mingled.rebuild(sums, h, previous, max_condition=MOST),
        lambda: mingled.rebuild_literal(sums, h, previous, h.sum(axis=1), max_condition=MOST),
        lambda: mingled.mingled_means(sums, h.sum(axis=1), previous),
        lambda: mingled.exact_means(sums, np.full(5, 24), previous, 120),
    ):
        with pytest.raises(PeerError, match="not finite"):
            call()


def test_models_beyond_float32_are_not_taken() -> None:
    h, sums, previous = default_setting()
    sums[1] = 1e50
    got = mingled.rebuild(sums, h, previous, max_condition=MOST)
    assert got.refused
    assert "float32" in got.why
    np.testing.assert_array_equal(got.models, previous)


@pytest.mark.parametrize(
    "call",
    [
        lambda h, s, q: mingled.rebuild(s[:4], h, q, max_condition=10),
        lambda h, s, q: mingled.rebuild(s[0], h, q[0], max_condition=10),
        lambda h, s, q: mingled.rebuild(s.astype(complex), h, q, max_condition=10),
        lambda h, s, q: mingled.rebuild(s, h[:4], q, max_condition=10),
        lambda h, s, q: mingled.rebuild(s, h[:, :4], q, max_condition=10),
        lambda h, s, q: mingled.rebuild(s, -h, q, max_condition=10),
        lambda h, s, q: mingled.rebuild(s, h * np.nan, q, max_condition=10),
        lambda h, s, q: mingled.rebuild(s, h, q, max_condition=0.5),
        lambda h, s, q: mingled.rebuild(s, h, q, max_condition=np.nan),
        lambda h, s, q: mingled.rebuild(s, h, q, max_condition=np.inf),
        lambda h, s, q: mingled.rebuild(s, h, q, max_condition=1),
        lambda h, s, q: mingled.rebuild(s, h, q, max_condition=1e13),
        lambda h, s, q: mingled.rebuild_literal(s, h, q, h.sum(axis=1)[:4], max_condition=10),
        lambda h, s, q: mingled.mingled_means(s, np.full(5, 2.5), q),
        lambda h, s, q: mingled.mingled_means(s, np.full(5, -1), q),
        lambda h, s, q: mingled.exact_means(s, np.ones(4), q, 4),
        lambda h, s, q: mingled.ideal_coefficients(np.array([3, -1]), 0.5),
        lambda h, s, q: mingled.ideal_coefficients(np.array([3, 1]), 1.5),
    ],
)  # fmt: skip
def test_mistakes(call) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UserError):
        call(*default_setting())


# -- counts ------------------------------------------------------------------------------------------------------------


# The coefficients


def test_counts_are_rounded_and_refused_where_they_are_none() -> None:
    h = default_setting()[0]
    noisy = h + np.random.default_rng(0).uniform(-0.009, 0.009, h.shape)
    np.testing.assert_array_equal(mingled.round_counts(noisy), h)
    assert mingled.round_counts(noisy).dtype == np.int64
    noisy[3, 1] += 0.02
    with pytest.raises(PeerError, match=r"count \(3, 1\) is .*one-hot"):
        mingled.round_counts(noisy)
    for bad in (np.nan, np.inf, 1e300):
        with pytest.raises(PeerError, match="not all numbers"):
            mingled.round_counts(np.array([bad]))


@given(sizes=st.lists(st.integers(0, 15), min_size=1, max_size=8), seed=st.integers(0, 10**6), least=st.integers(1, 3))
def test_honest_indicators_are_never_implausible(sizes: list[int], seed: int, least: int) -> None:
    rng, k = np.random.default_rng(seed), len(sizes)
    assume(least <= k)
    true = np.repeat(np.arange(k), sizes)
    sets = drawn_sets(true, k, 0.5, least, rng)
    h = coefficients(sets, true) + rng.uniform(-1e-3, 1e-3, (k, k))
    assert mingled.implausible(h, sets.sum(axis=0), len(true), least) == ""
    for i in range(min(3, len(true))):  # nor what is left when one of them takes its own part out
        own = np.outer(sets[i], np.eye(k)[true[i]])
        assert mingled.implausible(h - own, sets.sum(axis=0) - sets[i], len(true) - 1, least) == ""


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
    assert words in mingled.implausible(changed, sizes, participants, least=2)


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
        assert mingled.implausible(lied, sizes, 120), sigma
        assert damage.min() > 1e-3  # on cluster 4 too
        if sigma[0] == 30:
            assert damage.max() > 0.3
    for sigma in ([0, 1, 0, 0, 0], [7, -6, 0, 0, 0]):  # might be true: it is clients 0 to 5 of cluster 1 that are in 0
        damage, lied = with_lie(sigma)
        assert mingled.implausible(lied, sizes, 120) == ""
        assert damage.max() > 1e-3
    got = mingled.rebuild(sums, lied, previous, max_condition=MOST)
    assert got.why == ""  # and nothing else tells


def test_taking_ones_own_part_out_shows_more() -> None:
    """The liar wipes the only member of cluster 1 off the coefficients. Only that one can see it."""
    mine, others = np.array([0, 1, 1]), np.array([[1, 0, 0]] * 4 + [[0, 0, 1]] * 4)
    liar = np.array([0, 1, 1])  # truly in cluster 2
    h = np.outer(mine, [0, 1, 0]) + others.T @ others + np.outer(liar, [0, -1, 2])
    sizes = mine + liar + others.sum(axis=0)
    assert mingled.implausible(h, sizes, 10) == ""
    assert "below 0" in mingled.implausible(h - np.outer(mine, [0, 1, 0]), sizes - mine, 9)


# Theory


def test_ideal_coefficients_have_the_determinant_of_eq_12() -> None:
    for sizes, p in (([24] * 5, 0.5), ([10, 10, 10, 20, 70], 8 / 15), ([3, 8], 0.125), ([1, 2, 3, 4, 5, 6, 7, 8], 0.9)):
        h, k = mingled.ideal_coefficients(np.array(sizes), p), len(sizes)
        for a in range(k):
            for b in range(k):
                assert h[a, b] == pytest.approx(sizes[b] if a == b else p * sizes[b])  # eq. (11)
        assert np.linalg.det(h) == pytest.approx((1 + p * (k - 1)) * (1 - p) ** (k - 1) * np.prod(sizes), rel=1e-9)
    h = mingled.ideal_coefficients(np.full(5, 24), 0.5)
    assert (np.diag(h) == 24).all()
    assert (h.sum(axis=1) - np.diag(h) == 48).all()


def test_counts_scatter_around_the_ideal_ones_with_p_c_not_p() -> None:
    """k = 5, p = .5, T = 2: p_c = E|false identities| / 4 = 2 / (1 - 1/16) / 4 = .5333."""
    rng, true = np.random.default_rng(0), np.arange(120) % 5
    draws = np.array([coefficients(drawn_sets(true, 5, 0.5, 2, rng), true) for _ in range(150)])
    error = draws.std(axis=0) / np.sqrt(150) + 1e-12
    off = ~np.eye(5, dtype=bool)
    assert (np.abs(draws.mean(axis=0) - mingled.ideal_coefficients(np.full(5, 24), 8 / 15)) / error)[off].max() < 4.5
    assert abs((draws.mean(axis=0) - mingled.ideal_coefficients(np.full(5, 24), 0.5))[off].mean()) > 0.7  # .8 too many


def test_error_of_rebuilding_is_what_models_show() -> None:
    """Models b + sigma noise: rebuilt ones scatter around the exact means as told; those scatter by 1 / sqrt(24)."""
    rng, true, sigma, d = np.random.default_rng(0), np.repeat(np.arange(5), 24), 0.3, 20_000
    sets = drawn_sets(true, 5, 0.5, 2, rng)
    models = true[:, None] + sigma * rng.normal(size=(120, d))
    one_hot, previous = np.eye(5)[true], np.zeros((5, d))
    rebuilt = mingled.rebuild(
        sets.T.astype(float) @ models, coefficients(sets, true), previous, max_condition=MOST
    ).models
    exact = mingled.exact_means(one_hot.T @ models, one_hot.sum(axis=0), previous, 120).models
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
