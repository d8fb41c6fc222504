"""Numbers on the grid, and rows that two servers hold, of which a client opens its own."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.crypto import shared_rows
from coterie.crypto.shared_rows import COARSEST, FINEST, KEY_BYTES, NONCE_BYTES, OLDEST, PARTS, ROOM, Grid
from coterie.protocol.errors import CryptoError, UserError
from coterie.protocol.randomness import Derived, Secrets


def signed(words: np.ndarray) -> np.ndarray:
    return words.view(np.int32).astype(np.int64)


@pytest.mark.parametrize(("norm", "weight"), [(0.1, 1.0), (1.0, 0.5), (40.0, 1.0)])
def test_a_change_is_clipped_weighted_and_rounded_without_bias(norm: float, weight: float) -> None:
    grid, rng = Grid(2.0, 64, 50), np.random.default_rng(0)
    change = rng.normal(size=50)
    change *= norm / np.linalg.norm(change)
    wanted = change * min(1, 2.0 / norm) * weight * 64 / 2.0
    drawn = np.stack([signed(grid.words(change, weight, rng)) for _ in range(2000)])
    assert (np.abs(drawn - wanted) < 1).all()
    assert np.abs(drawn.mean(axis=0) - wanted).max() < 5 * 0.5 / 2000**0.5
    assert (np.linalg.norm(drawn, axis=1) ** 2 <= 64**2 + 50 / 4 + 64 + 50**0.5 / 2).all()


def test_running_statistics_are_clipped_apart() -> None:
    grid, apart = Grid(1.0, 1 << 12, 4, parts=2), np.array([False, False, True, True])
    words = signed(grid.words(np.array([0.3, 0.4, 30.0, 40.0]), 1.0, np.random.default_rng(1), apart))
    assert np.abs(words - np.array([0.3, 0.4, 0.6, 0.8]) * 4096).max() <= 1


def test_a_change_that_is_not_finite_is_refused() -> None:
    for wrong in (np.array([1.0, np.nan]), np.array([1.0, np.inf]), np.zeros(3)):
        with pytest.raises(CryptoError):
            Grid(1.0, 64, 2).words(wrong, 1.0, np.random.default_rng(0))


@given(clients=st.integers(3, 100_000), length=st.integers(1, 3_000_000))
@settings(max_examples=200, deadline=None)
def test_a_round_moves_a_word_by_less_than_two_to_the_thirty(clients: int, length: int) -> None:
    try:
        grid = Grid.of(1.0, clients, length)
    except UserError:
        assert 2 * PARTS * clients * (COARSEST + length**0.5) >= ROOM
        return
    assert COARSEST <= grid.steps <= FINEST
    largest = grid.steps + length**0.5  # of a word, by the bound on the norm
    assert 2 * PARTS * clients * largest < ROOM


def test_as_many_clients_as_the_specification_says() -> None:
    """2^17 steps for 100 clients, 2^10 for 10,000; a million do not fit."""
    assert Grid.of(1.0, 100, 178_110).steps == 1 << 17
    assert Grid.of(1.0, 10_000, 178_110).steps >= 1 << 10
    with pytest.raises(UserError, match="do not fit words"):
        Grid.of(1.0, 1_000_000, 178_110)


@pytest.mark.parametrize("age", range(OLDEST + 1))
@pytest.mark.parametrize(("expected", "on_time"), [(10, 10), (10, 7), (10, 5), (10, 1), (10, 0)])
def test_weights_are_those_of_equation_2(age: int, expected: int, on_time: int) -> None:
    nu = min(Fraction(2), Fraction(expected, max(on_time, 1)))
    exact = 16 * nu * (1 - Fraction(age, 16))
    assert abs(shared_rows.upload_weight(age, expected, on_time) - exact) <= Fraction(1, 2)
    assert 1 <= shared_rows.upload_weight(age, expected, on_time) <= 2 * PARTS


def test_an_upload_that_is_too_old_has_no_weight() -> None:
    for age in (-1, OLDEST + 1):
        with pytest.raises(CryptoError):
            shared_rows.upload_weight(age, 10, 10)


def test_the_model_is_the_start_plus_the_mean_change() -> None:
    """Three clients of weights 1, 1/2 and 1/4, all on time: equation 3 gives their weighted mean."""
    grid, rng = Grid.of(3.0, 3, 20), np.random.default_rng(2)
    changes, weights = rng.normal(size=(3, 20)) / 10, np.array([16, 8, 4])
    total = sum(
        (grid.words(change, w / 16, rng) * np.uint32(shared_rows.upload_weight(0, 3, 3)))
        for change, w in zip(changes, weights, strict=True)
    )
    mean = grid.change(np.asarray(total, np.uint32).view(np.int32), int(weights.sum()))
    assert np.abs(mean - np.average(changes, axis=0, weights=weights)).max() < 3 * 3.0 / grid.steps


@pytest.mark.parametrize("groups", [1, 2, 5, 8, 9])
def test_a_client_opens_its_own_row_and_no_other(groups: int) -> None:
    rng = np.random.default_rng(groups)
    shares = [rng.integers(0, 2**32, (groups, 7), np.uint32) for _ in range(2)]
    keys = [[rng.bytes(KEY_BYTES) for _ in range(groups)] for _ in range(2)]
    nonces = [rng.bytes(NONCE_BYTES) for _ in range(2)]
    masked = (shared_rows.masked(s, k, n) for s, k, n in zip(shares, keys, nonces, strict=True))
    rows = next(masked) + next(masked)
    true = shares[0] + shares[1]
    for group in range(groups):
        queries = shared_rows.queries(group, groups, Derived(b"%d" % group))
        assert all(shared_rows.is_query(query, groups) for query in queries)
        row = shared_rows.fetched([shared_rows.answer(rows, query) for query in queries])
        assert (row == rows[group]).all()
        assert (shared_rows.unmasked(row, [keys[0][group], keys[1][group]], nonces) == true[group].view(np.int32)).all()
        other = (group + 1) % groups
        if other != group:
            opened = shared_rows.unmasked(row, [keys[0][other], keys[1][other]], nonces)
            assert not (opened == true[group].view(np.int32)).any()


def test_a_query_is_uniform_to_either_server() -> None:
    for group in range(3):
        seen = [shared_rows.queries(group, 3, Secrets(None)) for _ in range(800)]
        for side in range(2):
            counts = np.bincount([pair[side][0] for pair in seen], minlength=8)
            assert np.abs(counts - 100).max() < 55, (group, counts)


def test_impossible_queries_are_refused() -> None:
    assert shared_rows.is_query(b"\x07", 3)
    assert not shared_rows.is_query(b"\x08", 3)
    assert not shared_rows.is_query(b"", 3)
    assert not shared_rows.is_query(b"\x00\x00", 3)


def test_names_of_rows_show_every_change() -> None:
    rows = np.arange(12, dtype=np.uint32).reshape(3, 4)
    names = shared_rows.row_names(rows)
    assert len(names) == 3 * shared_rows.NAME_BYTES
    rows[1, 2] += 1
    changed = shared_rows.row_names(rows)
    assert [names[i : i + 32] == changed[i : i + 32] for i in (0, 32, 64)] == [True, False, True]


def test_noise_on_whole_numbers_is_a_rounded_gaussian() -> None:
    """x + rint(n) = rint(x + n), so what is released is post-processing of x + n."""
    drawn = signed(shared_rows.noise((40, 500), 37.5, Secrets(np.random.default_rng(3))))
    assert abs(drawn.std() / (37.5**2 + 1 / 12) ** 0.5 - 1) < 0.02
    assert abs(drawn.mean()) < 1.5
    assert not shared_rows.noise((2, 3), 0.0, Secrets(None)).any()


def test_an_alarm_comes_before_a_word_wraps() -> None:
    assert not shared_rows.may_wrap(np.array([ROOM - 1, 1 - ROOM], np.int32))
    assert shared_rows.may_wrap(np.array([ROOM], np.int32))
    assert shared_rows.may_wrap(np.array([-ROOM], np.int32))
    assert shared_rows.may_wrap(np.array([-(2**31)], np.int32))
