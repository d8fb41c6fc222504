"""Partitions over groups whose tasks differ, against what they are defined to be: by hand, by a slow twin, by laws."""

from __future__ import annotations

import hashlib
from itertools import combinations
from itertools import permutations as orders_of
from math import cos, floor, pi, sin
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import coterie
from coterie.data import Dataset, Graph, Task, deal, from_arrays, label_counts, partition
from coterie.data.dataset import from_graph
from coterie.data.tasks import of_clients, permutations
from coterie.protocol.errors import UserError
from coterie.runs import inputs

SKEWS = ("iid", "dirichlet:0.3", "dirichlet:1e+3", "hsu:0.5", "shards:2", "labels:2", "labels:1-3")


def images(
    name: str = "toy", samples: int = 600, classes: int = 6, side: int = 4, seed: int = 0, channels: int = 1
) -> Dataset:
    """Random images; every class is there."""
    rng = np.random.default_rng(seed)
    shape = (samples + 60, side, side, channels)
    y = rng.permutation(np.arange(samples + 60) % classes)
    x = rng.integers(0, 256, shape).astype(np.uint8)
    return from_arrays(name, x[:samples], y[:samples], x[samples:], y[samples:], classes=classes)


DATA = images()
OTHERS = {"toy": DATA, "second": images("second", 300, seed=1), "third": images("third", 450, seed=2)}


def groups_of(spec: str, clients: int = 12, seed: int = 0) -> np.ndarray:
    groups = deal(spec, DATA, clients, seed, load=OTHERS.__getitem__)[0].groups
    assert groups is not None
    return groups


# What stays as it was


@pytest.mark.parametrize(
    ("spec", "digest"),
    [
        ("dirichlet:0.3", "cddd64150d477cb9"),
        ("dirichlet:1e+3", "584bfd8dff2b4752"),
        ("hsu:0.5", "99bef018ae391b50"),
        ("shards:2", "ed3b255a8a52b2d6"),
        ("labelsets:3", "613c4e721efa375d"),
        ("labelsets:3:1-4", "4b0e1f3471ce7bb2"),
        ("labelsets:3,iid=0.4@7", "6dbd2c32a08bf8aa"),
        ("labels:2", "b9d00637563e9701"),
        ("labels:1-3", "30278d8ad7eaedf7"),
        ("iid", "3de6a23e8f9d414e"),
    ],
)
def test_partitions_without_tasks_are_what_they_were(spec: str, digest: str) -> None:
    """Digests of the index lists that the version before tasks gave."""
    y = np.random.default_rng(5).permutation(np.repeat(np.arange(6), [90, 40, 130, 70, 20, 150]))
    y_test = np.repeat(np.arange(6), 30)
    x, x_test = np.zeros((len(y), 2)), np.zeros((len(y_test), 2))
    split, tasks = deal(spec, from_arrays("toy", x, y, x_test, y_test), 12, 5)
    hashed = hashlib.sha256()
    for indices in (*split.train, *split.test):
        hashed.update(indices.tobytes() + b"|")
    if split.groups is not None:
        hashed.update(split.groups.tobytes())
    assert hashed.hexdigest()[:16] == digest
    assert len(tasks) == 1
    np.testing.assert_array_equal(tasks[0].labels(), y)


# Who gets what


@given(
    task=st.sampled_from(["rotate", "permute", "swap"]),
    count=st.integers(1, 3),
    skew=st.sampled_from(["", *(f"+{skew}" for skew in SKEWS)]),
    clients=st.integers(3, 25),
    seed=st.integers(0, 2**63 - 1),
)
def test_the_skew_is_dealt_as_if_there_were_no_groups(
    task: str, count: int, skew: str, clients: int, seed: int
) -> None:
    """The same indices, so every sample at exactly one client and each client's own shares are those of the skew."""
    spec = f"{task}:{count}{skew}"
    split, tasks = deal(spec, DATA, clients, seed)
    plain = partition(skew[1:] or "iid", DATA.y_train, DATA.y_test, clients, seed)
    for one, other in zip((*split.train, *split.test), (*plain.train, *plain.test), strict=True):
        np.testing.assert_array_equal(one, other)
    assert (split.spec, split.seed, len(tasks)) == (spec, seed, count)
    groups = split.groups
    assert groups is not None
    assert groups.dtype == np.int64
    sizes = np.bincount(groups, minlength=count)
    assert (len(groups), len(sizes)) == (clients, count)
    assert np.ptp(sizes) <= 1
    again = deal(spec, DATA, clients, seed)
    np.testing.assert_array_equal(groups, again[0].groups)
    for one, other in zip(tasks, again[1], strict=True):
        np.testing.assert_array_equal(one.labels(), other.labels())


