"""Partitions against their definitions: covers, closed forms of the Dirichlet distribution, exact expectations."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.data import label_counts
from coterie.data.partition import partition
from coterie.data.schemes import allot, even_sizes, log_gamma, proportional_sizes, rounded
from coterie.protocol.errors import UserError

DEALT_WHOLE = ("dirichlet:0.3", "dirichlet:0.001", "hsu:0.5", "shards:1", "shards:2", "iid")


def balanced(classes: int, each: int) -> np.ndarray:
    return np.repeat(np.arange(classes), each)


def split_counts(spec: str, y: np.ndarray, clients: int, seed: int, **kwargs: int) -> np.ndarray:
    split = partition(spec, y, y, clients, seed, **kwargs)
    return label_counts(split, y, int(y.max()) + 1)


# Every sample exactly once, nobody too poor, the same again


@given(
    spec=st.sampled_from(DEALT_WHOLE),
    y=st.lists(st.integers(0, 6), min_size=1, max_size=300).map(np.array),
    clients=st.integers(1, 40),
    seed=st.integers(0, 2**63 - 1),
)
def test_every_sample_has_one_client(spec: str, y: np.ndarray, clients: int, seed: int) -> None:
    per_client = 2 if spec == "shards:2" else 1
    if clients * per_client > len(y):
        with pytest.raises(UserError):
            partition(spec, y, y, clients, seed)
        return
    split = partition(spec, y, y, clients, seed)
    assert split.clients == clients
    np.testing.assert_array_equal(np.sort(np.concatenate(split.train)), np.arange(len(y)))
    assert split.sizes.min() >= (max(1, min(10, len(y) // (2 * clients))) if "dirichlet" in spec else 1)
    for indices in (*split.train, *split.test):
        assert indices.dtype == np.int64
        assert (np.diff(indices) > 0).all()  # ascending, none twice
    again = partition(spec, y, y, clients, seed)
    for one, other in zip((*split.train, *split.test), (*again.train, *again.test), strict=True):
        np.testing.assert_array_equal(one, other)


@given(
    beta=st.sampled_from(["1e-6", "0.01", "0.3", "5", "1e6"]),
    class_sizes=st.lists(st.integers(1, 60), min_size=1, max_size=8),
    clients=st.integers(1, 30),
    share=st.floats(0, 1),
    seed=st.integers(0, 10_000),
)
def test_dirichlet_keeps_any_possible_minimum(
    beta: str, class_sizes: list[int], clients: int, share: float, seed: int
) -> None:
    y = np.repeat(np.arange(len(class_sizes)), class_sizes)
    if clients > len(y):
        return
    floor = max(1, int(share * (len(y) // clients)))  # up to the whole: then all clients end with equal sizes
    counts = split_counts(f"dirichlet:{beta}", y, clients, seed, min_samples=floor)
    assert counts.sum(axis=1).min() >= floor
    np.testing.assert_array_equal(counts.sum(axis=0), class_sizes)


@pytest.mark.parametrize(
    "spec",
    [
        *DEALT_WHOLE,
        "labelsets:3",
        "labelsets:3:1-4",
        "labelsets:3,iid=0.4@7",
        "labels:2",
        "labels:1-3",
        "dirichlet:0.05",
    ],
)
def test_counts_do_not_depend_on_storage_order(spec: str) -> None:
    y = np.repeat(np.arange(6), [90, 40, 130, 70, 20, 150])
    shuffled = np.random.default_rng(1).permutation(y)
    np.testing.assert_array_equal(split_counts(spec, y, 12, 5), split_counts(spec, shuffled, 12, 5))
    one, other = partition(spec, shuffled, y, 12, 5), partition(spec, shuffled, y, 12, 6)
    assert any(not np.array_equal(a, b) for a, b in zip(one.train, other.train, strict=True)), "the seed must matter"


def test_label_numbers_do_not_matter() -> None:
    y = balanced(4, 50)
    gaps = np.array([0, 3, 4, 900])[y]
    for spec in ("dirichlet:0.3", "labelsets:2", "labelsets:2,iid=0.3", "hsu:1"):
        one, other = partition(spec, y, y, 7, 3), partition(spec, gaps, gaps, 7, 3)
        for a, b in zip((*one.train, *one.test), (*other.train, *other.test), strict=True):
            np.testing.assert_array_equal(a, b)


# The distributions


@pytest.mark.parametrize("floor", [1, 25])
def test_dirichlet_is_unbiased_whatever_the_minimum(floor: int) -> None:
    """E[count of class k at client i] = n_k / N for every i and k, also where most clients have to be filled up."""
    class_sizes, clients, draws = np.array([300, 60, 240]), 10, 250
    y = np.repeat(np.arange(3), class_sizes)
    counts = np.stack([split_counts("dirichlet:0.1", y, clients, s, min_samples=floor) for s in range(draws)])
    error = counts.mean(axis=0) - class_sizes / clients
    standard_error = counts.std(axis=0) / np.sqrt(draws)
    assert np.abs(error / standard_error).max() < 4.5  # 30 normal deviates
    assert counts.sum(axis=2).mean() == pytest.approx(y.size / clients)


def test_dirichlet_class_shares_follow_the_closed_form() -> None:
    """p_k ~ Dir_N(beta): E[sum_i p_ki^2] = (beta + 1) / (N beta + 1)."""
    for beta in (0.1, 0.8):
        counts = np.stack(
            [split_counts(f"dirichlet:{beta}", balanced(10, 2000), 20, s, min_samples=1) for s in range(40)]
        )
        concentration = ((counts / 2000) ** 2).sum(axis=1).ravel()  # 400 independent values
        expected = (beta + 1) / (20 * beta + 1)
        assert abs(concentration.mean() - expected) < 5 * concentration.std() / 20 + 1e-3


def test_filled_up_clients_stay_as_skewed_as_drawn() -> None:
    """With equal classes a client's label shares are q ~ Dir_K(beta), independent of its size (gamma variables): the
    chance that two of its samples agree is (beta + 1) / (K beta + 1), for those that were filled up too."""
    beta, classes, floor = 0.1, 10, 20
    y, agree = balanced(classes, 2000), []
    for seed in range(4):
        poor = split_counts(f"dirichlet:{beta}", y, 400, seed, min_samples=1).sum(axis=1) < 4
        counts = split_counts(f"dirichlet:{beta}", y, 400, seed, min_samples=floor)[poor]
        assert (counts.sum(axis=1) == floor).all()  # the same draw: those that were poor, filled up
        agree.extend((counts * (counts - 1)).sum(axis=1) / (floor * (floor - 1)))
    assert len(agree) > 100
    expected = (beta + 1) / (classes * beta + 1)  # .55; filling up at random would give about .1
    assert abs(np.mean(agree) - expected) < 5 * np.std(agree) / np.sqrt(len(agree))


def test_givers_lose_in_proportion() -> None:
    """Clients above the minimum keep their label shares when others are filled up."""
    y, before, after = balanced(5, 400), [], []
    for seed in range(30):
        free = split_counts("dirichlet:0.2", y, 20, seed, min_samples=1)
        filled = split_counts("dirichlet:0.2", y, 20, seed, min_samples=30)
        rich = free.sum(axis=1) > 120
        before.append((free[rich] / free[rich].sum(axis=1, keepdims=True)).max(axis=1))
        after.append((filled[rich] / filled[rich].sum(axis=1, keepdims=True)).max(axis=1))
    change = np.concatenate(after) - np.concatenate(before)
    assert abs(change.mean()) < 0.01
    assert np.abs(change).max() < 0.2


def test_hsu_has_equal_sizes_and_the_closed_form_skew() -> None:
    """q_i ~ Dir(alpha * prior): E[sum_k q_ik^2] = (alpha * sum prior^2 + 1) / (alpha + 1)."""
    class_sizes = np.array([4000, 8000, 12000, 16000])
    y = np.repeat(np.arange(4), class_sizes)
    for alpha in (0.5, 4.0):
        counts = split_counts(f"hsu:{alpha}", y, 400, 0)
        assert (counts.sum(axis=1) == 100).all()
        agree = (counts * (counts - 1)).sum(axis=1) / (100 * 99)
        expected = (alpha * ((class_sizes / y.size) ** 2).sum() + 1) / (alpha + 1)
        assert agree.mean() == pytest.approx(expected, abs=0.04)  # classes run out: a few per cent are redrawn
    mean = np.mean([split_counts("hsu:0.3", y[::100], 8, s)[0] for s in range(300)], axis=0)
    np.testing.assert_allclose(mean, class_sizes / 100 / 8, rtol=0.3)


def test_shards_are_whole_pieces_of_the_sorted_labels() -> None:
    """10 classes of 60 over 15 clients of 2 shards: shards of 20, exactly 3 a class."""
    counts = split_counts("shards:2", balanced(10, 60), 15, 4)
    assert (counts % 20 == 0).all()
    assert (counts.sum(axis=1) == 40).all()
    assert ((counts > 0).sum(axis=1) <= 2).all()
    pairs = [tuple(np.flatnonzero(split_counts("shards:2", balanced(10, 60), 15, s)[0])) for s in range(150)]
    same = np.mean([len(pair) == 1 for pair in pairs])  # the second shard is one of 2 like it among 29
    assert abs(same - 2 / 29) < 5 * np.sqrt(2 / 29 / 150)


def test_iid_counts_are_hypergeometric() -> None:
    """Mean n_k / N, variance that of drawing m of n without replacement."""
    y, clients = np.repeat(np.arange(2), [300, 100]), 8
    first = np.array([split_counts("iid", y, clients, s)[0, 0] for s in range(400)])
    m, n, p = 50, 400, 0.75
    variance = m * p * (1 - p) * (n - m) / (n - 1)
    assert abs(first.mean() - m * p) < 5 * np.sqrt(variance / 400)
    assert first.var() == pytest.approx(variance, rel=0.3)


def test_labels_per_client() -> None:
    y = balanced(10, 300)
    counts = split_counts("labels:3", y, 40, 2)
    assert ((counts > 0).sum(axis=1) == 3).all()
    np.testing.assert_array_equal((counts > 0).sum(axis=0), [12] * 10)
    assert counts.sum() == y.size
    assert (counts[counts > 0] == 25).all()
    widths = (split_counts("labels:1-3", y, 200, 2) > 0).sum(axis=1)
    np.testing.assert_array_equal(np.unique(widths), [1, 2, 3])
    few = partition("labels:2", y, y, 3, 0)  # three clients hold six labels: four labels stay unused
    assert sum(few.sizes) == 6 * 300
    assert len(np.unique(np.concatenate(few.train))) == 6 * 300


# Test samples


def test_test_samples_have_the_clients_shares() -> None:
    y, y_test = balanced(10, 500), np.random.default_rng(0).permutation(balanced(10, 300))
    split = partition("dirichlet:0.2", y, y_test, 30, 1, test_samples=100)
    train, test = label_counts(split, y, 10), label_counts(split, y_test, 10, part="test")
    shares = train / train.sum(axis=1, keepdims=True)
    assert (test.sum(axis=1) == 100).all()
    assert np.abs(test - 100 * shares).max() < 1  # the mean rounded up or down


def test_test_samples_are_unbiased() -> None:
    """Rounding does not starve rare labels, and every sample of a label is as likely as another."""
    y, y_test = np.repeat([0, 1, 2], [93, 5, 2]), np.repeat([0, 1, 2], 20)
    seen = np.zeros(60)
    for seed in range(600):
        seen[partition("iid", y, y_test, 1, seed, test_samples=10).test[0]] += 1
    expected = np.repeat([9.3, 0.5, 0.2], 20) / 20 * 600
    assert (np.abs(seen - expected) < 5 * np.sqrt(expected)).all()


def test_small_test_sets_give_fewer_samples_at_the_right_shares() -> None:
    y = np.concatenate([balanced(2, 50), np.full(100, 2)])  # shares 1/4, 1/4, 1/2
    y_test = np.repeat([0, 1, 2], [40, 10, 40])
    split = partition("iid", y, y_test, 1, 0, test_samples=60)
    np.testing.assert_array_equal(np.bincount(y_test[split.test[0]]), [10, 10, 20])
    assert len(np.unique(split.test[0])) == 40


def test_labels_missing_from_the_test_set() -> None:
    y = np.repeat([0, 1, 2], [60, 20, 20])
    split = partition("iid", y, np.repeat([0, 1, 5], 100), 1, 0, test_samples=40)
    np.testing.assert_array_equal(np.bincount(np.repeat([0, 1, 5], 100)[split.test[0]]), [30, 10])
    with pytest.raises(UserError, match=r"test set has no sample of any label that client"):
        partition("labelsets:3", y, np.array([0, 1]), 3, 0)


# The draws


@given(
    totals=st.lists(st.integers(0, 500), min_size=1, max_size=5),
    weights=st.lists(st.integers(0, 9), min_size=2, max_size=7).filter(any),
    seed=st.integers(0, 10**6),
)
def test_rounded_is_within_one_of_the_mean(totals: list[int], weights: list[int], seed: int) -> None:
    shares = np.tile(np.array(weights) / sum(weights), (len(totals), 1))
    whole = rounded(np.array(totals), shares, np.random.default_rng(seed))
    np.testing.assert_array_equal(whole.sum(axis=1), totals)
    assert np.abs(whole - np.array(totals)[:, None] * shares).max() < 1 + 1e-9
    assert (whole[shares == 0] == 0).all()


def test_rounded_means_are_exact() -> None:
    shares = np.array([0.001, 0.299, 0.65, 0.05])
    whole = rounded(np.full(40_000, 7), np.tile(shares, (40_000, 1)), np.random.default_rng(0))
    np.testing.assert_allclose(whole.mean(axis=0), 7 * shares, atol=0.012)


def test_allot_shares_a_scarce_kind_by_lot() -> None:
    rng = np.random.default_rng(0)
    log_q = np.log(np.array([[1.0, 1e-300, 1e-300], [1.0, 1e-300, 3e-300], [1e-300, 1e-300, 1.0]]))
    draws = np.stack([allot(np.array([10, 10, 5]), log_q, np.array([10, 30, 40]), rng) for _ in range(2000)])
    np.testing.assert_array_equal(draws.sum(axis=2), np.tile([10, 10, 5], (2000, 1)))
    np.testing.assert_array_equal(draws[:, :, 0].sum(axis=1), 10)  # all of the scarce kind is used, no more
    means = draws.mean(axis=0)
    np.testing.assert_allclose(means[:2, 0], 5, atol=0.2)  # neither row comes first
    np.testing.assert_allclose(means[1, 2] / means[1, 1], 3, rtol=0.1)  # losers redraw with their own weights
    np.testing.assert_allclose(means[0, 2] / means[0, 1], 1, rtol=0.1)
    np.testing.assert_allclose(means[2], [0, 0, 5])


def test_log_gamma_has_the_right_law_and_no_underflow() -> None:
    rng = np.random.default_rng(0)
    for shape in (0.2, 3.0):
        draws = np.exp(log_gamma(np.full(200_000, shape), rng))
        assert draws.mean() == pytest.approx(shape, rel=0.02)
        assert draws.var() == pytest.approx(shape, rel=0.05)
    assert np.isfinite(log_gamma(np.full(10_000, 1e-6), rng)).all()


@given(
    total=st.integers(1, 500), weights=st.lists(st.integers(1, 30), min_size=1, max_size=20), seed=st.integers(0, 99)
)
def test_sizes(total: int, weights: list[int], seed: int) -> None:
    even = even_sizes(total, len(weights), np.random.default_rng(seed))
    assert even.sum() == total
    assert np.ptp(even) <= 1
    if total >= len(weights):
        sizes = proportional_sizes(total, np.array(weights))
        assert sizes.sum() == total
        assert sizes.min() >= 1


def test_label_counts_against_a_loop() -> None:
    y, y_test = balanced(4, 60), balanced(4, 30)
    split = partition("dirichlet:0.5", y, y_test, 6, 0)
    for part, labels, lists in (("train", y, split.train), ("test", y_test, split.test)):
        counts = label_counts(split, labels, 5, part)
        assert counts.dtype == np.int64
        assert counts.shape == (6, 5)
        for i, indices in enumerate(lists):
            for k in range(5):
                assert counts[i, k] == sum(1 for j in indices if labels[j] == k)
    with pytest.raises(UserError, match="'train' or 'test'"):
        label_counts(split, y, 5, part="Test")


def test_sixty_thousand_samples_over_a_hundred_clients_is_quick() -> None:
    y, y_test = balanced(10, 6000), balanced(10, 1000)
    start = time.process_time()
    for spec in ("dirichlet:0.1", "hsu:1", "shards:2", "labelsets:5", "labelsets:5,iid=0.4", "labels:2", "iid"):
        partition(spec, y, y_test, 100, 0)
    assert time.process_time() - start < 3  # .1 s on a quiet core


# Mistakes


@pytest.mark.parametrize(
    "spec",
    [
        "dirichlet", "dirichlet:", "dirichlet:0", "dirichlet:-1", "dirichlet:nan", "dirichlet:inf", "dirichlet:0,3",
        "hsu:0", "hsu:x", "shards", "shards:0", "shards:-2", "shards:1.5", "labelsets", "labelsets:0", "labelsets:1-3",
        "labelsets:2,iid", "labelsets:2,iid=", "labelsets:2,iid=-0.1", "labelsets:2,iid=1.1", "labelsets:2,iid=nan",
        "labelsets:2,iid=0.2@", "labelsets:2,iid=0.2@-1", "labelsets:2,iid=0.2@1.5", "labelsets:2,iid=0.2,iid=0.3",
        "labelsets:2,rate=0.2", "labelsets:2@3", "labels:2,iid=0.2", "iid,iid=0.2",
        "labelsets:3:2", "labelsets:3:4-2", "labelsets:3:0-4", "labels:0", "labels:3-1", "labels:", "iid:1", "", "Iid",
        "uniform", "dirichlet:0.3:2", "shards:99999999999", None, 3,
    ],
)  # fmt: skip
def test_specs_that_name_nothing(spec: object) -> None:
    with pytest.raises(UserError, match="partition"):
        partition(spec, balanced(4, 50), balanced(4, 50), 5, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spec", "clients", "kwargs", "message"),
    [
        ("iid", 201, {}, "201 clients cannot share 200 training samples"),
        ("shards:50", 5, {}, "250 shards for 5 clients"),
        ("labelsets:5", 10, {}, "at least 5 labels and 5 clients; there are 4 labels"),
        ("labelsets:4", 3, {}, "at least 4 labels and 4 clients"),
        ("labelsets:2:3-4", 10, {}, "2 such sets cannot make up 4 labels"),
        ("labelsets:4,iid=0.2@7", 10, {}, "clients 7 to 9 must be at least 4.* FIRST can be 6 at most"),
        ("labels:5", 10, {}, "cannot hold 5 labels, there are only 4"),
        ("iid", 10, {"min_samples": 21}, "at most 20 for each of 10 clients"),
        ("labels:1-4", 10, {"min_samples": 19}, "leaves a client with"),
        ("labels:1", 150, {"min_samples": 1, "test_samples": 0}, "test_samples is 0"),
        ("iid", 0, {}, "clients is 0"),
        ("iid", True, {}, "clients is True"),
        ("iid", 2.5, {}, "clients is 2.5"),
        ("iid", 5, {"min_samples": 0}, "min_samples is 0"),
    ],
)
def test_partitions_that_cannot_be(spec: str, clients: int, kwargs: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        partition(spec, balanced(4, 50), balanced(4, 50), clients, 0, **kwargs)


@pytest.mark.parametrize(
    "y", [np.array([]), np.array([0.5, 1]), np.array([[0, 1]]), np.array([-1, 0]), np.array(["a"])]
)
def test_labels_that_are_none(y: np.ndarray) -> None:
    with pytest.raises(UserError, match="y_train is"):
        partition("iid", y, balanced(2, 5), 1, 0)
    with pytest.raises(UserError, match="y_test is"):
        partition("iid", balanced(2, 5), y, 1, 0)


def test_negative_seed() -> None:
    with pytest.raises(UserError, match="seed is -1"):
        partition("iid", balanced(2, 5), balanced(2, 5), 1, -1)
