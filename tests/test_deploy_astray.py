"""Parties that do not follow: rolled back, ahead of the hub, or stopped again and again. What brings them back."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from nodes import Nodes
from test_deploy_hostile import keys, made, opened, take_all

from coterie.deploy.hub import FORCED, HubNode
from coterie.deploy.packets import Report, wrap

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
        body = wrap(keys(self.apart, name), name, "server", next(self.numbers), said)
        self.apart.exchange.put(name, "server", body, str(body))
        take_all(self.hub)

    def broken(self) -> str:
        """Why this attempt cannot go on; forgets it."""
        said, self.hub._broken = self.hub._broken, ""
        return said


@pytest.fixture
def heard() -> Iterator[Heard]:
    one = Heard(made())
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
        assert "its state is older than it was" in heard.hub.astray[ONE]
    heard.hub.close()
    again = Heard(heard.apart)
    again.numbers = heard.numbers
    again.begin((3, 0))
    again.report(ONE, commit=12)
    assert list(again.hub.astray) == [ONE]
    again.hub.forget(ONE)
    assert not again.hub.astray, "it was enrolled anew"
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


def test_a_party_that_is_ahead_follows_when_the_hub_is_beyond_it(heard: Heard) -> None:
    heard.begin((1, 0))
    heard.report(ONE, (3, 1))
    heard.report(ONE, (1, 0))
    assert "it is in round 3 already" in heard.hub.astray[ONE]
    for era in ((2, 0), (3, 0), (3, 1)):
        heard.begin(era)
        assert ONE in heard.hub.astray, era
    heard.begin((3, 2))
    assert not heard.hub.astray


def test_a_leader_that_is_stopped_twice_is_left_out_for_the_round(heard: Heard) -> None:
    heard.begin((1, 0))
    heard.report(ONE, interrupted=True)
    assert heard.broken() == f"{ONE} was stopped while it coordinated"
    heard.begin((1, 1))
    heard.report(ONE, interrupted=True)
    heard.report(ONE)
    assert not heard.broken()
    assert "stopped again and again" in heard.hub.astray[ONE]
    heard.begin((1, 2))
    assert ONE in heard.hub.astray, "for all of the round"
    heard.begin((2, 0))
    assert not heard.hub.astray


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
    assert heard.hub.astray == {ONE: f"it has had attempts of {FORCED} rounds repeated"}
    heard.report(OTHER, interrupted=True)
    assert heard.broken() == f"{OTHER} was stopped while it coordinated"
    heard.hub.forget(ONE)
    heard.report(ONE, interrupted=True)
    assert heard.broken() == f"{ONE} was stopped while it coordinated"
