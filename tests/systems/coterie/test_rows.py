"""Which rows the helper groups, whatever the hub relays: of whom, beside whose, how often, and in what order."""

from __future__ import annotations

from typing import Any

import pytest

from coterie.crypto import marks
from coterie.crypto.signing import OpeningKey, SealingKey, digest
from coterie.protocol.errors import PeerError
from coterie.protocols.anonymous import Relayed
from coterie.protocols.sealed_groups import (
    DESCRIBED,
    ENTRY,
    AskForRow,
    GroupsFound,
    OpenRows,
    SharedRow,
    Step,
    opened_description,
)
from coterie.protocols.shared_groups import Shared, described_length
from coterie.runs.experiment import Experiment
from tests.systems.coterie.test_groups import drive
from tests.systems.coterie.test_security import made, party


def rows_of(experiment: Experiment, count: int = 8, r: int = 1) -> list[bytes]:
    """What clients seal to the helper when they are asked for a row again, as if they had no place."""
    sealed = []
    for name in experiment.common.clients[:count]:
        client = party(experiment, name)
        client.row.secret.group = -1
        work = client.groups.describe(AskForRow(r, 0, told(experiment, count)), "hub")
        sealed.append(drive(work, experiment, name).sealed)
    return sealed


def told(experiment: Experiment, count: int = 8) -> str:
    return "\n".join(experiment.common.clients[:count])


def relay(helper: Any, rows: list[bytes], r: int = 0) -> None:
    for at, data in enumerate(rows):
        helper.groups.hold(Relayed(r, at, data), "hub")


def test_a_row_has_one_place_wherever_the_hub_puts_it() -> None:
    experiment = made()
    helper, fresh = party(experiment, "helper"), rows_of(experiment)
    relay(helper, [fresh[0], fresh[0], *fresh[2:]])
    assert helper.groups.open(OpenRows(0, 0, told(experiment)), "hub").positions.tolist() == [0, 2, 3, 4, 5, 6, 7]
    assert helper.groups.secret.under_way is None  # a list of eight needs eight clients' rows
    with pytest.raises(PeerError, match="only the hub"):
        helper.groups.open(OpenRows(0, 1, told(experiment)), "client/0")
    experiment.close()


def test_a_hub_has_no_few_clients_grouped_and_none_again() -> None:
    """It knows whose rows it relays. Of two it would learn whether they are alike; of old ones and a new one, which
    group the new one joins."""
    experiment = made()
    helper = party(experiment, "helper")
    for count, why in ((5, "5 rows; of fewer than 6"), (7, "7 clients shows what fewer than 6 of them add")):
        relay(helper, rows_of(experiment, count))
        with pytest.raises(PeerError, match=why):
            helper.groups.open(OpenRows(0, 0, told(experiment, count)), "hub")
        helper.groups.secret.held = {}
    views = experiment.transport.transcript.views
    relay(helper, [message.sealed for _, message in views["hub"].messages(SharedRow)])
    assert helper.groups.open(OpenRows(0, 0, told(experiment, 7)), "hub").positions.tolist() == []
    placed = made()
    client = party(placed, placed.common.clients[0])
    with pytest.raises(PeerError, match="it has its place"):
        next(client.groups.describe(AskForRow(1, 0, told(placed)), "hub"))
    experiment.close()
    placed.close()


