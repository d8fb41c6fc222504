"""The clock of a party on its own: real time, or its part of the virtual clock."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import msgspec

from coterie.protocol.party import Cost
from coterie.transport.envelope import Count, Sent
from coterie.transport.wire import Links, after, journey

Instant = tuple[float, Count]
"""``transport.wire.Instant``, checked when it comes from others or from a file."""

NOWHEN: Instant = 0.0, 0


class Times(msgspec.Struct):
    """A party's part of the virtual clock.  busy: until when it works.

    at: the hub's instant in the round.  links: by recipient, when the last message arrives.  delayed: messages held
    back, with the round until which, in the order of writing.
    """

    at: Instant = NOWHEN
    busy: Instant = NOWHEN
    links: dict[str, Instant] = msgspec.field(default_factory=dict)
    delayed: list[tuple[Count, Sent]] = msgspec.field(default_factory=list)

    def copy(self) -> Times:
        return Times(self.at, self.busy, dict(self.links), copy.copy(self.delayed))


class Clock:
    """In real time messages arrive when they come, and none is held back."""

    rehearsed = False

    def __init__(self) -> None:
        self.times = Times()

    def now(self) -> Instant:
        raise NotImplementedError

    def handled(self, arrives: Instant, cost: Cost) -> tuple[Instant, Instant]:
        return self.now(), self.now()

    def work_s(self, cost: Cost) -> float:
        return 0.0

    def send(self, sent: Sent, at: Instant) -> tuple[Instant, str]:
        return NOWHEN, ""

    def hold_back(self, sent: Sent, round: int) -> bool:
        return False

    def release(self, round: int) -> list[Sent]:
        return []


class RehearsedClock(Clock):
    """Times follow from sizes, nominal costs and ``links``, as in a simulation.

    names: in the order of the roster, the hub first.
    """

    rehearsed = True

    def __init__(self, name: str, names: Sequence[str], links: Links) -> None:
        super().__init__()
        self._name, self._hub, self._links = name, names[0], links
        self._place, self._count = names.index(name), len(names)

    def now(self) -> Instant:
        return self.times.at

    def handled(self, arrives: Instant, cost: Cost) -> tuple[Instant, Instant]:
        start = max(arrives, self.times.busy)
        self.times.busy = after(start, self.work_s(cost))
        return arrives, self.times.busy

    def work_s(self, cost: Cost) -> float:
        return self._links.work_s(self._name, cost)

    def send(self, sent: Sent, at: Instant) -> tuple[Instant, str]:
        envelope, last = sent.envelope, self.times.links
        request = envelope.number * self._count + self._place
        before = last.get(envelope.dst, NOWHEN)
        _, _, arrives, fate = journey(self._links, self._hub, envelope, at, before, request)
        if fate != "ok":
            return arrives, fate
        last[envelope.dst] = arrives
        return arrives, ""

    def hold_back(self, sent: Sent, round: int) -> bool:
        envelope, delayed = sent.envelope, self.times.delayed
        due = envelope.round + self._links.rounds(envelope.src, envelope.round)
        due = max([due, *(later for later, one in delayed if one.envelope.dst == envelope.dst)])
        if due <= round:
            return False
        delayed.append((due, sent))
        return True

    def release(self, round: int) -> list[Sent]:
        delayed = self.times.delayed
        self.times.delayed = [(due, sent) for due, sent in delayed if due > round]
        return [sent for due, sent in delayed if due <= round]
