"""Groups that are made anew when eight clients have come or left: whose they are, from which model they begin, and what
a repeated attempt, a late upload and a second request for a row do; and a run that begins with the models that clients
have of a former one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from prepared import begun, prepared
from sklearn.metrics import adjusted_rand_score

from coterie.crypto import shared_rows
from coterie.crypto.signing import OpeningKey
from coterie.devices.links import FleetLinks
from coterie.privacy.audits.hidden_places import found_groups, row_shares
from coterie.protocol.errors import CoterieWarning, CryptoError, PeerError, RunError, UserError
from coterie.protocol.party import fork, transaction
from coterie.protocol.setup_info import Common, Own
from coterie.protocols import sealed_founding, shared_groups
from coterie.protocols.anonymous import Relayed
from coterie.protocols.hidden_servers import HubRows
from coterie.protocols.hidden_sums import ClientRow, FetchFirst, GroupRow
from coterie.protocols.sealed_founding import HubSecret
from coterie.protocols.sealed_groups import (
    ENTRY,
    AskForRow,
    JoinAnew,
    OpenRows,
    RowsRead,
    SharedRow,
    opened_description,
    opened_seeds,
    weight_share,
)
from coterie.protocols.shared_groups import described_length, key_of
from coterie.runs import RunConfig, parties
from coterie.runs.experiment import Experiment, build
from coterie.runs.recorded import record
from coterie.systems.coterie import SYSTEM
from coterie.systems.coterie.config import CoterieConfig
from coterie.transport.local import LocalTransport
from coterie.transport.transcript import Seen

SETTINGS: dict[str, Any] = {"lr": 0.1, "max_epochs": 1, "noise": 0.0, "fewest": 1, "foundings": 3}
CAME = {"founders": 14, "newcomers": 10, "join_every": 1}
LEFT = {"max_staleness": 1, "foundings": 2}
RENEWED = 3  # ten come in round 2, and so groups are made anew in the next


def config(settings: Mapping[str, Any] = CAME, clients: int = 24, **options: Any) -> RunConfig:
    base = {"partition": "permute:2+dirichlet:0.5", "crypto": "emulated", "model": "linear", "seed": 11}
    both = {"clients": clients, "rounds": 9, **base, **options}
    return RunConfig("coterie", settings={**SETTINGS, **settings}, **both)


def made(settings: Mapping[str, Any] = CAME, clients: int = 24, **options: Any) -> Experiment:
    return prepared(config(settings, clients, **options))


def after(rounds: int) -> Experiment:
    return prepared(config(), rounds)


def party(experiment: Experiment, name: str) -> Any:
    return experiment.federation.alter(name)


def clients_of(experiment: Experiment) -> list[Any]:
    return [party(experiment, name) for name in experiment.common.clients]


def groups_of(experiment: Experiment) -> list[int]:
    return [client.row.secret.group for client in clients_of(experiment)]


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> dict[str, Collection[int]]:
    """By client, the rounds in which nothing reaches it."""
    gone: dict[str, Collection[int]] = {}
    monkeypatch.setattr(FleetLinks, "fate", lambda self, name, r, _: "offline" if r in gone.get(name, ()) else "ok")
    return gone


def test_ten_that_came_make_groups_anew_and_nothing_of_the_old_ones_is_used_again() -> None:
    experiment = made()
    before = [experiment.round(r)["notes"] for r in range(1, RENEWED)]
    old = [(c.row.secret.masks, c.groups.secret.epoch) for c in clients_of(experiment)]
    queries = [dict(party(experiment, name).rows.secret.queries) for name in ("hub", "helper")]
    line = experiment.round(RENEWED)
    assert [note.get("renewed") for note in [*before, line["notes"]]] == [None, None, True]
    assert not line["refused"]
    assert adjusted_rand_score(list(experiment.split.groups), groups_of(experiment)) > 0.95
    for client, (masks, founding) in zip(clients_of(experiment), old, strict=True):
        assert (founding, client.groups.secret.epoch, client.row.secret.since) == (0, 1, RENEWED)
        assert not set(masks) & set(client.row.secret.masks)
    for name, asked in zip(("hub", "helper"), queries, strict=True):
        rows = party(experiment, name).rows.secret
        assert rows.queries.keys() == asked.keys() == set(experiment.common.clients)
        assert rows.members == 24
    weights = {c.row.secret.total for c in clients_of(experiment)}
    sixteenths = sum(c.sums.secret.weight for c in clients_of(experiment))
    assert sum(weights) == sixteenths  # of two groups; newcomers' weights are in it now
    assert "renewed" not in experiment.round(RENEWED + 1)["notes"]
    experiment.close()


@pytest.mark.parametrize("absent", [(), (1, 4, 20)], ids=["all", "three away"])
def test_a_new_group_begins_from_the_mean_of_the_models_of_those_that_are_there(
    absent: Collection[int], away: dict[str, Collection[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each client has another model. Rows are in before, so those that are away in the founding's round keep places."""
    experiment, sent, upload = after(RENEWED - 1), dict[str, np.ndarray](), ClientRow.upload
    names, initial = experiment.common.clients, experiment.common.initial
    first = RENEWED + bool(absent)  # the round before, three others are away, so rows are in one round later
    away |= {names[at]: [first] for at in absent}
    if absent:
        away[names[7]] = [RENEWED]
    draw = np.random.default_rng(0)
    models = {}
    for client in clients_of(experiment):
        noise = draw.normal(0, 0.3, len(initial)).astype(np.float32)
        client.state.weights = models[client.name] = client.state.weights + noise

    def uploading(self: Any, x: np.ndarray, r: int) -> Any:
        sent[self.party.name] = x.view(np.int32).astype(np.float64)
        return upload(self, x, r)

    if absent:
        before = experiment.round(RENEWED)  # training goes on in the old groups, until all rows are in
        assert "renewed" not in before["notes"]
        models |= {client.name: client.state.weights for client in clients_of(experiment)}
    monkeypatch.setattr(ClientRow, "upload", uploading)
    assert experiment.round(first)["notes"]["renewed"]
    here = [name for at, name in enumerate(names) if at not in absent]
    assert set(sent) == set(here)
    grid = experiment.settings.grid(24, experiment.common.spec)
    for name, x in sent.items():
        weight = party(experiment, name).sums.secret.weight / 16
        moved = x[:-1] * grid.clip / grid.steps - weight * (models[name] - initial).astype(np.float64)
        assert 0 < np.linalg.norm(moved) < weight * grid.clip + 0.01  # its change, within the clip
        assert x[-1] == round(weight * grid.steps)
    groups = dict(zip(names, groups_of(experiment), strict=True))
    held = {k: [name for name in here if groups[name] == k] for k in set(groups.values())}
    expected = {
        k: initial + grid.clip * sum(sent[n][:-1] for n in some) / sum(sent[n][-1] for n in some)
        for k, some in held.items()
    }
    for name in here:
        np.testing.assert_allclose(party(experiment, name).state.weights, expected[groups[name]], atol=1e-4)
    experiment.round(first + 1)
    groups = dict(zip(names, groups_of(experiment), strict=True))
    found = [{party(experiment, n).state.weights.tobytes() for n in names if groups[n] == k} for k in held]
    assert [len(one) for one in found] == [1] * len(held)
    experiment.close()