@given(
    skew=st.sampled_from(["", "+dirichlet:0.5", "+shards:1", "+hsu:1"]),
    clients=st.integers(3, 30),
    seed=st.integers(0, 2**63 - 1),
)
def test_domains_are_dealt_each_to_its_own_group(skew: str, clients: int, seed: int) -> None:
    split, tasks = deal(f"domains:toy,second,third{skew}", DATA, clients, seed, load=OTHERS.__getitem__)
    assert split.groups is not None
    assert [task.dataset.name for task in tasks] == ["toy", "second", "third"]
    assert np.ptp(np.bincount(split.groups, minlength=3)) <= 1
    for g, task in enumerate(tasks):
        members = np.flatnonzero(split.groups == g)
        held = np.sort(np.concatenate([split.train[i] for i in members]))
        np.testing.assert_array_equal(held, np.arange(len(task.dataset.y_train)))
    for task, train, test in zip(of_clients(split, tasks), split.train, split.test, strict=True):
        shares = np.bincount(task.labels(train), minlength=6) / len(train)
        got = np.bincount(task.labels(test, "test"), minlength=6)
        assert np.abs(got - len(test) * shares).max() <= 1 + 1e-9  # at the client's own proportions


def test_domains_draw_their_skews_apart() -> None:
    """Equal data sets in two groups of equal size: were their draws the same, so would their clients' label shares."""
    twins = {name: images(name) for name in ("toy", "twin")}
    split, _ = deal("domains:toy,twin+dirichlet:0.3", twins["toy"], 12, 3, load=twins.__getitem__)
    counts = label_counts(split, twins["toy"].y_train, 6)
    assert split.groups is not None
    first, second = (counts[split.groups == g] for g in (0, 1))
    np.testing.assert_array_equal(first.sum(axis=0), second.sum(axis=0))
    assert np.abs(first - second).max() > 20


def test_groups_are_drawn_by_lot() -> None:
    """Each client is in each of 3 groups equally often, and two clients in the same one with chance 3/11."""
    draws = np.stack([groups_of("permute:3", 12, seed) for seed in range(300)])
    for g in range(3):
        assert np.abs((draws == g).mean(axis=0) - 1 / 3).max() < 4.5 * np.sqrt(2 / 9 / 300)
    together = (draws[:, 0] == draws[:, 7]).mean()
    assert abs(together - 3 / 11) < 4.5 * np.sqrt(3 / 11 * 8 / 11 / 300)
    odd = np.stack([np.bincount(groups_of("permute:3", 13, seed)) for seed in range(200)])
    assert (odd.argmax(axis=1) == 0).mean() == pytest.approx(1 / 3, abs=0.12)  # who gets the odd client is by lot


# What the tasks make of the samples


def test_a_quarter_turn_by_hand() -> None:
    x = np.arange(1, 10, dtype=np.uint8).reshape(1, 3, 3)
    several = np.concatenate([x] * 4)
    data = from_arrays("nine", several, [0, 1, 0, 1], several, [0, 1, 0, 1])
    _, tasks = deal("rotate:4", data, 4, 0, 1)
    zero, unit = data.zero_and_unit
    by_hand = [
        [[1, 2, 3], [4, 5, 6], [7, 8, 9]],
        [[3, 6, 9], [2, 5, 8], [1, 4, 7]],
        [[9, 8, 7], [6, 5, 4], [3, 2, 1]],
        [[7, 4, 1], [8, 5, 2], [9, 6, 3]],
    ]
    for task, expected in zip(tasks, by_hand, strict=True):
        for part in ("train", "test"):
            got = task.inputs([0], part)  # type: ignore[arg-type]
            np.testing.assert_array_equal(got, ((np.array(expected, np.float32) - zero) / unit)[None])
            assert got.flags.c_contiguous
        np.testing.assert_array_equal(task.labels(), [0, 1, 0, 1])


