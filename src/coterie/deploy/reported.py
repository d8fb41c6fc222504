"""Parties' reports, checked and summed up, and the hub's ``result.json``.

Nothing proves a reported number. Impossible ones are kept out, so a party can spoil only its own numbers and the means.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, get_args

import msgspec
import numpy as np

from coterie.data.own import name_of
from coterie.deploy.hub import EXCLUDED
from coterie.deploy.packets import Packet, Report, Traffic
from coterie.deploy.status import RunStatus
from coterie.record.comparison import PRIOR
from coterie.record.folder import CLIENTS, PARTITION
from coterie.record.summary import Line
from coterie.runs.config import Resolved
from coterie.runs.evaluation import Scores
from coterie.runs.metrics import Metric, run_metrics, score

OWN_LOG = "the reason is in its own log"
PACKET_KINDS = frozenset({"packet", "push", "engine", *(kind.__name__ for kind in get_args(Packet))})
"""What a node refuses besides messages: packets that do not open, words that their sender may not say."""
OTHER = "other"
_OPTIONS = ("mode", "seed", "rounds", "model", "devices")
_EXCLUDED = {words: name for name, words in EXCLUDED.items()}
WHYS = frozenset({"late", "gone", "offline", "refused"})

_MOST_BYTES, _MOST_S, _MOST_COUNT = 1 << 50, 1e9, 1 << 40  # of one party in one attempt: more is no report
_MOST_SCORE = 1e100
_PLAIN = ("local_accuracy", "local_loss", f"{PRIOR}local_accuracy")  # in a line beside its metrics


class Check:
    """allowed: scores that clients may report.

    kinds: of messages that a party may refuse.  measures: the run's metrics.  shares: scores between 0 and 1.
    """

    def __init__(self, config: Resolved, allowed: Collection[str]) -> None:
        self.kinds = PACKET_KINDS.union(kind.__name__ for kind in config.definition.kinds(config.own))
        self.measures = run_metrics(config)
        forms = ("", PRIOR)
        names = {f"{form}local_{metric.name}": metric.share for metric in self.measures for form in forms}
        self.allowed = frozenset(allowed) & {"local_loss", *names}
        self.shares = {name for name, share in names.items() if share}

    def __call__(self, report: Report, role: str, client_role: str) -> Report | None:
        """The fields that count; None for an impossible report. Only clients have scores."""
        counts = (report.commit, *report.refused.values())
        if max(report.bytes_up, report.bytes_down) > _MOST_BYTES or max(counts) > _MOST_COUNT:
            return None
        if not 0 <= report.busy_s <= _MOST_S:
            return None
        refused: Counter[str] = Counter()
        for kind, count in report.refused.items():
            refused[kind if kind in self.kinds else OTHER] += count
        scores = {name: value for name, value in report.scores.items() if name in self.allowed and role == client_role}
        if any(math.isnan(value) or _MOST_SCORE < abs(value) < math.inf for value in scores.values()):
            return None
        if any(not 0 <= value <= 1 + 1e-6 for name, value in scores.items() if name in self.shares):
            return None
        return msgspec.structs.replace(report, refused=dict(refused), scores=scores)


def counted(reports: Mapping[str, Sequence[Report]], roles: Mapping[str, str]) -> Line:
    """By role. reports, roles: by party."""
    sums: dict[str, Traffic] = {}
    for party, own in reports.items():
        for report in own:
            sums.setdefault(roles[party], Traffic()).add(report)
    return {
        "bytes_up": {role: of.bytes_up for role, of in sums.items()},
        "bytes_down": {role: of.bytes_down for role, of in sums.items()},
        "phase_seconds": {f"{role}/work": of.busy_s for role, of in sums.items()},
        "refused": {f"{role}/{kind}: {OWN_LOG}": n for role, of in sums.items() for kind, n in of.refused.items()},
    }


def scored(scores: Mapping[str, Mapping[str, float]]) -> Line:
    """Means and bands over the clients that report a score, and their number."""
    by_name: dict[str, list[float]] = {}
    for own in scores.values():
        for name, value in own.items():
            by_name.setdefault(name, []).append(value)
    found = Scores({name: np.array(values) for name, values in by_name.items()})
    means = found.means()
    line: Line = {name: means.pop(name) for name in _PLAIN if name in means}
    metrics = {"metrics": means} if means else {}
    return {**line, **metrics, "bands": found.bands(), "reported": {name: len(own) for name, own in by_name.items()}}


def means_of(line: Line, measures: Sequence[Metric]) -> dict[str, float | None]:
    """The leading score first, each with that of the prior."""
    forms = (form + f"local_{metric.name}" for metric in measures for form in ("", PRIOR))
    names = (*forms, "local_loss")
    return {name: score(line, name) for name in names if name in line["reported"]}


def away(round: int, missed: Sequence[tuple[str, str]]) -> Line:
    """Parties that the hub went on without, and why (``late``, ``gone``)."""
    return {
        "late": [party for party, why in missed if why == "late"],
        "lost": {f"{party} of round {round}": why for party, why in missed if why != "late"},
    }


def why_missed(words: str) -> str:
    return words if words in WHYS else _EXCLUDED.get(words, OTHER)


def result_of(status: RunStatus, config: Resolved, lines: Sequence[Line], running: bool) -> dict[str, Any]:
    """``result.json`` without sums of lines."""
    reporting = [max(line.get("reported", {}).values(), default=0) for line in lines]
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
    return {
        "system": status.system,
        "title": status.title,
        "crypto": status.crypto,
        "emulated": status.crypto == "emulated",
        **{key: getattr(config, key) for key in _OPTIONS},
        "clients": status.clients,
        "data": name_of(config.data) if status.rehearsal else "the clients' own data",
        "partition": config.partition if status.rehearsal else "each client holds its own",
        "task": config.task,
        "virtual_seconds": None,
        "sees": config.definition.seen_by(config.mode, config.own),
        "assumes": config.definition.assumed(config.mode, config.own),
        "deployment": deployment,
    }


def tables(
    clients: Sequence[str], scores: Mapping[str, Mapping[str, float]], samples: Mapping[str, int]
) -> dict[str, dict[str, Any]]:
    """``clients.json`` and ``partition.json``: last scores and samples, as far as reported."""
    names = sorted({name for own in scores.values() for name in own})
    found: dict[str, dict[str, Any]] = {}
    if names:
        values = {name: [own.get(name) for own in scores.values()] for name in names}
        found[CLIENTS] = {"clients": list(scores), **values}
    told = [samples.get(name) for name in clients]
    known = {} if None in told else {"samples": told}
    found[PARTITION] = {"clients": list(clients), **known}
    return found