def test_newcomers_that_wait_for_want_of_randomness_get_a_place_in_new_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_groups, "PLACINGS", 1)
    coming = {"founders": 8, "newcomers": 8, "join_every": 1}
    without = {}
    for foundings in (1, 2):
        experiment = made({**coming, "foundings": foundings}, 24)
        without[foundings] = [experiment.round(r)["notes"]["without_group"] for r in range(1, 5)]
        experiment.close()
    assert without == {1: [16, 8, 8, 8], 2: [16, 8, 8, 0]}


def test_eight_that_left_are_in_no_new_group_and_get_a_place_when_they_come_back(
    away: dict[str, Collection[int]],
) -> None:
    experiment = made(LEFT)
    away |= dict.fromkeys(experiment.common.clients[:8], range(2, 8))
    notes = [experiment.round(r)["notes"] for r in range(1, 10)]
    assert [note.get("renewed", False) for note in notes] == [r == 4 for r in range(1, 10)]
    assert [note["without_group"] for note in notes] == [0] * 3 + [8] * 4 + [0] * 2
    weights = {c.row.secret.group: c.row.secret.total for c in clients_of(experiment)}
    assert sum(weights.values()) == sum(c.sums.secret.weight for c in clients_of(experiment)[8:])
    assert len({c.state.weights.tobytes() for c in clients_of(experiment)}) == len(weights)
    assert all(c.row.secret.since == 4 for c in clients_of(experiment))
    experiment.close()