def test_newcomers_are_not_placed_again_where_that_shows_the_group_of_one() -> None:
    """They have no place yet, so they send rows as often as they are asked. The steps of a batch say how many of it
    join each group. So one more or less shows where that one joins; and so does a batch of A, one of B, and one of all
    of these with one more, though each two differ by eight or more."""
    settings = {"founders": 8, "newcomers": 17, "join_every": 1}
    experiment = made(settings, clients=25)
    helper, names = party(experiment, "helper"), experiment.common.clients[8:]
    for total in party(experiment, "hub").state.founded.sums:  # newcomers have no sums yet
        for name in names:
            client = party(experiment, name)
            client.sums.secret.totals[total.number] = party(experiment, "client/0").sums.secret.totals[total.number]
            client.sums.secret.weight = 1

    def opened(some: Any, placing: int) -> Any:
        told, rows = "\n".join(sorted(some)), []
        for name in some:
            rows.append(drive(party(experiment, name).groups.describe(AskForRow(1, 0, told), "hub"), experiment, name))
        for at, row in enumerate(rows):
            helper.groups.hold(Relayed(1, at, row.sealed), "hub")
        read = helper.groups.open(OpenRows(1, placing, told), "hub")
        helper.groups.step(Step(1, 0, b""), "hub")
        return read

    assert len(opened(names[:8], 0).positions) == 8
    with pytest.raises(PeerError, match="9 clients shows what fewer than 8 of them add"):
        opened(names[:9], 1)
    assert len(opened(names[:8], 1).positions) == 8
    assert len(opened(names[8:16], 2).positions) == 8
    with pytest.raises(PeerError, match="17 clients shows what fewer than 8 of them add"):
        opened(names, 3)
    assert len(opened(names[:16], 3).positions) == 16  # all of both, and nobody else: nothing to learn
    experiment.close()


@pytest.mark.parametrize("left_out", [1, 4, 6, 7])
def test_a_hub_that_works_with_a_client_makes_rows_of_all_others_or_of_none(left_out: int) -> None:
    """It knows the seed of all clients, and one client's key. It seals rows in the places of the first ones of the
    list, with marks of its own, or with all that the client knows of theirs. Only where no honest client's row is
    there, and so nothing is shown, do these add up."""
    experiment = made()
    helper, member, rows = party(experiment, "helper"), party(experiment, "client/7"), rows_of(experiment)
    key, public = OpeningKey.load(member.own.identity.opening), helper.common.roster.by_name
    bound, words = (member.keys.own_bytes(ENTRY), 0, told(experiment)), bytes(8 * described_length(helper))
    of = digest(
        "coterie/list/2", helper.common.roster.session, 0, told(experiment), "helper", member.sums.fingerprint()
    )
    forged = experiment.common.clients[:left_out]
    terms = [marks.mark(key, "client/7", {n: SealingKey(public[n].sealing_key)}, of) for n in forged]
    theirs = [(-int.from_bytes(one, "little") % 2**128).to_bytes(16, "little") for one in terms]
    for choice, adds_up in (([bytes([at + 1] * 16) for at in range(left_out)], False), (theirs, left_out == 7)):
        false = [DESCRIBED.pack(bytes([at] * 32), 16, one, b"") + words for at, one in enumerate(choice)]
        sealing = SealingKey(public["helper"].sealing_key)
        relay(helper, [*(sealing.seal(data, "client", "helper", *bound) for data in false), *rows[left_out:]])
        positions = helper.groups.open(OpenRows(0, 0, told(experiment)), "hub").positions.tolist()
        assert positions == (list(range(8)) if adds_up else [])
        assert (helper.groups.secret.under_way is not None) == adds_up
    experiment.close()


def test_a_mark_says_no_name_to_the_helper() -> None:
    """It knows a client's key, too. What it can compute of a pair with that client is no mark, nor a part of one that
    shows: marks of different lists are other words."""
    experiment = made()
    helper, member = party(experiment, "helper"), party(experiment, "client/7")
    entry, key = helper.keys.own_bytes(ENTRY), OpeningKey.load(helper.own.identity.opening)
    seen = []
    for count in (8, 7):
        rows, list_ = rows_of(experiment, count), told(experiment, count)
        length = described_length(helper)
        seen.append([opened_description(key, (entry, 0, list_), one, length).mark for one in rows])
        assert marks.add_up(seen[-1])
    assert len({*seen[0], *seen[1]}) == 15
    own, session = OpeningKey.load(member.own.identity.opening), helper.common.roster.session
    of = digest("coterie/list/2", session, 0, told(experiment), "helper", member.sums.fingerprint())
    for name in experiment.common.clients[:7]:
        other = {name: SealingKey(helper.common.roster.by_name[name].sealing_key)}
        assert marks.mark(own, "client/7", other, of) not in seen[0]
    experiment.close()


