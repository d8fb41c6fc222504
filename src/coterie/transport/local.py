"""The local transport: all parties in one process, on a virtual clock.

Every message passes through the codec, so byte counts are exact, nothing leaks by aliasing, and what runs here runs on
the wire. The network is a star: what two parties other than the hub say to each other is relayed by the hub, sealed.

Time is virtual. When a message arrives follows from sizes, nominal costs and device profiles alone. Handlers are run in
batches that give exactly the results of running them one by one in order of arrival (see ``Schedule``). The coordinator
acts after all others have done what they can do by then. Where ``links`` delays a party by rounds, what it sends for a
request is sent when that later round begins; the hub's step does not wait for it, as for anything that comes too late.

At most once: a sender's numbers grow along each link, and a frame that comes again under its number is never handled
again. In one process only an attacker can repeat a frame, so answers are kept for that while ``intercept`` is set.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Any

import msgspec

from coterie.protocol import codec
from coterie.protocol.errors import CoterieError, CryptoError, DecodeError, PeerError, RunError
from coterie.protocol.hollow import weighs
from coterie.protocol.messages import ANY, Message
from coterie.protocol.party import Party, Transaction
from coterie.protocol.steps import Answers, Ask, Fold, NoAnswerError, Post, R, Spend, Steps, Take
from coterie.transport.envelope import Effects, Envelope, Instant, Intercept, Job, Sealer, Snapshot
from coterie.transport.handlers import Call, Letter, Refused, compute, run_handlers
from coterie.transport.held import Held
from coterie.transport.links import Ideal, Links
from coterie.transport.meter import Meter
from coterie.transport.once import USED, AtMostOnce
from coterie.transport.schedule import Schedule, parts
from coterie.transport.spool import Spool
from coterie.transport.transcript import Seen, Transcript
from coterie.transport.wire import Wire

LATE = "late"
REFUSED = "refused"  # a party's reason may hold its own numbers: the observer is told, the coordinator never
UNACCEPTABLE = "its answer was refused"
_COPIES = 4  # what a message in work takes, in its own size: its bytes, what they say, an answer as large, its bytes


class LocalTransport:
    """Runs a coordinator's steps against the other parties, all in this process.

    parties: by name.  hub: the coordinator's name.  effects: who computes.  links: devices and network.
    sealer: for parties other than the hub that talk to each other.  transcript: records views.  spool_bytes: of waiting
    messages kept in memory.  batch_bytes: of those handled together, with answers.  intercept: an attacker on the wire.
    """

    def __init__(
        self,
        parties: Mapping[str, Party],
        hub: str,
        effects: Effects,
        *,
        links: Links | None = None,
        sealer: Sealer | None = None,
        transcript: Transcript | None = None,
        spool_bytes: int = 512 << 20,
        batch_bytes: int = 1 << 30,
    ) -> None:
        self.parties = parties
        self.hub = parties[hub]
        self.effects = effects
        self.links: Links = links or Ideal()
        self.sealer = sealer
        self.batch_bytes = batch_bytes
        self.transcript = transcript
        self.spool = Spool(spool_bytes)
        self.meter = Meter()
        self.intercept: Intercept | None = None
        self.clock_s = 0.0
        self.round = 0
        self._wire = Wire(parties, self.hub, self.links, sealer, transcript)
        self._schedule = Schedule(parties, self._work)
        self._held = Held(self.spool)
        self._reached_s = 0.0  # when the last message that was handled in this round had arrived
        self._once = AtMostOnce(self.spool)
        self._inbox: list[Envelope] = []
        self._failed: dict[int, tuple[str, float]] = {}  # the hub's requests that won't be answered: why, since when
        self._decoded: tuple[bytes, Message] | None = None

    # -- the coordinator ---------------------------------------------------------------------------------------------

    def drive(self, steps: Steps[R], round: int) -> R:
        """Run one round (or the set-up) of the coordinator to its end and return what it returns.

        Its changes commit at the end; what the others have received by then has been handled. Raises what the
        coordinator or a handler raises; then the changes of both are taken back, and a run goes on from a snapshot.
        """
        self.round = round
        self.meter = Meter()
        self._reached_s = self.clock_s
        for envelope, frame in self._held.release(round):
            self._transmit(envelope, frame, (self.clock_s, 0))
        with Transaction(self.hub):
            try:
                result = self._drive(steps)
                self._advance(lambda: self.clock_s)
            finally:
                steps.close()
        self._forget()
        return result

    def _drive(self, steps: Steps[R]) -> R:
        value: Any = None
        while True:
            started = time.perf_counter()
            self.hub.now_s = self.clock_s
            try:
                step = steps.throw(value) if isinstance(value, CoterieError) else steps.send(value)
            except StopIteration as stop:
                result: R = stop.value
                return result
            finally:
                self.meter.spent(self.hub.role, "coordinate", time.perf_counter() - started)
            if isinstance(step, Ask):
                value = self._ask(step)
            elif isinstance(step, Post):
                value = None
                self._send_all(step.messages)
            elif isinstance(step, Take):
                value = self._take(step)
            elif isinstance(step, Spend):
                value, seconds = None, self.links.work_s(self.hub.name, step.cost)
                self.clock_s += seconds
                self.meter.spent_virtual(self.hub.role, "coordinate", seconds)
            else:
                value = compute([(self.hub, step)], self.effects, self.meter)[0]

    def _ask(self, step: Ask) -> Answers:
        requests = self._send_all(step.requests)
        deadline_s = inf if step.deadline_s is None else self.clock_s + step.deadline_s

        def ends_s() -> float:
            """When all have answered; with some lost, at the deadline: nobody tells the hub that they are."""
            answers = {e.answers: e.arrives_s for e in self._inbox if e.answers in requests}
            lost = {n: self._failed[n][1] for n in requests if n in self._failed and n not in answers}
            if len(answers) + len(lost) < len(requests) or (lost and deadline_s < inf):
                return deadline_s
            return min(deadline_s, max([self.clock_s, *answers.values(), *lost.values()]))

        end_s = self._advance(ends_s)
        if end_s == inf:
            raise RunError(f"{self.hub.name} asks itself for {step.reply.__name__}; nobody would ever answer")
        self.clock_s = max(self.clock_s, end_s)
        got, missing = self._fold_all(lambda e: e.answers in requests and e.arrives_s <= end_s, step.reply, step.fold)
        answered, declined = set(got), []
        for number, name in requests.items():
            if name not in missing and name not in answered:
                missing[name] = self._failed.get(number, (LATE, 0.0))[0]
                if missing[name] == LATE:
                    self.meter.late.append(name)
                elif missing[name] == REFUSED:
                    declined.append(name)
        return Answers(tuple(got), missing, tuple(declined))

    def _take(self, step: Take) -> Answers | NoAnswerError:
        kind = step.kind.__name__
        until_s = inf if step.until_s is None else self.clock_s + step.until_s
        got: list[str] = []
        missing: dict[str, str] = {}

        def ends_s() -> float:
            if step.at_least == 0:
                return self.clock_s if until_s == inf else until_s
            arrivals = sorted(e.arrives_s for e in self._inbox if e.kind == kind)
            wanted = step.at_least - len(got)
            return min(until_s, max(self.clock_s, arrivals[wanted - 1])) if len(arrivals) >= wanted else until_s

        while True:
            end_s = self._advance(ends_s)
            if end_s == inf:
                have = len(got) + sum(e.kind == kind for e in self._inbox)
                return NoAnswerError(
                    f"{self.hub.name} waits for {step.at_least} {kind}, has {have}, and nobody will send more"
                )
            self.clock_s = max(self.clock_s, end_s)
            taken, refused = self._fold_all(
                lambda e: e.kind == kind and e.arrives_s <= self.clock_s, step.kind, step.fold
            )
            got += taken
            missing |= refused
            if len(got) >= step.at_least or end_s >= until_s:
                return Answers(tuple(got), missing)

    def _fold_all(
        self, wanted: Callable[[Envelope], bool], kind: type[Message], fold: Fold
    ) -> tuple[list[str], dict[str, str]]:
        """Give messages to the coordinator one by one, in order of arrival: whose it accepted, and whose it refused."""
        chosen = sorted(filter(wanted, self._inbox), key=lambda e: e.order)
        self._inbox = [e for e in self._inbox if not wanted(e)]
        got: list[str] = []
        missing: dict[str, str] = {}
        for envelope in chosen:
            frame = self.spool.take(envelope.ticket)
            started = time.perf_counter()
            self.hub.now_s = envelope.arrives_s
            try:
                message = self._open(envelope, frame, (kind,))
                self._record(envelope, frame, message)
                fold(envelope.src, message)
                got.append(envelope.src)
            except (PeerError, CryptoError) as error:
                self._count_refused(envelope, str(error))
                missing[envelope.src] = UNACCEPTABLE
            finally:
                self.meter.spent(self.hub.role, envelope.kind, time.perf_counter() - started)
        return got, missing

    # -- sending -----------------------------------------------------------------------------------------------------

    def _send_all(self, messages: Mapping[str, Message]) -> dict[int, str]:
        """Send from the hub: recipients by number. A message object that goes to many in a row is encoded once."""
        last: Message | None = None  # held, not its id: a mapping may make its messages as they are asked for
        frame = b""
        numbers: dict[int, str] = {}
        for dst, message in messages.items():
            kind = type(message).__name__
            if dst not in self.parties:
                raise RunError(f"{self.hub.name} sends {kind} to {dst!r}, which is not a party of this federation")
            if message is not last:
                try:
                    last, frame = message, codec.encode(message)
                except DecodeError as error:
                    raise RunError(f"{self.hub.name} can't send {kind}: {error}") from error
            envelope, sealed = self._wire.address(self.hub.name, Letter(dst, kind, frame), 0, self.round)
            self._transmit(envelope, sealed, (self.clock_s, 0))
            numbers[envelope.number] = dst
        return numbers

    def _send(self, envelope: Envelope, frame: bytes, done: Instant) -> None:
        """Send what came of a job, or keep it until its round; nothing overtakes what its link keeps."""
        due = envelope.round + self.links.rounds(envelope.src, envelope.round)
        due = max(due, self._held.due(envelope.src, envelope.dst))
        if due <= self.round:
            self._transmit(envelope, frame, done)
            return
        self._held.put(envelope, frame, due)
        if envelope.dst == self.hub.name and envelope.answers:
            self._failed.setdefault(envelope.answers, (LATE, self._reached_s))

    def _transmit(self, envelope: Envelope, frame: bytes, sent: Instant) -> None:
        """Put a numbered message on its way."""
        copies, lost = self._wire.transmit(envelope, frame, sent, self.meter, self.intercept)
        if lost is not None:
            self.meter.lost[f"{envelope.dst} {envelope.kind} of round {envelope.round}"] = lost
            self._fail(envelope, lost, sent[0])
        for copy, data in copies:
            self._enqueue(copy, data)

    def _enqueue(self, envelope: Envelope, frame: bytes) -> None:
        if envelope.dst != self.hub.name:
            self._schedule.push(msgspec.structs.replace(envelope, ticket=self.spool.put(frame)))
        elif self._once.is_old(envelope):
            self._count_refused(envelope, USED)
        else:
            self._once.take(envelope)
            self._inbox.append(msgspec.structs.replace(envelope, ticket=self.spool.put(frame)))

    # -- the others --------------------------------------------------------------------------------------------------

    def _advance(self, ends_s: Callable[[], float]) -> float:
        """Run handlers, in batches, until nothing can happen any more by the time that the step ends; returns that.

        ``ends_s`` says when the step ends by what is known so far; it may only become earlier.
        """
        while True:
            safe_s, jobs = self._schedule.next()
            end_s = ends_s()
            if not jobs or end_s < safe_s:
                return end_s
            batch = [job for job in jobs if job.done[0] <= end_s]
            sizes = [_COPIES * self.spool.size(job.envelope.ticket) for job in batch]
            for part in parts(batch, sizes, self.effects.chunk, self.batch_bytes):
                self._handle(part)

    def _work(self, envelope: Envelope) -> float:
        """Nominal seconds of a party's next message; what will be refused costs nothing."""
        party = self.parties[envelope.dst]
        if self._once.is_old(envelope):
            return 0.0
        try:
            message = self._open(envelope, self.spool.peek(envelope.ticket), tuple(party.handlers))
            cost = party.handlers[type(message)].cost(party, message)
        except (PeerError, CryptoError):
            return 0.0
        return self.links.work_s(party.name, cost)

    def _open(self, envelope: Envelope, frame: bytes, kinds: tuple[type[Message], ...]) -> Message:
        """Decode a message for its recipient and check its ends; raises PeerError."""
        if not kinds:
            raise PeerError(f"{envelope.dst} takes no messages")
        if envelope.sealed:
            assert self.sealer is not None
            frame = self.sealer.open(envelope.src, envelope.dst, frame)
        if self._decoded is not None and self._decoded[0] is frame and type(self._decoded[1]) in kinds:
            message = self._decoded[1]  # a broadcast is decoded once
        else:
            message = codec.decode(frame, *kinds)
            self._decoded = (frame, message)
        roles = self.parties[envelope.src].roles
        if message.SRC != ANY and message.SRC not in roles:
            raise PeerError(
                f"{type(message).__name__} comes from a {'/'.join(sorted(roles))}, not from a {message.SRC}"
            )
        return message

    def _handle(self, jobs: Sequence[Job]) -> None:
        """Take the next message of some parties, run their handlers together and send what they return."""
        calls: list[tuple[Job, Call]] = []
        for job in jobs:
            self._schedule.start(job)
            self._reached_s = max(self._reached_s, job.envelope.arrives_s)
            message = self._accept(job)
            if message is not None:
                calls.append((job, Call(self.parties[job.envelope.dst], message, job.envelope.src, self.parties)))
        results = run_handlers([call for _, call in calls], self.effects, self.meter)
        for (job, _), result in zip(calls, results, strict=True):
            if isinstance(result, Refused):
                self._refuse(job, result.reason)
            else:
                self._deliver(job, result)

    def _accept(self, job: Job) -> Message | None:
        """The message to be handled, unless it came before or can't be read."""
        envelope, party = job.envelope, self.parties[job.envelope.dst]
        frame = self.spool.take(envelope.ticket)
        if self._once.is_old(envelope):
            again = self._once.again(envelope, frame)
            if isinstance(again, str):
                self._count_refused(envelope, again)
            else:
                self._send(*again, job.done)
            return None
        self._once.take(envelope)
        if self.intercept is not None:
            self._once.expect(envelope, frame)
        party.now_s = job.done[0]
        try:
            message = self._open(envelope, frame, tuple(party.handlers))
        except PeerError as error:
            self._refuse(job, str(error))
            return None
        self.meter.spent_virtual(party.role, envelope.kind, job.done[0] - job.start[0])
        self._record(envelope, frame, message)
        return message

    def _deliver(self, job: Job, letters: Sequence[Letter]) -> None:
        """Send a handler's letters; the first to whoever asked is the answer."""
        request, answered = job.envelope, False
        for letter in letters:
            answers = letter.dst == request.src and not answered
            number = request.number if answers else 0
            envelope, frame = self._wire.address(request.dst, letter, number, request.round)
            if answers:
                answered = True
                self._once.answered(request, envelope, frame)
            self._send(envelope, frame, job.done)
        if not answered:
            self._fail(request, "gave no direct answer", job.done[0])

    def _refuse(self, job: Job, reason: str) -> None:
        """Count it, and let the sender's step go on without an answer. It learns of no reason."""
        self._count_refused(job.envelope, reason)
        self._once.refused(job.envelope, reason)
        self._fail(job.envelope, REFUSED, job.done[0])

    def _fail(self, envelope: Envelope, reason: str, at_s: float) -> None:
        """Note that a message comes to nothing, and which of the hub's requests waits for it."""
        if envelope.src == self.hub.name:
            self._failed.setdefault(envelope.number, (reason, at_s))
        elif envelope.dst == self.hub.name and envelope.answers:
            self._failed.setdefault(envelope.answers, (reason, at_s))

    def _count_refused(self, envelope: Envelope, reason: str) -> None:
        self.meter.refused[f"{self.parties[envelope.dst].role}/{envelope.kind}: {reason}"] += 1

    def _record(self, envelope: Envelope, frame: bytes, message: Message) -> None:
        """Add a message to its recipient's view."""
        if self.transcript is not None:
            e, party = envelope, self.parties[envelope.dst]
            seen = Seen(e.arrives_s, e.round, e.src, e.dst, e.kind, weighs(frame), message)
            self.transcript.record(party.name, party.role, seen, len(frame))

    # -- between rounds ----------------------------------------------------------------------------------------------

    def _forget(self) -> None:
        """Drop what only mattered in this round, and what has arrived and nobody will take any more."""
        kept = {kind.__name__ for kind in self.hub.takes}
        waiting, self._inbox = self._inbox, []
        for envelope in waiting:
            if envelope.kind in kept or envelope.arrives_s > self.clock_s:
                self._inbox.append(envelope)
            else:
                self.spool.drop(envelope.ticket)
                self.meter.lost[f"{envelope.src} {envelope.kind} of round {envelope.round}"] = "too late"
        self._once.forget()
        self._failed.clear()
        self._decoded = None

    def snapshot(self) -> Snapshot:
        """What must be kept of the transport between two rounds: the clock and the messages under way."""
        envelopes, frames = self._under_way()
        at = {place: index for index, place in enumerate(frames)}
        envelopes = [msgspec.structs.replace(e, ticket=at[self.spool.place(e.ticket)]) for e in envelopes]
        sizes = [self.spool.size(ticket) for ticket in frames.values()]
        links = [(*link, last, self._once.last.get(link, 0)) for link, last in self._wire.last.items()]
        numbers, busy = dict(self._wire.numbers), dict(self._schedule.busy)
        return Snapshot(self.clock_s, numbers, envelopes, sizes, busy, links)

    def frames(self) -> Iterator[bytes]:
        """The bytes under way that belong to a snapshot, one frame at a time."""
        return map(self.spool.peek, self._under_way()[1].values())

    def _under_way(self) -> tuple[list[Envelope], dict[int, int]]:
        """All messages under way, and a ticket of every frame among them, by its place."""
        envelopes = [*self._inbox, *self._schedule.waiting(), *self._held.waiting()]
        return envelopes, {self.spool.place(envelope.ticket): envelope.ticket for envelope in envelopes}

    def restore(self, snapshot: Snapshot, frames: Iterable[bytes]) -> None:
        """Continue from a snapshot and its frames, in a new transport. Raises UserError for another federation's."""
        snapshot.check(self.parties)
        self.clock_s, self._schedule.busy = snapshot.clock_s, dict(snapshot.busy)
        self._wire.numbers = dict(snapshot.numbers)
        self._wire.last = {(src, dst): last for src, dst, last, _ in snapshot.links}
        self._once.last = {(src, dst): number for src, dst, _, number in snapshot.links}
        tickets: dict[int, int] = {}
        for place, frame in enumerate(frames):
            uses = [i for i, envelope in enumerate(snapshot.envelopes) if envelope.ticket == place]
            tickets |= {i: self.spool.put(frame) for i in uses}
        for i, kept in enumerate(snapshot.envelopes):
            envelope = msgspec.structs.replace(kept, ticket=tickets[i])
            if envelope.due:
                self._held.push(envelope)
            elif envelope.dst == self.hub.name:
                self._inbox.append(envelope)
            else:
                self._schedule.push(envelope)

    def close(self) -> None:
        """Remove what was spilled to disk."""
        self.spool.close()