def test_seven_that_left_change_nothing(away: dict[str, Collection[int]]) -> None:
    experiment = made(LEFT)
    away |= dict.fromkeys(experiment.common.clients[:7], range(2, 8))
    assert not any("renewed" in experiment.round(r)["notes"] for r in range(1, 5))
    experiment.close()


def test_uploads_for_older_groups_are_dropped_and_said() -> None:
    """Groups are of the same number, so they would fit the new rows."""
    experiment = made(delta=0.3, delay="uniform:1-2")
    notes = [experiment.round(r)["notes"] for r in range(1, 12)]
    (renewed,) = [at for at, note in enumerate(notes) if "renewed" in note]
    dropped = [note.get("of_older_groups", 0) for note in notes]
    assert sum(dropped[renewed:]) > 0
    assert not any(dropped[:renewed])
    assert not any(notes[renewed]["staleness"][1:])
    assert sum(sum(note["staleness"][1:]) for note in notes[renewed + 2 :]) > 0  # late ones of the new groups count
    experiment.close()


def killed_while_renewing(where: tuple[type[Any], str], at: int = RENEWED) -> Experiment:
    """Groups are being made anew when the hub dies, and its round is to be tried again."""

    def killed() -> Experiment:
        experiment = after(at - 1)
        experiment.transport.retries = True
        with patch.object(*where, side_effect=RunError("killed")), pytest.raises(RunError, match="killed"):
            experiment.transport.drive(party(experiment, "hub").round(at), at)
        return experiment

    return begun(f"killed at {where[1]} in round {at}", killed)


def again(experiment: Experiment, r: int = RENEWED) -> dict[str, Any]:
    return dict(experiment.transport.drive(party(experiment, "hub").round(r), r, 1))


SEATING = sealed_founding.HubGroups, "_seat"  # a private step: the grouping is over, and no client has its place
GIVING = HubRows, "give"  # the new rows are sealed


def test_a_round_that_makes_groups_anew_is_tried_again_with_randomness_that_was_not_used() -> None:
    experiment, whole = killed_while_renewing(SEATING), after(RENEWED)
    assert "renewed" in again(experiment)
    for one, other in zip(clients_of(experiment), clients_of(whole), strict=True):
        assert (one.groups.secret.epoch, other.groups.secret.epoch) == (1, 1)
        np.testing.assert_array_equal(one.state.weights, other.state.weights)
    for name in ("hub", "helper"):
        shared = [party(one, name).groups.secret.shared for one in (experiment, whole)]
        assert [one.founding for one in shared] == [2, 1]
    assert len(party(experiment, "helper").groups.secret.shared.begun) == 4  # a batch of newcomers, and each founding
    experiment.close()
    whole.close()


