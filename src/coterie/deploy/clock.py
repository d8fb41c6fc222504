"""The clock of a node: the machine's, or in a rehearsal a virtual one, which gives a simulation's results."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence

import msgspec

from coterie.deploy.packets import NOWHEN, Instant
from coterie.protocol.party import Cost
from coterie.transport.envelope import Count, Sent
from coterie.transport.wire import GONE, Links, after, arrival


class Times(msgspec.Struct):
    """A party's part of the virtual clock. busy: until when the party works.

    at: the hub's instant in the round.  links: by recipient, when the last message arrives.
    delayed: messages that the experiment holds back, with the round until which, in the order of writing.
    """

    at: Instant = NOWHEN
    busy: Instant = NOWHEN
    links: dict[str, Instant] = msgspec.field(default_factory=dict)
    delayed: list[tuple[Count, Sent]] = msgspec.field(default_factory=list)

    def copy(self) -> Times:
        return Times(self.at, self.busy, dict(self.links), copy.copy(self.delayed))


class Clock:
    """Seconds since the plan was signed, by the machine's clock; within a process it never goes back.

    origin_s: that instant, in seconds since 1970.
    """

    rehearsed = False

    def __init__(self, origin_s: float = 0.0) -> None:
        self.times = Times()
        self._ahead_s = max(0.0, time.time() - origin_s) - time.monotonic()

    def now(self) -> Instant:
        return time.monotonic() + self._ahead_s, 0

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

    names: of all parties, in the order of the roster, the hub first.
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
        envelope, links, last = sent.envelope, self._links, self.times.links
        src, dst, size, r = envelope.src, envelope.dst, envelope.weight, envelope.round
        if src == dst:
            up_s = down_s = 0.0
        else:
            up_s = 0.0 if src == self._hub else links.up_s(src, size)
            down_s = 0.0 if dst == self._hub else links.down_s(dst, size)
        arrives = max(arrival(at, up_s + down_s), last.get(dst, NOWHEN))
        if src != dst and (fate := self._fate(dst, r, at, arrives, envelope.number)):
            return arrives, fate
        last[dst] = arrives
        return arrives, ""

    def _fate(self, dst: str, r: int, at: Instant, arrives: Instant, number: int) -> str:
        links = self._links
        if self._name != self._hub and not links.there(self._name, r, at[0]):
            return GONE
        if dst == self._hub:
            return ""
        fate = links.fate(dst, r, number * self._count + self._place) if links.there(dst, r, arrives[0]) else "offline"
        return "" if fate == "ok" else fate

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
