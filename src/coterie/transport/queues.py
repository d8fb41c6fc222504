"""All messages under way: coordinators' events, and messages for handlers, which run side by side."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Protocol

from msgspec.structs import replace

import coterie.protocol.core as fl
from coterie.protocol.interpreters import by_group
from coterie.transport.coordination import Coming, Coordination
from coterie.transport.envelope import Envelope, Handled, Opened
from coterie.transport.transcript import Meter
from coterie.transport.wire import START, Instant, Parcel, after


@dataclass(frozen=True)
class Lost:
    """An answer that will never come. number: of its request; None if the coordinator is gone."""

    number: int | None
    reason: str


@dataclass
class Leader:
    """A coordinator at work. at: its latest instant.  request: that it handles; None for the hub."""

    coordination: Coordination
    at: Instant
    request: Parcel | None = None
    _events: list[tuple[Any, int, Parcel | Lost]] = field(default_factory=list)  # a heap
    _pushed: int = 0

    @property
    def name(self) -> str:
        return self.coordination.member.name

    @property
    def is_hub(self) -> bool:
        return self.request is None

    @property
    def next_s(self) -> float:
        return float(self._events[0][0][0]) if self._events else inf

    @property
    def is_idle(self) -> bool:
        return self.next_s == inf and self.coordination.patient

    @property
    def turn(self) -> tuple[float, bool, str]:
        wake_s = inf if self.coordination.done else self.coordination.wake_s
        return min(self.next_s, wake_s), self.is_hub, self.name

    def push(self, at: Instant, event: Parcel | Lost) -> None:
        order = event.order if isinstance(event, Parcel) else (*at, chr(0x10FFFF))
        self._pushed += 1
        heapq.heappush(self._events, (order, self._pushed, event))

    def pop(self) -> tuple[Instant, Parcel | Lost]:
        order, _, event = heapq.heappop(self._events)
        return order[:2], event

    def parcels(self) -> list[Parcel]:
        return [event for _, _, event in sorted(self._events) if isinstance(event, Parcel)]

    def known(self) -> list[Coming]:
        found: list[Coming] = []
        for (at_s, *_), _, event in self._events:
            if isinstance(event, Parcel):
                found.append((event.envelope.answers, event.envelope.kind, at_s))
            elif event.number is not None:
                found.append((event.number, "", at_s))
        return found


@dataclass(frozen=True)
class HandlerRun:
    """A recipient's next message, and when its handler starts and ends."""

    parcel: Parcel
    start: Instant
    done: Instant
    opened: Opened | None


class Queues:
    """Each party handles its messages in order of arrival, one at a time; a coordination gets its own.

    work: a party's next message, opened, and its nominal seconds.  room: bytes of opened messages that are held.
    """

    def __init__(
        self,
        parties: Mapping[str, fl.Party],
        spool: fl.Spool,
        work: Callable[[Parcel], tuple[float, Opened | None]],
        room: int,
    ) -> None:
        self.leaders: dict[str, Leader] = {}
        self.delayed: list[Parcel] = []  # those that ``Links.rounds`` holds back, in the order of writing
        self.busy: dict[str, Instant] = {}  # until when
        self._parties, self._spool, self._work, self._room = parties, spool, work, room
        self._heaps: defaultdict[str, list[tuple[Any, Parcel]]] = defaultdict(list)
        self._next: dict[str, tuple[int, float, Opened | None]] = {}  # each party's next message: ticket, work, content
        self._held = 0  # bytes of the opened ones

    def push(self, parcel: Parcel, frame: bytes) -> None:
        self.route(replace(parcel, ticket=self._spool.put(frame)))

    def route(self, parcel: Parcel) -> None:
        leader = self.leaders.get(parcel.envelope.dst)
        answers = leader is not None and parcel.envelope.answers in leader.coordination.asked
        if leader is not None and (answers or not self.handles(parcel.envelope)):
            leader.push(parcel.arrives, parcel)
        else:
            heapq.heappush(self._heaps[parcel.envelope.dst], (parcel.order, parcel))

    def handles(self, envelope: Envelope) -> bool:
        return any(kind.__name__ == envelope.kind for kind in self._parties[envelope.dst].handlers)

    def take_up(self, leader: Leader) -> None:
        """A party coordinates. Messages to handle wait meanwhile, but for the hub."""
        self.leaders[leader.name] = leader
        for _, parcel in sorted(self._heaps.pop(leader.name, ())):
            self.route(parcel)

    def dismiss(self, leader: Leader) -> None:
        del self.leaders[leader.name]
        if not leader.is_hub:
            self.busy[leader.name] = max(leader.at, self.busy.get(leader.name, START))
        for parcel in leader.parcels():
            self.route(parcel)

    def delay(self, parcel: Parcel, frame: bytes, due: int) -> None:
        self.delayed.append(replace(parcel, due=due, ticket=self._spool.put(frame)))

    def due(self, src: str, dst: str) -> int:
        return max((p.due for p in self.delayed if (p.envelope.src, p.envelope.dst) == (src, dst)), default=0)

    def release(self, round: int) -> list[tuple[Parcel, bytes]]:
        ready = [p for p in self.delayed if p.due <= round]
        self.delayed = [p for p in self.delayed if p.due > round]
        return [(replace(p, due=0), self._spool.take(p.ticket)) for p in ready]

    def all(self) -> list[Parcel]:
        return [parcel for _, heap in sorted(self._heaps.items()) for _, parcel in sorted(heap)] + self.delayed

    def clear(self) -> None:
        self._heaps.clear()
        self.delayed = []

    def next(self) -> tuple[float, list[HandlerRun]]:
        """When the first of the next jobs is done, and the jobs that no future message can precede."""
        held = {name for name, leader in self.leaders.items() if not leader.is_hub}
        heads = [self._job(heap[0][1]) for name, heap in self._heaps.items() if name not in held]
        # Nothing new can be sent before the earliest completion, and it arrives later.
        safe = min((job.done for job in heads), default=(inf, 0))
        jobs = [job for job in heads if job.parcel.arrives <= safe]
        return safe[0], sorted(jobs, key=lambda job: job.parcel.order)

    def start(self, job: HandlerRun) -> None:
        dst = job.parcel.envelope.dst
        heapq.heappop(self._heaps[dst])
        if not self._heaps[dst]:
            del self._heaps[dst]
        self.busy[dst] = job.done
        self._forget(dst)

    def _forget(self, name: str) -> None:
        *_, opened = self._next.pop(name, (None,))
        self._held -= 0 if opened is None else opened.size

    def _job(self, parcel: Parcel) -> HandlerRun:
        dst = parcel.envelope.dst
        if dst not in self._next or self._next[dst][0] != parcel.ticket:
            self._forget(dst)
            seconds, opened = self._work(parcel)
            held = opened if opened is not None and self._held + opened.size <= self._room else None
            self._next[dst] = parcel.ticket, seconds, held
            self._held += 0 if held is None else held.size
        _, seconds, opened = self._next[dst]
        start = max(parcel.arrives, self.busy.get(dst, START))
        return HandlerRun(parcel, start, after(start, seconds), opened)

    def let_go(self) -> None:
        self._next, self._held = {}, 0