def test_an_audit_reads_the_attempt_that_made_the_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub dies when all steps of the grouping are taken. The next attempt has another order."""
    held, drive = list[Any](), LocalTransport.drive

    def twice(self: LocalTransport, steps: Any, r: int, **options: Any) -> Any:
        if r != RENEWED or options["settle"]:
            return drive(self, steps, r, **options)
        self.retries = True
        with patch.object(*SEATING, side_effect=RunError("killed")), pytest.raises(RunError, match="killed"):
            drive(self, steps, r)
        return drive(self, held[0].alter("hub").round(r), r, 1)

    monkeypatch.setattr(LocalTransport, "drive", twice)
    run = record(config(rounds=RENEWED, record=True, crypto="real"), lambda federation, delays: held.append(federation))
    hub = run.views["hub"]
    openings = [seen for seen, _ in hub.messages(RowsRead, RENEWED)]

    def without(opening: Seen) -> list[str]:
        views = {**run.views, "hub": replace(hub, seen=[seen for seen in hub.seen if seen is not opening])}
        return row_shares(replace(run, views=views), "hub", "helper")[RENEWED].names

    dropped, last = (without(openings[at]) for at in (1, 0))
    assert sorted(dropped) == sorted(last) == sorted(run.clients)
    assert dropped != last
    assert found_groups(run, "hub", "helper").names == last


def test_newcomers_are_placed_in_a_second_attempt_too() -> None:
    """The helper has used the first placing, of which the hub knows nothing any more."""
    experiment = killed_while_renewing(SEATING, 2)
    assert again(experiment, 2)["without_group"] == 0
    assert -1 not in groups_of(experiment)
    experiment.close()


def test_no_rows_are_grouped_again_beside_those_of_nearly_the_same_clients() -> None:
    """One client more or less in the second attempt: it goes on in the old groups."""
    experiment = killed_while_renewing(SEATING)
    party(experiment, "hub").state.silent[experiment.common.clients[3]] = -99
    notes = again(experiment)
    assert "renewed" not in notes
    assert notes["added"] == 24
    assert party(experiment, "hub").groups.secret.refused == set(experiment.common.clients) - {"client/3"}
    experiment.close()


@pytest.mark.parametrize("anew", [True, False])
def test_uploads_of_one_round_are_not_added_up_in_two_groupings(anew: bool) -> None:
    """The first attempt has sealed sums in new groups. Sums in others, old or new, would show who differs."""
    experiment = killed_while_renewing(GIVING)
    if not anew:
        party(experiment, "hub").state.silent[experiment.common.clients[3]] = -99
    notes = again(experiment)
    assert ("renewed" in notes) == anew
    refusals = experiment.transport.meter.refused
    assert any("has sealed sums of other uploads" in why for why in (notes["skipped"], *refusals))
    assert notes["added"] == 0
    assert experiment.round(RENEWED + 1)["notes"]["added"] == 24
    for group in {client.row.secret.group for client in clients_of(experiment)}:
        some = [c for c in clients_of(experiment) if c.row.secret.group == group]
        assert len({c.state.weights.tobytes() for c in some}) == 1
    experiment.close()


# ---- parties that deviate


def described(experiment: Experiment, name: str, request: AskForRow) -> SharedRow:
    """A client's answer to this request, which leaves nothing behind."""
    client = party(experiment, name)
    saved, work = client.secret, None
    client.secret = fork(saved)
    try:
        work = client.groups.describe(request, "hub")
        effect = next(work)
        while True:
            effect = work.send(experiment.effects.run([(name, effect)])[0])
    except StopIteration as end:
        row: SharedRow = end.value
        return row
    finally:
        client.secret = saved


def opens(experiment: Experiment, rows: Sequence[SharedRow], request: OpenRows) -> int:
    """How many of these rows the helper reads. Raises PeerError if it groups none of these clients."""
    helper = party(experiment, "helper")
    for at, row in enumerate(rows):
        helper.groups.hold(Relayed(request.round, at, row.sealed), "hub")
    with transaction(helper):
        return len(helper.groups.open(request, "hub").positions)


def grouping(experiment: Experiment) -> bool:
    return party(experiment, "helper").groups.secret.under_way is not None


def test_no_founding_differs_from_an_earlier_one_by_one_client_whatever_the_hub_says() -> None:
    """Groups were made of 24. The hub has them made anew without one client. It tells the helper the truth; or that 8
    have left; or it tells all a list with strangers; or one of all, which it fills with rows of a friend."""
    experiment = after(RENEWED)
    names = sorted(experiment.common.clients)
    without, shorter = names[1:], "\n".join(names[8:])
    told = "\n".join(without)
    rows = [described(experiment, name, AskForRow(9, 2, told)) for name in without]
    with pytest.raises(PeerError, match="shows what fewer than 8 of them add"):
        opens(experiment, rows, OpenRows(9, -3, told))
    assert opens(experiment, rows, OpenRows(9, -3, shorter)) == 0  # rows are for the list that clients were told
    for stranger in ("stranger/0", "helper"):
        with pytest.raises(PeerError, match=f"beside that of '{stranger}', who is no client"):
            described(experiment, without[0], AskForRow(9, 2, f"{told}\n{stranger}"))
    everybody = "\n".join(names)
    rows = [described(experiment, name, AskForRow(9, 2, everybody)) for name in without]
    again = [described(experiment, without[-1], AskForRow(9 + k, 2, everybody)) for k in range(1, 9)]
    assert len({row.sealed for row in again}) == 8
    assert opens(experiment, [*rows[7:], *again], OpenRows(9, -3, everybody)) == 16  # a client counts once
    assert not grouping(experiment)
    left = "\n".join(names[8:])
    rows = [described(experiment, name, AskForRow(9, 2, left)) for name in names[8:]]
    assert opens(experiment, rows[1:], OpenRows(9, -3, left)) == 15
    assert not grouping(experiment)
    assert opens(experiment, rows, OpenRows(9, -3, left)) == 16
    assert grouping(experiment)  # all 16, and eight less than before
    experiment.close()


