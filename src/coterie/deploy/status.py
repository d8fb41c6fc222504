"""An operator's view of a deployment: the hub's ``status.json`` in its run folder (``recorder.py``).

It holds no model, no cluster, and no reason of a refusal.
"""

from __future__ import annotations

import os
import time
from typing import Literal

import msgspec

from coterie.crypto.certificates import validity
from coterie.deploy.home import Home, plan_of, read_private
from coterie.deploy.logs import Journal, Say
from coterie.deploy.packets import Era, Report, Traffic
from coterie.deploy.plan import Plan
from coterie.record.folder import STATUS as STATUS
from coterie.transport.envelope import Count

HEARTBEAT_S = 5.0
"""The hub writes its status at least so often."""

Phase = Literal["waiting", "set-up", "round", "finish", "ended", "failed"]


class PartyStatus(Traffic, kw_only=True):
    """Sums are over the whole run.  fingerprint: of its keys, "" before it has joined.  connected: as the engine says.
    rolled_back: its state went back, so it is excluded.  last_seen: Unix seconds of its last packet.  round, attempt,
    commit: of its last report.  missed: how often the hub went on without it, by reason.  implausible: impossible
    reports.
    """

    name: str
    role: str
    fingerprint: str = ""
    revoked: bool = False
    connected: bool = False
    rolled_back: bool = False
    last_seen: float | None = None
    round: Count = 0
    attempt: Count = 0
    commit: Count = 0
    missed: dict[str, Count] = msgspec.field(default_factory=dict)
    implausible: Count = 0


class RunStatus(msgspec.Struct, kw_only=True):
    """``status.json``.  since, written: Unix seconds of this phase's start, and of the file.  plan: its version.
    seconds: as in ``result.json``.  done: committed rounds.  skipped: of these, those that moved no model or were given
    up. repeated: attempts beyond the first.  scores: means of the last other round, by ``reported`` clients.  why: of a
    failure.  waits: why the engine stores nothing.  attempt: from 0.  certificates: Unix times of their ends, by
    holder, filled in by the status's server.  aborted: the operator ends it early.
    """

    system: str
    title: str
    mode: str
    crypto: str
    session: str
    plan_sha256: str
    plan: Count
    engine: str
    pid: int
    rounds: Count
    clients: Count
    rehearsal: bool = False
    run: Count = 1
    aborted: bool = False
    phase: Phase = "waiting"
    round: Count = 0
    attempt: Count = 0
    done: Count = 0
    skipped: Count = 0
    repeated: Count = 0
    seconds: float = 0.0
    since: float = 0.0
    written: float = 0.0
    why: str = ""
    waits: str = ""
    scores: dict[str, float | None] = {}
    reported: dict[str, Count] = {}
    parties: tuple[PartyStatus, ...] = ()
    certificates: dict[str, float] = {}


def first_status(plan: Plan) -> RunStatus:
    config = plan.resolved
    system = config.definition
    cipher = config.crypto if system.encrypts(config.mode) else "none"
    return RunStatus(
        system=system.name,
        title=system.title + (" (emulated cipher)" if cipher == "emulated" else ""),
        mode=config.mode,
        crypto=cipher,
        session=plan.session,
        plan_sha256=plan.sha256,
        plan=plan.version,
        engine="nats",
        pid=os.getpid(),
        rounds=config.rounds,
        clients=sum(role == plan.client_role for _, role in plan.members),
        rehearsal=plan.settings.rehearsal,
        run=plan.run,
        since=time.time(),
    )


def at_words(round: int, attempt: int, rounds: int) -> str:
    """``Round 3 of 10, attempt 2``: people count attempts from 1."""
    head = "Set-up" if round == 0 else f"Round {round} of {rounds}" if round <= rounds else "After the last round"
    return head + (f", attempt {attempt + 1}" if attempt else "")


class OwnNumbers(Journal):
    """Another party's ``NodeObserver``: writes the log, and sums up own reports."""

    def __init__(self, home: Home, say: Say) -> None:
        super().__init__(say=say)
        own = PartyStatus(name=home.name, role=home.role, connected=True)
        self._home, self._since, self._told = home, time.time(), (own, Report((0, 0), 0))

    @property
    def status(self) -> RunStatus:
        """Of this party alone. Raises UserError if revoked."""
        plan, (sums, last) = plan_of(self._home), self._told
        own = msgspec.structs.replace(sums, round=last.era[0], attempt=last.era[1], commit=last.commit)
        own.add(last)
        ends = {own.name: validity(read_private(self._home.certificate))[1]}
        at = {"round": own.round, "attempt": own.attempt, "done": max(0, own.round - 1), "since": self._since}
        phase = "round" if own.round else "waiting"
        return msgspec.structs.replace(first_status(plan), phase=phase, parties=(own,), certificates=ends, **at)

    def began(self, era: Era) -> None:
        super().began(era)
        self._since = time.time()

    def seen(self, party: str) -> None:
        self._told[0].last_seen = time.time()

    def told(self, report: Report) -> None:
        sums, last = self._told
        if report.era != last.era:
            sums = msgspec.structs.replace(sums)
            sums.add(last)
        self._told = sums, report
