"""A node: one party's process. It drives a ``Member`` over an engine, and stores what it has done before it tells.

Each packet is handled, then everything that follows from it is committed at once (``store.py``), then what it has led
to is pushed, then the packet is done. So a node that is killed anywhere goes on as if nothing had happened: it pushes
once more what may not have left, and takes once more what it had not committed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from coterie.deploy.clock import Clock
from coterie.deploy.engine import Engine
from coterie.deploy.lead import Lead, Presence
from coterie.deploy.mail import Arrived, Mail
from coterie.deploy.packets import Begin, End, Era, Instant, Letter, News, Packet, Report, Silence, Tally
from coterie.deploy.store import Kept, Parcel, Store, Taken, pack, unpack
from coterie.deploy.surroundings import Effects as Effects
from coterie.deploy.surroundings import NodeObserver as NodeObserver
from coterie.deploy.surroundings import Renew as Renew
from coterie.deploy.surroundings import Scores as Scores
from coterie.deploy.surroundings import Settings as Settings
from coterie.deploy.surroundings import Traffic, Watch
from coterie.protocol.errors import CoterieError, CryptoError, PeerError
from coterie.protocol.party import Cost, Work
from coterie.protocol.steps import LATE, PATIENCE_S, REFUSED, Step
from coterie.protocol.told import Roster
from coterie.transport.coordination import Coordination
from coterie.transport.envelope import Envelope, Handled, Opened, Sent, Waiting
from coterie.transport.member import Member
from coterie.transport.wire import GONE

NO_ANSWER = "gave no direct answer"
WORDS = frozenset({REFUSED, NO_ANSWER, LATE, GONE, "gone", "offline", "dropped"})
"""Why a request gets no answer, as nodes tell each other."""

REPORT_S = 5.0


class RolledBackError(CoterieError):
    """A party's stored state is older than the one that the hub has heard of. It would use numbers a second time."""


