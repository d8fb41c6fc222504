"""The label-residual signature: a slow readable twin, planted groups under label skew, and inputs at the edge."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score

from coterie.clustering import signature as module
from coterie.clustering import signature as sig
from coterie.protocol.errors import UserError

LABELS = 6


def clients(
    groups: Any, *, seed: int = 0, samples: int = 60, skew: float = 0.5, kind: str = "permute"
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Samples of Gaussian classes for every client; a group has labels of its own, or turns of its own."""
    source = np.random.default_rng(seed)
    centres = source.normal(0, 1.0, (LABELS, 12))
    orders = [np.roll(np.arange(LABELS), k) for k in range(max(groups) + 1)]
    turns = [np.linalg.qr(source.normal(size=(12, 12)))[0] for _ in range(max(groups) + 1)]
    made = []
    for k in groups:
        shares = source.dirichlet(np.full(LABELS, skew))
        y = source.choice(LABELS, samples, p=shares)
        x = centres[y] + source.normal(0, 0.6, (samples, 12))
        made.append((sig.mapped(x @ turns[k]), y) if kind == "rotate" else (sig.mapped(x), orders[k][y]))
    return made


def told(data: Any) -> Any:
    """The reference of these clients."""
    kept = np.sum([np.bincount(y, minlength=LABELS) > 0 for _, y in data], axis=0) >= sig.HOLDERS
    return sig.reference(np.sum([sig.statistics(x, y, kept) for x, y in data], axis=0), kept)


def rows_of(data: Any, to: Any = None, seed: int = 0) -> np.ndarray:
    """(n, 2d) of whole signatures, not projected."""
    to, source = to or told(data), np.random.default_rng(seed)
    rows = []
    for x, y in data:
        first = sig.halves(y, source)
        rows.append(np.concatenate([sig.signature(x[half], y[half], to) for half in (first, ~first)]))
    return np.stack(rows)


def found(rows: np.ndarray, **options: Any) -> Any:
    return sig.find_groups(rows, np.random.default_rng(0), **options)


# -- a slow twin -------------------------------------------------------------------------------------------------------


def test_statistics_and_reference_are_those_of_a_slow_twin() -> None:
    data = clients([0, 1, 0, 1, 1], seed=3, samples=9)
    kept = np.array([sum((y == c).any() for _, y in data) >= sig.HOLDERS for c in range(LABELS)])
    assert 0 < kept.sum() < LABELS
    shares, sums = np.zeros(LABELS), np.zeros((LABELS, sig.FEATURES))
    second = np.zeros((sig.FEATURES, sig.FEATURES))
    for x, y in data:
        n = sum(kept[label] for label in y)
        for sample, label in zip(x, y, strict=True):
            if kept[label]:
                shares[label] += 1 / n
                sums[label] += sample / n
                second += np.outer(sample, sample) / n
    total = np.sum([sig.statistics(x, y, kept) for x, y in data], axis=0)
    assert len(total) == sig.statistics_size(LABELS)
    assert np.allclose(total[:LABELS], shares, atol=1e-12)
    assert np.allclose(total[LABELS : LABELS * (1 + sig.FEATURES)].reshape(LABELS, sig.FEATURES), sums, atol=1e-12)
    to = sig.reference(total, kept)
    means = np.array([sums[c] / shares[c] if kept[c] else np.zeros(sig.FEATURES) for c in range(LABELS)])
    within = np.zeros((sig.FEATURES, sig.FEATURES))
    for x, y in data:
        n = sum(kept[label] for label in y)
        for sample, label in zip(x, y, strict=True):
            if kept[label]:
                within += np.outer(sample - means[label], sample - means[label]) / n / len(data)
    assert np.allclose(to.means, means)
    ridge = sig.RIDGE * np.trace(within) / sig.FEATURES * np.eye(sig.FEATURES)
    assert np.allclose(to.whiten @ (within + ridge) @ to.whiten, np.eye(sig.FEATURES), atol=1e-8)
    assert np.allclose(to.whiten, to.whiten.T)


def test_a_signature_is_that_of_a_slow_twin() -> None:
    data = clients([0, 1, 0, 1], seed=4)
    to = told(data)
    x, y = data[1]
    blocks, pooled, n = [], np.zeros(sig.FEATURES), sum(to.kept[label] for label in y)
    for c in range(LABELS):
        own = [to.whiten @ (sample - to.means[c]) for sample, label in zip(x, y, strict=True) if label == c]
        if not own or not to.kept[c]:
            blocks.append(np.zeros(sig.FEATURES))
            continue
        blocks.append(np.sqrt(len(own)) * np.mean(own, axis=0))
        pooled += len(own) * np.mean(own, axis=0) / np.sqrt(n)
    whole = np.concatenate([*blocks, pooled])
    assert np.allclose(sig.signature(x, y, to), whole / np.linalg.norm(whole), atol=1e-10)