def slowly_turned(image: np.ndarray, degrees: float) -> np.ndarray:
    """One channel (n, n) about its centre, counter-clockwise, a pixel at a time; zeros come in from outside."""
    n, angle = len(image), degrees * pi / 180
    middle, out = (n - 1) / 2, np.zeros_like(image, dtype=np.float64)
    for row in range(n):
        for column in range(n):
            up, right = middle - row, column - middle
            came_right, came_up = right * cos(angle) + up * sin(angle), up * cos(angle) - right * sin(angle)
            r, c = round(middle - came_up, 9), round(middle + came_right, 9)
            if not (0 <= r <= n - 1 and 0 <= c <= n - 1):
                continue
            r0, c0 = min(floor(r), n - 2), min(floor(c), n - 2)
            a, b = r - r0, c - c0
            for dr, dc, weight in ((0, 0, (1 - a) * (1 - b)), (0, 1, (1 - a) * b), (1, 0, a * (1 - b)), (1, 1, a * b)):
                out[row, column] += weight * image[r0 + dr, c0 + dc]
    return out


@pytest.mark.parametrize("groups", [3, 8])
def test_other_turns_equal_the_slow_twin(groups: int) -> None:
    data = images(samples=60, side=7, channels=3)
    _, tasks = deal(f"rotate:{groups}", data, 10, 0)
    zero, unit = data.zero_and_unit
    for g, task in enumerate(tasks):
        got = task.inputs([5, 2], "test")
        assert got.dtype == np.float32
        for i, sample in enumerate((5, 2)):
            stored = np.stack([slowly_turned(channel, 360 * g / groups) for channel in data.x_test[sample]])
            np.testing.assert_allclose(got[i], (stored - zero) / unit, atol=1e-4)


def test_half_of_rotate_8_is_rotate_4_to_the_bit() -> None:
    eight, four = (deal(f"rotate:{k}", DATA, 8, 0)[1] for k in (8, 4))
    for g in range(4):
        np.testing.assert_array_equal(eight[2 * g].inputs(), four[g].inputs())


def test_pairs_are_swapped_by_hand() -> None:
    data = images(classes=7)
    _, tasks = deal("swap:3", data, 6, 0)
    y = data.y_train
    for g, (a, b) in enumerate(((0, 1), (2, 3), (4, 5))):
        expected = [b if label == a else a if label == b else label for label in y]
        np.testing.assert_array_equal(tasks[g].labels(), expected)
        np.testing.assert_array_equal(tasks[g].inputs(), data.inputs())
        assert (tasks[g].labels() != y).any(), "no group keeps its labels"


def test_permuted_labels_and_their_counts() -> None:
    """A client has as many of names[k] as the same partition without groups gives it of k."""
    split, tasks = deal("permute:4+dirichlet:0.3", DATA, 12, 3)
    plain = label_counts(partition("dirichlet:0.3", DATA.y_train, DATA.y_test, 12, 3), DATA.y_train, 6)
    assert split.groups is not None
    assert tasks[0].names is None
    for i, (g, task) in enumerate(zip(split.groups, of_clients(split, tasks), strict=True)):
        assert task is tasks[g]
        names = np.arange(6) if task.names is None else task.names
        counts = np.bincount(task.labels(split.train[i]), minlength=6)
        np.testing.assert_array_equal(counts[names], plain[i])
        np.testing.assert_array_equal(
            task.labels(split.train[i]), [names[label] for label in DATA.y_train[split.train[i]]]
        )
    other = deal("permute:4+dirichlet:0.3", DATA, 12, 4)[1]
    assert any((a.labels() != b.labels()).any() for a, b in zip(tasks, other, strict=True)), "the seed must matter"