class Node:
    """One party, over an engine. store: its commits.  clock: only a rehearsal has another.  scores, samples: reported.
    renew: takes newer plans in.

    The member is new, and the node puts its party into the state of the last commit. Its spool holds what waits.
    """

    def __init__(
        self,
        member: Member,
        effects: Effects,
        engine: Engine,
        store: Store,
        *,
        clock: Clock | None = None,
        settings: Settings | None = None,
        observer: NodeObserver | None = None,
        scores: Scores | None = None,
        samples: int = 0,
        renew: Renew | None = None,
    ) -> None:
        self.member, self.effects, self.store = member, effects, store
        self.clock, self.settings = clock or Clock(), settings or Settings()
        self.observer, self.scores, self.samples = observer or NodeObserver(), scores or (lambda r: {}), samples
        self.renew = renew
        self.name, self.hub = member.name, member.hub
        self.stopped = threading.Event()
        limits = {"most": self.settings.most, "most_bytes": self.settings.most_bytes}
        self.mail = Mail(engine, member.keyring, self._dropped, self.stopped, **limits)
        self.presence = Presence(self._nodes, self.settings.grace_s)
        self.kept = Kept()
        self.lead: Lead | None = None
        self.waiting: list[Arrived] = []
        self._started: tuple[Any, Any] = member.party.state, member.party.secret
        self._told: tuple[Any, ...] = ()
        self._reported = time.monotonic(), 0, 0
        member.observer = Watch(self.observer, lambda: self.mail.traffic)

    # -- life --------------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Handle what comes until the hub has ended the run, or ``stop``. Raises RolledBackError."""
        self.open()
        try:
            while not (self.kept.ended or self.stopped.is_set()):
                self.turn()
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
            for one in self.kept.inbox:
                member.inbox.append(Waiting(one.envelope, member.spool.put(one.frame), one.arrives[0]))
        self.clock.times = self.kept.times
        self.mail.start(self.kept.numbering)
        if (common := getattr(member.party, "common", None)) is not None:
            self._recognise(common.roster)
        member.numbers.sent = max(member.numbers.sent, self.kept.numbering.sent)
        interrupted, self.kept.leads = self.kept.leads, False
        self.commit(self.kept.outbox)
        self.mail.open()
        for parcel in self.kept.outbox:
            self.mail.push(parcel)
        if interrupted and self.name != self.hub:
            self.mail.send(self.hub, self.report(interrupted=True))
        self._tally()

    def close(self) -> None:
        """Leave, without a word: what is not done comes again."""
        if self.lead is not None:
            self.lead.stop()
        self.mail.close()

    def commit(self, outbox: Sequence[Parcel] = ()) -> None:
        """Store everything, with what follows from it. Raises RunError if it cannot be stored."""
        kept, member = self.kept, self.member
        kept.commits += 1
        kept.outbox, kept.numbers, kept.numbering = list(outbox), member.numbers, self.mail.numbering
        kept.times = self.clock.times
        kept.inbox = [Taken(one.envelope, member.spool.peek(one.ticket), (one.at_s, 0)) for one in member.inbox]
        if member.start is not None:
            self._started, kept.taken = (member.start[1], member.start[2]), member.start[3]
        data = pack(kept, member.party, self._started)
        self.store.save(data)
        self.observer.committed(kept.commits, len(data))

    def turn(self) -> None:
        """Take one packet, if one comes in time, and let a coordination go on."""
        wait_s = self.settings.poll_s
        arrived = self.mail.pull(wait_s if self.lead is None else min(wait_s, self.lead.wakes_in_s()))
        if arrived is not None:
            self.take(arrived)
        if (lead := self.lead) is not None:
            self._look_around(lead)
            self.go_on(lead)
        self._tally()
        if self.name != self.hub:
            self._report()

    def _nodes(self) -> Collection[str]:
        names = self.mail.engine.nodes()
        self.observer.present(names)
        return names

    def _look_around(self, lead: Lead) -> None:
        """Give up the answers of parties that have been away for a while."""
        awaited = lead.coordination.awaited
        for name in self.presence.look(set(awaited.values())):
            lead.gone[name] = "gone"
            for number in [number for number, dst in awaited.items() if dst == name]:
                lead.lost(number, "gone", lead.at)

    # -- packets -----------------------------------------------------------------------------------------------------

    def take(self, arrived: Arrived) -> None:
        """What has come."""
        packet = arrived.packet
        self.observer.seen(arrived.src)
        if isinstance(packet, Letter | Silence):
            if self.kept.era is None or packet.era > self.kept.era:
                self.waiting.append(arrived)  # for its Begin
                return
            if isinstance(packet, Letter):
                self._letter(arrived, packet)
            else:
                self._count(arrived)
                self._silence(arrived.src, packet)
                self.mail.done(arrived)
        elif arrived.src == self.hub and isinstance(packet, Begin):
            self._begin(arrived, packet)
        elif arrived.src == self.hub and isinstance(packet, News) and self.renew is not None:
            self._news(packet.plan)
            self.mail.done(arrived)
        elif arrived.src == self.hub and isinstance(packet, End):
            self._end(arrived, packet)
        else:
            self.stray(arrived, packet)

    def stray(self, arrived: Arrived, packet: Packet | None) -> None:
        """A packet that this sender may not send to this party."""
        self._dropped(arrived.src, type(packet).__name__, f"{arrived.src} may not send it")
        self.mail.done(arrived)

    def _news(self, plan: bytes) -> None:
        """A newer plan, by which parties may have new keys, or none any more."""
        assert self.renew is not None
        try:
            keyring, common = self.renew(plan)
        except PeerError as error:
            self._dropped(self.hub, "News", str(error))
            return
        self.member.keyring = self.mail.keyring = keyring
        self.member.party.common = common
        self._recognise(common.roster)

    def _recognise(self, roster: Roster) -> None:
        """Forget the numbers of parties that were enrolled anew, since they have begun to count anew."""
        for entry in roster.entries:
            if self.kept.keys.get(entry.name, entry.verify_key) != entry.verify_key:
                self.forget(entry.name)
            self.kept.keys[entry.name] = entry.verify_key

    def forget(self, name: str) -> None:
        """Know nothing any more of the packets and messages of a party."""
        member, kept, numbering = self.member, self.kept, self.mail.numbering
        began = {} if member.start is None else member.start[3]
        everywhere: list[dict[str, Any]] = [member.numbers.taken, member.numbers.kept, numbering.taken, numbering.open]
        for known in [*everywhere, began, kept.taken, kept.sent, kept.received, kept.heard]:
            known.pop(name, None)
        member.inbox = [one for one in member.inbox if one.envelope.src != name]

    def take_waiting(self) -> None:
        """Take what waited, as far as it need not wait any longer."""
        waiting, self.waiting = self.waiting, []
        for arrived in waiting:
            self.take(arrived)

    def _count(self, arrived: Arrived) -> None:
        """Count a packet of this era, of which its sender has counted that it was sent."""
        if arrived.packet.era == self.kept.era:  # type: ignore[union-attr]
            self.kept.received[arrived.src] = self.kept.received.get(arrived.src, 0) + 1

    def _letter(self, arrived: Arrived, letter: Letter) -> None:
        envelope, lead = letter.envelope, self.lead
        if lead is not None and (lead.awaits(envelope) or not self.handles(envelope)):
            self._count(arrived)
            lead.letter(envelope, letter.frame, letter.arrives)
            self.delivered(arrived, letter)
        elif lead is not None and not self.answers_while_leading:
            self.waiting.append(arrived)
        elif self.handles(envelope):
            self._count(arrived)
            self._handle(arrived, letter)
        else:
            self._count(arrived)
            self.pass_over(arrived, letter)

    answers_while_leading = False

    def delivered(self, arrived: Arrived, letter: Letter) -> None:
        """A coordination has this. If this process ends, the round is tried again, so nobody needs it any more."""
        self.mail.done(arrived)

    def handles(self, envelope: Envelope) -> bool:
        """Whether the party has a handler for such a message."""
        return any(kind.__name__ == envelope.kind for kind in self.member.party.handlers)

    def pass_over(self, arrived: Arrived, letter: Letter) -> None:
        """A message that nobody waits for any more."""
        try:
            self.member.verify(letter.envelope, letter.frame)
            self.observer.late(arrived.src)
        except PeerError as error:
            self.member.observer.refused(letter.envelope, self.member.party.role, str(error))
        self.mail.done(arrived)

    def _silence(self, src: str, silence: Silence) -> None:
        if self.lead is not None and self.lead.coordination.awaited.get(silence.number) == src:
            self.lead.lost(silence.number, silence.why if silence.why in WORDS else REFUSED, silence.arrives)

    def _begin(self, arrived: Arrived, begin: Begin) -> None:
        kept = self.kept
        if begin.commit > kept.commits:
            self.mail.send(self.hub, self.report(rolled_back=True))
            raise RolledBackError(
                f"the state of {self.name} is of commit {kept.commits}, and the hub has heard of {begin.commit}: "
                "a disk was put back, or a folder copied. Let the operator enrol this party anew"
            )
        if kept.era is not None and begin.era <= kept.era:
            self.mail.done(arrived)
            return
        self.give_up()
        self.take_waiting()
        out = [] if kept.era is None else [self.mail.wrap(self.hub, self.report(closed=True))]
        again = self.enter(begin.era)
        self._count(arrived)
        if self.clock.rehearsed:
            self.clock.times.at, kept.tallies = begin.at, True
            for one in self.clock.release(begin.era[0]):
                out += self._post(Sent(one.envelope, one.frame, ""), begin.at)
        self._store_and_send(arrived, out)
        self.observer.began(begin.era)
        for taken in again:
            self._handle(None, Letter(taken.envelope, taken.frame, begin.era, taken.arrives))
        self.take_waiting()

    def enter(self, era: Era) -> list[Taken]:
        """Begin a round, or go back to where it began. Gives what has to be taken again."""
        kept, member, clock = self.kept, self.member, self.clock
        known = kept.era is not None and kept.era[0] == era[0]
        again, kept.again = kept.again if known else [], []
        member.heard_of(*era)
        if known:
            delayed = [one for one in clock.times.delayed if one.envelope.round != era[0]]
            clock.times = kept.before.copy()
            clock.times.delayed = delayed
        else:
            member.begin(era[0])
            kept.before = clock.times.copy()
        kept.era, kept.sent, kept.received, self.mail.traffic = era, {}, {}, Traffic()
        return again

    def give_up(self) -> None:
        """Stop a coordination: its round or attempt is over."""
        if (lead := self.lead) is not None and lead.request is not None:
            lead.stop()
            self._dismiss(lead, Handled(refused="gone"))

    def _end(self, arrived: Arrived, end: End) -> None:
        self.give_up()
        self.kept.ended, self.kept.tallies = end.final, True
        self._store_and_send(arrived, [self.mail.wrap(self.hub, self.report(closed=True))] if end.final else [])

    # -- handlers ----------------------------------------------------------------------------------------------------

    def _handle(self, arrived: Arrived | None, letter: Letter) -> None:
        """Run a handler to its end, or until it coordinates. arrived: None for a message that was taken before."""
        member, envelope = self.member, letter.envelope
        opened: Opened | None = None
        cost = Cost()
        with suppress(PeerError, CryptoError):
            opened = member.open(envelope, letter.frame, letter.arrives[0])
            cost = member.cost(opened)
        came, at = self.clock.handled(letter.arrives, cost)
        if self.kept.era is not None and envelope.round != self.kept.era[0]:
            self.kept.again.append(Taken(envelope, letter.frame, letter.arrives))
        before = member.numbers.taken.get(envelope.src)
        work: Work[Any] = member.receive(envelope, letter.frame, came[0], opened)
        value: Any = None
        try:
            while True:
                member.party.now_s = at[0] if self.clock.rehearsed else self.clock.now()[0]
                with self._busy():
                    wanted = work.throw(value) if isinstance(value, CoterieError) else work.send(value)
                if isinstance(wanted, Step):
                    break
                with self._busy():
                    value = self.compute(wanted)
        except StopIteration as stop:
            new = member.numbers.taken.get(envelope.src) != before or self.clock.rehearsed
            self._finish(arrived, letter, stop.value, at, store=new)
            return
        except Exception as error:
            work.close()
            self._fail(arrived, letter, error, at)
            return
        role = opened.role if opened is not None else member.party.role
        self.kept.leads = True
        self.commit()
        self.lead = self.leading(work, role, envelope, at, (arrived, letter))
        self._lead_on(self.lead, lambda lead: lead.begin(wanted))

    def leading(self, work: Any, role: str, request: Envelope | Era, at: Instant, of: Any = None) -> Lead:
        """A coordination of this party, before it begins."""
        patience_s = PATIENCE_S if self.clock.rehearsed else self.settings.patience_s
        coordination = Coordination(self.member, work, self.send, role, request, patience_s)
        return Lead(coordination, self.clock, self.compute, at, of, self.quiet)

    def quiet(self) -> bool:
        """Whether nothing is under way in the whole federation. Only the hub can know."""
        return False

    def go_on(self, lead: Lead) -> None:
        """Let a coordination go on as far as it can."""
        self._lead_on(lead, Lead.go_on)

    def _lead_on(self, lead: Lead, act: Callable[[Lead], None]) -> None:
        try:
            with self._busy():
                act(lead)
        except Exception as error:
            if lead.request is None:
                raise
            self.observer.failed(lead.request[1].envelope, error)
            lead.stop()
            self._dismiss(lead, Handled(refused=str(error)))
            return
        if lead.coordination.done and lead.request is not None and self.lead is lead:
            self._dismiss(lead, lead.coordination.result)
            self.take_waiting()

    def _dismiss(self, lead: Lead, handled: Handled) -> None:
        """This party coordinates no more."""
        assert lead.request is not None
        self.lead = None
        self.member.drop()
        self.clock.times.busy = max(self.clock.times.busy, lead.at)
        for parcel in lead.left():
            self.member.spool.drop(parcel.ticket)
        self._finish(*lead.request, handled, lead.at)

    def compute(self, effect: Any) -> Any:
        """The result of one effect."""
        (value,) = self.effects.run([(self.name, effect)])
        return value

    def _fail(self, arrived: Arrived | None, letter: Letter, error: Exception, at: Instant) -> None:
        """A handler has failed, which undid its changes. Its message is refused, and comes no more."""
        self.observer.failed(letter.envelope, error)
        self.mail.traffic.refuse(letter.envelope.kind)
        self._finish(arrived, letter, Handled(refused=str(error)), at)

    def _finish(
        self, arrived: Arrived | None, letter: Letter, handled: Handled, at: Instant, *, store: bool = True
    ) -> None:
        """Store and send what a handler has led to, or that no answer comes."""
        self.observer.handled(letter.envelope)
        self.kept.leads = False
        envelope, r = letter.envelope, self.kept.era[0] if self.kept.era is not None else 0
        out: list[Parcel] = []
        for sent in handled.sent:
            if not self.clock.hold_back(sent, r):
                out += self._post(sent, at)
            elif sent.envelope.answers:
                out.append(self._wrapped(sent.envelope.dst, self._none(sent.envelope.answers, LATE, letter.arrives)))
        if not handled.answered and not envelope.answers:
            why = REFUSED if handled.refused else NO_ANSWER
            out.append(self._wrapped(envelope.src, self._none(envelope.number, why, at)))
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
        at = self.clock.now() if self.lead is None else self.lead.at
        for parcel in self._post(sent, at):
            if not self.mail.push(parcel) and self.lead is not None:
                self.lead.lost(sent.envelope.number, "gone", at)

    def _post(self, sent: Sent, at: Instant) -> list[Parcel]:
        """A message as a packet; or the news that it is lost, if its sender knows that."""
        envelope, (arrives, lost) = sent.envelope, self.clock.send(sent, at)
        if not lost:
            try:
                return [self._wrapped(envelope.dst, Letter(envelope, sent.frame, self.kept.era or (0, 0), arrives))]
            except PeerError as error:  # it has no keys any more
                self._dropped(envelope.dst, "push", str(error))
                lost = "gone"
        if self.lead is not None and envelope.number in self.lead.coordination.asked:
            self.lead.lost(envelope.number, lost, at)
        if not envelope.answers or lost == "gone":
            return []
        return [self._wrapped(envelope.dst, self._none(envelope.answers, lost, at))]

    def _none(self, number: int, why: str, at: Instant) -> Silence:
        return Silence(number, self.kept.era or (0, 0), why, at if self.clock.rehearsed else (0.0, 0))

    def _wrapped(self, dst: str, packet: Packet) -> Parcel:
        """A packet that is counted. Raises PeerError for a recipient without keys."""
        parcel = self.mail.wrap(dst, packet)
        self.kept.sent[dst] = self.kept.sent.get(dst, 0) + 1
        return parcel

    def _tally(self) -> None:
        """Tell the hub what was sent and taken, if it wants to know and does not know yet."""
        kept = self.kept
        now = kept.era, dict(kept.sent), dict(kept.received)
        if kept.tallies and kept.era is not None and self.name != self.hub and now != self._told:
            self._told = now
            self.mail.send(self.hub, Tally(kept.era, *now[1:]))

    def report(self, *, closed: bool = False, **more: Any) -> Report:
        """How this party fared in the round so far. closed: the round is over, so that its model can be scored."""
        traffic, era, commits = self.mail.traffic, self.kept.era or (0, 0), self.kept.commits
        scores = {name: float(score) for name, score in self.scores(era[0]).items()} if closed else {}
        self._reported = time.monotonic(), traffic.bytes_down, traffic.refused.total()
        moved, refused = (traffic.bytes_up, traffic.bytes_down), dict(traffic.refused)
        return Report(era, commits, traffic.busy_s, *moved, refused, scores, self.samples, **more)

    def _report(self) -> None:
        """Report in the middle of a round, every few seconds, if there is something new."""
        at_s, down, refused = self._reported
        traffic = self.mail.traffic
        new = (traffic.bytes_down, traffic.refused.total()) != (down, refused)
        if new and self.kept.era is not None and time.monotonic() > at_s + REPORT_S:
            self.mail.send(self.hub, self.report())

    def _dropped(self, src: str, kind: str, reason: str) -> None:
        self.mail.traffic.refuse(kind)
        self.observer.dropped(src, kind, reason)

    @contextmanager
    def _busy(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.mail.traffic.busy_s += time.perf_counter() - began
