"""Label counts of hidden groups: what members learn, what servers see, and what liars and servers that deviate get."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.protocol.errors import PeerError, UserError
from coterie.protocols.hidden_counts import (
    AddCounts,
    AskForCounts,
    CountsSealed,
    GroupCounts,
    HiddenCounts,
    counts_of,
    steps_of,
    words_of,
)
from coterie.runs import RunConfig
from coterie.runs.config import resolve
from coterie.runs.experiment import Experiment, build
from tests.systems.coterie.test_security import group_of, made, party

COUNTED = {"label_counts": True, "clusters": 2}


def own_counts(experiment: Experiment, name: str) -> np.ndarray:
    return np.bincount(experiment.data[name].y.numpy(), minlength=10)


def of_group(experiment: Experiment, group: int) -> np.ndarray:
    names = [name for name in experiment.common.clients if group_of(experiment, name) == group]
    return np.asarray(np.sum([own_counts(experiment, name) for name in names], axis=0))


def told(experiment: Experiment) -> dict[str, Any]:
    found = experiment.observer.told_counts()
    assert found is not None
    return found


def shared_again(client: Any) -> HiddenCounts:
    """Its counts once more, for which it does not look at its data again."""
    with pytest.raises(StopIteration) as end:
        next(client.counts.share(AskForCounts(1), "hub"))
    found: HiddenCounts = end.value.value
    return found


def test_members_learn_their_own_groups_counts_bit_for_bit() -> None:
    experiment = made(COUNTED)
    found = told(experiment)
    assert {group_of(experiment, name) for name in found} == {0, 1}
    for name, counts in found.items():
        np.testing.assert_array_equal(counts, of_group(experiment, group_of(experiment, name)))
    experiment.close()


def test_with_one_group_they_are_those_of_all() -> None:
    experiment = made({"label_counts": True, "clusters": 1})
    every = of_group(experiment, 0)
    assert all(np.array_equal(counts, every) for counts in told(experiment).values())
    experiment.close()


def test_models_and_scores_are_those_without_the_messages() -> None:
    """Without noise the counts are those that a simulation supplies. Nothing else moves, but bytes and seconds."""
    lines = []
    for settings_of in (COUNTED, {"clusters": 2}):
        experiment = made(settings_of, fine_tune="held_out")
        lines.append([experiment.round(r) for r in (1, 2, 3)][-1])
        experiment.close()
    assert lines[0]["models_sha256"] == lines[1]["models_sha256"]
    assert lines[0]["prior_local_accuracy"] == lines[1]["prior_local_accuracy"]
    assert lines[0]["metrics"] == lines[1]["metrics"]


def test_each_server_sees_words_that_are_not_the_counts() -> None:
    """The hub has the helper's row under masks, and no clients' counts in its view, nor has the helper."""
    experiment = made(COUNTED)
    views, steps = experiment.transport.transcript.views, steps_of(8)
    largest = party(experiment, "client/0").sums.largest
    secret = [words_of(own_counts(experiment, name), largest, steps) for name in experiment.common.clients]
    secret += [words_of(of_group(experiment, k), largest * 8, steps * 8) for k in (0, 1)]
    seen = [message.word for _, message in views["hub"].messages(HiddenCounts)]
    (rows,) = [message.rows for _, message in views["hub"].messages(CountsSealed)]
    assert len(seen) == 8
    for words in secret:
        for data in (*seen, rows):
            assert words.astype("<u4").tobytes() not in data
    assert not [*views["helper"].messages(HiddenCounts), *views["helper"].messages(GroupCounts)]
    experiment.close()


def test_an_absent_client_is_asked_in_a_later_round() -> None:
    """Six of eight are too few: a group of three could be of one. So in round 1 the other two are asked."""
    experiment = made(COUNTED)
    hub, helper, counts = party(experiment, "hub"), party(experiment, "helper"), told(experiment)
    views = experiment.transport.transcript.views
    came = {name: shared_again(party(experiment, name)) for name in experiment.common.clients}
    before = {name: len([*views[name].messages(AskForCounts)]) for name in experiment.common.clients}
    gathered = hub.counts.secret
    gathered.shares = {name: came[name] for name in experiment.common.clients[:6]}
    gathered.counted, gathered.has, helper.counts.secret.names = frozenset(), frozenset(), frozenset()
    for name in experiment.common.clients:
        secret = party(experiment, name).counts.secret
        secret.opened, secret.total = False, None
    experiment.round(1)
    asked = [name for name, count in before.items() if len([*views[name].messages(AskForCounts)]) > count]
    assert asked == ["client/6", "client/7"]
    assert all(np.array_equal(told(experiment)[name], counts[name]) for name in counts)
    experiment.close()


def test_sums_are_formed_once() -> None:
    experiment = made(COUNTED)
    helper, hub = party(experiment, "helper"), party(experiment, "hub")
    names = frozenset(experiment.common.clients)
    assert helper.counts.secret.names == names == hub.counts.secret.counted
    assert hub.counts.shows_few(8) == ""
    assert "fewer than 3" in hub.counts.shows_few(6)
    views = experiment.transport.transcript.views
    (request,) = [message for _, message in views["helper"].messages(AddCounts)]
    helper.counts.secret.names = names - {"client/3"}  # as if another sum had been sealed
    with pytest.raises(PeerError, match="the difference would show some"):
        helper.counts.add(request, "hub")
    kept = type(helper)(helper.own, helper.common, helper.config)
    kept.lasts(helper.state, helper.secret)
    assert kept.counts.secret.names == names - {"client/3"}
    with pytest.raises(PeerError, match="only the hub"):
        helper.counts.add(request, "client/0")
    experiment.close()


@pytest.mark.parametrize(("clients", "added", "groups", "least"), [(100, 90, 4, 10), (100, 93, 4, 10), (40, 38, 3, 5)])
def test_no_absences_leave_two_clients_in_a_groups_sum(clients: int, added: int, groups: int, least: int) -> None:
    """Neither a server's choice of them, nor members that are away together."""
    experiment = made({**COUNTED, "min_cluster": 3})
    for name in ("hub", "helper"):
        one = party(experiment, name)
        one.config = replace(one.config, min_cluster=least)
        one.rows.secret.members, one.rows.secret.masks = clients, (bytes(16),) * groups
        left = least - min(least, clients - added)  # of the smallest group, if all that are absent are in it
        assert bool(one.counts.shows_few(added)) is (left < 3)
    experiment.close()


