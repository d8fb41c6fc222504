"""A coordination at work in a node: the hub's round, or a leader's handler."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from typing import Any

from coterie.deploy.logs import event
from coterie.deploy.packet_queue import Arrived
from coterie.deploy.packets import Letter
from coterie.protocol.party import Cost
from coterie.protocol.spool import Spool
from coterie.protocol.steps import UNACCEPTABLE
from coterie.transport.clock import Clock, Instant
from coterie.transport.coordination import Coordination
from coterie.transport.envelope import Envelope
from coterie.transport.queues import Leader, Lost
from coterie.transport.wire import Parcel


def waiting(letter: Letter, spool: Spool) -> Parcel:
    return Parcel(letter.envelope, "", *letter.arrives, spool.put(letter.frame))


class CoordinationDriver:
    """In a rehearsal an event waits until all that can precede it on the virtual clock are known.

    quiescent: nothing is under way (only the hub can know).  request: packet and letter that it answers; None for the
    hub's round.  at: when it begins.
    """

    def __init__(
        self,
        coordination: Coordination,
        clock: Clock,
        compute: Callable[[Any], Any],
        at: Instant,
        request: tuple[Arrived | None, Letter] | None = None,
        quiescent: Callable[[], bool] = lambda: False,
    ) -> None:
        self.coordination, self.request = coordination, request
        self.gone: dict[str, str] = {}  # parties that were not there when they were asked
        self._lost: set[int] = set()
        self._clock, self._compute, self._quiescent = clock, compute, quiescent
        self._leader = Leader(coordination, at, None if request is None else Parcel(request[1].envelope, ""))
        self._spool = coordination.member.spool

    @property
    def at(self) -> Instant:
        return self._leader.at if self._clock.rehearsed else self._clock.now()

    def wakes_in_s(self) -> float:
        return 60.0 if self._clock.rehearsed else max(0.0, self.coordination.wake_s - self._clock.now()[0])

    def begin(self, step: Any = None) -> None:
        """step: one that the generator has yielded already."""
        self.coordination.start(self.at[0], step)
        self.go_on()

    # -- events ------------------------------------------------------------------------------------------------------

    def awaits(self, envelope: Envelope) -> bool:
        return envelope.answers in self.coordination.asked

    def lacks(self, envelope: Envelope) -> bool:
        return self.coordination.lacks(envelope.answers, envelope.src)

    def letter(self, envelope: Envelope, frame: bytes, arrives: Instant) -> None:
        if self._clock.rehearsed:
            self._leader.push(arrives, Parcel(envelope, "", *arrives, self._spool.put(frame)))
        else:
            self._deliver(envelope, frame, self._clock.now()[0])

    def lost(self, number: int, why: str, at: Instant) -> None:
        if self._clock.rehearsed:
            if number not in self._lost:
                self._leader.push(at, Lost(number, why))
            self._lost.add(number)
        else:
            self.coordination.refuse(number, why, self._clock.now()[0])

    def left(self) -> list[Parcel]:
        return self._leader.parcels()

    def _deliver(self, envelope: Envelope, frame: bytes, at_s: float) -> None:
        awaited = self.coordination.awaited.get(envelope.answers) == envelope.src
        if not self.coordination.deliver(envelope, frame, at_s) and awaited:
            self.coordination.refuse(envelope.answers, UNACCEPTABLE, self.at[0])

    # -- its course --------------------------------------------------------------------------------------------------

    def go_on(self) -> None:
        while True:
            self._run_effects()
            if self.coordination.done or not self._may_act():
                return
            self._act()

    def _run_effects(self) -> None:
        coordination = self.coordination
        while (effect := coordination.effect) is not None:
            if isinstance(effect, Cost):
                coordination.spent(self._clock.work_s(effect), self.at[0])
            else:
                value = self._compute(effect)
                coordination.computed(value, self.at[0])

    def _may_act(self) -> bool:
        if not self._clock.rehearsed:
            return self.coordination.wake_s <= self._clock.now()[0]
        if self._leader.is_hub:
            return self._quiescent()
        return self.coordination.has_all(self._leader.known())

    def _act(self) -> None:
        leader, (turn_s, _, _) = self._leader, self._leader.turn
        if not self._clock.rehearsed:
            self.coordination.expire(self.at[0])
        elif leader.next_s > turn_s or leader.is_idle:
            self._reach((turn_s, 0) if not leader.is_idle else leader.at)
            self.coordination.expire(leader.at[0])
        else:
            at, event = leader.pop()
            self._reach(at)
            if isinstance(event, Parcel):
                self._deliver(event.envelope, self._spool.take(event.ticket), event.arrives_s)
            elif event.number is not None:
                self.coordination.refuse(event.number, event.reason, leader.at[0])

    def _reach(self, at: Instant) -> None:
        leader = self._leader
        leader.at = (max(leader.at[0], at[0]), 0) if leader.is_hub else max(leader.at, at)
        if leader.is_hub:
            self._clock.times.at = leader.at

    def stop(self) -> None:
        self.coordination.stop()


def wait_for(
    away: Callable[[], Collection[str]], stopped: threading.Event, patience_s: float, poll_s: float
) -> Collection[str]:
    ends, told = time.monotonic() + patience_s, False
    while not stopped.is_set() and (missing := away()):
        if time.monotonic() >= ends:
            return missing
        if not told:
            event("waiting", parties=", ".join(sorted(missing))[:200])
            told = True
        stopped.wait(poll_s)
    return ()


class Presence:
    def __init__(self, nodes: Callable[[], Collection[str]], grace_s: float) -> None:
        self._nodes, self._grace_s = nodes, grace_s
        self._since: dict[str, float] = {}
        self._looked_s = 0.0
        self.gone: set[str] = set()
        self.came_back: set[str] = set()

    def look(self, of: Collection[str]) -> set[str]:
        now = time.monotonic()
        if now >= self._looked_s + min(1.0, self._grace_s / 4):
            self._looked_s, here = now, set(self._nodes())
            for name in here & self._since.keys():
                del self._since[name]
            for name in set(of) - here:
                self._since.setdefault(name, now)
            gone = {name for name, since in self._since.items() if now - since >= self._grace_s}
            self.came_back |= self.gone - gone
            self.gone = gone
        return self.gone & set(of)
