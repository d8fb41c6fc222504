"""Label sets of MingledPie's evaluation: who holds which labels, IID rates against mixtures, the paper's settings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.data import Split, label_counts
from coterie.data.partition import partition


def balanced(classes: int, each: int) -> np.ndarray:
    return np.repeat(np.arange(classes), each)


def in_own_set(split: Split, y: np.ndarray) -> np.ndarray:
    """(clients,) how many of a client's samples have a label of its set."""
    return np.array(
        [
            sum(label in split.group_labels[group] for label in y[indices].tolist())
            for group, indices in zip(split.groups, split.train, strict=True)
        ]
    )


def test_homogeneous_label_sets() -> None:
    """MingledPie's default: 10 labels in 5 sets of 2, 24 of 120 clients to each, equal data within a set."""
    y = balanced(10, 600)
    split = partition("labelsets:5", y, y, 120, 9)
    counts = label_counts(split, y, 10)
    assert counts.sum() == y.size
    assert (counts.sum(axis=1) == 50).all()
    np.testing.assert_array_equal(np.bincount(split.groups), [24] * 5)
    owned = [set(np.flatnonzero(counts[split.groups == g].sum(axis=0))) for g in range(5)]
    assert all(len(labels) == 2 for labels in owned)
    assert set.union(*owned) == set(range(10))
    for i, g in enumerate(split.groups):  # a client's own labels, both of them
        assert set(np.flatnonzero(counts[i])) == owned[g]


@given(seed=st.integers(0, 500), bounds=st.sampled_from([(5, 1, 3), (5, 2, 2), (8, 1, 2), (3, 1, 8), (1, 10, 10)]))
def test_heterogeneous_label_sets(seed: int, bounds: tuple[int, int, int]) -> None:
    sets, lo, hi = bounds
    y = balanced(10, 120)
    split = partition(f"labelsets:{sets}:{lo}-{hi}", y, y, 40, seed)
    counts = label_counts(split, y, 10)
    assert counts.sum() == y.size
    widths = np.array([(counts[split.groups == g].sum(axis=0) > 0).sum() for g in range(sets)])
    assert widths.min() >= lo
    assert widths.max() <= hi
    assert widths.sum() == 10
    members = np.bincount(split.groups, minlength=sets)
    assert np.abs(members - 40 * widths / 10).max() <= 1  # in proportion to the number of labels