def parts(jobs: Sequence[HandlerRun], sizes: Sequence[int], most: int, room: int) -> Iterator[Sequence[HandlerRun]]:
    """Jobs in order, in non-empty parts of at most ``most`` jobs and ``room`` of their sizes."""
    part: list[HandlerRun] = []
    left = room
    for job, size in zip(jobs, sizes, strict=True):
        if part and (len(part) == most or size > left):
            yield part
            part, left = [], room
        part.append(job)
        left -= size
    if part:
        yield part


class Effects(Protocol):
    """Runs effects for parties. A CoterieError as a result is raised in the handler."""

    chunk: int

    def run(self, wanted: Sequence[tuple[str, Any]]) -> list[Any]: ...


@dataclass(frozen=True)
class Call:
    """A message that one party handles, in a role. work: ``Member.receive``."""

    party: str
    role: str
    kind: str
    work: fl.Work[Handled]


def run_handlers(calls: Sequence[Call], effects: Effects, meter: Meter) -> list[Handled | fl.Step]:
    """Run handlers of different parties side by side and their effects together. Returns results in order.

    A coordinating handler's result is its first step. An error that refuses no message is raised, and all unfinished
    handlers' changes are undone.
    """
    results: list[Any] = [None] * len(calls)
    values: dict[int, Any] = dict.fromkeys(range(len(calls)))
    try:
        while values:
            wants: dict[int, Any] = {}
            for i in list(values):
                call, value = calls[i], values.pop(i)  # a trained model is let go of once its message is made
                with meter.timed(call.role, call.kind):
                    try:
                        wanted = call.work.throw(value) if isinstance(value, fl.CoterieError) else call.work.send(value)
                    except StopIteration as stop:
                        results[i] = stop.value
                        continue
                if isinstance(wanted, fl.Step):
                    results[i] = wanted
                else:
                    wants[i] = wanted
            wanted_of = [(calls[i].party, calls[i].role, effect) for i, effect in wants.items()]
            values = dict(zip(wants, compute(wanted_of, effects, meter), strict=True))
    except BaseException:
        for call in calls:
            call.work.close()
        raise
    return results


def compute(wanted: Sequence[tuple[str, str, Any]], effects: Effects, meter: Meter) -> list[Any]:
    """Run effects (party, role, effect), those of one role and kind together, and time them."""

    def run(group: tuple[str, str], of: Sequence[tuple[str, str, Any]]) -> Sequence[Any]:
        with meter.timed(*group):
            return effects.run([(party, effect) for party, _, effect in of])

    return by_group(wanted, lambda one: (one[1], type(one[2]).__name__), run)
