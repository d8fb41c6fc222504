"""A node drives one party's ``Member`` over an engine.

The consequences of a packet are committed at once (``store.py``) and pushed, then it is done. So a killed node pushes
again what may not have left, and takes again what it had not committed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from coterie.deploy.lead import CoordinationDriver
from coterie.deploy.packet_queue import Arrived
from coterie.deploy.packets import (
    BeginAttempt,
    Carried,
    End,
    Era,
    Letter,
    NewRun,
    NoAnswer,
    Packet,
    PlanUpdate,
    Report,
)
from coterie.deploy.plan import OlderPlanError
from coterie.deploy.stored_node import StoredNode
from coterie.protocol.errors import CoterieError, CryptoError, PeerError, UserError
from coterie.protocol.party import Cost, Work
from coterie.protocol.steps import LATE, PATIENCE_S, REFUSED, Step
from coterie.transport.clock import Instant
from coterie.transport.coordination import Coordination
from coterie.transport.envelope import Envelope, Handled, Opened
from coterie.transport.wire import GONE

NO_ANSWER = "gave no direct answer"
BEHIND_S = 0.05
"""So long a party that is behind waits for a still later Begin."""
WORDS = frozenset({REFUSED, NO_ANSWER, LATE, GONE, "gone", "offline", "dropped"})
"""Why a request gets no answer, between nodes."""


class RolledBackError(UserError):
    """The hub knows newer state: the party would use numbers again."""


class Node(StoredNode):
    """stopped: ends it after the current packet.  scores, samples: reported.  former: its last commit of the run
    before. announces: tells the hub that it takes part, before it is asked.

    lead: its coordination, if any.  interrupted: killed while it coordinated, so it waits for another attempt.
    awaits_begin: until the hub says which commits it has heard of.  apart: takes nothing of this attempt, whose number
    the hub has used before.
    """

    answers_while_leading = False

    # -- life --------------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Until the hub has ended the run, or ``stop``, from any thread. Raises RolledBackError, and NewPlanError."""
        self.open()
        try:
            while not (self.kept.ended or self.stopped.is_set()):
                self.turn()
        finally:
            self.close()

    def stop(self) -> None:
        self.stopped.set()

    def open(self) -> None:
        """Go on from the last commit, and push what may not have left."""
        self.load()
        self.interrupted = self.kept.leads
        self.save(self.kept.outbox)
        self.queue.open()
        if self.name != self.hub and (self.kept.era is not None or self.announces):
            self.queue.send(self.hub, self.report(interrupted=self.interrupted, started=True))
            self.awaits_begin = self.kept.era is not None  # until it knows that it is not rolled back
        self.tally()

    def close(self) -> None:
        if self.lead is not None:
            self.lead.stop()
        self.queue.close()

    def turn(self) -> None:
        wait_s = self.limits.poll_s
        arrived = self.queue.pull(wait_s if self.lead is None else min(wait_s, self.lead.wakes_in_s()))
        if arrived is not None:
            for one in self._without_missed(arrived):
                self.queue.took(one)
                self.take(one)
                if self.stopped.is_set():  # what follows comes again
                    break
        elif self._done_later and self.lead is None:
            self.commit()  # there is time
        if (lead := self.lead) is not None:
            self._look_around(lead)
            self.go_on(lead)
        self.member.reader.clear()
        self.tally()
        if self.name != self.hub:
            self.report_again()

    def _look_around(self, lead: CoordinationDriver) -> None:
        awaited = lead.coordination.awaited
        away = self.presence.look(set(awaited.values())) | self.excluded.keys()
        for number, name in awaited.items():
            if name in away:
                self.give_up_answer(lead, name, number, "gone")

    # -- packets -----------------------------------------------------------------------------------------------------

    def _without_missed(self, arrived: Arrived) -> list[Arrived]:
        wait_s = 0.0
        while (begins := self._later(arrived, self.kept.era)) is not None and not self.waiting:
            following = self.queue.pull(wait_s)
            if following is None or self._later(following, begins) is None:
                return [arrived] if following is None else [arrived, following]
            self.member.heard_of(*begins)  # so that late messages of earlier attempts are refused
            self.queue.took(arrived)
            self.done_later(arrived)
            arrived, wait_s = following, BEHIND_S
        return [arrived]

    def _later(self, arrived: Arrived, than: Era | None) -> Era | None:
        packet, era = arrived.packet, self.kept.era
        if era is None or than is None or self.clock.rehearsed or arrived.src != self.hub:
            return None
        return packet.era if isinstance(packet, BeginAttempt) and packet.era[0] > era[0] and packet.era > than else None

    def take(self, arrived: Arrived) -> None:
        packet = arrived.packet
        self.observer.seen(arrived.src)
        if isinstance(packet, Letter | NoAnswer):
            if why := self._outdated(arrived.src, packet.era):
                self.refuse(arrived, "packet", why)
                return
            if self.kept.era is None or packet.era > self.kept.era or self.interrupted or self.awaits_begin:
                self.waiting.append(arrived)  # until the Begin of its attempt comes
                return
            if isinstance(packet, Letter):
                self._letter(arrived, packet)
            else:
                self.count(arrived)
                self._no_answer(arrived.src, packet)
                self.done_later(arrived)
        elif arrived.src == self.hub and isinstance(packet, BeginAttempt):
            self._begin(arrived, packet)
        elif arrived.src == self.hub and isinstance(packet, PlanUpdate | NewRun) and self.renew is not None:
            newest = self._plan_update(packet.plan)
            if isinstance(packet, NewRun):  # the hub has not heard that this party takes part, or was killed since
                self.queue.send(self.hub, self.report(started=True))
            if newest and (isinstance(packet, NewRun) or newest != packet.plan):
                self.queue.send(self.hub, NewRun(newest))
            self.queue.done(arrived)
        elif arrived.src == self.hub and isinstance(packet, End):
            self._end(arrived, packet)
        else:
            self.stray(arrived)

    def _outdated(self, src: str, era: Era) -> str:
        now = self.kept.era
        if now is None or self.name == self.hub:
            return ""
        if self.apart and era == now:
            return f"it is of attempt {era[1]} of round {era[0]}, which the hub has announced twice"
        if src == self.hub and era < now:  # all that it sent before it began this one has come before
            return f"the hub has sent it in attempt {era[1]} of round {era[0]}, which is over"
        return ""

    def stray(self, arrived: Arrived) -> None:
        self.refuse(arrived, type(arrived.packet).__name__, f"{arrived.src} may not send it")

    def refuse(self, arrived: Arrived, kind: str, why: str) -> None:
        self.queue.refuse(arrived.src, kind, why)
        self.queue.done(arrived)

    def _plan_update(self, plan: bytes) -> bytes:
        """This party's newest plan then; nothing if this one is refused, but for age."""
        assert self.renew is not None
        try:
            keyring, common = self.renew(plan)
        except PeerError as error:
            self.queue.refuse(self.hub, "PlanUpdate", str(error))
            return error.held if isinstance(error, OlderPlanError) else b""
        self.queue.keyring, self.member.keyring = keyring, Carried(keyring)
        self.member.party.common = common
        self.recognise()
        return plan

    def take_waiting(self) -> None:
        kept = self.kept
        while kept.retaken < len(kept.again) and self.lead is None:
            kept.retaken += 1
            self._handle(None, kept.again[kept.retaken - 1])
        waiting, self.waiting = self.waiting, []
        for arrived in waiting:
            self.take(arrived)

    def _letter(self, arrived: Arrived, letter: Letter) -> None:
        envelope, lead = letter.envelope, self.lead
        if self.unexpected(arrived, letter):
            self.count(arrived)
            self.queue.refuse(arrived.src, "packet", f"{arrived.src} has sent too much that nobody has asked for")
            self.done_later(arrived)
        elif lead is not None and (lead.awaits(envelope) or not self.member.handles(envelope)):
            self.count(arrived)
            lead.letter(envelope, letter.frame, letter.arrives)
            self.delivered(arrived, letter)
        elif lead is not None and not self.answers_while_leading:
            self.waiting.append(arrived)
        elif self.member.handles(envelope):
            self.count(arrived)
            self._handle(arrived, letter)
        else:
            self.count(arrived)
            self.pass_over(arrived, letter)

    def delivered(self, arrived: Arrived, letter: Letter) -> None:
        self.queue.done(arrived)

    def pass_over(self, arrived: Arrived, letter: Letter) -> None:
        try:
            self.member.verify(letter.envelope, letter.frame)
            self.observer.late(arrived.src)
        except PeerError as error:
            self.member.observer.refused(letter.envelope, self.member.party.role, str(error))
        self.done_later(arrived)

    def done_later(self, arrived: Arrived) -> None:
        if self.lead is not None:
            self.queue.done(arrived)
            return
        arrived.packet = None
        self._done_later.append(arrived)
        if len(self._done_later) >= self.limits.most // 4:
            self.commit()

    def _no_answer(self, src: str, packet: NoAnswer) -> None:
        if self.lead is not None and self.lead.coordination.awaited.get(packet.number) == src:
            self.lead.lost(packet.number, packet.why if packet.why in WORDS else REFUSED, packet.arrives)

    def _begin(self, arrived: Arrived, begin: BeginAttempt) -> None:
        kept, numbering = self.kept, self.queue.numbering
        if begin.commit > kept.commits or begin.taken > numbering.sent:
            older = (
                f"is of commit {kept.commits}, and the hub has heard of {begin.commit}"
                if begin.commit > kept.commits
                else f"has sent packets up to number {numbering.sent}, and the hub has taken number {begin.taken}"
            )
            numbering.sent = max(numbering.sent, begin.taken)  # so that the hub takes what it is told
            self.queue.send(self.hub, self.report(rolled_back=True))
            raise RolledBackError(
                f"the state of {self.name} {older}: a disk was put back, or a folder copied. Let the operator invite "
                "it again (deploy invite DIR NAME --again), and join with a new home"
            )
        asked, self.awaits_begin = self.awaits_begin, False
        if begin.era == kept.era and begin.mark != kept.mark:
            self._stand_apart()
            self.queue.done(arrived)
            return
        if asked and not self.interrupted:
            self.take_waiting()
        if kept.era is not None and begin.era <= kept.era:
            if begin.era < kept.era:
                self.queue.send(self.hub, self.report())  # the hub's own disk may have been put back
            self.queue.done(arrived)
            return
        self._take_all()
        out: list[tuple[str, Packet]] = [] if kept.era is None else [(self.hub, self.report(closed=True))]
        self.enter(begin.era, begin.mark)
        self.count(arrived)
        if self.clock.rehearsed:
            self.clock.times.at, kept.tallies = begin.at, True
            for sent in self.clock.release(begin.era[0]):
                out += self.post(sent, begin.at)
        if all(isinstance(packet, Report) for _, packet in out):
            self.push(self.wrapped(out))
            self.done_later(arrived)  # if this process ends before its next commit, the same Begin comes again
        else:
            self.commit(self.wrapped(out), [arrived])
        self.observer.began(begin.era)
        self.take_waiting()

    def _take_all(self) -> None:
        self.give_up()
        while not self.interrupted:
            self.take_waiting()
            if self.lead is None:
                break
            self.give_up()  # one that had waited would have coordinated now

    def _stand_apart(self) -> None:
        """The hub repeats an attempt, so its disk was put back, and it may ask for something else: a party asks for
        another attempt.
        """
        if not self.apart:
            self.give_up()
            self.apart = True
            self.queue.send(self.hub, self.report(repeated=True))
            self.take_waiting()

    def give_up(self) -> None:
        if (lead := self.lead) is not None and lead.request is not None:
            lead.stop()
            self._dismiss(lead, Handled(refused="gone"))

    def _end(self, arrived: Arrived, end: End) -> None:
        if end.final:
            self.give_up()
        else:
            self._take_all()  # else the hub would wait for what nobody takes
        self.kept.ended, self.kept.tallies, self._told = end.final, True, None
        self.commit([self.queue.wrap(self.hub, self.report(closed=True))] if end.final else [], [arrived])

    # -- handlers ----------------------------------------------------------------------------------------------------

    def _handle(self, arrived: Arrived | None, letter: Letter) -> None:
        member, envelope = self.member, letter.envelope
        opened: Opened | None = None
        cost = Cost()
        with suppress(PeerError, CryptoError):
            opened = member.open(envelope, letter.frame, letter.arrives[0])
            cost = member.cost(opened)
        came, at = self.clock.handled(letter.arrives, cost) if opened is not None else (letter.arrives, letter.arrives)
        keeps = arrived is not None and self.name != self.hub and envelope.round != self.era[0]
        if keeps:  # for another attempt of this round
            self.kept.again.append(letter)
            self.kept.retaken += 1
        was = member.party.state, member.party.secret
        work: Work[Any] = member.receive(envelope, letter.frame, came[0], opened)
        value: Any = None
        try:
            while True:
                member.party.now_s = at[0] if self.clock.rehearsed else self.clock.now()[0]
                with self.busy():
                    wanted = work.throw(value) if isinstance(value, CoterieError) else work.send(value)
                if isinstance(wanted, Step):
                    break
                with self.busy():
                    value = self.compute(wanted)
        except StopIteration as stop:
            self._finish(arrived, letter, stop.value, at, store=opened is not None or self.clock.rehearsed)
            return
        except Exception as error:
            work.close()
            self._fail(arrived, letter, error, at)
            return
        role = opened.role if opened is not None else member.party.role
        self.kept.leads, self.undone = True, was
        done = [arrived] if arrived is not None and keeps else []  # else it would come, and be taken again, too
        self.commit(done=done)
        self.lead = self.leading(work, role, envelope, at, (None if done else arrived, letter))
        self._lead_on(self.lead, lambda lead: lead.begin(wanted))

    def leading(self, work: Any, role: str, request: Envelope | Era, at: Instant, of: Any = None) -> CoordinationDriver:
        patience_s = PATIENCE_S if self.clock.rehearsed else self.limits.patience_s
        if isinstance(request, Envelope) and not self.clock.rehearsed:
            patience_s /= 2  # the hub has waited longer: a member that says nothing must not cost its leader's answer
        coordination = Coordination(self.member, work, self.send, role, request, patience_s)
        return CoordinationDriver(coordination, self.clock, self.compute, at, of, self.quiescent)

    def quiescent(self) -> bool:
        return False

    def go_on(self, lead: CoordinationDriver) -> None:
        self._lead_on(lead, CoordinationDriver.go_on)
        if self.lead is None:
            self.take_waiting()

    def _lead_on(self, lead: CoordinationDriver, act: Callable[[CoordinationDriver], None]) -> None:
        try:
            with self.busy():
                act(lead)
                while self.flush():
                    lead.go_on()
        except Exception as error:
            if lead.request is None:
                raise
            self.observer.failed(lead.request[1].envelope, error)
            lead.stop()
            self._dismiss(lead, Handled(refused=str(error)))
            return
        if lead.coordination.done and lead.request is not None and self.lead is lead:
            self._dismiss(lead, lead.coordination.result)

    def _dismiss(self, lead: CoordinationDriver, handled: Handled) -> None:
        assert lead.request is not None
        self.lead = self.undone = None
        self.member.drop()
        self.clock.times.busy = max(self.clock.times.busy, lead.at)
        for parcel in lead.left():
            self.member.spool.drop(parcel.ticket)
        self._finish(*lead.request, handled, lead.at)

    def _fail(self, arrived: Arrived | None, letter: Letter, error: Exception, at: Instant) -> None:
        self.observer.failed(letter.envelope, error)
        self.queue.traffic.refuse(letter.envelope.kind)
        self._finish(arrived, letter, Handled(refused=str(error)), at)

    def _finish(
        self, arrived: Arrived | None, letter: Letter, handled: Handled, at: Instant, *, store: bool = True
    ) -> None:
        self.kept.leads = False
        stores = store and not (self.lead is not None and self.lead.request is None)
        self.kept.commits += stores  # before it is told
        envelope, out = letter.envelope, list[tuple[str, Packet]]()
        self.count_releases(handled.sent)
        for sent in handled.sent:
            if not self.clock.hold_back(sent, self.era[0]):
                out += self.post(sent, at)
            elif sent.envelope.answers:
                out.append((sent.envelope.dst, self.none(sent.envelope.answers, LATE, letter.arrives)))
        if not handled.answered and not envelope.answers:
            why = REFUSED if handled.refused else NO_ANSWER
            out.append((envelope.src, self.none(envelope.number, why, at)))
        came = [] if arrived is None else [arrived]
        if stores:
            self.save(self.wrapped(out), came)
            return
        self.push(self.wrapped(out))  # nothing has changed, or the round is tried again if this process ends
        for one in came:
            self.queue.done(one)
