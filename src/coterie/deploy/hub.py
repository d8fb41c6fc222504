"""The hub's node: it begins rounds and attempts, runs their coordination, and hears how the parties fare."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from coterie.deploy.mail import Arrived
from coterie.deploy.node import Node, _Leading
from coterie.deploy.packets import Begin, End, Era, Letter, Packet, Report, Silence, Tally
from coterie.protocol.errors import RunError
from coterie.protocol.party import Party
from coterie.protocol.steps import Steps
from coterie.transport.coordination import Coordination

OFFLINE, GONE = "offline", "gone"


class AnotherAttemptError(RunError):
    """A party was killed while it coordinated: what it had begun cannot go on, so the round is tried again."""


@dataclass
class Round:
    """What became of a round (0: the set-up). notes: of the hub's own, as in a run.

    skipped: why all its attempts failed, or "".  attempts: why each was given up that was.  gone, back: the parties that
    were not there while they were asked, and that came back.  reports: by party, the newest one of this round.
    """

    round: int
    notes: dict[str, Any] = field(default_factory=dict)
    skipped: str = ""
    attempts: list[str] = field(default_factory=list)
    gone: dict[str, str] = field(default_factory=dict)
    back: list[str] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    began_s: float = 0.0
    seconds: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0


OnRound = Callable[[Round], None]
OnReport = Callable[[str, Report], None]


class HubNode(Node):
    """The hub. Its store also says which rounds are done, and the attempt of the one that is not."""

    on_report: OnReport = staticmethod(lambda name, report: None)  # type: ignore[assignment]

    def run(self, rounds: int, on_round: OnRound = lambda one: None, on_report: OnReport | None = None) -> list[Round]:
        """The set-up, rounds 1 to ``rounds`` and the finish; goes on after those that are done by the last commit.

        Gives those that were run now. Raises RunError if the set-up or all rounds fail.
        """
        self.on_report = on_report or (lambda name, report: None)
        self._gone_since: dict[str, float] = {}
        self._away: dict[str, str] = {}
        self._broken = ""
        self.others = tuple(name for name in self._roster() if name != self.name)
        self.open()
        try:
            return self._rounds(rounds, on_round)
        finally:
            self.close()

    def _roster(self) -> tuple[str, ...]:
        return tuple(entry.name for entry in self.member.party.common.roster.entries)

    def _rounds(self, rounds: int, on_round: OnRound) -> list[Round]:
        ran: list[Round] = []
        for r in range(self.kept.done + 1, rounds + 1):
            if self.stopped.is_set():
                return ran
            one = self._round(r, self._steps(r))
            on_round(one)
            ran.append(one)
            if r == 0 and one.skipped:
                raise RunError(f"the set-up failed: {one.skipped}")
            if one.notes.get("stopped"):
                break
        if ran[1:] and all(one.skipped for one in ran if one.round):
            raise RunError(f"no round succeeded; the last one: {ran[-1].skipped}")
        if type(self.member.party).finish is not Party.finish:
            one = self._round(rounds + 1, self.member.party.finish)
            on_round(one)
            ran.append(one)
        self._say_end()
        return ran

    def _steps(self, r: int) -> Callable[[], Steps[Any]]:
        party: Any = self.member.party
        return party.setup if r == 0 else lambda: party.round(r)

    # -- a round -----------------------------------------------------------------------------------------------------

    def _round(self, r: int, steps: Callable[[], Steps[Any]]) -> Round:
        """A round, with as many attempts as it needs and may have."""
        kept, member = self.kept, self.member
        one, began = Round(r, began_s=self.clock.now_s()), time.monotonic()
        first = 0 if kept.era is None or kept.era[0] != r else kept.era[1] + 1
        for attempt in range(first, first + self.settings.retries + 1):
            self._announce((r, attempt))
            try:
                result = self._attempt(steps(), (r, attempt))
            except RunError as error:
                one.attempts.append(str(error))
                if self.stopped.is_set():
                    raise
                continue
            one.notes = dict(result or {})
            break
        else:
            member.restart(r, first + self.settings.retries + 1)
            one.skipped = one.attempts[-1]
        kept.done, kept.again = r, []
        member.numbers.kept.clear()
        self.commit()
        for arrived in [one for one in self.mail.held.values() if one not in self.waiting]:
            self.mail.done(arrived)
        one.gone, one.seconds = dict(self._away), time.monotonic() - began
        one.refused.update(self.mail.traffic.refused)
        one.bytes_up, one.bytes_down = self.mail.traffic.bytes_up, self.mail.traffic.bytes_down
        return one

    def _announce(self, era: Era) -> None:
        """Begin an attempt: stored before anybody hears of it."""
        member, kept = self.member, self.kept
        known = kept.era is not None and kept.era[0] == era[0]
        member.heard_of(*era)
        if not known:
            member.begin(era[0])
        kept.era, self._broken, self._away = era, "", {}
        self.mail.traffic.__init__()  # type: ignore[misc]
        self.commit()
        self.observer.began(era)
        for name in self.others:
            self.mail.send(name, Begin(era, self.kept.heard.get(name, 0)))

    def _attempt(self, steps: Steps[Any], era: Era) -> Any:
        """Coordinate one attempt to its end. Raises RunError."""
        member = self.member
        coordination = Coordination(member, steps, self.send, member.party.role, era, self.settings.patience_s)
        self.leading = _Leading(coordination, None)
        try:
            with member.leading():
                self.start(coordination)
                for one in self._due():
                    self._letter(one, one.packet)  # type: ignore[arg-type]
                while not coordination.done:
                    self.turn(self.settings.poll_s)
                    self._look_around(coordination)
                    if self._broken:
                        raise AnotherAttemptError(self._broken)
                    if self.stopped.is_set():
                        raise RunError("the hub was told to stop")
                return coordination.result
        finally:
            steps.close()
            self.leading = None
            member.drop()

    def _look_around(self, coordination: Coordination) -> None:
        """Give up answers of parties that have not been connected for a while."""
        awaited = coordination.awaited
        here, now = set(self.mail.engine.nodes()), time.monotonic()
        for name in {name for name in awaited.values() if name not in here}:
            since = self._gone_since.setdefault(name, now)
            if now - since >= self.settings.grace_s:
                self._away[name] = GONE
                for number in [n for n, dst in awaited.items() if dst == name]:
                    coordination.refuse(number, GONE, self.clock.now_s())
        for name in here & set(self._gone_since):
            del self._gone_since[name]

    # -- packets -----------------------------------------------------------------------------------------------------

    def while_leading(self, arrived: Arrived, letter: Letter) -> None:
        """The hub's handlers answer during its round, by what was committed before."""
        self._handle(arrived, letter)

    def take(self, arrived: Arrived) -> None:
        packet: Packet = arrived.packet
        if isinstance(packet, Report):
            self._heard(arrived.src, packet)
            self.mail.done(arrived)
        elif isinstance(packet, Letter | Silence | Tally):
            super().take(arrived)
        else:
            self._stray(arrived, packet)

    def _heard(self, src: str, report: Report) -> None:
        heard = self.kept.heard
        heard[src] = max(heard.get(src, 0), 0 if report.rolled_back else report.commit)
        if report.interrupted and report.era == self.kept.era:
            self._broken = f"{src} was stopped while it coordinated"
        if report.rolled_back:
            self._away[src] = "its state is older than it was: its disk was put back, or its folder copied"
        self.on_report(src, report)

    def _say_end(self) -> None:
        """Tell everybody that the run is over, and hear their last reports."""
        for name in self.others:
            self.mail.send(name, End(final=True))
        missing, until = set(self.others), time.monotonic() + self.settings.grace_s
        while missing and time.monotonic() < until and not self.stopped.is_set():
            arrived = self.mail.pull(self.settings.poll_s)
            if arrived is not None:
                if isinstance(arrived.packet, Report) and arrived.packet.era == self.kept.era:
                    missing.discard(arrived.src)
                self.take(arrived)
