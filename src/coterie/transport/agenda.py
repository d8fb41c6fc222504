"""Coordinators on the virtual clock: the events of each, and when it acts next."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from math import inf
from typing import Any

from coterie.protocol.steps import Steps
from coterie.transport.coordination import Coordination
from coterie.transport.parcel import START, Instant, Parcel


@dataclass(frozen=True)
class Lost:
    """An answer that a coordinator waits for will never come. number: of its request."""

    number: int
    reason: str


@dataclass(frozen=True)
class Gone:
    """The coordinator itself is gone."""

    reason: str


Event = Parcel | Lost | Gone


@dataclass
class Agenda:
    """The events of one coordinator, in order. Messages that have not arrived outlive a round of the hub."""

    _heap: list[tuple[Any, int, Event]] = field(default_factory=list)
    _pushed: int = 0

    def push(self, at: Instant, event: Event) -> None:
        """Add an event at this instant. Messages of one instant come in their own order, and ``Lost`` after them."""
        order = event.order if isinstance(event, Parcel) else (*at, chr(0x10FFFF))
        self._pushed += 1
        heapq.heappush(self._heap, (order, self._pushed, event))

    @property
    def next_s(self) -> float:
        """The second of the next event."""
        return float(self._heap[0][0][0]) if self._heap else inf

    def pop(self) -> tuple[Instant, Event]:
        """The next event and its instant."""
        order, _, event = heapq.heappop(self._heap)
        return (order[0], order[1]), event

    def parcels(self) -> list[Parcel]:
        """All messages, in order."""
        return [event for _, _, event in sorted(self._heap) if isinstance(event, Parcel)]

    def coming(self) -> list[tuple[int, str, float]]:
        """Known future events: number of the request, kind of message, second."""
        found = []
        for order, _, event in self._heap:
            if isinstance(event, Parcel):
                found.append((event.envelope.answers, event.envelope.kind, order[0]))
            elif isinstance(event, Lost):
                found.append((event.number, "", order[0]))
        return found

    def clear(self, *, keep_parcels: bool = False) -> None:
        """Forget all events, or all but messages."""
        kept = [entry for entry in self._heap if keep_parcels and isinstance(entry[2], Parcel)]
        heapq.heapify(kept)
        self._heap = kept


@dataclass
class Leader:
    """A coordinator at work. work: its generator.  at: its latest instant.  request: that it handles, or None (hub)."""

    coordination: Coordination
    agenda: Agenda
    work: Steps[Any]
    at: Instant = START
    request: Parcel | None = None

    @property
    def name(self) -> str:
        """Of the party."""
        return self.coordination.member.name

    @property
    def is_idle(self) -> bool:
        """Whether no event is known to come, and only the default deadline would wake it."""
        return self.agenda.next_s == inf and self.coordination.patient

    @property
    def turn(self) -> tuple[float, bool, str]:
        """When it acts next. In the same second leaders act before the hub."""
        wake_s = inf if self.coordination.done else self.coordination.wake_s
        return min(self.agenda.next_s, wake_s), self.request is None, self.name