def test_a_helper_refuses_few_and_counts_no_share_of_another_client() -> None:
    experiment = made(COUNTED)
    helper = party(experiment, "helper")
    (request,) = [m for _, m in experiment.transport.transcript.views["helper"].messages(AddCounts)]
    order = request.names.split("\n")
    swapped = "\n".join([order[1], order[0], *order[2:]])
    with pytest.raises(PeerError, match="fewer than 3"):  # neither tag nor signature fits, so six are left
        helper.counts.add(AddCounts(0, swapped, request.words, request.checks, request.seeds, request.tags), "hub")
    twice = "\n".join([order[0], order[0], *order[2:]])
    with pytest.raises(PeerError, match="a name twice"):
        helper.counts.add(AddCounts(0, twice, request.words, request.checks, request.seeds, request.tags), "hub")
    experiment.close()


def test_clients_refuse_what_was_not_asked_for_and_rows_of_other_lengths() -> None:
    plain, experiment = made(), made(COUNTED)
    client = party(plain, "client/0")
    for call in (
        lambda: next(client.counts.share(AskForCounts(1), "hub")),
        lambda: client.counts.open(GroupCounts(1, b"", b"", True), "hub"),
        lambda: party(plain, "helper").counts.add(AddCounts(1, "", b"", b"", b"", b""), "hub"),
    ):
        with pytest.raises(PeerError, match="do not ask"):
            call()
    member = party(experiment, "client/0")
    for rows, nonces, why in ((b"1234", bytes(32), "4 bytes"), (bytes(80), bytes(31), "two nonces")):
        with pytest.raises(PeerError, match=why):
            member.counts.open(GroupCounts(1, nonces, rows, True), "hub")
    with pytest.raises(PeerError, match="only the hub"):
        next(member.counts.share(AskForCounts(1), "client/1"))
    before = member.counts.secret.total
    member.counts.open(GroupCounts(1, bytes(32), bytes(80), True), "hub")  # again, and false: it has opened its row
    assert member.counts.secret.total is before
    plain.close()
    experiment.close()


