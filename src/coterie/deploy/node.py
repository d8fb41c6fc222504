"""A node: one party's process. It drives a ``Member`` over an engine, and stores what it has done before it tells.

Each packet is handled, then everything that follows from it is committed at once (``store.py``), then what it has led
to is pushed, then the packet is done. So a node that is killed anywhere goes on as if nothing had happened: it pushes
once more what may not have left, and takes what it had not committed once more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from coterie.deploy.clock import RealClock
from coterie.deploy.engine import Engine
from coterie.deploy.mail import Arrived, Mail
from coterie.deploy.packets import Begin, End, Era, Letter, Packet, Report, Silence
from coterie.deploy.store import Kept, Parcel, Store, pack, unpack
from coterie.protocol.errors import CoterieError, CryptoError, PeerError, RunError
from coterie.protocol.party import Cost, Work
from coterie.protocol.steps import REFUSED, Step
from coterie.transport.coordination import Coordination
from coterie.transport.envelope import Envelope, Handled, Opened, Sent, Waiting
from coterie.transport.member import Member, Observer

NO_ANSWER = "gave no direct answer"
WORDS = frozenset({REFUSED, NO_ANSWER, "gone", "offline", "dropped", "late"})
"""Why a request gets no answer, as nodes tell each other."""

Scores = Callable[[int], Mapping[str, float]]
"""What a party's owner lets it tell of itself after a round: numbers by name."""


class RolledBackError(CoterieError):
    """A party's stored state is older than the one that the hub has heard of: exit code 1. It has to be enrolled anew.

    It would use numbers and masks a second time.
    """


@dataclass(frozen=True)
class Settings:
    """What the plan says of time and limits. The same for all parties.

    patience_s: the deadline of a step that states none.  grace_s: how long a party may be disconnected before it is
    taken for gone.  retries: how often a round is tried again.  most, most_bytes: packets of one sender that may wait.
    """

    patience_s: float = 3600.0
    grace_s: float = 60.0
    retries: int = 2
    most: int = 1000
    most_bytes: int = 1 << 31
    poll_s: float = 1.0


class Effects(Protocol):
    """Runs effects of this party (``transport.queues.Effects``)."""

    def run(self, wanted: Sequence[tuple[str, Any]]) -> list[Any]: ...


class NodeObserver(Observer):
    """What a node tells its own log, beside what its member reads and refuses. This one does nothing."""

    def dropped(self, src: str, kind: str, reason: str) -> None:
        """A packet was not taken (``packet``), never stored (``push``), or the engine fails (``engine``)."""

    def failed(self, envelope: Envelope, error: BaseException) -> None:
        """A handler has failed with an error that is not meant for its sender. The message is refused."""

    def began(self, era: Era) -> None:
        """A round or another attempt of it begins."""

    def committed(self, commit: int, size: int) -> None:
        """The state was stored, in so many bytes."""


class _Watch(Observer):
    """Counts what a member refuses."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def read(self, opened: Opened) -> None:
        self._node.observer.read(opened)

    def refused(self, envelope: Envelope, role: str, reason: str) -> None:
        self._node.mail.traffic.refused[envelope.kind[:80]] += 1
        self._node.observer.refused(envelope, role, reason)

    def late(self, party: str) -> None:
        self._node.observer.late(party)


@dataclass
class _Leading:
    """A coordination at work. request: the packet that its handler answers; None for the hub's own round."""

    coordination: Coordination
    request: Arrived | None