@given(classes=st.integers(2, 120), share=st.floats(0, 1), seed=st.integers(0, 10**6))
def test_up_to_as_many_groups_as_labels_no_label_means_the_same_twice(classes: int, share: float, seed: int) -> None:
    groups = 1 + round(share * (min(classes, 30) - 1))
    orders = permutations(classes, groups, np.random.default_rng(seed))
    assert len(orders) == groups
    np.testing.assert_array_equal(orders[0], np.arange(classes))
    for names in orders:
        np.testing.assert_array_equal(np.sort(names), np.arange(classes))
    for one, other in combinations(orders, 2):
        assert (one != other).all()


@pytest.mark.parametrize(("classes", "groups"), [(2, 2), (3, 6), (4, 24), (10, 40)])
def test_more_groups_than_labels_have_different_orders(classes: int, groups: int) -> None:
    orders = permutations(classes, groups, np.random.default_rng(1))
    assert len({tuple(names) for names in orders}) == groups
    for one, other in combinations(orders[:classes], 2):
        assert (one != other).all()


def test_the_second_order_can_be_any_derangement() -> None:
    """Of 4 labels: 6 cycles, by one or three steps around the circle, and 3 pairs of exchanges, by two steps."""
    seen = {tuple(permutations(4, 4, np.random.default_rng(seed))[1]) for seed in range(300)}
    assert seen == {p for p in orders_of(range(4)) if all(i != name for i, name in enumerate(p))}


def test_domains_are_normalised_by_themselves() -> None:
    _, tasks = deal("domains:toy,second", DATA, 4, 0, load=OTHERS.__getitem__)
    for task, data in zip(tasks, (DATA, OTHERS["second"]), strict=True):
        np.testing.assert_array_equal(task.inputs(split="test"), data.inputs(split="test"))
        assert abs(task.inputs().mean()) < 1e-4


def test_words() -> None:
    _, tasks = deal("rotate:3", DATA, 3, 0)
    assert [task.words for task in tasks] == ["toy", "toy, turned by 120 degrees", "toy, turned by 240 degrees"]
    assert deal("swap:1", DATA, 3, 0)[1][0].words == "toy, labels 0, 1, ... called 1, 0, 2, 3, 4, 5"
    assert Task(OTHERS["second"]).words == "second"


# Specs that cannot be


TABLE = from_arrays("table", np.zeros((40, 3)), np.arange(40) % 4, np.zeros((8, 3)), np.arange(8) % 4)
WIDE = from_arrays("wide", np.zeros((40, 4, 6)), np.arange(40) % 4, np.zeros((8, 4, 6)), np.arange(8) % 4)


@pytest.mark.parametrize(
    ("spec", "data", "says"),
    [
        ("rotat:4", DATA, "no 'rotat'; did you mean 'rotate'"),
        ("shard:4", DATA, "did you mean 'shards'"),
        ("", DATA, "there is no ''"),
        ("+", DATA, "there is no ''"),
        (4, DATA, "must be a text"),
        ("rotate", DATA, "rotate:K takes a number of groups"),
        ("rotate:0", DATA, "rotate:K takes a number of groups"),
        ("rotate:-2", DATA, "rotate:K takes a number of groups"),
        ("rotate:2.5", DATA, "rotate:K takes a number of groups"),
        ("rotate:٤", DATA, "rotate:K takes a number of groups"),
        ("rotate:999999999", DATA, "makes 999,999,999 groups, but there are only 12 clients"),
        ("permute:99999999999", DATA, "permute:K takes a number of groups"),
        ("permute:13", DATA, "makes 13 groups, but there are only 12 clients"),
        ("rotate:4+", DATA, "a label skew must follow the +"),
        ("rotate:4+permute:2", DATA, "a group has one task"),
        ("rotate:4+labelsets:2", DATA, r"rotate:4\+labels:2"),
        ("dirichlet:0.3+rotate:4", DATA, r"the task comes before the label skew: rotate:4\+dirichlet:0.3"),
        ("rotate:4+dirichlet", DATA, "must be a number"),
        ("rotate:4+nothing:3", DATA, "'nothing:3' is none of"),
        ("iid+", DATA, "is none of"),
        ("rotate:4", TABLE, r"turns square images, and a sample of table is a row of a table \(3,\): permute:4"),
        ("rotate:4", WIDE, "turns square images"),
        ("swap:4", DATA, "6 labels make 3 pairs, one a group: use at most swap:3, or permute:4"),
        ("permute:3", images(classes=2), "2 labels have only 2 orders"),
        ("domains:", DATA, "takes different data sets"),
        ("domains:toy,toy", DATA, "takes different data sets"),
        ("domains:toy,,second", DATA, "takes different data sets"),
        ("domains:second,toy", DATA, "but the data set is toy: say --data second"),
        ("domains:toy,wide", DATA, r"input shape is \(1, 4, 4\) in toy and \(1, 4, 6\) in wide"),
        ("domains:toy,more", DATA, "classes is 6 in toy and 7 in more"),
        ("domains:a,b,c,d,e,f,g,h,i,j,k,l,m", DATA, "makes 13 groups"),
    ],
)
def test_what_cannot_be_is_refused_with_advice(spec: str, data: Dataset, says: str) -> None:
    others = {**OTHERS, "wide": WIDE, "more": images("more", classes=7)}
    with pytest.raises(UserError, match=says):
        deal(spec, data, 12, 0, load=others.__getitem__)