def test_the_helper_forgets_no_list_not_even_of_an_older_founding_or_of_newcomers() -> None:
    experiment = after(RENEWED)
    helper, names = party(experiment, "helper"), sorted(experiment.common.clients)
    lists = list(helper.groups.secret.grouped)
    assert [len(one) for one in lists] == [14, 10, 24]
    for lacking in lists[:2]:
        some = sorted(lacking)[1:]
        told = "\n".join(some)
        rows = [described(experiment, name, AskForRow(9, 2, told)) for name in some]
        with pytest.raises(PeerError, match="shows what fewer than 8 of them add"):
            opens(experiment, rows, OpenRows(9, -3, told))
    same = "\n".join(sorted(lists[0]))
    rows = [described(experiment, name, AskForRow(9, 2, same)) for name in sorted(lists[0])]
    assert opens(experiment, rows, OpenRows(9, -3, same)) == 14  # nobody more or less: nothing to learn
    assert grouping(experiment)
    assert len(names) == 24
    experiment.close()


def test_a_client_shares_its_row_once_for_a_founding_and_for_no_more_than_were_dealt() -> None:
    experiment = after(RENEWED)
    client, names = party(experiment, experiment.common.clients[0]), "client/0\nclient/1"
    for epoch, why in ((1, "it has its place"), (0, "it has its place"), (3, "a row of epoch 3")):
        with pytest.raises(PeerError, match=why):
            next(client.groups.describe(AskForRow(9, epoch, names), "hub"))
    with pytest.raises(PeerError, match="beside others alone"):
        next(client.groups.describe(AskForRow(9, 2, "client/1\nclient/2"), "hub"))
    with pytest.raises(PeerError, match="only the hub"):
        next(client.groups.describe(AskForRow(9, 2, names), "helper"))
    next(client.groups.describe(AskForRow(9, 2, names), "hub"))
    experiment.close()


def test_the_helper_founds_no_groups_twice_and_opens_no_row_that_is_for_others() -> None:
    experiment = after(1)
    helper, hub = party(experiment, "helper"), party(experiment, "hub")
    entry, length = helper.keys.own_bytes(ENTRY), described_length(helper)
    key = OpeningKey.load(helper.own.identity.opening)
    client, names = party(experiment, experiment.common.clients[0]), "client/0\nclient/1"
    row = described(experiment, client.name, AskForRow(2, 1, names))
    told = opened_description(key, (entry, 1, names), row.sealed, length)
    (seed,) = opened_seeds(OpeningKey.load(hub.own.identity.opening), 1, names, [told.ours], marked=False) or ()
    assert told.weight == (client.sums.secret.weight - 1) ^ weight_share(seed)
    for other in ((entry, 0, names), (entry, 2, names), (entry, 1, "client/0")):
        with pytest.raises((PeerError, CryptoError)):
            opened_description(key, other, row.sealed, length)
    for server in (helper, hub):
        for placing, why in ((-1, "must not be used twice"), (-4, "founding 3; 3 were dealt")):
            with pytest.raises(PeerError, match=why):
                server.groups.begin(placing)
        assert server.groups.unfounded() == [-2, -3]
        keys = [server.groups.key(founding) for founding in range(3)]
        assert len(set(keys)) == 3
        assert len({len(one) for one in keys}) == 1
    experiment.close()