def test_a_second_request_has_the_same_counts_in_fresh_shares() -> None:
    experiment = made(COUNTED)
    client = party(experiment, "client/0")
    before = client.counts.secret.sent.copy()
    again = shared_again(client)
    first = next(m for src, m in experiment.transport.transcript.views["hub"].messages(HiddenCounts))
    assert again.word != first.word
    np.testing.assert_array_equal(client.counts.secret.sent, before)
    experiment.close()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(0, 400), min_size=3, max_size=3), min_size=3, max_size=9))
def test_honest_counts_are_exact_and_in_range(every: list[list[int]]) -> None:
    counts = [np.array(one, np.int64) + np.array([1, 0, 0]) for one in every]
    largest = 2.0 ** int(max(int(one.sum()) for one in counts)).bit_length()
    steps = steps_of(len(counts))
    total = np.sum([words_of(one, largest, steps) for one in counts], axis=0, dtype=np.uint32).view(np.int32)
    weight = sum(min(max(round(16 * int(one.sum()) / largest), 1), 16) for one in counts)
    found = counts_of(total, counts[0], largest, steps, weight, 0.0)
    assert found is not None
    np.testing.assert_array_equal(found, np.sum(counts, axis=0))


@pytest.mark.parametrize("lie", [[-70000, 0, 0], [0, 1 << 20, 0], [-(1 << 31), 0, 0], [0, 0, 1 << 30]])
def test_a_row_that_no_honest_clients_make_is_dropped(lie: list[int]) -> None:
    own, steps = np.array([3, 4, 5], np.int64), steps_of(3)
    total = 3 * words_of(own, 16.0, steps).astype(np.int64) + lie
    row = total.astype(np.uint32).view(np.int32)
    assert counts_of(row, own, 16.0, steps, 3 * 12, 0.0) is None
    assert counts_of(row - np.array(lie).astype(np.int32), own, 16.0, steps, 3 * 12, 0.0) is not None


def test_a_budget_pays_for_the_counts() -> None:
    """They cost what an upload costs, with its noise, so one upload fewer is left; the ledger has a line for them."""
    uploads = []
    for counted in (False, True):
        base = {"clusters": 1, "epsilon": 50.0, "private_rounds": 2, "noise": None, "label_counts": counted}
        experiment = made(base, clients=8, rounds=3)
        for r in (1, 2, 3):
            experiment.round(r)
        client = party(experiment, "client/0")
        uploads.append(len(client.state.uploads))
        lines = [one.what for one in client.releases()]
        assert ("label counts, in a sum of a hidden group" in lines) is counted
        assert {one.mechanism for one in client.releases()} == {"gaussian"}
        experiment.close()
    assert uploads == [2, 1]


@pytest.mark.parametrize("settings_of", [{"foundings": 2}, {"min_cluster": 2}])
def test_groups_that_would_show_one_client_refuse_the_setting(settings_of: dict[str, Any]) -> None:
    config = RunConfig("coterie", clients=8, model="linear", settings={"label_counts": True, **settings_of})
    resolve(config)
    with pytest.raises(UserError, match="label_counts: not with foundings"):
        build(config)
