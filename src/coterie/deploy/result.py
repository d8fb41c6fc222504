"""``result.json`` of a deployment, in the form of a simulation's, with all that is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.data.own import name_of
from coterie.deploy.reported import unknown
from coterie.deploy.status import RunStatus
from coterie.protocol.system import System
from coterie.record.folder import CLIENTS, PARTITION
from coterie.record.summary import Line, totals
from coterie.runs.config import Resolved
from coterie.runs.metrics import Metric

OWN_DATA = "the clients' own data"
_OPTIONS = ("mode", "seed", "rounds", "model", "devices")


@dataclass(frozen=True)
class RunSoFar:
    """What the hub knows of a run. lines: of ``metrics.jsonl``.  set_up, finish: before and after them."""

    status: RunStatus
    config: Resolved
    system: System
    measures: Sequence[Metric]
    set_up: Line
    lines: Sequence[Line]
    finish: Line | None


def content(known: RunSoFar, running: bool, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The content of ``result.json``. running: the run goes on.  facts: values known from elsewhere."""
    status, config, system, lines = known.status, known.config, known.system, known.lines
    reporting = [max(line.get("reported", {}).values(), default=0) for line in lines]
    found = {
        "system": status.system,
        "title": status.title,
        "crypto": status.crypto,
        "emulated": status.crypto == "emulated",
        **{key: getattr(config, key) for key in _OPTIONS},
        "clients": status.clients,
        "data": name_of(config.data) if status.rehearsal else OWN_DATA,
        "partition": config.partition if status.rehearsal else "each client holds its own",
        "task": config.task,
        "measures": [metric.facts for metric in known.measures],
        **totals(known.set_up, lines, known.finish),
        "virtual_seconds": None,
        "sees": system.seen_by(config.mode, config.own),
    }
    deployment = {
        "engine": status.engine,
        "session": status.session,
        "plan_sha256": status.plan_sha256,
        "plan": status.plan,
        "parties": sum(bool(one.fingerprint) for one in status.parties),
        "rehearsal": status.rehearsal,
        "running": running,
        "repeated": status.repeated,
        "reporting": [min(reporting), max(reporting)],
    }
    return with_facts({**found, "deployment": deployment}, facts)


def with_facts(found: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a ``result.json`` with further facts, such as a rehearsal's observer knows."""
    whole = {**found, **facts}
    known = [key for key, value in whole.items() if value is not None]
    if found["deployment"]["rehearsal"]:
        known.append("label_counts")  # the data were dealt
    return {**whole, "deployment": {**found["deployment"], "unknown": list(unknown(known))}}


def tables(
    clients: Sequence[str], scores: Mapping[str, Mapping[str, float]], samples: Mapping[str, int]
) -> dict[str, dict[str, Any]]:
    """``clients.json`` and ``partition.json``: clients' last scores and samples, as far as they are reported."""
    names = sorted({name for own in scores.values() for name in own})
    found: dict[str, dict[str, Any]] = {}
    if names:
        values = {name: [own.get(name) for own in scores.values()] for name in names}
        found[CLIENTS] = {"clients": list(scores), **values}
    told = [samples.get(name) for name in clients]
    known = {} if None in told else {"samples": told}
    found[PARTITION] = {"clients": list(clients), **known}
    return found
