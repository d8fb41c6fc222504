"""Whether anything is under way, by what parties tell: never too early, and in the end."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict, deque
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.deploy.engine import EngineError, FullError, UndeliverableError
from coterie.deploy.hub import HubNode
from coterie.deploy.packet_queue import NodeLimits
from coterie.deploy.packets import BeginAttempt, End, Era, Letter, NoAnswer, PlanUpdate, Report, Tally, unwrap
from tests.deploy.test_leading import HEAD, Head, head  # noqa: F401
from tests.deploy.test_packet_queue import NAMES, queues

ERA = (1, 0)


# ---- the rule, among parties that say and do anything


class Parties:
    """Parties whose packets wait in queues, one for each pair. A party that takes one sends others, and then tells."""

    def __init__(self, names: list[str], draw: Any) -> None:
        self.names, self.draw, self.left = names, draw, 12
        self.queues: dict[tuple[str, str], deque[Tally | None]] = defaultdict(deque)
        self.sent: dict[str, Counter[str]] = {name: Counter() for name in names}
        self.taken: dict[str, Counter[str]] = {name: Counter() for name in names}
        self.tallies: dict[str, Tally] = {}

    def acts(self, name: str) -> None:
        """Send some packets. A tally comes with the last one for the hub, or alone, which is not counted."""
        to = self.draw(
            st.lists(st.sampled_from([one for one in self.names if one != name]), max_size=min(3, self.left))
        )
        self.left -= len(to)
        self.sent[name].update(to)
        tally = None if name == "hub" else Tally(ERA, dict(self.sent[name]), dict(self.taken[name]))
        last = max((at for at, dst in enumerate(to) if dst == "hub"), default=-1)
        for at, dst in enumerate(to):
            self.queues[name, dst].append(tally if at == last else None)
        if tally is not None and last < 0:
            self.queues[name, "hub tally"].append(tally)

    def take(self, src: str, dst: str) -> None:
        tally = self.queues[src, dst].popleft()
        if tally is not None:
            self.tallies[src] = tally
        if dst != "hub tally":
            self.taken[dst][src] += 1
            self.acts(dst)

    def quiescent(self) -> bool:
        kept = SimpleNamespace(era=ERA, sent=self.sent["hub"], received=self.taken["hub"])
        presence = SimpleNamespace(look=lambda of: set())
        of: Any = SimpleNamespace(
            kept=kept, lead=None, presence=presence, excluded={}, tallies=self.tallies, name="hub"
        )
        of.others = self.names[1:]
        return HubNode.quiescent(of)


@given(st.integers(1, 4), st.data())
def test_nothing_is_under_way_when_all_counts_agree_and_then_they_do(others: int, data: st.DataObject) -> None:
    """However packets and tallies overtake those of other pairs. In the end the hub believes it."""
    parties = Parties(["hub", *"abcd"[:others]], data.draw)
    for name in parties.names:
        parties.acts(name)
    while waiting := [pair for pair, queue in parties.queues.items() if queue]:
        packets = [pair for pair in waiting if pair[1] != "hub tally"]
        assert not (packets and parties.quiescent())
        parties.take(*data.draw(st.sampled_from(waiting)))
    for name in parties.names[1:]:  # a tally in a letter may be older than one that came alone: nodes keep one queue
        parties.tallies[name] = Tally(ERA, dict(parties.sent[name]), dict(parties.taken[name]))
    assert parties.quiescent()


# ---- when a node tells


def told(one: Head, era: Era) -> list[Tally]:
    """The tallies of this attempt that have reached the hub since it was asked last."""
    found = [packet if isinstance(packet, Tally) else getattr(packet, "tally", None) for packet in one.said()]
    return [tally for tally in found if tally is not None and tally.era == era]


def test_a_party_that_takes_messages_again_tells_nothing_before(head: Head) -> None:  # noqa: F811
    """A request of round 0 came in round 1. In the next attempt it leads again, before a packet of that comes.

    By the tally in its report, the hub would believe that nothing is under way.
    """
    head.tell(BeginAttempt((1, 0), 0))
    head.lead(1, sent_in=0)
    head.node.kept.tallies = True
    told(head, (1, 0))
    head.tell(BeginAttempt((1, 1), 0, mark=5))
    head.node.tally()
    assert head.leads()
    assert [sum(tally.sent.values()) for tally in told(head, (1, 1))] == [2]


def test_a_party_that_has_started_tells_nothing_before_the_hub_has_said_begin(head: Head) -> None:  # noqa: F811
    head.tell(BeginAttempt((1, 0), 0))
    head.lead(1, sent_in=0)
    head.node.kept.tallies = True
    head.tell(BeginAttempt((1, 1), 0, mark=5))
    head.node.close()
    told(head, (1, 1))
    head.start()
    assert head.node.awaits_begin
    head.node.tally()
    assert told(head, (1, 1)) == []
    head.tell(BeginAttempt((1, 1), 0, mark=5))
    head.node.tally()
    assert len(told(head, (1, 1))) == 1


def test_what_a_leader_sends_in_the_middle_of_its_work_tells_nothing(head: Head) -> None:  # noqa: F811
    """It may compute and send more, without another packet."""
    head.tell(BeginAttempt((1, 0), 0))
    head.lead(1)
    node = head.node
    node.kept.tallies = True

    def tallies() -> list[Tally | None]:
        silence: list[tuple[str, Any]] = [
            ("server", node.none(1, "late", (0.0, 0))),
            ("client/1", node.none(2, "late", (0.0, 0))),
        ]
        packets = [
            unwrap(head.apart.keys("server"), HEAD, "server", p.body)[1]
            for p in node.wrapped(silence)
            if p.dst == "server"
        ]
        return [packet.tally for packet in packets if isinstance(packet, Letter | NoAnswer | Report)]

    assert tallies() == [None]
    node.give_up()
    (tally,) = tallies()
    assert tally is not None
    assert tally.sent == node.kept.sent


def test_what_waits_for_a_leader_is_taken_at_the_end(head: Head) -> None:  # noqa: F811
    """Else the hub has sent more than was taken, and waits until it has heard nothing for ``grace_s``."""
    head.tell(BeginAttempt((1, 0), 0))
    first, second = head.lead(1), head.lead(1)
    head.answered()
    head.tell(End())
    assert head.answered() == [first, second]
    assert head.node.kept.received["server"] == 3
    assert not head.node.waiting


# ---- the order of packets


FAILURES = [EngineError("away"), FullError("full"), UndeliverableError("too large")]


@given(
    st.lists(st.tuples(st.sampled_from(["aside", "send", "flush", "several"]), st.sampled_from("ab")), max_size=12),
    st.lists(st.sampled_from([None, None, *FAILURES]), max_size=30),
)
def test_no_packet_is_overtaken_by_one_with_a_later_number(steps: list[tuple[str, str]], problems: list[Any]) -> None:
    """Whatever the engine says of a push, and whatever was put aside: each recipient's numbers only grow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("coterie.deploy.packet_queue._RETRY_S", 0.0)
        patch.setitem(NAMES, "b", "client")
        _, hub, _, _ = queues(limits=NodeLimits(grace_s=0.0))
        coming, stored = iter(problems), defaultdict[str, list[int]](list)

        def push(dst: str, body: bytes, key: str) -> None:
            if (problem := next(coming, None)) is not None:
                raise problem
            stored[dst].append(int(key.split(".")[1]))

        hub.engine.push = push  # type: ignore[method-assign]
        for what, dst in steps:
            if what == "aside":
                hub.put_aside(hub.wrap(dst, PlanUpdate(b"")))
            elif what == "send":
                hub.send(dst, PlanUpdate(b""))
            elif what == "several":
                hub.push([hub.wrap(to, PlanUpdate(b"")) for to in (dst, "a", "b", dst)])
            else:
                hub.flush()
        hub.flush()
    for numbers in stored.values():
        assert all(one < other for one, other in itertools.pairwise(numbers))