def test_a_graph_is_not_turned_but_its_labels_are_permuted() -> None:
    nodes = np.arange(30)
    x = np.eye(30, dtype=np.float32)
    graph = Graph(x, np.array([[0, 1], [1, 2]]), nodes % 3, nodes[:20], nodes[:0], nodes[20:])
    data = from_graph("words", graph, classes=3, source="here")
    with pytest.raises(UserError, match=r"a node of a graph \(30,\): permute:2 goes with any data"):
        deal("rotate:2", data, 4, 0)
    _, tasks = deal("permute:2", data, 4, 0)
    assert (tasks[1].labels(split="test") != data.y_test).all()
    np.testing.assert_array_equal(tasks[1].inputs(), data.inputs())


def test_arguments_that_are_none() -> None:
    with pytest.raises(UserError, match="say with load="):
        deal("domains:toy,second", DATA, 4, 0)
    for clients, seed in ((0, 0), (True, 0), (2.5, 0), (4, -1)):
        with pytest.raises(UserError, match="must be a whole number"):
            deal("permute:1", DATA, clients, seed)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"use coterie\.data\.deal"):
        partition("permute:2", DATA.y_train, DATA.y_test, 4, 0)


# Groups with data sets of their own in a race: every method takes them, Coterie too


def striped(name: str, seed: int) -> Dataset:
    """Four classes of noisy stripes, which lie elsewhere in each data set."""
    draw = np.random.default_rng(seed)
    y = np.arange(240) % 4
    x = draw.integers(0, 80, (240, 8, 8))
    for i, label in enumerate(y):
        x[i, (2 * label + seed) % 8] += 150
    return from_arrays(name, x[:160], y[:160], x[160:], y[160:], classes=4, kind="image")


@pytest.mark.parametrize(
    "methods",
    [["coterie", "fedavg"], pytest.param(["ifca", "scaffold", "fedcaprivacy@hardened"], marks=pytest.mark.long)],
)
def test_a_race_on_domains(methods: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"one": striped("one", 0), "two": striped("two", 3)}
    monkeypatch.setattr(inputs, "load", lambda name, *_, **__: known[name])
    options = {"clients": 12, "rounds": 2, "model": "linear", "crypto": "emulated", "lr": 0.1, "progress": False}
    done = coterie.compare(
        methods, "one", partition="domains:one,two+dirichlet:1", seeds=1, out=tmp_path / "c", **options
    )
    content = done.content
    assert [row["method"] for row in content["rows"]] == [*methods, "local"]
    for row in content["rows"]:
        assert row["local_accuracy"]["mean"] > 0.3
        assert row["prior_local_accuracy"]["mean"] > 0.3
    (groups,) = {
        (done.folder / row["runs"][0] / "partition.json").read_text().partition('"groups": ')[2].partition("]")[0]
        for row in content["rows"]
    }
    assert sorted(groups.strip("[").split(", ")) == ["0"] * 6 + ["1"] * 6
