"""What an operator sees of a deployment: the hub's ``status.json`` in its run folder (``recorder.py``).

It holds no model, no cluster, and no reason of a refusal, which stays in the log of the party that refused.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import Literal

import msgspec

from coterie.deploy.packets import Report
from coterie.deploy.plan import Plan, plan_hash
from coterie.record.folder import STATUS as STATUS

HEARTBEAT_S = 5.0
"""The hub writes its status at least so often."""

Phase = Literal["waiting", "set-up", "round", "finish", "ended", "failed"]
Count = int
_MOST_SUM = 1 << 62  # of a party's whole run: files hold no larger numbers


class ReportedSums(msgspec.Struct, kw_only=True):
    """What one party, or all of a role, have reported together. bytes_up, bytes_down: of packets.

    refused: what was refused, by kind.
    """

    bytes_up: Count = 0
    bytes_down: Count = 0
    busy_s: float = 0.0
    refused: dict[str, Count] = {}

    def add(self, report: Report) -> None:
        self.bytes_up = min(self.bytes_up + report.bytes_up, _MOST_SUM)
        self.bytes_down = min(self.bytes_down + report.bytes_down, _MOST_SUM)
        self.busy_s += report.busy_s
        refused = Counter(self.refused) + Counter(report.refused)
        self.refused = {kind: min(count, _MOST_SUM) for kind, count in refused.items()}


class PartyStatus(ReportedSums, kw_only=True):
    """One party, as the hub knows it. Sums are over the whole run.

    fingerprint: of its keys in the roster, "" for a member that has not joined.  connected: as the engine says.
    rolled_back: its state went back, and it is excluded.  last_seen: Unix seconds of its last packet.
    round, attempt, commit: of its last report.  missed: how often the hub went on without it, by reason.
    implausible: its impossible reports.
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
    missed: dict[str, Count] = {}
    implausible: Count = 0


class RunStatus(msgspec.Struct, kw_only=True):
    """``status.json``. started, since, written: Unix seconds of the run's start, of this phase, and of the file.

    plan: its version.  plan_sha256: its hash, hexadecimal, of which every party prints the beginning.  done: committed
    rounds.  skipped: those of them that were given up.  repeated: attempts beyond the first.  scores: means of the last
    round that clients have reported on.  reported: by score, how many did.  why: the run failed, in the hub's words.
    waits: why nothing can be stored at the engine.  attempt: from 0, as in messages and in ``metrics.jsonl``; people
    are shown it from 1.  certificates: when each ends, Unix time, by its holder; who serves the status fills it in.
    run: its number in this deployment.  aborted: the operator ends it early.
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
    started: float = 0.0
    since: float = 0.0
    written: float = 0.0
    why: str = ""
    waits: str = ""
    scores: dict[str, float | None] = {}
    reported: dict[str, Count] = {}
    parties: tuple[PartyStatus, ...] = ()
    certificates: dict[str, float] = {}


def first_status(plan: Plan) -> RunStatus:
    """What the plan says of a run that has not begun."""
    config = plan.resolved
    system = config.definition
    cipher = config.crypto if system.encrypts(config.mode) else "none"
    return RunStatus(
        system=system.name,
        title=system.title + (" (emulated cipher)" if cipher == "emulated" else ""),
        mode=config.mode,
        crypto=cipher,
        session=plan.session,
        plan_sha256=plan_hash(plan),
        plan=plan.version,
        engine="nats",
        pid=os.getpid(),
        rounds=config.rounds,
        clients=sum(role == plan.client_role for _, role in plan.members),
        rehearsal=plan.settings.rehearsal,
        run=plan.run,
        started=time.time(),
        since=time.time(),
    )


def at_words(round: int, attempt: int, rounds: int) -> str:
    """``Round 3 of 10, attempt 2``: for people, who count attempts from 1."""
    head = "Set-up" if round == 0 else f"Round {round} of {rounds}" if round <= rounds else "After the last round"
    return head + (f", attempt {attempt + 1}" if attempt else "")
