"""The local transport: all parties in one process, on a virtual clock.

Every message passes through the codec, an envelope and its signature. So byte counts are exact, no party can read
another's objects, and code that runs here also runs on a wire. The network is a star: the hub relays messages between
two other parties, which are sealed. ``Member`` and ``Coordination`` process the messages and know nothing of this file.

Time is virtual. The arrival of a message follows from sizes, nominal costs and device profiles alone. Handlers run in
batches that give exactly the results of running them one by one in order of arrival (see ``Schedule``). A coordinator
acts after all other parties have done what they can do by that time, and the hub acts last. If ``links`` delays a party
by rounds, its answer to a request is sent when that later round begins. The hub's step does not wait for it, as for any
other late answer.

In one process only an attacker can repeat a message, so answers are stored only while ``intercept`` is set.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from coterie.protocol.errors import PeerError, RunError
from coterie.protocol.party import Party
from coterie.protocol.spool import Spool
from coterie.protocol.steps import LATE, REFUSED, UNACCEPTABLE, R, Steps
from coterie.transport.agenda import Agenda, Gone, Leader, Lost
from coterie.transport.coordination import Coordination
from coterie.transport.envelope import Envelope, Keyring, Sent
from coterie.transport.handlers import Call, Coordinates, Effects, compute, run_handlers
from coterie.transport.links import Ideal, Links
from coterie.transport.mail import Handled, Opened, Reader, RolesOf, Waiting
from coterie.transport.member import Member
from coterie.transport.meter import Meter
from coterie.transport.nominal import Nominal
from coterie.transport.numbers import Numbers
from coterie.transport.parcel import Instant, Intercept, Job, Parcel, Snapshot
from coterie.transport.queues import Queues
from coterie.transport.recorder import Recorder
from coterie.transport.schedule import parts
from coterie.transport.transcript import Transcript
from coterie.transport.wire import Wire

_COPIES = 4  # what a message in work takes, in its own size: its bytes, what they say, an answer as large, its bytes


class LocalTransport:
    """Runs a coordinator's steps against the other parties, all in this process.

    parties: by name.  hub: the coordinator's name.  effects: computes effects.  keyring: the keys of all parties.
    links: devices and network.  transcript: records views.  spool_bytes: how many bytes of waiting messages stay in
    memory.  batch_bytes: how many bytes of messages and answers are handled together.  retries: whether a round can be
    tried again.  intercept: an attacker on the wire.
    """

    def __init__(
        self,
        parties: Mapping[str, Party],
        hub: str,
        effects: Effects,
        *,
        keyring: Keyring,
        links: Links | None = None,
        transcript: Transcript | None = None,
        spool_bytes: int = 512 << 20,
        batch_bytes: int = 1 << 30,
        retries: bool = False,
    ) -> None:
        self.parties = parties
        self.effects = effects
        self.links: Links = links or Ideal()
        self.batch_bytes = batch_bytes
        self.transcript = transcript
        self.retries = retries
        self.spool = Spool(spool_bytes)
        self.intercept: Intercept | None = None
        self.clock_s = 0.0
        self.round = 0
        roles = RolesOf(parties)
        self._reader, self._recorder = Reader(spool_bytes // 8), Recorder(roles, transcript)
        self.members = {
            name: Member(
                name,
                parties,
                hub,
                roles,
                keyring,
                spool=self.spool,
                reader=self._reader,
                observer=self._recorder,
                repeats=False,
            )
            for name in parties
        }
        self.hub = self.members[hub]
        self._wire = Wire(roles, hub, self.links, transcript)
        self._nominal = Nominal(self.members, self.links, self.spool, batch_bytes // _COPIES)
        self._queues = Queues(parties, hub, self.spool, self._nominal.work)
        self._reached_s = 0.0  # when the last message that was handled in this round had arrived
        self._copies: Counter[tuple[str, str, int]] = Counter()  # of messages under attack, that have not been refused
        self._start: tuple[Snapshot, list[bytes]] | None = None

    @property
    def meter(self) -> Meter:
        """The counters of this round."""
        return self._recorder.meter

    # -- a round -----------------------------------------------------------------------------------------------------

    def drive(self, steps: Steps[R], round: int, attempt: int = 0) -> R:
        """Run one round (or the set-up) of the coordinator to its end and return its result.

        Its changes commit at the end. Messages that other parties have received by then have been handled. Raises the
        error of the coordinator or a handler. Then the changes of both are undone, and a run continues from a snapshot.
        attempt: 1 or more tries the round again, from the state that all parties had committed at its beginning (needs
        ``retries``).
        """
        if attempt:
            self._go_back(round, attempt)
        elif self.retries:
            self._remember(round)
        self.round = round
        self._recorder.meter = Meter()
        self._reached_s = self.clock_s
        for member in self.members.values():
            member.repeats = self.intercept is not None
        self.hub.heard_of(round, attempt)
        role = self.hub.party.role
        coordination = Coordination(self.hub, steps, round=round, attempt=attempt, role=role, critical=True)
        hub = Leader(coordination, self._queues.agenda, steps, (self.clock_s, 0))
        try:
            with self.hub.leading():
                self._take_up(hub)
                for parcel, frame in self._queues.delayed.release(round):
                    self._transmit(Sent(parcel.envelope, frame, parcel.to_role), (self.clock_s, 0))
                self._timed(hub, "coordinate", lambda: coordination.start(self.clock_s))
                self._go_on(hub)
                self._advance(hub)
        finally:
            steps.close()
            for leader in [leader for leader in self._queues.leaders.values() if leader is not hub]:
                self._dismiss(leader, f"its leader was not done when round {round} ended")
            self._queues.leaders.clear()
            self._forget()
        result: R = coordination.result
        return result

    def _advance(self, hub: Leader) -> None:
        """Run handlers, in batches, and coordinators, until the hub is done and nothing else happens at that time."""
        while True:
            safe_s, jobs = self._queues.schedule.next()
            leader = min(self._queues.leaders.values(), key=lambda leader: leader.turn)
            turn_s = leader.turn[0]
            if hub.coordination.done and min(turn_s, safe_s) > self.clock_s:
                return
            if jobs and safe_s <= turn_s:
                ends_s = self.clock_s if hub.coordination.done else hub.coordination.ends_s(hub.agenda.coming())
                batch = [job for job in jobs if job.done[0] <= max(ends_s, safe_s)]
                sizes = [_COPIES * self.spool.size(job.parcel.ticket) for job in batch]
                for part in parts(batch, sizes, self.effects.chunk, self.batch_bytes):
                    self._handle(part)
            elif not jobs and all(leader.is_idle for leader in self._queues.leaders.values()):
                # nothing more will come: the coordinator that began last is told first, since the others wait for it
                *_, last = self._queues.leaders.values()
                self._timed(last, "coordinate", lambda last=last: last.coordination.starve(last.at[0]))
                self._go_on(last)
            else:
                self._act(leader, turn_s)

    # -- coordinators --------------------------------------------------------------------------------------------------

    def _take_up(self, leader: Leader) -> None:
        """A party coordinates from now on. Requests to it wait, unless it is the hub."""
        coordination = leader.coordination
        self._queues.leaders[leader.name] = leader
        coordination.send = lambda sent: self._transmit(sent, leader.at)
        if leader.request is not None:
            for parcel in self._queues.schedule.hold(
                leader.name, lambda parcel: self._queues.is_for(leader, parcel.envelope)
            ):
                leader.agenda.push(parcel.arrives, parcel)

    def _act(self, leader: Leader, turn_s: float) -> None:
        """The next event of a coordinator."""
        coordination = leader.coordination
        if leader.agenda.next_s > turn_s or leader.agenda.next_s > coordination.wake_s:
            self._reach(leader, (turn_s, 0))
            self._timed(leader, "coordinate", lambda: coordination.expire(leader.at[0]))
            self._go_on(leader)
            return
        at, event = leader.agenda.pop()
        self._reach(leader, at)
        if isinstance(event, Parcel):
            envelope, frame = event.envelope, self.spool.take(event.ticket)
            genuine: list[bool] = []
            self._timed(
                leader, envelope.kind, lambda: genuine.append(coordination.deliver(envelope, frame, event.arrives_s))
            )
            if not genuine[0] and self._was_last(event):
                coordination.refuse(envelope.answers, UNACCEPTABLE, leader.at[0])
        elif isinstance(event, Lost):
            coordination.refuse(event.number, event.reason, leader.at[0])
        else:
            self._dismiss(leader, event.reason)

    def _reach(self, leader: Leader, at: Instant) -> None:
        """Set a coordinator's instant. Messages of the hub count from the beginning of the second."""
        if leader.request is None:
            self.clock_s = max(self.clock_s, at[0])
            leader.at = self.clock_s, 0
        else:
            leader.at = max(leader.at, at)

    def _timed(self, leader: Leader, work: str, call: Any) -> None:
        """Count the real seconds of a coordinator's work."""
        started = time.perf_counter()
        try:
            call()
        finally:
            self.meter.spent(leader.coordination.role, work, time.perf_counter() - started)

    def _go_on(self, leader: Leader) -> None:
        """Run the effects that a coordinator asks for, until it waits or is done."""
        coordination, party = leader.coordination, leader.coordination.member.party
        while coordination.effect is not None:
            wanted = [(party, coordination.role, coordination.effect)]
            value = compute(wanted, self.effects, self.meter)[0]
            self._timed(
                leader,
                "coordinate",
                lambda value=value: coordination.computed(value, leader.at[0]),
            )
        if coordination.cost is not None:
            seconds = self.links.work_s(party.name, coordination.cost)
            self.meter.spent_virtual(coordination.role, "coordinate", seconds)
            coordination.spent(seconds, leader.at[0])
        if coordination.done and leader.request is not None:
            handled: Handled = coordination.result
            self._dismiss(leader, "")
            self._finish(leader.request, handled, leader.at)

    def _dismiss(self, leader: Leader, reason: str) -> None:
        """A party stops coordinating: it is done or, with a reason, given up. Waiting messages go to its handlers."""
        assert leader.request is not None
        del self._queues.leaders[leader.name]
        self._queues.schedule.free(leader.name, leader.at)
        for parcel in leader.agenda.parcels():
            self._queues.schedule.push(parcel)
        member = leader.coordination.member
        for envelope in member.drop({kind.__name__ for kind in member.party.takes}):
            self._recorder.too_late(envelope)
        if reason:
            leader.coordination.stop()
            envelope = leader.request.envelope
            self._recorder.lost(envelope, reason)
            self._fail(envelope, reason, leader.at)

    # -- sending -----------------------------------------------------------------------------------------------------

    def _send(self, sent: Sent, at: Instant) -> None:
        """Send the result of a job, or keep it until its round. It never overtakes messages that its link keeps."""
        envelope = sent.envelope
        due = envelope.round + self.links.rounds(envelope.src, envelope.round)
        due = max(due, self._queues.delayed.due(envelope.src, envelope.dst))
        if due <= self.round:
            self._transmit(sent, at)
            return
        self._queues.delayed.put(Parcel(envelope, sent.to_role), sent.frame, due)
        if envelope.answers:
            self._fail(envelope, LATE, (self._reached_s, 0))

    def _transmit(self, sent: Sent, at: Instant) -> None:
        """Put a message on its way."""
        copies, lost = self._wire.transmit(sent, at, self.meter, self.intercept)
        envelope = sent.envelope
        if lost is not None:
            self._recorder.lost(envelope, lost)
            self._fail(envelope, lost, at)
            if not copies and envelope.dst in self._queues.leaders and lost != "lost on the way":
                self._queues.leaders[envelope.dst].agenda.push(at, Gone(lost))
        if self.intercept is not None:
            self._copies[envelope.key] += sum(copy.genuine for copy, _ in copies)
        for copy, data in copies:
            self._queues.push(copy, data)

    def _fail(self, envelope: Envelope, reason: str, at: Instant) -> None:
        """Tell the waiting coordinator that a request failed, or that its answer will not come."""
        for name, number in ((envelope.src, envelope.number), (envelope.dst, envelope.answers)):
            if (leader := self._queues.leaders.get(name)) is not None and number in leader.coordination.asked:
                leader.agenda.push(at, Lost(number, reason))

    def _was_last(self, parcel: Parcel) -> bool:
        """Whether a refused message was the last copy that could have been accepted."""
        key = parcel.envelope.key
        self._copies[key] -= 1
        return parcel.genuine and self._copies[key] <= 0

    # -- the others --------------------------------------------------------------------------------------------------

    def _handle(self, jobs: Sequence[Job]) -> None:
        """Take the next message of some parties, run their handlers together and send what they return."""
        todo: list[tuple[Job, Member, Opened | None, Call]] = []
        for job in jobs:
            parcel, envelope = job.parcel, job.parcel.envelope
            self._queues.schedule.start(job)
            self._reached_s = max(self._reached_s, parcel.arrives_s)
            member, frame = self.members[envelope.dst], self.spool.take(parcel.ticket)
            opened = self._nominal.take(parcel, frame)
            party = member.party
            if envelope.answers and not self._queues.handles(party.name, envelope):
                self._pass_over(member, parcel, frame)
                continue
            party.now_s = job.done[0]
            if opened is not None:
                self.meter.spent_virtual(opened.role, envelope.kind, job.done[0] - job.start[0])
            role = party.role if opened is None else opened.role
            work = member.receive(envelope, frame, parcel.arrives_s, opened=opened)
            todo.append((job, member, opened, Call(party, role, envelope.kind, work)))
        results = run_handlers([call for *_, call in todo], self.effects, self.meter)
        for (job, member, opened, call), result in zip(todo, results, strict=True):
            if isinstance(result, Coordinates):
                assert opened is not None
                self._coordinate(job, member, opened, call, result.step)
            else:
                self._finish(job.parcel, result, job.done)

    def _pass_over(self, member: Member, parcel: Parcel, frame: bytes) -> None:
        """An answer that a party no longer waits for. It is too late, or forged."""
        try:
            member.verify(parcel.envelope, frame)
            self._recorder.too_late(parcel.envelope)
        except PeerError as error:
            self._recorder.refused(parcel.envelope, member.party.role, str(error))
            if self._was_last(parcel):
                self._fail(parcel.envelope, UNACCEPTABLE, (parcel.arrives_s, parcel.step))

    def _coordinate(self, job: Job, member: Member, opened: Opened, call: Call, step: Any) -> None:
        """A handler that has yielded a step goes on as a coordinator."""
        envelope, work = job.parcel.envelope, call.work
        coordination = Coordination(member, work, round=envelope.round, attempt=envelope.attempt, role=opened.role)
        leader = Leader(coordination, Agenda(), work, job.done, job.parcel)
        self._take_up(leader)
        self._timed(leader, "coordinate", lambda: coordination.adopt(step, job.done[0]))
        self._go_on(leader)

    def _finish(self, parcel: Parcel, handled: Handled, at: Instant) -> None:
        """Send a handler's messages, or let the sender's step go on without an answer and without a reason."""
        for sent in handled.sent:
            self._send(sent, at)
        if handled.refused:
            if self._was_last(parcel):
                self._fail(parcel.envelope, REFUSED, at)
        elif not handled.answered:
            self._fail(parcel.envelope, "gave no direct answer", at)

    # -- between rounds ----------------------------------------------------------------------------------------------

    def _forget(self) -> None:
        """Drop what only mattered in this round, and arrived messages that no step will take any more."""
        for envelope in self.hub.drop({kind.__name__ for kind in self.hub.party.takes}):
            self._recorder.too_late(envelope)
        for member in self.members.values():
            member.numbers.forget()
        self._queues.agenda.clear(keep_parcels=True)
        self._copies.clear()
        self._nominal.clear()
        self._reader.clear()

    def snapshot(self) -> Snapshot:
        """The state of the transport between two rounds: the clock and the messages under way."""
        parcels, frames = self._under_way()
        at = {place: index for index, place in enumerate(frames)}
        parcels = [msgspec.structs.replace(p, ticket=at[self.spool.place(p.ticket)]) for p in parcels]
        sizes = [self.spool.size(ticket) for ticket in frames.values()]
        links = [(*link, last) for link, last in self._wire.last.items()]
        numbers = {name: _copy(member.numbers) for name, member in self.members.items()}
        return Snapshot(self.clock_s, numbers, parcels, sizes, dict(self._queues.schedule.busy), links)

    def frames(self) -> Iterator[bytes]:
        """The frames under way that belong to a snapshot, one at a time."""
        return map(self.spool.peek, self._under_way()[1].values())

    def _under_way(self) -> tuple[list[Parcel], dict[int, int]]:
        """All messages under way, and a ticket of every frame among them, by its place."""
        return self._queues.all(Parcel(one.envelope, "", one.at_s, 0, one.ticket) for one in self.hub.inbox)

    def restore(self, snapshot: Snapshot, frames: Iterable[bytes]) -> None:
        """Continue from a snapshot and its frames, in a new transport. Raises UserError for one of other parties."""
        snapshot.check(self.parties)
        self.clock_s = snapshot.clock_s
        self._wire.last = {(src, dst): last for src, dst, last in snapshot.links}
        for name, numbers in snapshot.numbers.items():
            self.members[name].numbers = _copy(numbers)
        self._put_back(snapshot, frames)

    def _put_back(self, snapshot: Snapshot, frames: Iterable[bytes]) -> None:
        """Put the messages of a snapshot under way. Those that the hub had received but not taken wait there."""
        self._queues.schedule.busy = dict(snapshot.busy)
        for parcel in self._queues.respooled(snapshot.parcels, frames):
            if parcel.due:
                self._queues.delayed.push(parcel)
            elif self._queues.is_for_hub(parcel.envelope) and parcel.arrives_s <= snapshot.clock_s:
                self.hub.inbox.append(Waiting(parcel.envelope, parcel.ticket, parcel.arrives_s))
            else:
                passed = self.clock_s > snapshot.clock_s  # then messages that were due in between come now
                self._queues.route(_not_before(self.clock_s, parcel) if passed else parcel)

    def _remember(self, round: int) -> None:
        """Keep the state that is needed to try this round again."""
        self._start = self.snapshot(), list(self.frames())
        for member in self.members.values():
            member.begin(round)

    def _go_back(self, round: int, attempt: int) -> None:
        """Go back to the beginning of a round. Time, numbers and messages of its earlier attempts go on."""
        if self._start is None:
            raise RunError(f"round {round} can't be tried again: this transport was made without retries")
        under_way = [(parcel, self.spool.take(parcel.ticket)) for parcel in self._under_way()[0]]
        self.hub.inbox.clear()
        self._queues.clear()
        for member in self.members.values():
            member.restart(round, attempt)
        self._put_back(*self._start)
        for parcel, frame in under_way:
            if parcel.envelope.round == round:
                self._queues.push(_not_before(self.clock_s, parcel), frame)

    def close(self) -> None:
        """Remove messages from the disk."""
        self.spool.close()


def _not_before(now_s: float, parcel: Parcel) -> Parcel:
    return msgspec.structs.replace(parcel, arrives_s=max(parcel.arrives_s, now_s))


def _copy(numbers: Numbers) -> Numbers:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(numbers), type=Numbers)