def test_a_place_that_comes_again_changes_no_query() -> None:
    """Else who is not in the group of an unreadable place would get another row than its own, and show it."""
    experiment = after(RENEWED)
    for name in experiment.common.clients:
        client = party(experiment, name)
        row = client.row.secret
        for group, total in (((row.group + 1) % row.groups, 16), (0, 0)):
            ours, theirs = client.row.join(group, row.groups, total, (bytes(16), bytes(16)), row.since)
            asked = [bytes(a ^ b for a, b in zip(*pair, strict=True)) for pair in ((ours, theirs), _queries(client))]
            assert asked[0] == asked[1]
            assert not client.row.secret.lost
    experiment.close()


def _queries(client: Any) -> tuple[bytes, bytes]:
    return shared_rows.queries(client.row.secret.group, client.row.secret.groups, client.secrets("any query"))


def test_an_older_row_and_a_first_row_of_others_are_refused() -> None:
    experiment = after(RENEWED)
    client, helper = party(experiment, experiment.common.clients[0]), party(experiment, "helper")
    row = client.row.secret
    assert row.round == RENEWED
    client.row.join(row.group, row.groups, row.total, row.masks, RENEWED + 4)
    old = GroupRow(9, RENEWED, 1, b"", b"", b"", b"", b"")
    with pytest.raises(PeerError, match="a row of round 3, after that of round 6"):
        client.row.opened(old)
    with pytest.raises(PeerError, match="has asked for no row"):
        helper.rows.fetch_first(FetchFirst(9, "client/99"), "hub")
    with pytest.raises(PeerError, match="groups of round 12"):
        client.groups.join_anew(JoinAnew(9, 12, b"", b"", b""), "hub")
    experiment.close()


@pytest.mark.parametrize("more", [{"check": "norm"}, {"epsilon": 8.0}, {"control_variates": 0.9}])
def test_settings_that_do_not_go_with_renewal_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="foundings=3"):
        made(more)


def test_with_one_founding_nothing_is_dealt_or_sent_for_more() -> None:
    experiment = made({**CAME, "foundings": 1})
    notes = [experiment.round(r)["notes"] for r in range(1, RENEWED + 1)]
    assert not any("renewed" in note for note in notes)
    hub = party(experiment, "hub")
    assert key_of(hub.groups.key(0), 0) == hub.groups.key(0)
    assert all(len(client.state.weights) == hub.rows.length for client in clients_of(experiment))
    experiment.close()


@pytest.mark.long
def test_parties_that_are_made_again_from_their_bytes_before_every_message_make_the_same_groups_anew() -> None:
    found, handle = [], LocalTransport._handle
    for restarting in (False, True):
        experiment = made()

        def handled(self: LocalTransport, jobs: Any, experiment: Experiment = experiment) -> None:
            for job in jobs:
                experiment.parties.restart(job.parcel.envelope.dst)
            handle(self, jobs)

        with patch.object(LocalTransport, "_handle", handled if restarting else handle):
            lines = [experiment.round(r) for r in range(1, RENEWED + 2)]
        assert lines[RENEWED - 1]["notes"]["renewed"]
        found.append([line["models_sha256"] for line in lines])
        experiment.close()
    assert found[0] == found[1]


def test_the_hub_offers_no_list_beside_those_of_a_dropped_attempt_that_shows_few() -> None:
    """A helper fails after it has seen the steps of all, and then says that it reads all rows but one."""
    experiment = after(0)
    hub, everybody = party(experiment, "hub"), tuple(experiment.common.clients)
    hub.groups.lasts(HubSecret(grouped=(frozenset(everybody),), false=frozenset({(0, frozenset(everybody[:9]))})))
    # private, since no round ends before a list is offered
    join = partial(hub.groups._join, 1, rows={}, anew=False)
    for batch in (everybody[1:], everybody[:-7]):
        assert _returned(join(batch=batch)) == ((), ())
    nine = _returned(join(batch=everybody[:9]))[1]  # once refused for its marks
    assert [len(part) for part in nine] == [8] * 9
    experiment.close()


def _returned(steps: Any) -> Any:
    with pytest.raises(StopIteration) as end:
        next(steps)
    return end.value.value