def test_a_hub_cannot_describe_a_client_of_its_own() -> None:
    """It lacks the seed of clients and helper, so what it seals is no row."""
    experiment = made()
    helper, hub = party(experiment, "helper"), party(experiment, "hub")
    key = SealingKey(hub.common.roster.by_name["helper"].sealing_key)
    said = "client/0"
    data = bytes(DESCRIBED.size + 8 * described_length(hub))
    for entry, read in ((bytes(32), 0), (helper.keys.own_bytes(ENTRY), 1)):  # the second has it from a client
        relay(helper, [key.seal(data, "client", "helper", entry, 0, said)])
        if read:
            with pytest.raises(PeerError, match="1 rows; of fewer than 6"):
                helper.groups.open(OpenRows(0, 0, said), "hub")
        else:
            assert helper.groups.open(OpenRows(0, 0, said), "hub").positions.tolist() == []
    experiment.close()


def test_no_dealt_randomness_is_used_twice() -> None:
    """A hub that has rows grouped again under the same masks would learn differences of gains."""
    experiment = made()
    helper, fresh = party(experiment, "helper"), rows_of(experiment)
    for placing, why in ((-1, "placing -1 with 2 groups"), (99, "nothing is dealt for placing 99")):
        relay(helper, fresh)
        with pytest.raises(PeerError, match=why):
            helper.groups.open(OpenRows(0, placing, told(experiment)), "hub")
    for _ in range(2):
        relay(helper, fresh)
        helper.groups.open(OpenRows(0, 3, told(experiment)), "hub")
    helper.groups.step(Step(0, 0, b""), "hub")
    relay(helper, fresh)
    with pytest.raises(PeerError, match="must not be used twice"):
        helper.groups.open(OpenRows(0, 3, told(experiment)), "hub")
    before = helper.secret.groups.shared.begun
    helper.secret.groups.shared.begun = frozenset()
    helper.groups.lasts(GroupsFound(shared=Shared(begun=before), grouped=(frozenset({"client/1"}),)))
    assert helper.secret.groups.shared.begun == before  # also where a round is attempted again
    assert helper.secret.groups.grouped == (frozenset({"client/1"}),)
    experiment.close()


def test_steps_of_a_grouping_come_in_order_and_from_the_hub() -> None:
    experiment = made()
    helper, fresh = party(experiment, "helper"), rows_of(experiment)
    with pytest.raises(PeerError, match="no grouping is under way"):
        helper.groups.step(Step(0, 0, b""), "hub")
    relay(helper, fresh)
    helper.groups.open(OpenRows(0, 0, told(experiment)), "hub")
    with pytest.raises(PeerError, match="only the hub"):
        helper.groups.step(Step(0, 0, b""), "client/0")
    with pytest.raises(PeerError, match="step 1 of a grouping after step 0"):
        helper.groups.step(Step(0, 1, b""), "hub")
    with pytest.raises(PeerError, match="a step in round 1 of a grouping of round 0"):
        helper.groups.step(Step(1, 0, b""), "hub")
    helper.groups.lasts(helper.groups.secret)  # another attempt: other steps on what was dealt would show more
    with pytest.raises(PeerError, match="no grouping is under way"):
        helper.groups.step(Step(0, 0, b""), "hub")
    experiment.close()


def test_a_step_that_cannot_be_taken_ends_the_grouping() -> None:
    """A server that deviates may not try numbers of its own until the other takes some: each try would tell a bit."""
    experiment = made()
    helper, fresh = party(experiment, "helper"), rows_of(experiment)
    relay(helper, fresh)
    helper.groups.open(OpenRows(0, 0, told(experiment)), "hub")
    assert helper.groups.step(Step(0, 0, b""), "hub").data == b"", "nor does it get the helper's part of that step"
    with pytest.raises(PeerError, match="no grouping is under way"):
        helper.groups.step(Step(0, 0, bytes(2)), "hub")
    relay(helper, fresh)
    with pytest.raises(PeerError, match="must not be used twice"):
        helper.groups.open(OpenRows(0, 0, told(experiment)), "hub")
    experiment.close()
