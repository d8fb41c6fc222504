"""A party that leads: one coordination at a time, whatever comes and however often a round is tried again."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest
from federation import Steady, planted, rig
from nodes import Nodes, nodes

from coterie.baselines.rfl_ha import Belong, Lead
from coterie.deploy.node import Node
from coterie.deploy.packets import BeginAttempt, Letter, unwrap, wrap
from coterie.deploy.surroundings import NodeSettings
from coterie.protocol.messages import Message, bundle
from coterie.protocol.party import To
from coterie.runs import registry

TARGETS = planted([0, 0, 1], 16)
BRISK = NodeSettings(patience_s=20.0, grace_s=5.0, poll_s=0.02)
HEAD = "client/0"


@dataclass
class Head:
    """A head of RFL-HA that no thread drives, and the hub's keys."""

    apart: Nodes
    node: Node = field(init=False)
    number: Any = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self.hub = self.apart.node("server").member
        self.node = self.apart.node(HEAD)
        self.node.open()

    def tell(self, packet: Any) -> None:
        body = wrap(self.apart.keys("server"), "server", HEAD, next(self.number), packet)
        self.apart.exchange.put("server", HEAD, body, str(body))
        while (arrived := self.node.queue.pull(0.0)) is not None:
            self.node.take(arrived)

    def ask(self, message: Message, r: int, attempt: int = 0, *, sent_in: int | None = None) -> int:
        """A message of round ``sent_in`` that comes in round r; gives its number."""
        of = r if sent_in is None else sent_in
        (sent,) = self.hub.send([To(HEAD, message)], "server", round=of, attempt=0 if sent_in is not None else attempt)
        self.tell(Letter(sent.envelope, sent.frame, (r, attempt)))
        return sent.envelope.number

    def lead(self, r: int, *, asked: bytes = b"\1\1\1", **more: Any) -> int:
        common = self.apart.made.common
        return self.ask(Lead(more.get("sent_in", r), common.spec.digest, common.initial, asked), r, **more)

    def leads(self) -> int:
        """The number of the request that it leads for, or 0."""
        lead = self.node.lead
        return 0 if lead is None or lead.request is None else lead.request[1].envelope.number

    def answered(self) -> list[int]:
        """The requests of the hub that it has said something to, in order; forgets them."""
        engine, found = self.apart.exchange.engine("server"), []
        while (delivery := engine.pull(0.0)) is not None:
            packet = unwrap(self.apart.keys("server"), HEAD, "server", delivery.body)[1]
            found.append(packet.envelope.answers if isinstance(packet, Letter) else getattr(packet, "number", 0))
            delivery.done()
        return [number for number in found if number]


@pytest.fixture
def head() -> Any:
    made = rig(registry.get("rfl_ha"), TARGETS, delta=0.0, links=Steady(), clusters=1)
    one = Head(nodes(made, "rfl_ha", TARGETS, settings=BRISK))
    names = bundle([name.encode() for name in one.apart.made.common.clients])
    one.tell(BeginAttempt((0, 0), 0))
    one.ask(Belong(0, HEAD, names, 3), 0)
    one.answered()
    yield one
    one.node.close()


def test_messages_that_are_taken_again_lead_one_after_the_other(head: Head) -> None:
    """Two requests of round 0 come in round 1, which is tried again: each attempt leads for the first of them alone."""
    head.tell(BeginAttempt((1, 0), 0))
    first, second = head.lead(1, sent_in=0), head.lead(1, sent_in=0)
    assert head.leads() == first
    for attempt in (1, 2):
        head.tell(BeginAttempt((1, attempt), 0))
        assert [one.envelope.number for one in head.node.kept.again] == [first, second]
        assert head.leads() == first
        assert head.answered() == [first, second], "both were given up with the attempt before"
    assert head.node.lead is not None
    for number in head.node.lead.coordination.awaited:
        head.node.lead.lost(number, "gone", (0.0, 0))
    head.node.turn()
    assert head.leads() == second, "the second begins when the first has ended"
    head.node.give_up()
    assert head.node.lead is None


def test_a_request_that_waits_is_taken_when_the_first_one_fails(head: Head) -> None:
    """What fails is the leader's own work, with an error that is no refusal."""
    head.tell(BeginAttempt((1, 0), 0))
    first, second = head.lead(1), head.lead(1)
    assert head.leads() == first

    def fails(effect: Any) -> Any:
        raise ZeroDivisionError

    lead = head.node.lead
    assert lead is not None
    lead._compute = fails
    for number in lead.coordination.awaited:
        lead.lost(number, "gone", (0.0, 0))
    head.node.turn()
    assert head.answered() == [first]
    assert head.leads() == second