@given(st.integers(1, 40), st.integers(0, 1000))
def test_halves_are_stratified(n: int, seed: int) -> None:
    source = np.random.default_rng(seed)
    y = source.integers(0, 4, n)
    first = sig.halves(y, source)
    for c in range(4):
        assert abs(int(first[y == c].sum()) - int((~first)[y == c].sum())) <= 1
    assert abs(int(first.sum()) - int((~first).sum())) <= 1


def test_no_clients_numbers_are_beyond_the_bound() -> None:
    """So that every term of the sums fits a lane, whatever the data."""
    x = sig.mapped(1e6 * np.random.default_rng(0).normal(size=(30, 4, 40)))
    assert np.abs(x).max() == sig.BOUND
    assert x.shape == (30, sig.FEATURES)
    assert np.abs(sig.statistics(x, np.zeros(30, np.int64), np.ones(LABELS, bool))).max() <= sig.BOUND**2


def test_the_map_keeps_few_numbers_and_projects_many_alike_for_all() -> None:
    few = np.arange(6.0).reshape(1, 2, 3) / 10
    assert np.array_equal(sig.mapped(few)[0, :6], few.ravel())
    assert not sig.mapped(few)[0, 6:].any()
    many = np.random.default_rng(1).normal(size=(5, 300))
    module._signs.cache_clear()
    again = sig.mapped(many)
    assert np.array_equal(sig.mapped(many[2:]), again[2:])
    assert 0.8 < again.std() < 1.2


# -- planted groups ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["permute", "rotate"])
@pytest.mark.parametrize("number", [2, 3, 4])
def test_groups_are_found_where_tasks_differ_and_labels_are_skewed(kind: str, number: int) -> None:
    truth = list(range(number)) * 7
    for seed in range(3):
        rows = rows_of(clients(truth, seed=seed, kind=kind, skew=1.0))
        groups = found(rows)
        assert groups.number == number
        assert len(groups.eigenvalues) == number - 1
        assert adjusted_rand_score(truth, groups.labels) == 1
        assert sig.GUARD[0] <= groups.quality <= sig.GUARD[1]


@pytest.mark.parametrize("skew", [0.3, 1.0, 100.0])
def test_one_group_is_found_where_labels_alone_differ(skew: float) -> None:
    for seed in range(8):
        groups = found(rows_of(clients([0] * 24, seed=seed, skew=skew)))
        assert groups.number == 1
        assert not groups.labels.any()


def test_newcomers_are_placed_in_their_group_against_the_sums_of_the_founders() -> None:
    truth = np.array([0, 1, 2] * 10)
    data = clients(truth, seed=5)
    to = told(data[:21])
    rows = rows_of(data, to)
    groups = found(rows[:21])
    assert adjusted_rand_score(truth[:21], groups.labels) == 1
    assert adjusted_rand_score(truth, np.concatenate([groups.labels, sig.placed(rows[21:], groups)])) == 1


def test_a_fixed_number_is_taken_without_a_test() -> None:
    rows = rows_of(clients([0, 1, 2] * 8, seed=6))
    assert found(rows, groups=3).number == 3
    assert found(rows, groups=1).number == 1
    assert found(rows_of(clients([0] * 24, seed=6)), groups=2).number == 2


def test_groups_that_are_too_small_dissolve() -> None:
    rows = rows_of(clients([0] * 10 + [1] * 8 + [2] * 2, seed=7))
    assert sorted(np.bincount(found(rows, groups=3, smallest=1).labels)) == [2, 8, 10]
    assert min(np.bincount(found(rows, groups=3, smallest=3).labels)) >= 3


@settings(max_examples=8)
@given(st.integers(0, 10_000))
def test_neither_the_order_of_the_clients_nor_a_mask_over_all_changes_anything(seed: int) -> None:
    source = np.random.default_rng(seed)
    rows = np.rint(rows_of(clients([0, 1] * 6, seed=seed % 50)) * 2**16) / 2**16
    plain = found(rows)
    order, mask = source.permutation(len(rows)), source.integers(-(2**20), 2**20, rows.shape[1]) / 2**16
    other = found(rows[order] + mask)
    assert np.array_equal(other.labels, plain.labels[order])
    assert np.allclose(other.eigenvalues, plain.eigenvalues, atol=1e-9)


