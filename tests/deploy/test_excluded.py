"""Parties that do not follow: rolled back, ahead of the hub, or stopped again and again. What brings them back."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from federation import planted
from nodes import Driven, Nodes, keys_of, opened, steady, take_all

from coterie.deploy.hub import FORCED, HubNode
from coterie.deploy.logs import NodeObserver
from coterie.deploy.node import Node
from coterie.deploy.packets import BeginAttempt, Letter, Report, wrap
from coterie.protocol.errors import UserError
from coterie.protocols import averaging
from coterie.runs.keyring import PartyKeys
from coterie.transport.envelope import Opened
from tests.deploy.test_hostile import TARGETS, Backed, Told, identity_of

ONE, OTHER = "client/0", "client/1"


class Heard:
    """A hub at work that no thread drives, and what its clients tell it."""

    def __init__(self, apart: Nodes) -> None:
        self.apart, self.numbers = apart, itertools.count(1)
        node, _ = opened(apart, "server")
        assert isinstance(node, HubNode)
        self.hub = node

    def begin(self, era: tuple[int, int]) -> None:
        if not era[1]:
            self.hub._stopped, self.hub._unfit = set(), set()
        self.hub._announce(era)

    def report(self, name: str, era: tuple[int, int] | None = None, commit: int = 1, **more: Any) -> None:
        said = Report(self.hub.era if era is None else era, commit, **more)
        body = wrap(keys_of(self.apart, name), name, "server", next(self.numbers), said)
        self.apart.exchange.put(name, "server", body, str(body))
        take_all(self.hub)

    def broken(self) -> str:
        """Why this attempt cannot go on; forgets it."""
        said, self.hub._broken = self.hub._broken, ""
        return said


@pytest.fixture
def heard() -> Iterator[Heard]:
    one = Heard(steady(TARGETS))
    one.begin((0, 0))
    yield one
    one.hub.close()


def test_a_party_that_was_rolled_back_is_believed_nothing_more(heard: Heard) -> None:
    """Whatever it reports later, in whatever round, and also by a hub that was started again."""
    heard.report(ONE, commit=9)
    heard.report(ONE, commit=3, rolled_back=True)
    for r in (1, 2):
        heard.begin((r, 0))
        heard.report(ONE, commit=10)
        heard.report(ONE, commit=11, closed=True, started=True)
        assert "its state is older than it was" in heard.hub.excluded[ONE]
    heard.hub.close()
    again = Heard(heard.apart)
    again.numbers = heard.numbers
    again.begin((3, 0))
    again.report(ONE, commit=12)
    assert list(again.hub.excluded) == [ONE]
    again.hub.forget(ONE)
    assert not again.hub.excluded, "it was enrolled anew"
    again.hub.close()


def test_a_party_that_is_astray_is_asked_nothing(heard: Heard) -> None:
    """Else what it is asked would wait at the broker, or be answered from a state that has gone back."""
    heard.report(ONE, rolled_back=True)
    heard.begin((1, 0))
    hub, common = heard.hub, heard.apart.made.common
    party: Any = hub.member.party
    hub.lead = hub.leading(party.round(1), party.role, (1, 0), (0.0, 0))
    before = {name: heard.apart.exchange.packets["server", name] for name in common.clients}
    hub._lead_on(hub.lead, lambda lead: lead.begin())
    asked = {name: heard.apart.exchange.packets["server", name] - before[name] for name in common.clients}
    assert asked == {ONE: 0, OTHER: 1, "client/2": 1}
    assert "older than it was" in hub.lead.gone[ONE]
    hub.lead.stop()
    hub.lead = None


def test_a_party_that_is_ahead_follows_when_the_hub_has_come_to_it(heard: Heard) -> None:
    heard.begin((1, 0))
    heard.report(ONE, (3, 1))
    heard.report(ONE, (1, 0))
    assert "in a later round already" in heard.hub.excluded[ONE]
    for era in ((2, 0), (3, 0)):
        heard.begin(era)
        assert ONE in heard.hub.excluded, era
    heard.begin((3, 1))
    assert not heard.hub.excluded
    heard.report(ONE, repeated=True)
    assert heard.broken() == f"{ONE} has been in attempt 1 of round 3 before: was the hub's disk put back?"


def test_a_leader_that_is_stopped_twice_is_left_out_for_the_round(heard: Heard) -> None:
    heard.begin((1, 0))
    heard.report(ONE, interrupted=True)
    assert heard.broken() == f"{ONE} was stopped while it coordinated"
    heard.begin((1, 1))
    heard.report(ONE, interrupted=True)
    heard.report(ONE)
    assert not heard.broken()
    assert "stopped again and again" in heard.hub.excluded[ONE]
    heard.begin((1, 2))
    assert ONE in heard.hub.excluded, "for all of the round"
    heard.begin((2, 0))
    assert not heard.hub.excluded


def test_a_party_has_attempts_of_a_few_rounds_repeated_and_no_more(heard: Heard) -> None:
    """Each sender by itself, and also if the hub is started again in between."""
    for r in range(1, FORCED + 3):
        heard.begin((r, 0))
        if r == 3:
            heard.hub.close()
            numbers, heard.hub = heard.numbers, Heard(heard.apart).hub
            heard.numbers = numbers
        heard.report(ONE, interrupted=True)
        assert bool(heard.broken()) == (r <= FORCED)
        heard.report(ONE)
    assert heard.hub.excluded == {ONE: f"it has had attempts of {FORCED} rounds repeated"}
    heard.report(OTHER, interrupted=True)
    assert heard.broken() == f"{OTHER} was stopped while it coordinated"
    heard.hub.forget(ONE)
    heard.report(ONE, interrupted=True)
    assert heard.broken() == f"{ONE} was stopped while it coordinated"


# -- the hub's own disk ------------------------------------------------------------------------------------------------


class Handles(NodeObserver):
    """Which requests of the hub a party has handled, by round and attempt."""

    def __init__(self) -> None:
        self.eras: Counter[tuple[int, int]] = Counter()

    def read(self, opened: Opened) -> None:
        if opened.envelope.src == "server":
            self.eras[opened.envelope.round, opened.envelope.attempt] += 1


@pytest.mark.parametrize("by", [1, 2])
def test_no_party_answers_in_an_attempt_that_the_hub_announces_twice(by: int) -> None:
    """The hub is put back to before it announced round 2, when the first answers of that round have come."""
    apart, watched = steady(TARGETS), {name: Handles() for name in (ONE, OTHER, "client/2")}

    def answered(node: Node, what: str) -> bool:
        return node.kept.era == (2, 0) and len(node.kept.received) == 3 and what == "before it is done"

    doom = apart.dooms["server"] = Backed(answered, apart, "server", by)
    make = apart.node
    apart.node = lambda name, **more: make(name, **more, **({"observer": watched[name]} if name in watched else {}))  # type: ignore[method-assign]
    apart.run(3)
    assert doom.died == 1
    for name, one in watched.items():
        assert one.eras[2, 0] == 1, name
        assert max(one.eras.values()) == 1, (name, one.eras)
    second = [one for one in apart.rounds if one.round == 2]
    assert [one.notes["participants"] for one in second] == [3]
    assert any("before: was the hub's disk put back?" in why for why in second[0].attempts)


# -- revoked before the run began --------------------------------------------------------------------------------------


TOGETHER: list[tuple[str, str, dict[str, Any]]] = [
    ("ofl", "hardened", {"clusters": 2}),
    ("mingledpie", "paper", {"clusters": 2, "threshold": 2, "keys": "threshold", "rebuild": "none"}),
    ("secagg", "paper", {}),
]
"""Systems whose members make their keys together: those that are left do it without the one that is gone."""


@pytest.mark.parametrize(("name", "mode", "settings"), TOGETHER, ids=[name for name, *_ in TOGETHER])
def test_members_that_make_their_keys_together_begin_without_one_that_was_revoked(
    name: str, mode: str, settings: dict[str, Any]
) -> None:
    """It does nothing, and the others know of it before the set-up."""
    last, targets = "client/5", planted([0, 0, 0, 1, 1, 1], 16)
    apart = steady(targets, name, mode=mode, **settings)
    plans, common = iter([b"revoked"]), apart.made.common
    left = tuple(one for one in common.roster.entries if one.name != last)
    roster = msgspec.structs.replace(common.roster, entries=left)

    def live(name: str, rounds: int) -> None:
        if name == last:
            apart.node(name)
        else:
            apart.live(name, rounds)

    apart.options = lambda name: {
        "renew": lambda plan: (PartyKeys(roster, {name: identity_of(apart, name)}), common),
        **({"plans": Told(newest=lambda: next(plans, None))} if name == apart.hub else {}),
    }
    apart.run(2, live)
    assert [one.notes.get("participants") for one in apart.rounds][1:3] == [5, 5]
    assert all({*one.gone} <= {last} and not one.attempts for one in apart.rounds)


def test_no_attempt_of_the_set_up_begins_without_a_party_that_it_needs() -> None:
    refused = UserError("helper was revoked")

    def check() -> None:
        raise refused

    apart = steady(TARGETS)
    node, _ = opened(apart, "server", plans=Told(check_begins=check))
    assert isinstance(node, HubNode)
    for attempt in (0, 1):
        with pytest.raises(UserError, match="helper was revoked"):
            node._announce((0, attempt))
    node._announce((1, 0))
    node.close()


def train(one: Driven, r: int, attempt: int) -> None:
    common = one.apart.made.common
    one.ask(averaging.Train(r, common.spec.digest, common.initial), r, attempt)


def test_an_attempt_under_another_mark_is_another_one() -> None:
    """Its requests are dropped, and the party asks for another attempt, once. It takes part in that."""
    one = Driven(steady(TARGETS), ONE)
    one.tell(BeginAttempt((0, 0), 0, mark=4))
    one.tell(BeginAttempt((1, 0), 0, mark=5))
    train(one, 1, 0)
    one.said()
    for mark in (5, 6, 6):
        one.tell(BeginAttempt((1, 0), 0, mark=mark))
        train(one, 1, 0)
        said = one.said()
        assert sum(isinstance(packet, Letter) for packet in said) == (mark == 5)
        asked = [packet.era for packet in said if isinstance(packet, Report) and packet.repeated]
        assert asked == ([(1, 0)] if mark == 6 and not one.noted.said["packet of server"] > 1 else [])
    one.tell(BeginAttempt((1, 1), 0, mark=7))
    train(one, 1, 1)
    assert [packet.envelope.attempt for packet in one.said() if isinstance(packet, Letter)] == [1]
    one.node.close()


def test_a_party_that_starts_again_still_knows_the_mark() -> None:
    """What the hub asked before the party was told of this attempt waits, and is dropped."""
    one = Driven(steady(TARGETS), ONE)
    for r in (0, 1):
        one.tell(BeginAttempt((r, 0), 0, mark=5))
    train(one, 1, 0)
    one.node.close()
    one.start()
    train(one, 1, 0)
    assert len(one.node.waiting) == 1
    one.said()
    one.tell(BeginAttempt((1, 0), 0, mark=6))
    assert not one.node.waiting
    assert [type(packet).__name__ for packet in one.said()] == ["Report"]
    one.node.close()
