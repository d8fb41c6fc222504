"""The hub's node: begins rounds and attempts, coordinates them, and receives reports."""

from __future__ import annotations

import copy
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from coterie.deploy.lead import CoordinationDriver, wait_for, waiting
from coterie.deploy.node import Node
from coterie.deploy.packet_queue import Arrived
from coterie.deploy.packets import BeginAttempt, End, Era, Letter, NewRun, NoAnswer, PlanUpdate, Report, Tally, Traffic
from coterie.protocol.errors import PeerError, RunError
from coterie.protocol.steps import Steps
from coterie.runs.failures import is_divergence
from coterie.transport.envelope import Waiting
from coterie.transport.wire import Parcel

FORCED = 5
"""In so many rounds a party may have an attempt repeated until it is enrolled anew."""
EXCLUDED = {
    "revoked": "it was revoked",
    "rolled back": "its state is older than it was: a disk was put back, or a folder copied",
    "ahead of the hub": "it is in a later round already: was the hub's disk put back?",
    "stopped": "it was stopped again and again while it coordinated",
    "not agreed": "its owner has not agreed to this run",
    "too many attempts": f"it has had attempts of {FORCED} rounds repeated",
}
"""Why a party is asked nothing, by a short name."""


class LeaderStoppedError(RunError):
    """A party stopped while coordinating, or has seen this attempt before: another one is needed."""


@dataclass
class RoundOutcome:
    """round: 0 is the set-up.  notes, traffic: the hub's own.

    attempts: why each failed one was given up.  skipped: the last of these if all failed, or "".  gone: why a party was
    absent.
    """

    round: int
    notes: dict[str, Any] = field(default_factory=dict)
    skipped: str = ""
    attempts: list[str] = field(default_factory=list)
    gone: dict[str, str] = field(default_factory=dict)
    back: list[str] = field(default_factory=list)
    seconds: float = 0.0
    traffic: Traffic = field(default_factory=Traffic)


class Plans:
    """What the operator's folder says of the plan during a run; here it never changes.

    asks_all: all show their newest plan first, since the folder was restored.  invites: owners must agree to this run.
    """

    asks_all = invites = False

    def newest(self) -> bytes | None:
        """The signed plan at the first call and after each change; else None."""
        return None

    def over(self) -> bool:
        return False

    def check_begins(self) -> None:
        """Before each attempt of the set-up. Raises UserError if it needs a party that was revoked."""

    def check_shown(self, data: bytes) -> None:
        """Raises NewPlanError for a newer plan, and PeerError for somebody else's."""

    def away(self, here: Collection[str]) -> Collection[str]:
        """The absent parties that the hub waits for."""
        return ()

    def unshown(self, shown: Collection[str]) -> Collection[str]:
        """As ``away``, of those that have shown their newest plan."""
        return ()


OnRound = Callable[[RoundOutcome], None]


