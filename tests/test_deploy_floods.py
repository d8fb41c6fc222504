"""Members that send without end what is kept for later: bounded, each sender's by itself."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from liars import CSP, HUB, OTHER
from test_deploy_threats import Open, ran, scene  # noqa: F401

from coterie.deploy.packets import Letter
from coterie.transport.envelope import Envelope


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
    assert one.node.mail.traffic.refused["packet"] == 150


class Busy:
    """In the place of a coordination that has asked for nothing."""

    def __init__(self) -> None:
        self.came: list[Envelope] = []

    def awaits(self, envelope: Envelope) -> bool:
        return False

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
    while (arrived := one.node.mail.pull(0.0)) is not None:
        one.node.take(arrived)
    one.node.lead = None
    assert len(busy.came) == 50
    assert one.node.mail.traffic.refused["packet"] == 150