@given(
    class_sizes=st.lists(st.integers(20, 60), min_size=4, max_size=9),
    sets=st.integers(1, 4),
    clients=st.integers(8, 20),
    late=st.integers(4, 20),
    rate=st.sampled_from([0.0, 0.2, 0.35, 0.6, 1.0]),
    span=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_an_iid_rate_moves_that_share_and_nothing_else(
    class_sizes: list[int], sets: int, clients: int, late: int, rate: float, span: bool, seed: int
) -> None:
    labels = 3 * np.arange(len(class_sizes)) + 1  # with gaps
    y = np.random.default_rng(seed).permutation(np.repeat(labels, class_sizes))
    first, form = max(clients - late, 0), f"labelsets:{sets}" + f":1-{len(labels)}" * span
    spec = f"{form},iid={rate}@{first}"
    split, pure = partition(spec, y, y, clients, seed), partition(f"{form},iid=0@{first}", y, y, clients, seed)
    np.testing.assert_array_equal(np.sort(np.concatenate(split.train)), np.arange(len(y)))  # each sample once
    np.testing.assert_array_equal(split.sizes, pure.sizes)
    np.testing.assert_array_equal(split.groups, pure.groups)
    np.testing.assert_array_equal(np.sort(np.concatenate(split.group_labels)), labels)
    assert all((np.diff(own) > 0).all() for own in split.group_labels)
    np.testing.assert_array_equal(in_own_set(pure, y), pure.sizes)
    away = split.sizes - in_own_set(split, y)
    assert (away[:first] == 0).all()
    assert (away <= np.floor(rate * split.sizes) + 1).all()
    again = partition(spec, y, y, clients, seed)
    for one, other in zip((*split.train, *split.test), (*again.train, *again.test), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("spec", "first"), [("labelsets:5,iid=0.4", 0), ("labelsets:5,iid=0.4@30", 30)])
def test_an_iid_rate_is_the_weight_of_a_mixture(spec: str, first: int) -> None:
    """E[count of label k] = n (1 - rate) / 2 for the two own labels + n rate / 10 for all ten, for every client."""
    y, rate, draws = balanced(10, 200), 0.4, 40
    own, foreign = np.zeros(40), np.zeros(40)  # mean counts of one own and of one foreign label
    for seed in range(draws):
        split = partition(spec, y, y, 40, seed)
        held = in_own_set(split, y)
        own, foreign = own + held / 2 / draws, foreign + (split.sizes - held) / 8 / draws
    np.testing.assert_allclose(own[first:], 50 * (0.6 / 2 + rate / 10), rtol=0.05)  # 17 of 50
    np.testing.assert_allclose(foreign[first:], 50 * rate / 10, rtol=0.17)  # 2 of 50
    np.testing.assert_allclose(own[:first], 25, rtol=1e-9)


def test_shares_that_are_no_whole_number_are_met_on_average() -> None:
    """.3 of 5 samples, of which 4 in 5 are foreign: 1.2 each."""
    y = balanced(10, 12)
    splits = [partition("labelsets:5,iid=0.3", y, y, 24, seed) for seed in range(60)]
    away = np.mean([(split.sizes - in_own_set(split, y)).mean() for split in splits])
    assert away == pytest.approx(0.3 * 5 * 0.8, rel=0.05)


def test_foreign_labels_of_uneven_sets_come_in_their_proportions() -> None:
    """What a client draws from all labels has the label shares of the whole, whatever the sets and class sizes."""
    class_sizes = np.array([400, 100, 300, 200, 500, 100])
    y = balanced(6, 1).repeat(class_sizes)
    drawn = np.zeros(6)
    for seed in range(40):
        split = partition("labelsets:3:1-3,iid=1", y, y, 40, seed)  # rate 1: everything is drawn from all labels
        drawn += label_counts(split, y, 6)[0]
    np.testing.assert_allclose(drawn / drawn.sum(), class_sizes / y.size, atol=5 * 0.5 / np.sqrt(drawn.sum()))


def test_a_rate_of_0_is_the_plain_form() -> None:
    y, y_test = balanced(10, 60), balanced(10, 30)
    one, other = partition("labelsets:5:1-3", y, y_test, 20, 3), partition("labelsets:5:1-3,iid=0", y, y_test, 20, 3)
    for a, b in zip((*one.train, *one.test), (*other.train, *other.test), strict=True):
        np.testing.assert_array_equal(a, b)


def test_test_samples_mix_as_the_training_samples_do() -> None:
    y, y_test = balanced(10, 600), balanced(10, 1000)
    split = partition("labelsets:5,iid=0.4", y, y_test, 12, 0, test_samples=250)
    train, test = label_counts(split, y, 10), label_counts(split, y_test, 10, part="test")
    assert (test.sum(axis=1) == 250).all()
    assert np.abs(test - 250 * train / train.sum(axis=1, keepdims=True)).max() < 1
    own = np.array([test[i, split.group_labels[g]].sum() for i, g in enumerate(split.groups)])
    assert np.abs(own / 250 - (0.6 + 0.4 / 5)).max() < 0.05


@given(
    sets=st.integers(1, 6),
    first=st.integers(0, 60),
    late=st.integers(6, 60),
    span=st.booleans(),
    seed=st.integers(0, 99),
)
def test_newcomers_are_spread_over_the_sets_as_all_are(sets: int, first: int, late: int, span: bool, seed: int) -> None:
    y = balanced(12, 30)
    spec, clients = f"labelsets:{sets}" + ":1-12" * span, first + late
    split = partition(f"{spec},iid=0.5@{first}", y, y, clients, seed)
    widths = np.array([len(own) for own in split.group_labels])
    weights = widths / 12 if span else np.full(sets, 1 / sets)
    for groups in (split.groups, split.groups[:first], split.groups[first:]):
        members = np.bincount(groups, minlength=sets)
        if min(len(groups), late) * weights.min() >= 1:  # else at least one of each set comes first, of newcomers, too
            assert np.abs(members - len(groups) * weights).max() < 2 + 1e-9
    assert np.bincount(split.groups[first:], minlength=sets).min() >= 1


@pytest.mark.parametrize("clients", [60, 120, 240])
@pytest.mark.parametrize("sets", range(5, 11))
def test_sets_that_divide_nothing_are_as_even_as_possible(sets: int, clients: int) -> None:
    """Ten labels of unequal size, as MNIST's: k from 5 to 10, N from 60 to 240."""
    class_sizes = np.array([592, 674, 596, 613, 584, 542, 592, 627, 585, 595])
    y = np.arange(10).repeat(class_sizes)
    split = partition(f"labelsets:{sets}", y, y, clients, 1)
    widths = [len(own) for own in split.group_labels]
    members = np.bincount(split.groups, minlength=sets)
    assert sorted(np.concatenate(split.group_labels)) == list(range(10))
    assert np.ptp(widths) <= 1
    assert np.ptp(members) <= 1
    for group, own in enumerate(split.group_labels):
        assert np.ptp(split.sizes[split.groups == group]) <= 1
        assert split.sizes[split.groups == group].sum() == class_sizes[own].sum()


@pytest.mark.parametrize(
    ("spec", "classes", "clients"),
    [
        ("labelsets:5:1-3", 10, 60),
        ("labelsets:8:1-3", 10, 120),
        ("labelsets:10:5-20", 100, 240),
    ],
)
def test_heterogeneous_clusters_of_the_paper(spec: str, classes: int, clients: int) -> None:
    lo, hi = map(int, spec.split(":")[2].split("-"))
    y, seen = balanced(classes, 50), set()
    for seed in range(20):
        split = partition(spec, y, y, clients, seed)
        widths = np.array([len(own) for own in split.group_labels])
        assert widths.min() >= lo
        assert widths.max() <= hi
        assert np.abs(np.bincount(split.groups) - clients * widths / classes).max() < 1
        assert split.sizes.max() <= 1.5 * split.sizes.min()  # so a client has about as much as any other
        seen.add(tuple(widths))
    assert len(seen) > 5  # the widths are drawn