class HubNode(Node):
    """Its store also has done rounds, and the round's attempt."""

    answers_while_leading = True

    def __init__(self, *args: Any, plans: Plans | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.plans = plans or Plans()
        self._gathers, self._shown = self.plans.asks_all, set[str]()
        self.others = tuple(e.name for e in self.member.party.common.roster.entries if e.name != self.name)
        self.tallies: dict[str, Tally] = {}
        self._over: dict[str, Era] = {}  # by party, of its last report on an attempt that is over
        self._broken = ""
        self._coming: list[Parcel] = []  # of earlier rounds: each attempt of this one is given them
        self._left: list[Parcel] = []  # what comes on the virtual clock after the round
        self._inbox: list[Waiting] | None = None  # as it was when the round began, if this process began it
        self._stopped: set[str] = set()  # leaders that have had an attempt of this round repeated
        self._unfit: set[str] = set()  # those that have asked for one more
        self._ahead: dict[str, Era] = {}  # parties that are in a later attempt than the hub

    def run(self, rounds: int, on_round: OnRound = lambda one: None) -> list[RoundOutcome]:
        """Set-up, rounds 1 to ``rounds`` and finish, after the last commit. Returns the rounds run now. Raises RunError
        if the set-up or all rounds fail.
        """
        self.open()
        spool = self.member.spool
        self._coming = [waiting(one, spool) for one in self.kept.again]
        self.kept.again, self.kept.retaken = [], 0
        try:
            return self._rounds(rounds, on_round)
        finally:
            self.close()

    def _rounds(self, rounds: int, on_round: OnRound) -> list[RoundOutcome]:
        ran: list[RoundOutcome] = []
        party: Any = self.member.party
        has_finish = bool(party.finishes)
        self._gather()
        while (r := self.kept.done + 1) <= (last := self.kept.stops or rounds) + has_finish:
            if self.stopped.is_set():
                return ran
            if r <= last and self.plans.over():
                self.observer.aborted()
                if r <= 1:
                    break  # no party has a model of this run
                self.kept.stops = self.kept.done
                continue
            steps = party.setup if r == 0 else party.finish if r > last else partial(party.round, r)
            one = self._round(r, steps)
            on_round(one)
            ran.append(one)
            if r == 0 and one.skipped:
                raise RunError(f"the set-up failed: {one.skipped}")
            if one.skipped or "skipped" in one.notes:
                self._wait_for_servers(one.gone)
        tried = [one for one in ran if 1 <= one.round <= last]
        if tried and all(one.skipped for one in tried):
            raise RunError(f"all rounds failed; the last one: {tried[-1].skipped}")
        self._end_all()
        return ran

    def _gather(self) -> None:
        """After a restore wait for all newest plans; before a further run, for agreement."""
        if self._gathers:
            plan = self.plans.newest() or b""
            for name in self.others:
                self.queue.send(name, NewRun(plan))
            self._wait(lambda: self.plans.unshown(self._shown))
            self._gathers = False
        if self.plans.invites and self.kept.done < 0:
            self._wait(lambda: self.plans.away(self.kept.heard))

    def _wait(self, missing: Callable[[], Collection[str]]) -> None:
        while not (self.plans.over() or self.stopped.is_set()):
            self._pass_on()  # one for whom it waits may be revoked
            if not missing():
                return
            self.turn()

    def _pass_on(self) -> None:
        if (plan := self.plans.newest()) is not None and self.renew is not None:
            self._plan_update(plan)
            silent = self._silent
            for name in self.others:
                self.queue.send(name, NewRun(plan) if name in silent else PlanUpdate(plan))

    @property
    def _silent(self) -> Collection[str]:
        return set(self.others) - self.kept.heard.keys() if self.plans.invites else ()

    def _wait_for_servers(self, gone: Collection[str]) -> None:
        servers = set(gone) - set(self.member.party.common.clients)

        def away() -> Collection[str]:
            return self.presence.look(self.others) & servers - self.excluded.keys()

        wait_for(away, self.stopped, self.limits.patience_s, self.limits.poll_s)

    # -- a round -----------------------------------------------------------------------------------------------------

    def _round(self, r: int, steps: Callable[[], Steps[Any]]) -> RoundOutcome:
        kept = self.kept
        one, began = RoundOutcome(r), time.monotonic()
        attempt = 0 if kept.era is None or kept.era[0] != r else kept.era[1] + 1
        if attempt:
            one.attempts.append("the hub was stopped")
        self._stopped, self._unfit, left, lost = set(), set(), self.limits.retries, r
        while True:
            self._announce((r, attempt))
            try:
                one.notes = dict(self._attempt(steps(), (r, attempt), one) or {})
                break
            except RunError as error:
                if self.stopped.is_set() or is_divergence(error):
                    raise
                one.attempts.append(str(error))
                left -= not isinstance(error, LeaderStoppedError)
            reached, attempt = max((self._reached(), (r, attempt)))
            if reached > r:
                lost, one.skipped = reached - 1, f"the hub's disk was put back: parties are in round {reached}"
                break
            attempt += 1
            if left < 0:
                self._announce((r, attempt))  # so that all go back to where it began
                one.skipped = one.attempts[-1]
                break
        if r or not one.skipped:  # a hub that is started again tries a set-up again
            self.kept.stops = r if "stopped" in one.notes else self.kept.stops
            self._commit_round(lost)
        one.seconds = time.monotonic() - began
        one.traffic = copy.deepcopy(self.queue.traffic)
        one.back, self.presence.came_back = sorted(self.presence.came_back), set()
        return one

    def _reached(self) -> Era:
        """An attempt at least as late as more than half of the others claim to be in."""
        most, eras = len(self.others) // 2, sorted(self._ahead.values(), reverse=True)
        return eras[most] if len(eras) > most else self.era

    def _commit_round(self, r: int) -> None:
        spool = self.member.spool
        for ticket in [one.ticket for one in self._coming] + [one.ticket for one in self._inbox or ()]:
            spool.drop(ticket)
        self._coming, self._left, self._inbox = self._left, [], None
        self.kept.done = r
        self._commit_all()

    def _commit_all(self) -> None:
        """Also commit messages that wait for the next attempt."""
        done = [one for one in self.queue.held.values() if one not in self.waiting and one not in self._done_later]
        spool = self.member.spool
        self.kept.again = [Letter(one.envelope, spool.peek(one.ticket), self.era, one.arrives) for one in self._coming]
        self.commit(done=done)
        self.kept.again, self.kept.retaken = [], 0

    def _announce(self, era: Era) -> None:
        member, spool = self.member, self.member.spool
        if era[1] and self._inbox is not None:  # what has come since is in ``_coming``
            for one in member.inbox:
                spool.drop(one.ticket)
            member.inbox = self._inbox
        self._pass_on()
        if era[0] == 0:
            self.plans.check_begins()
        self.enter(era, secrets.randbelow(1 << 62))
        self._ahead = {name: of for name, of in self._ahead.items() if of > era}
        self._inbox = [replace(one, ticket=spool.put(spool.peek(one.ticket))) for one in member.inbox]
        self._broken, self.kept.ended = "", False
        self.kept.tallies = self.kept.tallies or self.clock.rehearsed
        self._commit_all()
        self.observer.began(era)
        parcels = self.wrapped([(name, self._beginning(name)) for name in self.others])
        self.kept.excluded |= dict.fromkeys(set(self.others) - {one.dst for one in parcels}, EXCLUDED["revoked"])
        self.queue.push(parcels)

    def _beginning(self, name: str) -> BeginAttempt:
        heard, taken = self.kept.heard.get(name, 0), self.queue.numbering.taken.get(name, 0)
        return BeginAttempt(self.era, heard, taken, self.kept.before.at, self.kept.mark)

    def _attempt(self, steps: Steps[Any], era: Era, one: RoundOutcome) -> Any:
        member, spool = self.member, self.member.spool
        lead = self.lead = self.leading(steps, member.party.role, era, self.clock.times.at)
        for came in self._coming:
            lead.letter(came.envelope, spool.peek(came.ticket), came.arrives)
        try:
            with member.leading():
                self._lead_on(lead, CoordinationDriver.begin)
                self.take_waiting()
                while not lead.coordination.done:
                    self.turn()
                    self._check()
                self._left = lead.left()
                return lead.coordination.result
        except BaseException:
            lead.stop()
            for parcel in lead.left():
                spool.drop(parcel.ticket)
            raise
        finally:
            steps.close()
            one.gone |= lead.gone
            self.lead = None
            member.drop()

    def _check(self) -> None:
        if self._broken or self._reached() > self.era:
            raise LeaderStoppedError(self._broken or EXCLUDED["ahead of the hub"])
        if self.stopped.is_set():
            raise RunError("the hub was told to stop")
        silent_s = time.monotonic() - self.queue.heard_s
        if self.clock.rehearsed and silent_s > self.limits.patience_s:
            raise RunError(f"nothing has come for {silent_s:.0f} s")

    def quiescent(self) -> bool:
        # A party tells in one tally what it has taken and what it has sent by then, and it tells this at rest: when it
        # does nothing more before another packet comes. Let all counts agree, and take the first packet that any party
        # took after its tally. Each pair's packets come in order, and as many were taken as sent by the sender's tally,
        # so it was sent after that tally. At rest its sender sent it because of a packet taken later than its tally,
        # and so before the first. So there is none, and none was sent. A late tally or a lost packet can only keep the
        # counts from agreeing.
        # Not counted are packets of earlier eras, and those of parties that are gone. By the virtual clock an era ends
        # only when nothing is under way, so of earlier eras there can only be answers to the hub's last posts. A leader
        # may notice later than the hub that a party is gone.
        kept = self.kept
        if self.lead is not None:
            self._look_around(self.lead)
        gone = self.presence.look(self.others) | self.excluded.keys()
        sent, received = {self.name: kept.sent}, {self.name: kept.received}
        for name in self.others:
            if name not in gone:
                if name not in self.tallies or self.tallies[name].era != kept.era:
                    return False
                sent[name], received[name] = self.tallies[name].sent, self.tallies[name].taken
        return all(sent[a].get(b, 0) == received[b].get(a, 0) for a in sent for b in sent)

    # -- packets -----------------------------------------------------------------------------------------------------

    def take(self, arrived: Arrived) -> None:
        packet = arrived.packet
        if isinstance(packet, NewRun):
            self._take_shown(arrived, packet)
            return
        if self._gathers:
            self.waiting.append(arrived)  # nobody is served by a plan that may be old
            return
        tally = packet if isinstance(packet, Tally) else getattr(packet, "tally", None)
        if tally is not None and tally.era == self.kept.era:
            self.tallies[arrived.src] = tally
        if isinstance(packet, Report | Tally):
            self.queue.done(arrived)
            self.observer.seen(arrived.src)
            if isinstance(packet, Report):
                self._heard(arrived.src, packet)
        elif isinstance(packet, Letter | NoAnswer) and self.kept.era is not None and packet.era <= self.kept.era:
            self.kept.heard[arrived.src] = max(self.kept.heard.get(arrived.src, 0), packet.commit)
            super().take(arrived)
        else:
            self.stray(arrived)

    def _take_shown(self, arrived: Arrived, newest: NewRun) -> None:
        self.queue.done(arrived)
        try:
            self.plans.check_shown(newest.plan)
            self._shown.add(arrived.src)
        except PeerError as error:
            self.queue.refuse(arrived.src, "NewRun", str(error))

    def delivered(self, arrived: Arrived, letter: Letter) -> None:
        if self.kept.era is not None and letter.envelope.round != self.kept.era[0]:
            self._coming.append(waiting(letter, self.member.spool))
            arrived.packet = None
        else:
            self.queue.done(arrived)

    @property
    def excluded(self) -> Mapping[str, str]:
        ahead = dict.fromkeys(self._ahead, EXCLUDED["ahead of the hub"])
        silent = dict.fromkeys(self._silent, EXCLUDED["not agreed"])
        return {**silent, **ahead, **dict.fromkeys(self._unfit, EXCLUDED["stopped"]), **self.kept.excluded}

    def _heard(self, src: str, report: Report) -> None:
        heard, era = self.kept.heard, self.era
        if report.rolled_back:
            self.kept.excluded[src] = EXCLUDED["rolled back"]
        elif report.era > era:
            self._ahead[src] = report.era
        else:
            heard[src] = max(heard.get(src, 0), report.commit)
        if report.started and self.kept.era is not None:
            self.queue.send(src, self._beginning(src))  # it has had this one, unless its disk was put back
        if report.interrupted and report.era == era:
            self._force(src, "was stopped while it coordinated")
        if report.repeated and report.era == era:
            self._force(src, f"has been in attempt {era[1]} of round {era[0]} before: was the hub's disk put back?")
        if report.closed:
            self._over[src] = report.era
        self.observer.heard(src, report)

    def _force(self, src: str, why: str) -> None:
        forced = self.kept.forced
        if src in self._stopped:
            self._unfit.add(src)
        elif src not in self.excluded:
            forced[src] = forced.get(src, 0) + 1
            if forced[src] > FORCED:
                self.kept.excluded[src] = EXCLUDED["too many attempts"]
            else:
                self._broken = f"{src} {why}"
                self._stopped.add(src)

    def forget(self, name: str) -> None:
        super().forget(name)
        self._ahead.pop(name, None)
        for kept in (self._coming, self._left):
            for one in [one for one in kept if one.envelope.src == name]:
                kept.remove(one)
                self.member.spool.drop(one.ticket)

    # -- the end -----------------------------------------------------------------------------------------------------

    def _end_all(self) -> None:
        if not self.kept.ended and self.kept.era is not None:  # else nothing is under way
            for name in self.others:
                self.queue.send(name, End())
            self._hear(self.quiescent)
            self.kept.ended = True
            self.commit()
        for name in self.others:
            self.queue.send(name, End(final=True))
        awaited = set(self.others) - self.excluded.keys()
        self._hear(lambda: all(self._over.get(name) == self.kept.era for name in awaited))

    def _hear(self, enough: Callable[[], bool]) -> None:
        self.queue.heard_s = began = time.monotonic()
        while not (enough() or self.stopped.is_set() or time.monotonic() > began + self.limits.patience_s):
            silent_s = time.monotonic() - self.queue.heard_s
            here = set(self.queue.engine.nodes()) - {self.name}
            if silent_s > self.limits.grace_s or (not here and silent_s > 2 * self.limits.poll_s):
                return
            self.turn()