def test_the_null_of_random_signs_holds_its_level() -> None:
    """Of products of independent noise, the first eigenvalue stands out in about one of a hundred."""
    source = np.random.default_rng(0)
    wrong = 0
    for _ in range(40):
        first, second = (module.unit_rows(source.normal(size=(12, 40))) for _ in range(2))
        wrong += bool(module.standing_out(first @ second.T, source, 3))
    assert wrong <= 3


def test_the_guard_is_the_ratio_that_it_says() -> None:
    products = np.array([[0.9, 0.3, 0.0], [0.5, 0.7, 0.0], [0.1, 0.2, 0.5]])
    assert sig.guarded(products, np.array([0, 0, 1])) == pytest.approx(0.7 / 0.4)
    assert np.isnan(sig.guarded(np.zeros((3, 3)), np.zeros(3, np.int64)))


# -- the edge ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_few_clients_are_one_group(count: int) -> None:
    assert found(rows_of(clients([0, 1, 0, 1, 0, 1], seed=8), told(clients([0] * 6)))[:count]).number == 1


@pytest.mark.parametrize("groups", ["auto", 1, 3])
def test_clients_that_are_all_alike_are_one_group_or_divided_as_asked(groups: Any) -> None:
    same = np.tile(rows_of(clients([0, 1, 0, 1], seed=9))[:1], (9, 1))
    alike = found(same, groups=groups)
    assert len(alike.labels) == 9
    assert alike.number == 1


def test_clients_of_one_sample_of_dropped_labels_and_of_none_have_signatures() -> None:
    data = clients([0, 1] * 5, seed=10)
    to = told(data)
    x, y = data[0]
    one = rows_of([(x[:1], y[:1])], to)[0]
    assert np.isfinite(one).all()
    assert sorted(np.linalg.norm(half) for half in np.split(one, 2)) == pytest.approx([0, 1])
    none = type(to)(to.means, to.whiten, np.zeros(LABELS, bool))
    assert not sig.signature(x, y, none).any()
    assert not sig.statistics(x, y, none.kept).any()
    assert not sig.statistics(x[:0], y[:0], to.kept).any()


def test_a_constant_input_does_no_harm() -> None:
    data = [(np.hstack([x[:, :12], np.full((len(x), 1), 3.0), x[:, 13:]]), y) for x, y in clients([0, 1, 2] * 7)]
    assert found(rows_of(data)).number == 3


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda total: total[:-1], "finite numbers belong in it"),
        (lambda total: np.where(np.arange(len(total)) == 3, np.nan, total), "finite numbers belong in it"),
        (lambda total: np.where(np.arange(len(total)) < LABELS, -total, total), "what is no count"),
        (lambda total: 0 * total, "what is no count"),
        (lambda total: np.where(np.arange(len(total)) == LABELS, 1e5, total), "no statistics"),
        (lambda total: np.where(np.arange(len(total)) >= LABELS * (1 + sig.FEATURES), -total, total), "no statistics"),
    ],
)
def test_sums_of_no_data_are_refused(spoil: Any, message: str) -> None:
    data = clients([0, 1] * 4)
    kept = np.ones(LABELS, bool)
    total = np.sum([sig.statistics(x, y, kept) for x, y in data], axis=0)
    sig.reference(total, kept)
    with pytest.raises(UserError, match=message):
        sig.reference(spoil(total), kept)


@pytest.mark.parametrize(
    ("rows", "options"),
    [
        (np.zeros((3, 5)), {}),
        (np.zeros((0, 4)), {}),
        (np.full((3, 4), np.nan), {}),
        (np.zeros((3, 4)), {"groups": 0}),
        (np.zeros((3, 4)), {"groups": True}),
    ],
)
def test_what_are_no_signatures_is_refused(rows: np.ndarray, options: Any) -> None:
    with pytest.raises(UserError):
        found(rows, **options)


def test_a_vector_that_is_no_signature_is_told_apart_under_any_mask() -> None:
    """Whoever sends one moves the centre no further than honest clients do; far off, it is left out."""
    rows = rows_of(clients([0, 1] * 6, seed=11))
    rows[4] *= 40
    mask = np.random.default_rng(0).normal(0, 30, rows.shape[1])
    assert sig.plausible(rows + mask).tolist() == [i != 4 for i in range(12)]
    groups = found(rows[sig.plausible(rows)])
    assert sig.within_reach(rows[0], groups)
    assert not sig.within_reach(rows[4], groups)
