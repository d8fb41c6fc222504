"""A party that leads: one coordination at a time, whatever comes and however often a round is tried again."""

from __future__ import annotations

from typing import Any

import pytest
from federation import planted
from nodes import Driven, steady

from coterie.baselines.rfl_ha import Belong, Lead
from coterie.deploy.packet_queue import NodeLimits
from coterie.deploy.packets import BeginAttempt, Letter
from coterie.protocol.messages import bundle

TARGETS = planted([0, 0, 1], 16)
BRISK = NodeLimits(patience_s=20.0, grace_s=5.0, poll_s=0.02)
HEAD = "client/0"


class Head(Driven):
    """A head of RFL-HA."""

    def lead(self, r: int, *, asked: bytes = b"\1\1\1", **more: Any) -> int:
        common = self.apart.made.common
        return self.ask(Lead(more.get("sent_in", r), common.spec.digest, common.initial, asked), r, **more)

    def leads(self) -> int:
        """The number of the request that it leads for, or 0."""
        lead = self.node.lead
        return 0 if lead is None or lead.request is None else lead.request[1].envelope.number

    def answered(self) -> list[int]:
        """The requests of the hub that it has said something to, in order; forgets them."""
        found = [one.envelope.answers if isinstance(one, Letter) else getattr(one, "number", 0) for one in self.said()]
        return [number for number in found if number]


@pytest.fixture
def head() -> Any:
    one = Head(steady(TARGETS, "rfl_ha", limits=BRISK, clusters=1), HEAD)
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
    assert len(head.node.queue.held) == 1, "the first is kept for another attempt, and comes no more"
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


def test_a_request_that_waited_for_its_leader_begins_nothing_in_the_next_round(head: Head) -> None:
    """When the next round begins it is still at work on the first of two requests."""
    head.tell(BeginAttempt((1, 0), 0))
    first = head.lead(1)
    head.lead(1)
    assert head.leads() == first
    head.tell(BeginAttempt((2, 0), 0))
    assert head.leads() == 0
    assert head.node.kept.era == (2, 0)
    head.node.turn()  # nothing comes, so there is time to store that the round has begun
    assert head.apart.exchange.waiting(HEAD) == 0
