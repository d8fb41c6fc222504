"""Whose turn it is: the next messages that can be handled side by side as if they were handled one by one."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf
from typing import Any

from coterie.transport.envelope import START, Envelope, Instant, Job, after


class Schedule:
    """Waiting messages of all parties, each of which handles its own in order of arrival, one at a time.

    work: nominal seconds of a party's next message, by the state that it has committed by then.
    """

    def __init__(self, parties: Iterable[str], work: Callable[[Envelope], float]) -> None:
        self.busy: dict[str, Instant] = {}  # until when, by party
        self._work = work
        self._queues: dict[str, list[tuple[Any, Envelope]]] = {name: [] for name in parties}  # heaps
        self._known: dict[str, tuple[int, float]] = {}  # of each party's next message: ticket, seconds of work

    def push(self, envelope: Envelope) -> None:
        """A message that is under way."""
        heapq.heappush(self._queues[envelope.dst], (envelope.order, envelope))

    def waiting(self) -> list[Envelope]:
        """All messages, those of one party in order of arrival."""
        return [envelope for queue in self._queues.values() for _, envelope in sorted(queue)]

    def next(self) -> tuple[float, list[Job]]:
        """When the first of the next jobs is done, and those that no message yet to be sent can precede.

        Conservative look-ahead: nothing new can be sent before the earliest completion among the next messages of all
        parties, and it arrives after it was sent; so whatever has arrived by that instant comes first at its recipient.
        """
        heads = [self._job(queue[0][1]) for queue in self._queues.values() if queue]
        safe = min((job.done for job in heads), default=(inf, 0))
        jobs = [job for job in heads if job.envelope.arrives <= safe]
        return safe[0], sorted(jobs, key=lambda job: job.envelope.order)

    def start(self, job: Job) -> None:
        """This job is being done."""
        heapq.heappop(self._queues[job.envelope.dst])
        self.busy[job.envelope.dst] = job.done

    def _job(self, envelope: Envelope) -> Job:
        start = max(envelope.arrives, self.busy.get(envelope.dst, START))
        ticket, seconds = self._known.get(envelope.dst, (0, 0.0))
        if ticket != envelope.ticket:
            seconds = self._work(envelope)
            self._known[envelope.dst] = envelope.ticket, seconds
        return Job(envelope, start, after(start, seconds))


def parts(jobs: Sequence[Job], sizes: Sequence[int], most: int, room: int) -> Iterator[Sequence[Job]]:
    """Jobs in order, in parts of at most ``most`` whose sizes add up to at most ``room``, but of one job at least."""
    part: list[Job] = []
    left = room
    for job, size in zip(jobs, sizes, strict=True):
        if part and (len(part) == most or size > left):
            yield part
            part, left = [], room
        part.append(job)
        left -= size
    if part:
        yield part
