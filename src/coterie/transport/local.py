"""The local transport: all parties in one process, on a virtual clock.

Every message passes through the codec, an envelope and its signature, so byte counts are exact, and no party reads
another's objects. Arrivals follow from sizes, nominal costs and device profiles alone. An answer that ``links`` delays
is sent when that later round begins.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

import coterie.protocol.core as fl
from coterie.protocol.digests import remembered
from coterie.protocol.steps import R
from coterie.transport.coordination import Coordination
from coterie.transport.envelope import Envelope, Handled, Keyring, Numbers, Opened, Sent, Waiting
from coterie.transport.member import Member, Reader, roles_of
from coterie.transport.queues import Call, Effects, HandlerRun, Leader, Lost, Queues, compute, parts, run_handlers
from coterie.transport.transcript import TOO_LATE, Meter, Transcript, ViewRecorder
from coterie.transport.wire import GONE, Instant, Intercept, Links, Parcel, Snapshot, Wire, numbered

_COPIES = 4  # what a message in work takes, in its own size: its bytes, what they say, an answer as large, its bytes

_LAST_S = sys.float_info.max


class LocalTransport:
    """Runs a coordinator's steps against the other parties.

    keyring: of all parties.  spool_bytes: most of waiting messages in memory.  batch_bytes: of messages and answers
    handled together.  retries: a round can be tried again.  intercept: an attacker on the wire.  counted: names of
    messages whose senders the ledger counts.
    """

    def __init__(
        self,
        parties: Mapping[str, fl.Party],
        hub: str,
        effects: Effects,
        *,
        keyring: Keyring,
        links: Links | None = None,
        transcript: Transcript | None = None,
        spool_bytes: int = 512 << 20,
        batch_bytes: int = 1 << 30,
        retries: bool = False,
        counted: frozenset[str] = frozenset(),
    ) -> None:
        self.parties, self.effects, self.transcript = parties, effects, transcript
        self.links = links or Links()
        self.batch_bytes, self.retries = batch_bytes, retries
        self.spool, self._hashed_bytes = fl.Spool(spool_bytes), spool_bytes // 2
        self.intercept: Intercept | None = None
        self.clock_s = 0.0
        self.round = 0
        roles = roles_of(parties)
        self._reader, self._recorder = Reader(), ViewRecorder(roles, transcript, counted)
        self._start: tuple[Snapshot, list[bytes]] | None = None
        self._keyring, self._roles, self._hub = keyring, roles, hub
        self.members = _Members(parties, self._member)
        self.hub = self.members[hub]
        self._wire = Wire(parties, hub, self.links, self._recorder)
        self._queues = Queues(parties, self.spool, self._nominal, batch_bytes // _COPIES)
        self._reached_s = 0.0  # when the last message that was handled in this round had arrived
        self._copies: Counter[tuple[str, str, int]] = Counter()  # of messages under attack, that have not been refused

    def _member(self, name: str) -> Member:
        reader, recorder = self._reader, self._recorder
        member = Member(name, self.parties, self._hub, self._roles, self._keyring, self.spool, reader, recorder)
        member.repeats = self.intercept is not None
        if self._start is not None:
            member.begin(self.round)
        return member

    @property
    def meter(self) -> Meter:
        return self._recorder.meter

    # -- a round -----------------------------------------------------------------------------------------------------

    def drive(self, steps: fl.Steps[R], round: int, attempt: int = 0, *, settle: bool = False) -> R:
        """Run one round (or the set-up) of the coordinator; changes commit at the end."""
        if attempt:
            self._go_back(round, attempt)
        elif self.retries:
            self._start = None
            self._start = self.snapshot(), list(self.frames())
        self.round = round
        self._recorder.meter = Meter()
        self._reached_s = self.clock_s
        for member in self.members.values():
            member.repeats = self.intercept is not None
            if self.retries and not attempt:
                member.begin(round)
        self.hub.heard_of(round, attempt)
        for parcel, frame in self._queues.release(round):
            self._transmit(Sent(parcel.envelope, frame, parcel.to_role), (self.clock_s, 0))
        try:
            with self.hub.leading(), remembered(self._hashed_bytes):
                hub = self._coordinate(self.hub, steps, self.hub.party.role, (self.clock_s, 0), (round, attempt))
                self._advance(hub, settle)
        finally:
            steps.close()
            for leader in sorted(self._queues.leaders.values(), key=lambda leader: leader.is_hub):
                self._dismiss(leader, "" if leader.is_hub else f"its leader was not done when round {round} ended")
            for member in self.members.values():
                member.numbers.kept.clear()
            self._copies.clear()
            self._queues.let_go()
            self._reader.clear()
        result: R = hub.coordination.result
        return result

    def _advance(self, hub: Leader, settle: bool) -> None:
        leaders, settled_s = self._queues.leaders, -1.0  # since the hub is done
        while True:
            safe_s, jobs = self._queues.next()
            leader = min(leaders.values(), key=lambda leader: leader.turn)
            turn_s = leader.turn[0]
            if settle and hub.coordination.done and settled_s < 0:
                settled_s = self.clock_s
            if hub.coordination.done and min(turn_s, safe_s) > (_LAST_S if settle else self.clock_s):
                self.clock_s = settled_s if settle else self.clock_s
                return
            if jobs and safe_s <= turn_s:
                ends_s = self.clock_s if hub.coordination.done else hub.coordination.ends_s(hub.known())
                batch = [job for job in jobs if job.done[0] <= max(ends_s, safe_s)]
                sizes = [_COPIES * self.spool.size(job.parcel.ticket) for job in batch]
                for part in parts(batch, sizes, self.effects.chunk, self.batch_bytes):
                    self._handle(part)
                if settled_s >= 0:
                    settled_s = max([settled_s, *(j.done[0] for j in batch if j.parcel.envelope.round == self.round)])
            elif not jobs and all(leader.is_idle for leader in leaders.values()):
                # nothing more will come: the coordinator that began last is told first, since the others wait for it
                *_, last = leaders.values()
                self._expire(last)
            else:
                self._act(leader, turn_s)

    # -- coordinators --------------------------------------------------------------------------------------------------

    def _coordinate(
        self,
        member: Member,
        work: fl.Steps[Any],
        role: str,
        at: Instant,
        request: Parcel | tuple[int, int],
        step: Any = None,
    ) -> Leader:
        parcel, of = (request, request.envelope) if isinstance(request, Parcel) else (None, request)
        leader = Leader(Coordination(member, work, lambda sent: self._transmit(sent, leader.at), role, of), at, parcel)
        self._queues.take_up(leader)
        with self.meter.timed(role, "coordinate"):
            leader.coordination.start(at[0], step)
        self._go_on(leader)
        return leader

    def _act(self, leader: Leader, turn_s: float) -> None:
        coordination = leader.coordination
        if leader.next_s > turn_s:
            self._reach(leader, (turn_s, 0))
            self._expire(leader)
            return
        at, event = leader.pop()
        self._reach(leader, at)
        if isinstance(event, Parcel):
            envelope, frame = event.envelope, self.spool.take(event.ticket)
            with self.meter.timed(coordination.role, envelope.kind):
                genuine = coordination.deliver(envelope, frame, event.arrives_s)
            if not genuine and self._was_last(event):
                coordination.refuse(envelope.answers, fl.UNACCEPTABLE, leader.at[0])
        elif event.number is None:
            self._dismiss(leader, event.reason)
        else:
            coordination.refuse(event.number, event.reason, leader.at[0])

    def _reach(self, leader: Leader, at: Instant) -> None:
        if leader.is_hub:
            self.clock_s = max(self.clock_s, at[0])
            leader.at = self.clock_s, 0
        else:
            leader.at = max(leader.at, at)

    def _expire(self, leader: Leader) -> None:
        with self.meter.timed(leader.coordination.role, "coordinate"):
            leader.coordination.expire(leader.at[0])
        self._go_on(leader)

    def _go_on(self, leader: Leader) -> None:
        coordination = leader.coordination
        while (effect := coordination.effect) is not None:
            if isinstance(effect, fl.Cost):
                seconds = self.links.work_s(leader.name, effect)
                self.meter.worked(coordination.role, "coordinate", self.links.device(leader.name), seconds)
                coordination.spent(seconds, leader.at[0])
                continue
            (value,) = compute([(leader.name, coordination.role, effect)], self.effects, self.meter)
            with self.meter.timed(coordination.role, "coordinate"):
                coordination.computed(value, leader.at[0])
        if coordination.done and leader.request is not None:
            self._dismiss(leader, "")
            self._finish(leader.request, coordination.result, leader.at)

    def _dismiss(self, leader: Leader, reason: str) -> None:
        self._queues.dismiss(leader)
        for envelope in leader.coordination.member.drop():
            self._recorder.lost(envelope, TOO_LATE)
        if reason and leader.request is not None:
            leader.coordination.stop()
            self._recorder.lost(leader.request.envelope, reason)
            self._fail(leader.request.envelope, reason, leader.at)

    # -- sending -----------------------------------------------------------------------------------------------------

    def _send(self, sent: Sent, at: Instant) -> None:
        envelope = sent.envelope
        due = envelope.round + self.links.rounds(envelope.src, envelope.round)
        due = max(due, self._queues.due(envelope.src, envelope.dst))
        if due <= self.round:
            self._transmit(sent, at)
            return
        self._queues.delay(Parcel(envelope, sent.to_role), sent.frame, due)
        if envelope.answers:
            self._fail(envelope, fl.LATE, (self._reached_s, 0))

    def _transmit(self, sent: Sent, at: Instant) -> None:
        envelope, (copies, lost) = sent.envelope, self._wire.transmit(sent, at, self.intercept)
        if lost is not None:
            self._recorder.lost(envelope, lost, by_sender=lost == GONE)
            self._fail(envelope, lost, at)
            away = envelope.src if lost == GONE else envelope.dst
            if not copies and away in self._queues.leaders and lost != "lost on the way":
                self._queues.leaders[away].push(at, Lost(None, lost))
        if self.intercept is not None:
            self._copies[envelope.key] += sum(copy.genuine for copy, _ in copies)
        for copy, data in copies:
            self._queues.push(copy, data)

    def _fail(self, envelope: Envelope, reason: str, at: Instant) -> None:
        for name, number in ((envelope.src, envelope.number), (envelope.dst, envelope.answers)):
            if (leader := self._queues.leaders.get(name)) is not None and number in leader.coordination.asked:
                leader.push(at, Lost(number, reason))

    def _was_last(self, parcel: Parcel) -> bool:
        key = parcel.envelope.key
        self._copies[key] -= 1
        return parcel.genuine and self._copies[key] <= 0

    # -- the others --------------------------------------------------------------------------------------------------

    def _nominal(self, parcel: Parcel) -> tuple[float, Opened | None]:
        member, opened = self.members[parcel.envelope.dst], self._opened(parcel, self.spool.peek(parcel.ticket))
        with suppress(fl.PeerError, fl.CryptoError):
            if opened is not None:
                return self.links.work_s(member.name, member.cost(opened)), opened
        return 0.0, None

    def _opened(self, parcel: Parcel, frame: bytes) -> Opened | None:
        member = self.members[parcel.envelope.dst]
        with suppress(fl.PeerError):
            if not member.numbers.is_old(parcel.envelope):
                return member.open(parcel.envelope, frame, parcel.arrives_s)
        return None

    def _handle(self, jobs: Sequence[HandlerRun]) -> None:
        todo: list[tuple[HandlerRun, Call]] = []
        for job in jobs:
            parcel, envelope = job.parcel, job.parcel.envelope
            self._queues.start(job)
            self._reached_s = max(self._reached_s, parcel.arrives_s)
            member, frame = self.members[envelope.dst], self.spool.take(parcel.ticket)
            opened = job.opened or self._opened(parcel, frame)
            if envelope.answers and not self._queues.handles(envelope):
                self._pass_over(member, parcel, frame)
                continue
            member.party.now_s = job.done[0]
            role = member.party.role
            if opened is not None:
                role, seconds = opened.role, job.done[0] - job.start[0]
                self.meter.worked(role, envelope.kind, self.links.device(envelope.dst), seconds)
            work = member.receive(envelope, frame, parcel.arrives_s, opened=opened)
            todo.append((job, Call(member.name, role, envelope.kind, work)))
        results = run_handlers([call for _, call in todo], self.effects, self.meter)
        for (job, call), result in zip(todo, results, strict=True):
            if isinstance(result, fl.Step):
                self._coordinate(self.members[call.party], call.work, call.role, job.done, job.parcel, result)
            else:
                self._finish(job.parcel, result, job.done)

    def _pass_over(self, member: Member, parcel: Parcel, frame: bytes) -> None:
        try:
            member.verify(parcel.envelope, frame)
            self._recorder.lost(parcel.envelope, TOO_LATE)
        except fl.PeerError as error:
            self._recorder.refused(parcel.envelope, member.party.role, str(error))
            if self._was_last(parcel):
                self._fail(parcel.envelope, fl.UNACCEPTABLE, (parcel.arrives_s, parcel.step))

    def _finish(self, parcel: Parcel, handled: Handled, at: Instant) -> None:
        for sent in handled.sent:
            self._send(sent, at)
        if handled.refused:
            if self._was_last(parcel):
                self._fail(parcel.envelope, fl.REFUSED, at)
        elif not handled.answered:
            self._fail(parcel.envelope, "gave no direct answer", at)

    # -- between rounds ----------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        parcels, frames = self._under_way()
        at = {place: index for index, place in enumerate(frames)}
        parcels = [msgspec.structs.replace(p, ticket=at[self.spool.place(p.ticket)]) for p in parcels]
        sizes = [self.spool.size(ticket) for ticket in frames.values()]
        links = [(*link, last) for link, last in self._wire.last.items()]
        everybody = self.members if numbered(self.parties) else self.parties  # or those alone that ever did anything
        numbers = {name: _copy(self.members[name].numbers) for name in everybody}
        return Snapshot(self.clock_s, numbers, parcels, sizes, dict(self._queues.busy), links)

    def frames(self) -> Iterator[bytes]:
        return map(self.spool.peek, self._under_way()[1].values())

    def _under_way(self) -> tuple[list[Parcel], dict[int, int]]:
        come = [Parcel(one.envelope, "", one.at_s, 0, one.ticket) for one in self.hub.inbox]
        parcels = come + self._queues.all()
        return parcels, {self.spool.place(parcel.ticket): parcel.ticket for parcel in parcels}

    def restore(self, snapshot: Snapshot, frames: Iterable[bytes]) -> None:
        """Continue from a snapshot and its frames in a new transport. Raises UserError for other parties."""
        snapshot.check(self.parties)
        self.clock_s = snapshot.clock_s
        self._wire.last = {(src, dst): last for src, dst, last in snapshot.links}
        for name, numbers in snapshot.numbers.items():
            self.members[name].numbers = _copy(numbers)
        self._put_back(snapshot, frames)

    def _put_back(self, snapshot: Snapshot, frames: Iterable[bytes]) -> None:
        self._queues.busy = dict(snapshot.busy)
        tickets: dict[int, int] = {}
        for place, frame in enumerate(frames):
            tickets |= {i: self.spool.put(frame) for i, one in enumerate(snapshot.parcels) if one.ticket == place}
        for i, known in enumerate(snapshot.parcels):
            parcel = msgspec.structs.replace(known, ticket=tickets[i])
            hub = parcel.envelope.dst == self.hub.name and not self._queues.handles(parcel.envelope)
            if parcel.due:
                self._queues.delayed.append(parcel)
            elif hub and parcel.arrives_s <= snapshot.clock_s:
                self.hub.inbox.append(Waiting(parcel.envelope, parcel.ticket, parcel.arrives_s))
            else:
                passed = self.clock_s > snapshot.clock_s  # then messages that were due in between come now
                self._queues.route(_not_before(self.clock_s, parcel) if passed else parcel)

    def _go_back(self, round: int, attempt: int) -> None:
        if self._start is None:
            raise fl.RunError(f"round {round} can't be tried again: this transport was made without retries")
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
        self.spool.close()


class _Members(dict[str, Member]):
    def __init__(self, parties: Mapping[str, fl.Party], make: Callable[[str], Member]) -> None:
        super().__init__()
        self._parties, self._make = parties, make

    def __missing__(self, name: str) -> Member:
        if name not in self._parties:
            raise KeyError(name)
        member = self[name] = self._make(name)
        return member


def _not_before(now_s: float, parcel: Parcel) -> Parcel:
    return msgspec.structs.replace(parcel, arrives_s=max(parcel.arrives_s, now_s))


def _copy(numbers: Numbers) -> Numbers:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(numbers), type=Numbers)
