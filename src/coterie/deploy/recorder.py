"""The hub writes a deployment's run folder from the parties' reports.

The report on round r comes when round r + 1 begins, or the run ends; a client that is sent the round's model only then
(``System.sent_next``) scores it in its next report.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from coterie.deploy import reported
from coterie.deploy.hub import RoundOutcome
from coterie.deploy.logs import Journal, Say, event
from coterie.deploy.packets import Era, Report
from coterie.deploy.plan import Plan, fingerprint
from coterie.deploy.status import HEARTBEAT_S, STATUS, PartyStatus, RunStatus, at_words, first_status
from coterie.protocol.errors import CoterieError, UserError, shown
from coterie.record.files import FILE_MODE, Log, atomic_write, decoded, locked, opened, reading
from coterie.record.folder import CONFIG, METRICS, RESULT, encode_line, jsonable, read_lines, write_json
from coterie.record.summary import Line, stretches, totals, with_facts
from coterie.report.words import plural
from coterie.runs.failures import check_not_all_skipped

OPEN = "open.bin"
_PAUSE_S = 1.0  # between two writings of the status
_MOST_MISSED = 100  # of one party in one round, for one reason
_OPEN_LINES = 2  # of closed rounds whose reports still come


class OpenRounds(msgspec.Struct):
    """``open.bin``: a killed hub continues its folder by it.

    lines: of the last closed rounds.  reports: of rounds whose lines are open, by party and (round, attempt).  missed:
    by round, whom the hub went on without, and why.  by_client: last scores.
    """

    session: str
    set_up: Line = {}
    finish: Line | None = None
    lines: list[Line] = []
    reports: dict[str, dict[tuple[int, int], Report]] = {}
    missed: dict[int, list[tuple[str, str]]] = {}
    by_client: dict[str, dict[str, float]] = {}
    samples: dict[str, int] = {}
    parties: dict[str, PartyStatus] = {}
    repeated: int = 0


class Recorder(Journal):
    """The hub's ``NodeObserver``: writes log, run folder and status. Any thread may call it.

    done: committed rounds; the folder forgets later ones.  say: is told of rounds, attempts and waits. Raises UserError
    if another process writes there, or the folder holds another run.
    """

    def __init__(
        self, folder: Path, plan: Plan, *, parameters: int = 0, done: int = 0, say: Say = lambda words: None
    ) -> None:
        super().__init__(lambda era: say(at_words(*era, self.rounds)), say)
        self.folder, self.parameters, self.done = folder, parameters, done
        self.config = plan.resolved
        self.rounds, self._scored_after = self.config.rounds, int(self.config.definition.sent_next)
        self._hub, self.client_role = plan.members[0][0], plan.client_role
        self.clients = tuple(name for name, role in plan.members if role == self.client_role)
        self.round = self.attempt = 0
        self._lock, self._held = threading.RLock(), ExitStack()
        self._stopping, self._changed = threading.Event(), threading.Event()
        self._away: Sequence[str] = ()
        self._is_behind = False  # there are lines that result.json does not tell of
        folder.mkdir(parents=True, exist_ok=True)
        self._held.enter_context(locked(folder))
        try:
            self._open_folder(plan)
            self._status = msgspec.structs.replace(
                first_status(plan), done=self.done, skipped=self._skipped(), seconds=self._seconds()
            )
            self.renewed(plan)
            self._open.parties[self._hub].connected = True
            self._catch_up()
        except BaseException:
            self._held.close()
            raise
        self._writer = threading.Thread(target=self._write_on, name="status", daemon=True)
        self._writer.start()

    # -- what the hub tells --------------------------------------------------------------------------------------------

    def renewed(self, plan: Plan) -> None:
        with self._lock:
            self._check = reported.Check(self.config, plan.settings.scores)
            parties = {}
            for name, role in plan.members:
                known = self._open.parties.get(name) or PartyStatus(name=name, role=role)
                entry = plan.roster.by_name.get(name)
                known.fingerprint = "" if entry is None else fingerprint(entry)
                known.revoked = name in plan.revoked
                parties[name] = known
            self._open.parties = parties
            self._tell(plan=plan.version, plan_sha256=plan.sha256)

    def began(self, era: Era) -> None:
        super().began(era)
        (round, attempt), now = era, time.time()
        with self._lock:
            if attempt and (round, attempt) > (self.round, self.attempt):
                self._open.repeated += 1
            self.round, self.attempt = round, attempt
            hub = self._open.parties[self._hub]
            hub.round, hub.attempt, hub.last_seen, hub.connected = round, attempt, now, True
            phase = "set-up" if round == 0 else "finish" if self._is_finish(round) else "round"
            self._tell(phase=phase, round=round, attempt=attempt, since=now)

    def aborted(self) -> None:
        with self._lock:
            self.rounds = self.done
            self._tell(aborted=True)

    def waits(self, why: str) -> None:
        super().waits(why)
        with self._lock:
            self._tell(waits=why)

    def seen(self, party: str) -> None:
        with self._lock:
            if (one := self._open.parties.get(party)) is not None:
                one.last_seen = time.time()
                self._changed.set()

    def present(self, names: Collection[str]) -> None:
        with self._lock:
            for name, one in self._open.parties.items():
                one.connected = name in names or name == self._hub
            self._changed.set()

    def gathering(self, here: Collection[str], away: Sequence[str], to: str = "") -> None:
        self.present(here)
        if away and away != self._away:
            self._away = away
            to = to or ("connect" if self._status.run == 1 else "agree")
            self._say(f"Waiting for {', '.join(away)} to {to}")

    def late(self, party: str) -> None:
        super().late(party)
        self.missed(party, "late")

    def missed(self, party: str, why: str) -> None:
        with self._lock:
            if (one := self._open.parties.get(party)) is not None:
                why = reported.why_missed(why)
                one.missed = dict(Counter(one.missed) + Counter([why]))
                missed = self._open.missed.setdefault(self.round, [])
                if missed.count((party, why)) < _MOST_MISSED:  # late messages are as many as their sender likes
                    missed.append((party, why))
                self._changed.set()

    def heard(self, party: str, report: Report) -> None:
        """A verified report; an impossible one is dropped and counted."""
        with self._lock:
            one = self._open.parties.get(party)
            if one is None:
                return
            self.seen(party)
            if report.era <= (self.round, self.attempt) and not self._is_open(report.era):
                return  # its line is written
            plausible = self._check(report, one.role, self.client_role) if self._is_open(report.era) else None
            if plausible is None:
                one.implausible += 1
                return
            self._open.reports.setdefault(party, {})[report.era] = plausible
            one.round, one.attempt = max((one.round, one.attempt), report.era)
            one.commit = max(one.commit, report.commit)
            one.rolled_back = one.rolled_back or report.rolled_back
            if report.samples and one.role == self.client_role:
                self._open.samples[party] = report.samples
            self._settle()

    def closed(self, one: RoundOutcome) -> None:
        """The hub has committed a round (0: the set-up; after the last: the finish)."""
        if one.notes.get("participants") == 0 and "skipped" not in one.notes:
            one.notes["skipped"] = "no update came"  # nobody here sees that no model has changed
        if one.skipped:
            self._say(f"{at_words(one.round, 0, self.rounds)} was given up: {shown(one.skipped)}")
        elif why := one.notes.get("skipped"):
            self._say(f"{at_words(one.round, 0, self.rounds)} was skipped: {shown(str(why))}")
        with self._lock:
            round = one.round
            attempt = self.attempt if self.round == round else len(one.attempts)
            self.round, self.attempt = round, attempt
            for party, why in one.gone.items():
                self.missed(party, why)
            hub = self._open.parties[self._hub]
            of = one.traffic
            own = Report((round, attempt), hub.commit, of.busy_s, of.bytes_up, of.bytes_down, dict(of.refused))
            self.heard(self._hub, own)
            more = {"skipped": one.skipped, "attempts": one.attempts, "gone": one.gone, "back": one.back}
            notes = {**one.notes, **{key: value for key, value in more.items() if value}}
            line = {"round": round, "attempt": attempt, "seconds": one.seconds, "notes": notes}
            self._open.lines.append(jsonable(line))
            if round and not self._is_finish(round):
                self.done = round
                self._tell(done=round, skipped=self._skipped())
            self._tell(seconds=self._seconds())
            self._settle()
            self._keep()

    def ended(self) -> None:
        """Raises AllSkippedError if no round has changed a model."""
        with self._lock:
            self._settle(everything=True)
            self._tell(phase="ended", since=time.time())
            self._keep()
            self._write_result(running=False)
            self._write_status()
        self._say(f"The run has ended: {plural(self._status.done, 'round')} done.")
        check_not_all_skipped(self._lines)

    def fail(self, why: str) -> None:
        with self._lock:
            self._tell(phase="failed", since=time.time(), why=why)
            self._keep()
            self._write_status()

    @property
    def status(self) -> RunStatus:
        with self._lock:
            return self._present()

    def close(self) -> None:
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._changed.set()
        self._writer.join()
        with self._lock, self._held:
            self._keep()
            self._write_status()
            if self._is_behind:
                self._write_result(running=True)
            self.metrics.close()

    # -- the folder ----------------------------------------------------------------------------------------------------

    def _open_folder(self, plan: Plan) -> None:
        path = self.folder / OPEN
        if path.exists():
            with reading(path), opened(path, follow=False) as file:
                self._open = decoded(path, file.read(), OpenRounds)
            if self._open.session != plan.session:
                raise UserError(f"{self.folder} holds the run of another federation: move it away to begin this one")
        else:
            if (self.folder / METRICS).exists():
                raise UserError(f"{self.folder} holds a run that is no deployment's: move it away to begin this one")
            self._open = OpenRounds(plan.session)
            atomic_write(self.folder / CONFIG, plan.config.encode())
        self.metrics = Log(self.folder / METRICS)
        known = read_lines(self.folder / METRICS)
        self._lines = [line for line in known if line["round"] <= self.done]
        self.metrics.truncate(sum(len(encode_line(line)) for line in self._lines))
        of = self._open
        written = self._lines[-1]["round"] if self._lines else 0
        of.lines = [one for one in of.lines if one["round"] <= self.done and not 0 < one["round"] <= written]
        for reports in of.reports.values():
            for at in [at for at in reports if at[0] > self.done]:
                del reports[at]

    def _catch_up(self) -> None:
        last = [{"round": 0}, *self._lines, *self._open.lines][-1]
        if last["round"] < self.done:
            line = {"round": self.done, "attempt": 0, "seconds": 0.0, "notes": {"unrecorded": True}}
            self._open.lines.append(line)

    def _is_finish(self, round: int) -> bool:
        before = [line for line in [*self._lines, *self._open.lines] if line["round"] < round]
        return round > self.rounds or any("stopped" in line["notes"] for line in before)

    def _is_open(self, era: Era) -> bool:
        attempts = {line["round"]: line["attempt"] for line in self._open.lines}
        written = self._lines[-1]["round"] if self._lines else -1
        if self.round > written:
            attempts.setdefault(self.round, self.attempt)
        return era[0] in attempts and era[1] <= attempts[era[0]]

    def _settle(self, *, everything: bool = False) -> None:
        lines, before, after = self._open.lines, len(self._lines), self._scored_after
        while lines and (everything or len(lines) > _OPEN_LINES + after or self._are_complete(lines[: 1 + after])):
            self._write_line(lines.pop(0))
        self._is_behind = self._is_behind or len(self._lines) > before
        if self._is_behind and not everything and not (self.folder / RESULT).exists():
            self._write_result(running=True)

    def _are_complete(self, lines: Sequence[Line]) -> bool:
        return len(lines) > self._scored_after and all(map(self._is_complete, lines))

    def _is_complete(self, line: Line) -> bool:
        others = [one for one in self._open.parties.values() if one.name != self._hub]
        awaited = [one.name for one in others if one.fingerprint and not one.revoked and not one.rolled_back]
        era, reports = (line["round"], line["attempt"]), self._open.reports
        return all(era in (own := reports.get(name, {})) and own[era].closed for name in awaited)

    def _write_line(self, line: Line) -> None:
        of, round = self._open, line["round"]
        reports: dict[str, list[Report]] = {}
        scores: dict[str, Mapping[str, float]] = {}
        for party, own in of.reports.items():
            told = [own[at].scores for at in sorted(own) if at[0] == round + self._scored_after and own[at].scores]
            scores |= {party: told[-1]} if told else {}
            reports[party] = [own.pop(at) for at in sorted(own) if at[0] <= round]
            for report in reports[party]:
                of.parties[party].add(report)
        roles = {name: one.role for name, one in of.parties.items()}
        line |= reported.counted(reports, roles) | reported.away(round, of.missed.pop(round, []))
        line = jsonable({**line, **reported.scored(scores)})
        if scores:
            of.by_client = {name: dict(own) for name, own in scores.items()}
            if "skipped" not in line["notes"]:  # else they are of earlier models, and of those that were there
                means = reported.means_of(line, self._check.measures)
                self._tell(scores=means, reported=line["reported"])
        if round == 0:
            of.set_up = line
        elif self._is_finish(round):
            of.finish = line
        else:
            self.metrics.append(encode_line(line))
            self._lines.append(line)

    def _skipped(self) -> int:
        return sum("skipped" in line["notes"] for line in [*self._lines, *self._open.lines])

    def _seconds(self) -> float:
        known = stretches(self._open.set_up, [*self._lines, *self._open.lines], self._open.finish)
        return float(sum(line["seconds"] for line in known))

    def _tell(self, **changed: Any) -> None:
        self._status = msgspec.structs.replace(self._status, **changed)
        self._changed.set()

    def _present(self) -> RunStatus:
        parties = []
        for name, one in self._open.parties.items():
            parties.append(now := msgspec.structs.replace(one))
            for report in self._open.reports.get(name, {}).values():
                now.add(report)
        repeated = self._open.repeated
        return msgspec.structs.replace(self._status, parties=tuple(parties), repeated=repeated, written=time.time())

    def _write_on(self) -> None:
        while not self._stopping.is_set():
            self._changed.wait(HEARTBEAT_S)
            self._changed.clear()
            try:
                with self._lock:
                    self._keep()
                    self._write_status()
                    if self._is_behind:
                        self._write_result(running=True)
            except CoterieError as error:  # a full disk, say: the hub fails where it writes what it needs
                event("status", 40, error=str(error))
            self._stopping.wait(_PAUSE_S)

    def _write_status(self) -> None:
        data = msgspec.json.format(msgspec.json.encode(self._present()), indent=1)
        atomic_write(self.folder / STATUS, data + b"\n", FILE_MODE)

    def _keep(self) -> None:
        atomic_write(self.folder / OPEN, msgspec.msgpack.encode(self._open), FILE_MODE)

    def _write_result(self, running: bool) -> None:
        self._is_behind = False
        if not self._lines:
            return
        of = self._open
        facts = {"parameters": self.parameters, "client_role": self.client_role}
        measured = {**facts, "measures": [metric.facts for metric in self._check.measures]}
        summed = totals(of.set_up, self._lines, of.finish)
        found = reported.result_of(self._present(), self.config, self._lines, running)
        write_json(self.folder / RESULT, with_facts(found, {**summed, **measured}))
        for name, table in reported.tables(self.clients, of.by_client, of.samples).items():
            write_json(self.folder / name, table)