class Node:
    """One party, over an engine. member: whose spool holds what waits.  store: its commits.  scores: see ``Scores``.

    The member is new: the node puts it into the state of the last commit.
    """

    def __init__(
        self,
        member: Member,
        effects: Effects,
        engine: Engine,
        store: Store,
        *,
        clock: RealClock | None = None,
        settings: Settings | None = None,
        observer: NodeObserver | None = None,
        scores: Scores | None = None,
        samples: int = 0,
    ) -> None:
        self.member, self.effects, self.store = member, effects, store
        self.clock, self.settings = clock or RealClock(), settings or Settings()
        self.observer, self.scores, self.samples = observer or NodeObserver(), scores or (lambda r: {}), samples
        self.name, self.hub = member.name, member.hub
        self.stopped = threading.Event()
        limits = {"most": self.settings.most, "most_bytes": self.settings.most_bytes}
        self.mail = Mail(engine, member.keyring, self._dropped, self.stopped, **limits)
        self.kept = Kept()
        self.leading: _Leading | None = None
        self.waiting: list[Arrived] = []
        self._started: tuple[Any, Any] = member.party.state, member.party.secret
        member.observer = _Watch(self)

    # -- life --------------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Handle what comes until the hub has ended the run, or ``stop``. Raises RolledBackError."""
        self.open()
        try:
            while not (self.kept.ended or self.stopped.is_set()):
                self.turn(self.settings.poll_s)
        finally:
            self.close()

    def stop(self) -> None:
        """Let it stop after the packet that it handles now, from any thread or from a signal handler."""
        self.stopped.set()

    def open(self) -> None:
        """Go on from the last commit: with new numbers, and by pushing what may not have left."""
        member = self.member
        if (data := self.store.load()) is not None:
            self.kept, self._started = unpack(data, member.party)
            member.numbers = self.kept.numbers
            if self.kept.era is not None:
                member.start = self.kept.era[0], *self._started, self.kept.taken
            for envelope, frame, at_s in self.kept.inbox:
                member.inbox.append(Waiting(envelope, member.spool.put(frame), at_s))
        self.mail.start(self.kept.numbering)
        member.numbers.sent = max(member.numbers.sent, self.kept.numbering.sent)
        interrupted, self.kept.leads = self.kept.leads, False
        self.commit(self.kept.outbox)
        self.mail.open()
        for parcel in self.kept.outbox:
            self.mail.push(parcel)
        if interrupted:
            self.mail.send(self.hub, self.report(interrupted=True))

    def close(self) -> None:
        """Leave, without a word: what is not done comes again."""
        if self.leading is not None:
            self.leading.coordination.stop()
        self.mail.close()

    def commit(self, outbox: Sequence[Parcel] = ()) -> None:
        """Store everything, with what follows from it. Raises RunError if it cannot be stored."""
        kept, member = self.kept, self.member
        kept.commits += 1
        kept.outbox, kept.numbers, kept.numbering = list(outbox), member.numbers, self.mail.numbering
        kept.inbox = [(one.envelope, member.spool.peek(one.ticket), one.at_s) for one in member.inbox]
        if member.start is not None:
            _, *started, kept.taken = member.start
            self._started = started[0], started[1]
        data = pack(kept, member.party, self._started)
        self.store.save(data)
        self.observer.committed(kept.commits, len(data))

    def turn(self, wait_s: float) -> None:
        """Take one packet, if one comes in time, and let a coordination go on."""
        if self.leading is not None:
            wait_s = min(wait_s, max(0.0, self.leading.coordination.wake_s - self.clock.now_s()))
        arrived = self.mail.pull(wait_s)
        if arrived is not None:
            self.take(arrived)
        if (leading := self.leading) is not None:
            if leading.coordination.wake_s <= self.clock.now_s():
                leading.coordination.expire(self.clock.now_s())
            self.go_on(leading)

    # -- packets -----------------------------------------------------------------------------------------------------

    def take(self, arrived: Arrived) -> None:
        """What has come."""
        packet = arrived.packet
        if isinstance(packet, Letter):
            self._letter(arrived, packet)
        elif isinstance(packet, Silence):
            self._silence(arrived.src, packet)
            self.mail.done(arrived)
        elif arrived.src == self.hub and isinstance(packet, Begin):
            self._begin(arrived, packet)
        elif arrived.src == self.hub and isinstance(packet, End):
            self._end(arrived, packet)
        else:
            self._stray(arrived, packet)

    def _stray(self, arrived: Arrived, packet: Packet) -> None:
        """A packet that this sender may not send to this party."""
        self._dropped(arrived.src, type(packet).__name__, f"{arrived.src} may not send it")
        self.mail.done(arrived)

    def _letter(self, arrived: Arrived, letter: Letter) -> None:
        envelope = letter.envelope
        if self.kept.era is None or letter.era > self.kept.era:
            self.waiting.append(arrived)  # for its Begin
        elif self.leading is None and (not envelope.answers or self.handles(envelope)):
            self._handle(arrived, letter)
        elif self.leading is None:
            self._pass_over(arrived, letter)
        elif envelope.answers in self.leading.coordination.asked or not self.handles(envelope):
            self.leading.coordination.deliver(envelope, letter.frame, self.clock.now_s())
            self.mail.done(arrived)
        else:
            self.while_leading(arrived, letter)

    def while_leading(self, arrived: Arrived, letter: Letter) -> None:
        """A request to a party that coordinates: it waits."""
        self.waiting.append(arrived)

    def handles(self, envelope: Envelope) -> bool:
        """Whether the party has a handler for such a message."""
        return any(kind.__name__ == envelope.kind for kind in self.member.party.handlers)

    def _pass_over(self, arrived: Arrived, letter: Letter) -> None:
        """An answer that nobody waits for any more."""
        try:
            self.member.verify(letter.envelope, letter.frame)
            self.observer.late(arrived.src)
        except PeerError as error:
            self.member.observer.refused(letter.envelope, self.member.party.role, str(error))
        self.mail.done(arrived)

    def _silence(self, src: str, silence: Silence) -> None:
        if self.leading is not None and self.leading.coordination.awaited.get(silence.number) == src:
            why = silence.why if silence.why in WORDS else REFUSED
            self.leading.coordination.refuse(silence.number, why, self.clock.now_s())

    def _begin(self, arrived: Arrived, begin: Begin) -> None:
        kept, (round, attempt) = self.kept, begin.era
        if begin.commit > kept.commits:
            self.mail.send(self.hub, self.report(rolled_back=True))
            raise RolledBackError(
                f"the state of {self.name} is of commit {kept.commits}, the hub has heard of {begin.commit}: a disk was "
                "put back, or the folder copied. Let the operator enrol this party anew"
            )
        if kept.era is not None and begin.era <= kept.era:
            self.mail.done(arrived)
            return
        self.give_up()
        for one in self._due():
            self._letter(one, one.packet)  # type: ignore[arg-type]
        out: list[Packet] = [] if kept.era is None else [self.report()]
        member, known = self.member, kept.era is not None and kept.era[0] == round
        member.heard_of(round, attempt)
        again, kept.again = kept.again if known else [], []
        if not known:
            member.begin(round)
        kept.era = begin.era
        self.mail.traffic.__init__()  # type: ignore[misc]
        self.observer.began(begin.era)
        self._store_and_send(arrived, [self.mail.wrap(self.hub, one) for one in out])
        for envelope, frame in again:
            self._handle(None, Letter(envelope, frame, begin.era))
        for one in self._due():
            self._letter(one, one.packet)  # type: ignore[arg-type]

    def _due(self) -> list[Arrived]:
        """The waiting letters whose time may have come."""
        waiting, self.waiting = self.waiting, []
        return waiting

    def give_up(self) -> None:
        """Stop a coordination: its round or attempt is over."""
        if (leading := self.leading) is not None:
            self.leading = None
            leading.coordination.stop()
            self.member.drop()
            assert leading.request is not None
            self._finish(leading.request, Handled(refused="gone"))

    def _end(self, arrived: Arrived, end: End) -> None:
        self.give_up()
        self.kept.ended = True
        self._store_and_send(arrived, [self.mail.wrap(self.hub, self.report())])

    # -- handlers ----------------------------------------------------------------------------------------------------

    def _handle(self, arrived: Arrived | None, letter: Letter) -> None:
        """Run a handler to its end, or until it coordinates. arrived: None for a message that was taken before."""
        member, envelope, now_s = self.member, letter.envelope, self.clock.now_s()
        opened: Opened | None = None
        with suppress(PeerError):
            opened = member.open(envelope, letter.frame, now_s)
        if envelope.round != self.kept.era[0]:  # type: ignore[index]
            self.kept.again.append((envelope, letter.frame))
        before = member.numbers.taken.get(envelope.src)
        work: Work[Any] = member.receive(envelope, letter.frame, now_s, opened)
        value: Any = None
        try:
            while True:
                member.party.now_s = self.clock.now_s()
                with self._busy():
                    wanted = work.throw(value) if isinstance(value, CoterieError) else work.send(value)
                if isinstance(wanted, Step):
                    break
                value = self.compute(wanted)
        except StopIteration as stop:
            new = member.numbers.taken.get(envelope.src) != before or stop.value.sent
            self._finish(arrived, stop.value, letter, store=bool(new))
            return
        except Exception as error:
            work.close()
            self.observer.failed(envelope, error)
            self._finish(arrived, Handled(refused=str(error)), letter)
            return
        role = opened.role if opened is not None else member.party.role
        coordination = Coordination(member, work, self.send, role, envelope, self.settings.patience_s)
        self.kept.leads = True
        self.commit()
        self.leading = _Leading(coordination, arrived)
        self.start(coordination, wanted)

    def start(self, coordination: Coordination, step: Any = None) -> None:
        """Begin to coordinate."""
        assert self.leading is not None
        with self._busy():
            coordination.start(self.clock.now_s(), step)
        self.go_on(self.leading)

    def go_on(self, leading: _Leading) -> None:
        """Run what a coordination asks for, until it waits or is done."""
        coordination = leading.coordination
        while (effect := coordination.effect) is not None and not coordination.done:
            if isinstance(effect, Cost):
                coordination.spent(0.0, self.clock.now_s())
                coordination.expire(self.clock.now_s())
            else:
                value = self.compute(effect)
                with self._busy():
                    coordination.computed(value, self.clock.now_s())
        if coordination.done and leading.request is not None and self.leading is leading:
            self.leading = None
            self.member.drop()
            self._finish(leading.request, coordination.result)
            for one in self._due():
                self._letter(one, one.packet)  # type: ignore[arg-type]

    def compute(self, effect: Any) -> Any:
        """The result of one effect."""
        with self._busy():
            (value,) = self.effects.run([(self.name, effect)])
        return value

    def _finish(
        self, arrived: Arrived | None, handled: Handled, letter: Letter | None = None, *, store: bool = True
    ) -> None:
        """Store and send what a handler has led to, or that nothing comes."""
        self.kept.leads = False
        envelope = letter.envelope if letter is not None else arrived.packet.envelope  # type: ignore[union-attr]
        out = [self.mail.wrap(one.envelope.dst, self._addressed(one)) for one in handled.sent]
        if not handled.answered and not envelope.answers:
            why = REFUSED if handled.refused else NO_ANSWER
            silence = Silence(envelope.number, (envelope.round, envelope.attempt), why)
            out.append(self.mail.wrap(envelope.src, silence))
        if store:
            self._store_and_send(arrived, out)
            return
        for parcel in out:
            self.mail.push(parcel)
        if arrived is not None:
            self.mail.done(arrived)

    def _store_and_send(self, arrived: Arrived | None, out: Sequence[Parcel]) -> None:
        """Commit, push, done."""
        if arrived is not None:
            self.mail.forget(arrived)
        self.commit(out)
        for parcel in out:
            self.mail.push(parcel)
        if arrived is not None:
            arrived.delivery.done()

    # -- sending -----------------------------------------------------------------------------------------------------

    def send(self, sent: Sent) -> None:
        """Push what a coordination sends. It is not stored: if this process ends, the round is tried again."""
        self.mail.send(sent.envelope.dst, self._addressed(sent))

    def _addressed(self, sent: Sent) -> Letter:
        return Letter(sent.envelope, sent.frame, self.kept.era or (0, 0))

    def report(self, **more: Any) -> Report:
        """How this party fared in the round so far."""
        traffic, era = self.mail.traffic, self.kept.era or (0, 0)
        scores = {} if more else {name: float(score) for name, score in self.scores(era[0]).items()}
        return Report(
            era,
            self.kept.commits,
            traffic.busy_s,
            traffic.bytes_up,
            traffic.bytes_down,
            dict(traffic.refused),
            scores,
            self.samples,
            **more,
        )

    def _dropped(self, src: str, kind: str, reason: str) -> None:
        self.mail.traffic.refused[kind] += 1
        self.observer.dropped(src, kind, reason)

    def _busy(self) -> _Timed:
        return _Timed(self.mail)


class _Timed:
    def __init__(self, mail: Mail) -> None:
        self._mail = mail

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._mail.traffic.busy_s += time.perf_counter() - self._began


__all__ = ["CryptoError", "Node", "NodeObserver", "RolledBackError", "RunError", "Scores", "Settings", "msgspec"]
