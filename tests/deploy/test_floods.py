"""Members that send without end what is kept for later: bounded, each sender's by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from liars import CSP, HUB, OTHER

from coterie.deploy.hub import HubNode
from coterie.deploy.packets import Letter, wrap
from coterie.deploy.surroundings import NodeSettings
from coterie.protocol.party import To
from coterie.protocols import averaging
from coterie.transport.envelope import Envelope
from tests.deploy.test_hostile import made, opened, take_all
from tests.deploy.test_threats import Open, ran, scene  # noqa: F401


def test_a_flood_of_messages_of_earlier_rounds_is_bounded(scene: Open) -> None:  # noqa: F811
    """They are kept for another attempt, in memory and in each commit."""
    one = scene(CSP)
    one.node.settings = replace(one.node.settings, most=50)
    kinds = [kind.__name__ for kind in one.node.member.party.handlers]
    body = Envelope(OTHER, CSP, one.all.roles[OTHER][0], kinds[0], one.keys(OTHER).session, 0, 0, 1, 0, True, 9)
    for number in range(200):
        one.packet(OTHER, Letter(msgspec.structs.replace(body, number=number + 1), b"", one.node.era))
    one.take()
    assert len(one.node.kept.again) == 50
    assert one.node.queue.traffic.refused["packet"] == 150


class Busy:
    """In the place of a coordination that has asked for nothing."""

    def __init__(self) -> None:
        self.came: list[Envelope] = []

    def awaits(self, envelope: Envelope) -> bool:
        return False

    lacks = awaits

    def letter(self, envelope: Envelope, frame: bytes, arrives: object) -> None:
        self.came.append(envelope)


def test_a_flood_of_messages_that_nobody_has_asked_for_is_bounded(scene: Open) -> None:  # noqa: F811
    """They would wait for a step that takes them, of this round or a later one."""
    one, busy = scene(HUB), Busy()
    one.node.settings = replace(one.node.settings, most=50)
    session = one.keys(OTHER).session
    for number in range(200):
        envelope = Envelope(OTHER, HUB, one.all.roles[OTHER][0], "Junk", session, *one.node.era, number, 0, False, 9)
        one.packet(OTHER, Letter(envelope, b"", one.node.era))
    one.node.lead = busy  # type: ignore[assignment]
    while (arrived := one.node.queue.pull(0.0)) is not None:
        one.node.take(arrived)
    one.node.lead = None
    assert len(busy.came) == 50
    assert one.node.queue.traffic.refused["packet"] == 150


@pytest.mark.parametrize("asked", ["client/0", "client/1"])
def test_a_flood_of_answers_to_one_request_is_bounded(asked: str) -> None:
    """To a request of its own, and to that of another: one answer is awaited, of the party that was asked."""
    apart = made(settings=NodeSettings(most=50))
    hub, _ = opened(apart, "server")
    assert isinstance(hub, HubNode)
    for era in ((0, 0), (1, 0)):
        hub._announce(era)
    party: Any = hub.member.party
    hub.lead = hub.leading(party.round(1), party.role, (1, 0), (0.0, 0))
    hub._lead_on(hub.lead, lambda lead: lead.begin())
    (number,) = (n for n, name in hub.lead.coordination.awaited.items() if name == asked)
    liar = apart.node("client/0").member
    request = Envelope("server", "client/0", "server", "Train", liar.keyring.session, 1, 0, number, 0, False, 0)
    message = averaging.Train(1, apart.made.common.spec.digest, apart.made.common.initial)
    for at in range(200):
        (sent,) = liar.send([To("server", message)], "client", round=1, attempt=0, request=request)
        body = wrap(apart.keys("client/0"), "client/0", "server", at + 1, Letter(sent.envelope, sent.frame, (1, 0)))
        apart.exchange.put("client/0", "server", body, str(at))
    take_all(hub)
    assert len(hub.member.inbox) <= 50
    assert hub.queue.traffic.refused["packet"] >= 149
    hub.lead.stop()
    hub.lead = None
    hub.close()
