"""Coordinators on the virtual clock: the events of each, and when it acts next."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from math import inf
from typing import Any

from coterie.transport.coordination import Coordination
from coterie.transport.parcel import Instant, Parcel


@dataclass(frozen=True)
class Lost:
    """An answer that will never come. number: of its request; None if the coordinator itself is gone."""

    number: int | None
    reason: str


@dataclass
class Leader:
    """A coordinator at work, and its events in order. at: its latest instant.  request: that it handles (hub: None)."""

    coordination: Coordination
    at: Instant
    request: Parcel | None = None
    _events: list[tuple[Any, int, Parcel | Lost]] = field(default_factory=list)  # a heap
    _pushed: int = 0

    @property
    def name(self) -> str:
        """Of the party."""
        return self.coordination.member.name

    @property
    def is_hub(self) -> bool:
        """Whether it runs a round of the hub."""
        return self.request is None

    @property
    def next_s(self) -> float:
        """The second of the next event."""
        return float(self._events[0][0][0]) if self._events else inf

    @property
    def is_idle(self) -> bool:
        """Whether no event is known to come, and only the default deadline would wake it."""
        return self.next_s == inf and self.coordination.patient

    @property
    def turn(self) -> tuple[float, bool, str]:
        """When it acts next. In the same second leaders act before the hub."""
        wake_s = inf if self.coordination.done else self.coordination.wake_s
        return min(self.next_s, wake_s), self.is_hub, self.name

    def push(self, at: Instant, event: Parcel | Lost) -> None:
        """Add an event at this instant. Messages of one instant come in their own order, and ``Lost`` after them."""
        order = event.order if isinstance(event, Parcel) else (*at, chr(0x10FFFF))
        self._pushed += 1
        heapq.heappush(self._events, (order, self._pushed, event))

    def pop(self) -> tuple[Instant, Parcel | Lost]:
        """The next event and its instant."""
        order, _, event = heapq.heappop(self._events)
        return order[:2], event

    def parcels(self) -> list[Parcel]:
        """All messages, in order."""
        return [event for _, _, event in sorted(self._events) if isinstance(event, Parcel)]

    def ends_s(self) -> float:
        """The latest second at which its open step ends, by the events that are known."""
        events = [(order[0], event) for order, _, event in self._events]
        coming = [(e.envelope.answers, e.envelope.kind, s) for s, e in events if isinstance(e, Parcel)]
        lost = [(e.number, "", s) for s, e in events if isinstance(e, Lost) and e.number is not None]
        return self.coordination.ends_s(coming + lost)
