"""Late updates: what algorithm 1 can tell apart, eq. 13's weights, and that a projected class no longer conflicts."""

from __future__ import annotations

import numpy as np
import pytest
from corrected import corrected_step
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.security.late_classes import class_weights, minimum
from benchmarks.security.pafed import misrouted
from coterie.protocol.errors import UserError
from coterie.systems.pafed.config import Rates


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def some(seed: int, late: int, size: int = 50) -> tuple[np.ndarray, np.ndarray]:
    """A mean of five unit updates and ``late`` unit updates of which about half conflict."""
    source = np.random.default_rng(seed)
    return unit(source.normal(size=(5, size))).mean(axis=0), unit(source.normal(size=(late, size)))


@given(st.floats(0, 1), st.floats(0, 1))
def test_algorithm_1_tends_to_the_minimum(a: float, b: float) -> None:
    assert abs(minimum(a, b, 40) - min(a, b)) < 1e-6
    assert minimum(a, b, 3) >= min(a, b) - 1e-12  # |y| is approached from below, so the minimum from above


@pytest.mark.parametrize(
    ("iterations", "at_05", "at_01"), [(8, 0.34, 0.47), (10, 0.18, 0.43), (12, 0.02, 0.34), (15, 0.0, 0.09)]
)
def test_too_few_iterations_route_weight_into_the_wrong_class(iterations: int, at_05: float, at_01: float) -> None:
    for cosine, expected in ((0.05, at_05), (0.01, at_01)):
        pair = np.array([cosine, -cosine])
        assert misrouted(pair, *class_weights(pair, iterations)) == pytest.approx(expected, abs=0.006)
        assert misrouted(pair, *class_weights(pair)) == 0.0  # the exact minimum


def test_eq_13_weighs_by_half_the_cosine_in_the_class_of_its_sign() -> None:
    agreeing, conflicting = class_weights(np.array([0.4, -0.2, 0.0]))
    assert np.allclose(agreeing, [0.2, 0, 0])
    assert np.allclose(conflicting, [0, -0.1, 0])


@given(st.integers(0, 1000), st.integers(1, 12))
def test_the_step_is_the_papers_written_out(seed: int, late: int) -> None:
    """Slow twin of algorithm 4 with eq. 12 and 17, one late update after the other."""
    m, v = some(seed, late)
    rates = Rates(0.8, 0.5, 0.3)
    m1, m2, n1, n2 = np.zeros_like(m), np.zeros_like(m), 0.0, 0.0
    for update in v:
        c = m @ update
        x = min((c + 1) / 2, 0.5)
        m1, n1 = m1 + update * ((c + 1) / 2 - x), n1 + (c + 1) / 2 - x
        m2, n2 = m2 + update * (x - 0.5), n2 + x - 0.5
    expected = 0.8 * m
    if n1:
        expected = expected + 0.5 * m1 / n1
    if n2:
        m2 = m2 / n2
        expected = expected + 0.3 * (m2 - (m2 @ m) / (m @ m) * m)  # eq. (12)
    assert np.allclose(corrected_step(m, v, rates), expected, atol=1e-12)


def test_projected_updates_no_longer_conflict_and_eq_14_leaves_most_of_it() -> None:
    """Eq. (14) takes the mean of unit vectors for a unit vector; as its square is far below 1, most conflict stays."""
    m, v = some(3, 40)
    conflicting = v[v @ m < 0]
    only = Rates(0.0, 0.0, 1.0)
    before = np.average(conflicting @ m, weights=np.abs(conflicting @ m))  # what is not turned
    assert before < -0.01
    assert abs(corrected_step(m, conflicting, only) @ m) < 1e-12
    left = corrected_step(m, conflicting, only, unit_mean=True) @ m / before
    assert left == pytest.approx(1 - m @ m)
    assert left > 0.5


def test_a_class_of_next_to_no_weight_is_left_out() -> None:
    m, v = some(0, 1)
    orthogonal = unit(v[0] - (v[0] @ m) / (m @ m) * m)[None]
    assert np.allclose(corrected_step(m, orthogonal, Rates()), 0.8 * m, atol=1e-9)
    across = np.eye(4)
    assert (corrected_step(0.5 * across[0], across[1:], Rates()) == 0.4 * across[0]).all()  # all cosines exactly 0


def test_without_late_updates_or_without_a_mean_there_is_nothing_to_correct() -> None:
    m, v = some(0, 4)
    assert np.allclose(corrected_step(m, v[:0], Rates()), 0.8 * m)
    assert np.allclose(corrected_step(np.zeros_like(m), v, Rates()), 0.8 * v.mean(axis=0))


def test_rates_below_zero_and_iterations_below_zero_are_refused() -> None:
    with pytest.raises(UserError, match="at least 0"):
        Rates(-1.0)
    with pytest.raises(UserError, match="iterations"):
        minimum(0.1, 0.2, -1)
