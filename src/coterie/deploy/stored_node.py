"""A node's commits, counts, and outgoing packets."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from coterie.deploy.account import Account, add_scores
from coterie.deploy.clock import Clock, MachineClock
from coterie.deploy.engine import Delivery, Engine, OutgoingPacket
from coterie.deploy.lead import CoordinationDriver, Presence
from coterie.deploy.logs import NodeObserver
from coterie.deploy.packet_queue import Arrived, NodeLimits, PacketQueue
from coterie.deploy.packets import NOWHEN, Carried, Era, Instant, Letter, NoAnswer, Packet, Report, Tally, Traffic
from coterie.deploy.store import FileStore, Kept, begun_after, pack, unpack
from coterie.protocol.errors import PeerError
from coterie.transport.envelope import Envelope, Keyring, Opened, Sent, Waiting
from coterie.transport.member import Member, Observer
from coterie.transport.queues import Effects

REPORT_S = 5.0

Scores = Callable[[int], Mapping[str, float]]
"""What a party's owner lets it tell of itself after a round: numbers by name."""
Renew = Callable[[bytes], tuple[Keyring, Any]]
"""Takes in a newer plan from the hub; gives the keys, and ``Party.common``. Raises PeerError unless it is genuine and
newer, or the same.
"""


class StoredNode(Observer):
    """The part of a ``Node`` that stores, counts and sends."""

    def __init__(
        self,
        member: Member,
        effects: Effects,
        engine: Engine,
        store: FileStore,
        *,
        stopped: threading.Event | None = None,
        first: Delivery | None = None,
        clock: Clock | None = None,
        limits: NodeLimits | None = None,
        observer: NodeObserver | None = None,
        scores: Scores | None = None,
        samples: int = 0,
        renew: Renew | None = None,
        account: Account | None = None,
        former: bytes | None = None,
        announces: bool = False,
    ) -> None:
        self.member, self.effects, self.store = member, effects, store
        self.clock, self.limits = clock or MachineClock(), limits or NodeLimits()
        self.observer, self.scores, self.samples = observer or NodeObserver(), scores or (lambda r: {}), samples
        self.renew, self.account, self.announces = renew, account or Account(), announces
        self.name, self.hub = member.name, member.hub
        self.stopped = stopped or threading.Event()
        self.queue = PacketQueue(engine, member.keyring, self.observer, self.stopped, first=first, limits=self.limits)
        self.presence = Presence(self.nodes, self.limits.grace_s)
        self.kept = Kept() if former is None else begun_after(former)
        self.lead: CoordinationDriver | None = None
        self.undone: tuple[Any, Any] | None = None  # state and secret before the handler that coordinates
        self.waiting: list[Arrived] = []
        self._done_later: list[Arrived] = []
        self._unsent: list[OutgoingPacket] = []  # of earlier commits: the node was stopped while the engine failed
        self._started: tuple[Any, Any] = member.party.state, member.party.secret
        self.interrupted = self.awaits_begin = self.apart = False
        self._told: Tally | None = None
        self._requests: dict[str, tuple[str, int]] = {}  # by key of a packet that was put aside: of whom, its number
        self._unasked, self._unasked_bytes = Counter[str](), Counter[str]()
        self._reported = time.monotonic(), 0, 0
        member.keyring, member.numbers = Carried(member.keyring), self.kept.numbers
        member.repeats = False  # packets are taken once
        member.observer = self

    @property
    def era(self) -> Era:
        return self.kept.era or (0, 0)

    @property
    def excluded(self) -> Mapping[str, str]:
        return {}

    # -- commits -----------------------------------------------------------------------------------------------------

    def load(self) -> None:
        member = self.member
        if (data := self.store.load()) is not None:
            self.kept, self._started = unpack(data, member.party)
            member.numbers = self.kept.numbers
            if self.kept.era is not None:
                member.start = self.kept.era[0], *self._started, {}
            for one in self.kept.inbox:
                member.inbox.append(Waiting(one.envelope, member.spool.put(one.frame), one.arrives[0]))
        self.account.new()  # they are in ``kept.released``
        self.clock.times = self.kept.times
        self.queue.start(self.kept.numbering)
        self.recognise()
        member.numbers.sent = max(member.numbers.sent, self.kept.numbering.sent)

    def commit(self, outbox: Sequence[OutgoingPacket] = (), done: Sequence[Arrived] = ()) -> None:
        """Store the work, push its consequences, and declare these packets done. Raises RunError."""
        self.kept.commits += 1
        self.save(outbox, done)

    def save(self, outbox: Sequence[OutgoingPacket] = (), done: Sequence[Arrived] = ()) -> None:
        kept, member = self.kept, self.member
        done, self._done_later = [*self._done_later, *done], []
        for arrived in done:
            self.queue.forget(arrived)
        kept.outbox, kept.numbering = [*self._unsent, *outbox], self.queue.numbering
        kept.times = self.clock.times
        kept.inbox = [
            Letter(one.envelope, member.spool.peek(one.ticket), self.era, (one.at_s, 0)) for one in member.inbox
        ]
        if member.start is not None:
            self._started = member.start[1], member.start[2]
        now = member.before or self.undone or (member.party.state, member.party.secret)
        data = pack(kept, now, self._started)
        self.store.save(data)
        self.observer.committed(kept.commits, len(data))
        lost = self.push(kept.outbox)
        self._unsent = lost if self.queue.halted else []
        for arrived in done:
            arrived.delivery.done()

    def enter(self, era: Era, mark: int) -> None:
        kept, member, clock = self.kept, self.member, self.clock
        known = kept.era is not None and kept.era[0] == era[0]
        member.heard_of(*era)
        if known:
            delayed = [(due, sent) for due, sent in clock.times.delayed if sent.envelope.round != era[0]]
            clock.times = kept.before.copy()
            clock.times.delayed = delayed
        else:
            member.begin(era[0])
            kept.before, kept.again = clock.times.copy(), []
        kept.retaken = 0
        self.interrupted = self.apart = kept.leads = False
        kept.mark = mark
        kept.era, kept.sent, kept.received, self.queue.traffic = era, {}, {}, Traffic()
        self._unasked.clear()
        self._unasked_bytes.clear()
        self.account.new()  # an attempt that is undone has sent what it has sent

    def recognise(self) -> None:
        """Forget the numbers of parties that were enrolled anew."""
        common = getattr(self.member.party, "common", None)
        for entry in common.roster.entries if common is not None else ():
            if self.kept.keys.get(entry.name, entry.verify_key) != entry.verify_key:
                self.forget(entry.name)
            self.kept.keys[entry.name] = entry.verify_key

    def forget(self, name: str) -> None:
        member, kept, numbering = self.member, self.kept, self.queue.numbering
        of_hub: list[dict[str, Any]] = [kept.heard, kept.forced, kept.excluded]
        everywhere: list[dict[str, Any]] = [numbering.taken, numbering.open, kept.sent, kept.received]
        for known in [*everywhere, *of_hub]:
            known.pop(name, None)
        member.inbox = [one for one in member.inbox if one.envelope.src != name]
        kept.retaken -= sum(one.envelope.src == name for one in kept.again[: kept.retaken])
        kept.again = [one for one in kept.again if one.envelope.src != name]
        for arrived in [one for one in self.waiting if one.src == name]:
            self.waiting.remove(arrived)
            self.queue.refuse(name, "packet", f"it was sent before {name} was enrolled anew")
            self.queue.done(arrived)

    def count_releases(self, sent: Sequence[Sent]) -> None:
        self.kept.released_to = self.account.count(self.kept.released, sent, self.kept.released_to)

    # -- packets out -------------------------------------------------------------------------------------------------

    def send(self, sent: Sent) -> None:
        """Put aside for ``flush``, so that many parties are asked at once, and stored nowhere: if this process ends,
        the round is tried again. Nobody asks parties that are gone or excluded.
        """
        dst, number, lead = sent.envelope.dst, sent.envelope.number, self.lead
        if (
            lead is not None
            and number in lead.coordination.asked
            and (dst in self.excluded or dst in self.presence.look({dst}))
        ):
            self.give_up_answer(lead, dst, number, "gone")
            return
        self.count_releases([sent])
        at = self.clock.now() if self.lead is None else self.lead.at
        for parcel in self.wrapped(self.post(sent, at)):
            self._requests[parcel.key] = dst, number
            self.queue.put_aside(parcel)

    def push(self, parcels: Sequence[OutgoingPacket]) -> list[OutgoingPacket]:
        lost = self.queue.push(parcels)
        if any(one.dst == self.hub for one in lost):
            self._told = None
        return lost

    def flush(self) -> bool:
        lost, requests = self.queue.flush(), self._requests
        self._requests = {}
        for parcel in lost:
            if self.lead is not None and parcel.key in requests:
                self.give_up_answer(self.lead, *requests[parcel.key], "gone")
        return bool(lost)

    def give_up_answer(self, lead: CoordinationDriver, name: str, number: int, why: str) -> None:
        if why == "gone":
            lead.gone[name] = self.excluded.get(name, "gone")
        lead.lost(number, why, lead.at)

    def post(self, sent: Sent, at: Instant) -> list[tuple[str, Packet]]:
        envelope, (arrives, lost) = sent.envelope, self.clock.send(sent, at)
        if not lost:
            return [(envelope.dst, Letter(envelope, sent.frame, self.era, arrives, self.kept.commits))]
        self._unanswered(envelope, lost)
        return [(envelope.dst, self.none(envelope.answers, lost, at))] if envelope.answers else []

    def _unanswered(self, envelope: Envelope, why: str) -> None:
        if self.lead is not None and envelope.number in self.lead.coordination.asked:
            self.give_up_answer(self.lead, envelope.dst, envelope.number, why)

    def none(self, number: int, why: str, at: Instant) -> NoAnswer:
        return NoAnswer(number, self.era, why, at if self.clock.rehearsed else NOWHEN, self.kept.commits)

    def wrapped(self, out: Sequence[tuple[str, Packet]]) -> list[OutgoingPacket]:
        sent, parcels = self.kept.sent, list[OutgoingPacket]()
        for dst, packet in out:
            sent[dst] = sent.get(dst, 0) + (not isinstance(packet, Report))
        at_rest = self.lead is None and self.kept.retaken == len(self.kept.again)
        last = max((at for at, (dst, _) in enumerate(out) if dst == self.hub and at_rest), default=-1)
        for at, (dst, packet) in enumerate(out):
            if at == last and isinstance(packet, Letter | NoAnswer | Report):
                packet = msgspec.structs.replace(packet, tally=self._tally())
            try:
                parcels.append(self.queue.wrap(dst, packet))
            except PeerError as error:
                self.queue.refuse(dst, "push", str(error))
                sent[dst] -= not isinstance(packet, Report)
                if isinstance(packet, Letter):
                    self._unanswered(packet.envelope, "gone")
        return parcels

    def tally(self) -> None:
        if (tally := self._tally()) is not None and not self.queue.send(self.hub, tally):
            self._told = None

    def _tally(self) -> Tally | None:
        kept = self.kept
        if not kept.tallies or kept.era is None or self.name == self.hub or self.awaits_begin:
            return None
        now = Tally(kept.era, dict(kept.sent), dict(kept.received))
        if now == self._told:
            return None
        self._told = now
        return now

    def report(self, *, closed: bool = False, **more: Any) -> Report:
        traffic, era, commits = self.queue.traffic, self.era, self.kept.commits
        scores = {name: float(score) for name, score in self.scores(era[0]).items()} if closed else {}
        add_scores(self.kept.released, scores, era[0])
        self._reported = time.monotonic(), traffic.bytes_down, sum(traffic.refused.values())
        moved, refused = (traffic.bytes_up, traffic.bytes_down), dict(traffic.refused)
        told = Report(era, commits, traffic.busy_s, *moved, refused, scores, self.samples, closed=closed, **more)
        self.observer.told(told)
        return told

    def report_again(self) -> None:
        at_s, down, refused = self._reported
        traffic = self.queue.traffic
        new = (traffic.bytes_down, sum(traffic.refused.values())) != (down, refused)
        if new and self.kept.era is not None and time.monotonic() > at_s + REPORT_S:
            self.queue.send(self.hub, self.report())

    # -- what its member has read and refused --------------------------------------------------------------------------

    def read(self, opened: Opened) -> None:
        self.observer.read(opened)

    def late(self, party: str) -> None:
        self.observer.late(party)

    def refused(self, envelope: Envelope, role: str, reason: str) -> None:
        self.queue.traffic.refuse(envelope.kind)
        self.observer.refused(envelope, role, reason)

    @contextmanager
    def busy(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.queue.traffic.busy_s += time.perf_counter() - began

    def compute(self, effect: Any) -> Any:
        self.flush()
        (value,) = self.effects.run([(self.name, effect)])
        return value

    def nodes(self) -> Collection[str]:
        names = self.queue.engine.nodes()
        self.observer.present(names)
        return names

    def unexpected(self, arrived: Arrived, letter: Letter) -> bool:
        envelope, lead, src = letter.envelope, self.lead, arrived.src
        if envelope.round == self.era[0] and (lead is None or lead.lacks(envelope)):
            return False
        self._unasked[src] += 1
        self._unasked_bytes[src] += arrived.size
        return self._unasked[src] > self.limits.most or self._unasked_bytes[src] > self.limits.most_bytes

    def count(self, arrived: Arrived) -> None:
        if arrived.packet.era == self.kept.era:  # type: ignore[union-attr]
            self.kept.received[arrived.src] = self.kept.received.get(arrived.src, 0) + 1