def warm(models: dict[str, np.ndarray], settings: Mapping[str, Any]) -> Experiment:
    """Another run, whose clients begin with these models. New ones have none."""

    def own(name: str, *rest: Any) -> Own:
        return Own(name, *rest, starts=models[name][None] if name in models else None)

    with patch.object(parties, "Common", partial(Common, warm=True)), patch.object(parties, "Own", own):
        experiment = build(config(settings, 14))
        experiment.set_up()
        return experiment


@pytest.mark.parametrize("more", [{}, {"clusters": 1}], ids=["groups", "one group"])
def test_groups_begin_at_the_mean_of_their_members_models_and_a_new_client_takes_its_groups(
    more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"foundings": 2, **more}
    draw, first = np.random.default_rng(0), made(settings, 14)
    initial = first.common.initial
    models = {
        name: initial + draw.normal(0, 0.3, len(initial)).astype(np.float32)
        for name in first.common.clients
        if name != "client/13"
    }
    first.close()
    experiment, sent, upload = warm(models, settings), dict[str, np.ndarray](), ClientRow.upload

    def uploading(self: Any, x: np.ndarray, r: int) -> Any:
        sent[self.party.name] = x.view(np.int32).astype(np.float64)
        return upload(self, x, r)

    monkeypatch.setattr(ClientRow, "upload", uploading)
    assert all((party(experiment, name).last_starts()[0] == model).all() for name, model in models.items())
    line = experiment.round(1)
    assert line["refused"] == {
        "client/TrainWhole: client/13 has no model of a former run, and waits for its group's": 1
    }
    assert set(sent) == set(models)
    grid, names = experiment.settings.grid(14, experiment.common.spec), experiment.common.clients
    groups = dict(zip(names, groups_of(experiment), strict=True))
    for name in names:
        held = [one for one in models if groups[one] == groups[name]]
        mean = initial + grid.clip * sum(sent[n][:-1] for n in held) / sum(sent[n][-1] for n in held)
        np.testing.assert_allclose(party(experiment, name).state.weights, mean, atol=1e-4)
        weights = {one: party(experiment, one).sums.secret.weight for one in held}
        plain = sum(weights[one] * models[one].astype(np.float64) for one in held) / sum(weights.values())
        assert np.linalg.norm(mean - plain) <= grid.clip + 0.01  # beside it their changes, each of at most clip
    assert {client.state.wholes for client in clients_of(experiment)} == {(1,), ()}  # no clip bounds them in the ledger
    second = experiment.round(2)
    assert not second["refused"]
    assert set(sent) == set(names)
    experiment.close()


def test_few_clients_begin_with_models_by_what_the_refusals_say() -> None:
    """Each refusal's advice is followed, and the last settings are taken."""
    with pytest.raises(UserError, match=r"set foundings=2$"):
        SYSTEM.check_warm(CoterieConfig(), "paper")
    SYSTEM.check_warm(CoterieConfig(foundings=2), "paper")
    with pytest.warns(CoterieWarning, match="4 clients make one group.* Set clusters=1, which says so"):
        made({"foundings": 2}, 4).close()
    SYSTEM.check_warm(CoterieConfig(foundings=2, clusters=1), "paper")
    made({"foundings": 2, "clusters": 1}, 4).close()


def test_one_group_of_all_is_never_made_anew(away: dict[str, Collection[int]]) -> None:
    """Ten come, and get their place in it, and nine leave; a hub that makes it anew is refused by the helper."""
    experiment = made({**CAME, "clusters": 1, "max_staleness": 1})
    away |= dict.fromkeys(experiment.common.clients[:9], range(4, 9))
    notes = [experiment.round(r)["notes"] for r in range(1, 9)]
    assert [note["without_group"] for note in notes] == [10] + [0] * 7
    assert not any({"renewed", "skipped"} & note.keys() for note in notes)
    helper, epoch = party(experiment, "helper"), party(experiment, "hub").groups.secret.shared.epoch
    assert epoch == helper.groups.secret.shared.epoch == 0
    with pytest.raises(PeerError, match="placing -2 with 1 groups"):
        helper.groups.open(OpenRows(9, -2, "\n".join(experiment.common.clients)), "hub")
    experiment.close()
