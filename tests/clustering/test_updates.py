"""Devices that join, leave, drift and lie: updates against clustering from scratch, numbers, events, bad input."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from matrix import few

from benchmarks import clustering as study
from benchmarks.clustering import agreement, names
from coterie.clustering import divergence
from coterie.clustering.isomorphic import Aidc, Groups, cluster, update
from coterie.clustering.labels import lasting_numbers
from coterie.protocol import state
from coterie.protocol.errors import UserError

SHARES = st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1))
MODES = (
    Aidc(),
    Aidc(diagonal=False),
    Aidc(literal=True),
    Aidc(reference=True),
    Aidc(0.0, 0.3, 0.1, force_thresholds=True),
)


def sets(groups: Groups) -> set[frozenset[str]]:
    return {frozenset(own) for own in groups.members().values()}


def planted(sizes: tuple[int, ...], seed: int = 0, channels: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """Groups that are far apart: D is about 0 within, and 1 between them."""
    draw = np.random.default_rng(seed)
    centres = draw.uniform(0.1, 0.9, (len(sizes), channels))
    s = np.clip(np.repeat(centres, sizes, axis=0) + draw.normal(0, 0.002, (sum(sizes), channels)), 0, 1)
    return s, np.full(len(s), 1e-4)


# -- updates -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["5 uneven", pytest.param("dirichlet 0.1", marks=pytest.mark.long)])
def test_updates_agree_with_clustering_from_scratch(kind: str) -> None:
    """The promise is an ARI of .98; up to 300 devices it is 1, because nothing is approximated. The study has more."""
    found = study.updated(kind, 0)
    assert found["lowest"] == 1
    assert found["computed"] < 0.25


@given(data=st.data(), settings_=st.sampled_from(MODES))
def test_any_sequence_of_updates_gives_what_its_devices_give(data: st.DataObject, settings_: Aidc) -> None:
    """Vectors with ties, duplicates and zeros, in all modes: the same sets, scale and divergences, bit for bit.

    The reference device is drawn anew from scratch, so that mode is compared only where both drew the same.
    """
    channels = data.draw(st.integers(1, 4))
    vector = arrays(np.float64, channels, elements=SHARES)
    device = st.tuples(vector, st.sampled_from([0.0, 0.01, 0.5]))
    start = data.draw(st.dictionaries(st.sampled_from("abcdefgh"), device, min_size=1))
    groups, _ = cluster(list(start), [s for s, _ in start.values()], [h for _, h in start.values()], settings_)
    devices = dict(start)
    for _ in range(3):
        changed = data.draw(st.dictionaries(st.sampled_from("abcdefghij"), device, max_size=3))
        left = data.draw(st.sets(st.sampled_from(sorted(set(devices) - set(changed)) or ["none"]), max_size=2))
        left &= devices.keys()
        if not ((devices.keys() | changed.keys()) - left):
            continue
        groups, _ = update(groups, changed, sorted(left), settings_)
        devices = {name: own for name, own in (devices | changed).items() if name not in left}
        assert groups.names == tuple(devices)
        again, _ = cluster(groups.names, groups.features, groups.floors, settings_)
        if groups.reference == again.reference:
            assert sets(groups) == sets(again)
            assert groups.scale == again.scale
            assert groups.mjs is not None
            np.testing.assert_array_equal(groups.mjs, again.mjs)


def test_only_what_is_touched_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    s, h = planted((8, 8, 8))
    groups, _ = cluster(names(24), s, h)
    asked: list[tuple[int, int]] = []

    def watched(some: np.ndarray, others: np.ndarray, gamma: float) -> np.ndarray:
        asked.append((len(some), len(others)))
        return computed(some, others, gamma)

    computed = divergence.divergence_to
    monkeypatch.setattr(divergence, "divergence_to", watched)
    monkeypatch.setattr(divergence, "modified_divergence", lambda *_, **__: pytest.fail("all were computed again"))
    groups, _ = update(groups, {"device/3": (s[20], h[20]), "new": (s[9], h[9])}, ["device/1", "device/2"])
    assert asked == [(2, 23)]
    update(groups, {"device/3": (s[20], 0.5 * h[20])}, ["new"])  # another floor alone, and one that leaves
    assert asked == [(2, 23)]


def test_many_devices_are_updated_within_rounding() -> None:
    """Above 300 devices the divergences come from matrix products, and those of changed devices do not."""
    s, h = planted((150, 120, 60), channels=40)
    groups, _ = cluster(names(330), s, h)
    groups, _ = update(groups, {f"device/{i}": (s[i + 200], h[i]) for i in range(20)}, names(10, 320))
    again, _ = cluster(groups.names, groups.features, groups.floors)
    assert sets(groups) == sets(again)
    np.testing.assert_allclose(groups.mjs, again.mjs, rtol=2e-4, atol=1e-5)
    assert groups.scale == pytest.approx(again.scale, rel=1e-4)


def test_dropped_divergences_and_another_gamma_are_computed_again() -> None:
    s, h = planted((4, 4))
    groups, _ = cluster(names(8), s, h)
    groups.mjs = None
    assert update(groups, {})[0].mjs is not None
    changed, _ = update(groups, {}, settings=Aidc(gamma=3.0))
    np.testing.assert_array_equal(changed.mjs, cluster(names(8), s, h, Aidc(gamma=3.0))[0].mjs)
    assert update(changed, {}, settings=Aidc(gamma=3.0))[0].scale == changed.scale


def test_groups_stay_as_they_were_and_are_a_party_s_state() -> None:
    s, h = planted((3, 3))
    groups, _ = cluster(names(6), s, h)
    before = state.dump({"server": groups})
    (kept,) = state.load(before, {"server": Groups}).values()
    assert state.dump({"server": kept}) == before
    for array in (kept.features, kept.floors, kept.labels, kept.mjs):
        array.setflags(write=False)
    made, _ = update(kept, {"new": (s[0], h[0])}, ["device/5"])
    assert state.dump({"server": kept}) == before
    assert state.load(state.dump({"server": made}), {"server": Groups})["server"].names == made.names
    assert isinstance(made, msgspec.Struct)


# -- numbers and events ------------------------------------------------------------------------------------------------


def test_numbers_start_with_the_largest_cluster_and_last() -> None:
    s, h = planted((3, 5, 4))
    groups, events = cluster(names(12), s, h)
    assert groups.labels.tolist() == [2] * 3 + [0] * 5 + [1] * 4
    assert events == ()
    # four more make the smallest the largest; it keeps its number
    groups, events = update(groups, {f"new/{i}": (s[i % 3], h[0]) for i in range(4)})
    assert groups.labels.tolist() == [2] * 3 + [0] * 5 + [1] * 4 + [2] * 4
    assert {(event.kind, event.clusters) for event in events} == {("joined", (2,))}
    # the cluster 0 leaves, and another kind comes: its number is not given again
    other = 1 - s[0]
    groups, events = update(groups, {"x": (other, h[0]), "y": (other, h[0])}, names(5, 3))
    assert groups.members()[3] == ("x", "y")
    assert 0 not in groups.members()
    assert [(e.kind, e.clusters, e.names) for e in events if e.kind == "left"] == [
        ("left", (0,), (f"device/{i}",)) for i in range(3, 8)
    ]
    assert groups.following == 4


def test_a_device_that_drifts_moves_and_is_told() -> None:
    s, h = planted((6, 4))
    groups, _ = cluster(names(10), s, h)
    groups, events = update(groups, {"device/9": (s[0], h[0])})
    assert groups.labels.tolist() == [0] * 6 + [1] * 3 + [0]
    (event,) = events
    assert (event.kind, event.clusters, event.names) == ("moved", (1, 0), ("device/9",))
    assert 0 <= event.value < 0.05


def test_a_merge_and_a_split_are_told() -> None:
    s, h = planted((6, 5, 4))
    groups, _ = cluster(names(15), s, h)
    together, events = update(groups, {f"device/{i}": (s[i - 6], h[0]) for i in range(6, 11)})
    assert [(e.kind, e.clusters, set(e.names)) for e in events] == [("merge", (0, 1), set(names(5, 6)))]
    assert events[0].value < 0.15
    assert together.labels.tolist() == [0] * 11 + [2] * 4
    apart, events = update(together, {f"device/{i}": (s[i], h[0]) for i in range(6, 11)})
    assert [(e.kind, e.clusters, set(e.names)) for e in events] == [("split", (0, 3), set(names(5, 6)))]
    assert events[0].value > 0.18
    assert apart.labels.tolist() == [0] * 6 + [3] * 5 + [2] * 4


@pytest.mark.parametrize("singles_to", [0, 12])
def test_what_happens_on_the_way_is_told(singles_to: int) -> None:
    """A device with a loud floor is placed, and one far from all is alone, unless each one began alone."""
    s, h = planted((6, 6))
    s[11], h[5] = 1 - s[11], 1e-3
    groups, events = cluster(names(12), s, h, Aidc(singles_to=singles_to))
    assert groups.labels.tolist() == [0] * 6 + [1] * 5 + [2]
    told = {event.names: event for event in events}
    assert told[("device/5",)].kind == "placed"
    assert told[("device/5",)].clusters == (0,)
    assert told[("device/5",)].value < 0.05
    if singles_to:
        assert len(events) == 1, "and nothing of the merging from single devices"
        return
    assert told[("device/11",)].kind == "alone"
    assert told[("device/11",)].clusters == (2,)
    assert told[("device/11",)].value > 0.18


def test_lasting_numbers_by_hand() -> None:
    """The largest overlap first; a second part of an old cluster, and one of new devices, get new numbers."""
    before = np.array([4, 4, 4, 4, 7, 7, -1])
    found, following = lasting_numbers(before, np.array([0, 1, 1, 1, 1, 2, 3]), 9)
    assert found.tolist() == [9, 4, 4, 4, 4, 7, 10]
    assert following == 11


@given(data=st.data(), seed=st.integers(0, 2**32), settings_=st.sampled_from(MODES))
def test_the_order_of_devices_does_not_matter(data: st.DataObject, seed: int, settings_: Aidc) -> None:
    """Nor do their names: the same vectors and floors give the same numbers, ties and duplicates included."""
    s = data.draw(arrays(np.float64, (data.draw(st.integers(1, 9)), 2), elements=SHARES))
    h = data.draw(arrays(np.float64, len(s), elements=st.sampled_from([0.0, 0.01, 0.3])))
    order = np.random.default_rng(seed).permutation(len(s))
    one, _ = cluster(names(len(s)), s, h, settings_)
    two, _ = cluster(names(len(s), 50), s[order], h[order], settings_)
    rows = np.column_stack([s, h])
    if len(np.unique(rows, axis=0)) == len(s):
        np.testing.assert_array_equal(two.labels, one.labels[order])
    else:
        assert sorted(np.bincount(one.labels)) == sorted(np.bincount(two.labels))
    assert one.scale == two.scale
    assert set(one.labels.tolist()) == set(range(len(set(one.labels.tolist()))))


# -- odd and bad input -------------------------------------------------------------------------------------------------


def test_few_equal_and_different_devices() -> None:
    one = cluster(["a"], [[0.2, 0.4]], [0.1])[0]
    assert (one.labels.tolist(), one.members()) == ([0], {0: ("a",)})
    alike = np.full((9, 4), 0.3)
    assert cluster(names(9), alike, np.zeros(9))[0].labels.tolist() == [0] * 9
    assert cluster(names(9), np.zeros((9, 4)), np.full(9, 0.1))[0].labels.tolist() == [0] * 9
    assert cluster(names(2), [[0.1, 0.9], [0.9, 0.1]], [0.001, 0.001])[0].labels.tolist() in ([0, 1], [1, 0])
    assert cluster(names(2), [[0.1, 0.9], [0.101, 0.9]], [0.01, 0.01])[0].labels.tolist() == [0, 0]
    different = np.eye(12)
    assert len(set(cluster(names(12), different, np.zeros(12))[0].labels.tolist())) == 12


def test_duplicates_stay_together_and_dead_channels_change_nothing() -> None:
    s, h = planted((4, 4, 4))
    twice, _ = cluster(names(24), np.vstack([s, s]), np.tile(h, 2))
    assert (twice.labels[:12] == twice.labels[12:]).all()
    dead, _ = cluster(names(12), np.hstack([s, np.zeros((12, 5))]), h)
    np.testing.assert_array_equal(dead.labels, cluster(names(12), s, h)[0].labels)
    constant, _ = cluster(names(12), np.hstack([s, np.ones((12, 5))]), h)
    assert sets(constant) == sets(dead)


@pytest.mark.parametrize(
    ("given_names", "s", "h", "words"),
    [
        (["a", "b"], [[0.1], [math.nan]], [0, 0], "row 1 in channel 0 is nan"),
        (["a", "b"], [[0.1], [1.1]], [0, 0], "row 1 in channel 0 is 1.1"),
        (["a", "b"], [[0.1], [0.1, 0.2]], [0, 0], "and all rows of one length"),
        (["a", "b"], [[0.1], [0.2]], [0, -1], "row 1 is -1"),
        (["a", "b"], [[0.1], [0.2]], [0, math.nan], "row 1 is nan"),
        (["a", "b"], [[0.1], [0.2]], [0], "one a device"),
        (["a"], [[0.1], [0.2]], [0, 0], "1 names of devices, but 2 sparsity vectors"),
        (["a", "a"], [[0.1], [0.2]], [0, 0], "two devices are called 'a'"),
        (["a", ""], [[0.1], [0.2]], [0, 0], "none empty"),
        (["a", 1], [[0.1], [0.2]], [0, 0], "texts"),
        ("ab", [[0.1], [0.2]], [0, 0], "texts"),
        ([], np.zeros((0, 3)), [], "(devices, channels)"),
    ],
)
def test_what_cannot_be_clustered_is_refused(given_names: Any, s: Any, h: Any, words: str) -> None:
    with pytest.raises(UserError) as error:
        cluster(given_names, s, h)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("changed", "left", "words"),
    [
        ({"a": ([0.1, math.nan], 0)}, (), "device 'a': the sparsity of row 0 in channel 1 is nan"),
        ({"new": ([0.1, 2], 0)}, (), "device 'new': the sparsity"),
        ({"new": ([0.1, 0.2, 0.3], 0)}, (), "device 'new': 3 channels, where the others have 2"),
        ({"new": ([0.1, 0.2], -1)}, (), "device 'new': the noise floor"),
        ({"new": (["x", "y"], 0)}, (), "device 'new': a sparsity vector must be of real"),
        (
            {"new": ([[0.1, 0.2], [0.3, 0.4]], 0)},
            (),
            "device 'new': a sparsity vector must have shape (channels,), not (2, 2)",
        ),
        ({"new": (0.5, 0)}, (), "device 'new': a sparsity vector must have shape (channels,), not ()"),
        ({"new": ([0.1, 0.2], None)}, (), "device 'new': noise floors must be of real"),
        ({"": ([0.1, 0.2], 0)}, (), "none empty"),
        ({}, ("nobody",), "device 'nobody' cannot leave"),
        ({"a": ([0.1, 0.2], 0)}, ("a",), "device 'a' is said to have left and to have changed"),
        ({}, ("a", "b"), "all devices have left"),
    ],
)
def test_what_is_no_update_is_refused(changed: Any, left: Any, words: str) -> None:
    groups, _ = cluster(["a", "b"], [[0.1, 0.2], [0.8, 0.3]], [0, 0])
    with pytest.raises(UserError) as error:
        update(groups, changed, left)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("gamma", -1.0),
        ("gamma", math.nan),
        ("theta_merge", math.inf),
        ("theta_split", "0.2"),
        ("eta", True),
        ("neighbours", 0),
        ("neighbours", 2.5),
        ("passes", 0),
        ("seed", -1),
        ("floors_per_scale", 0.0),
    ],
)
def test_impossible_settings_are_refused(key: str, value: Any) -> None:
    with pytest.raises(UserError, match=key):
        Aidc(**{key: value})
    with pytest.raises(UserError, match="choose one"):
        Aidc(literal=True, reference=True)


# -- a lying device ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", few(["ones", "copy", "half way"], ["copy"]))
def test_a_liar_changes_no_honest_cluster(kind: str) -> None:
    """One of 50 devices in 2, 5 and 10 groups sends this, with no, its true, or a huge floor. The study has more."""
    found = study.lied(kind, 0)
    assert found["changed"] == 0
    assert found["lowest"] == 1


@given(data=st.data(), floor=st.sampled_from([0.0, 1e-5, 1e-4, 2e-4, 1e-3, 1e9]))
def test_whatever_one_device_sends_others_stay_where_they_are(data: st.DataObject, floor: float) -> None:
    """Any vector, also between two groups; the groups are far apart, of four devices or more."""
    s, h = planted((6, 5, 4, 7), seed=1)
    own = data.draw(st.integers(0, 21))
    before = cluster(names(22), s, h)[0].labels
    mix = data.draw(st.floats(0, 1))
    s[own] = data.draw(
        st.one_of(
            arrays(np.float64, s.shape[1], elements=SHARES),
            st.builds(lambda i, j: mix * s[i] + (1 - mix) * s[j], *[st.integers(0, 21)] * 2),
        )
    )
    h[own] = floor
    honest = np.arange(22) != own
    assert agreement(before[honest], cluster(names(22), s, h)[0].labels[honest]) == 1
