"""The schedule: the next messages that can be handled side by side as if they were handled one by one."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf
from typing import Any

from coterie.transport.parcel import START, Instant, Job, Parcel, after


class Schedule:
    """Waiting messages of all parties. Each party handles its own messages in order of arrival, one at a time.

    work: nominal seconds of a party's next message, by the state that the party has committed by then.
    """

    def __init__(self, parties: Iterable[str], work: Callable[[Parcel], float]) -> None:
        self.busy: dict[str, Instant] = {}  # until when, by party
        self._work = work
        self._queues: dict[str, list[tuple[Any, Parcel]]] = {name: [] for name in parties}  # heaps
        self._held: set[str] = set()  # parties that coordinate: their requests wait
        self._known: dict[str, tuple[int, float]] = {}  # of each party's next message: ticket, seconds of work

    def push(self, parcel: Parcel) -> None:
        """Add a message that is under way."""
        heapq.heappush(self._queues[parcel.envelope.dst], (parcel.order, parcel))

    def waiting(self) -> list[Parcel]:
        """All messages, those of one party in order of arrival."""
        return [parcel for queue in self._queues.values() for _, parcel in sorted(queue)]

    def clear(self) -> None:
        """Forget all messages. Parties that coordinate go on."""
        for queue in self._queues.values():
            queue.clear()

    def hold(self, party: str, wanted: Callable[[Parcel], bool]) -> list[Parcel]:
        """Let a party's messages wait until ``free``. Removes those that are ``wanted``, and returns them."""
        self._held.add(party)
        given = [parcel for _, parcel in sorted(self._queues[party]) if wanted(parcel)]
        self._queues[party] = [entry for entry in self._queues[party] if not wanted(entry[1])]
        heapq.heapify(self._queues[party])
        return given

    def free(self, party: str, at: Instant) -> None:
        """The party can handle messages again from this instant on."""
        self._held.discard(party)
        self.busy[party] = max(at, self.busy.get(party, START))

    def next(self) -> tuple[float, list[Job]]:
        """The second in which the first of the next jobs is done, and the jobs that no future message can precede.

        This is conservative look-ahead. Nothing new can be sent before the earliest completion among the next messages
        of all parties, and it arrives after it was sent. So any message that has arrived by that instant comes first at
        its recipient.
        """
        queues = self._queues.items()
        heads = [self._job(queue[0][1]) for name, queue in queues if queue and name not in self._held]
        safe = min((job.done for job in heads), default=(inf, 0))
        jobs = [job for job in heads if job.parcel.arrives <= safe]
        return safe[0], sorted(jobs, key=lambda job: job.parcel.order)

    def start(self, job: Job) -> None:
        """Start this job: remove its message, and make its party busy."""
        heapq.heappop(self._queues[job.parcel.envelope.dst])
        self.busy[job.parcel.envelope.dst] = job.done

    def _job(self, parcel: Parcel) -> Job:
        dst = parcel.envelope.dst
        start = max(parcel.arrives, self.busy.get(dst, START))
        ticket, seconds = self._known.get(dst, (0, 0.0))
        if ticket != parcel.ticket:
            seconds = self._work(parcel)
            self._known[dst] = parcel.ticket, seconds
        return Job(parcel, start, after(start, seconds))


def parts(jobs: Sequence[Job], sizes: Sequence[int], most: int, room: int) -> Iterator[Sequence[Job]]:
    """Jobs in order, in parts of at most ``most`` jobs whose sizes sum to at most ``room``. A part has at least one."""
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
