"""The tables of a report."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from coterie.record.comparison import Measure
from coterie.record.load import Run
from coterie.record.schema import AuditRecord, Unread, Used
from coterie.report.clusters import Sets
from coterie.report.comparison import RunGroup, common_target, leading
from coterie.report.figure import colour
from coterie.report.words import capital, explained, leak_half, leak_halves, places, sides
from coterie.runs.findings import is_control, merged, noise

_ROUND, _NO_WORD = re.compile(r" of round \d+"), re.compile(r"\W")
_SHOWN = 20  # rows of a list of mishaps
MOVED = {"sent": "bytes_up", "received": "bytes_down"}


def per_client_and_round(run: Run, field: str) -> float | None:
    """Bytes (``bytes_up``, ``bytes_down``), a mean; None if not counted."""
    moved = run.client_bytes(field)
    return None if moved is None else sum(moved) / len(moved)


def ends(run: Run) -> list[dict[str, Any]]:
    rows = []
    named = {field: (name, one) for one in (run.leading, *run.others) for field, name in sides(one).items()}
    for field, (name, measure) in named.items():
        _, values = run.points(field)
        bands = [] if field.startswith("fine") else run.bands(field)
        worst, *_, best = (bands[-1][1] if measure.higher else bands[-1][1][::-1]) if bands else (None, None)
        if values:
            top = max(values) if measure.higher else min(values)
            rows.append({"name": name, "cells": [values[0], top, values[-1], worst, best], "share": measure.share})
    return rows


def own_scores(run: Run) -> dict[str, Any] | None:
    names, samples = run.partition.names, run.partition.samples
    if not names or samples is None:
        return None
    at = {client: i for i, client in enumerate(run.each.get("clients", ()))}  # who has not joined has no model
    found = [(m, run.each[f"local_{m.name}"]) for m in run.result.measures if f"local_{m.name}" in run.each]
    rows = []
    for i, (name, n) in enumerate(zip(names, samples, strict=True)):
        here = at.get(f"client/{i}")
        cells = [(None if here is None else values[here], m.share) for m, values in found]
        rows.append({"name": name, "samples": n, "cells": cells})
    return {"columns": [f"local {m.label}" for m, _ in found], "rows": rows}


def cluster_table(run: Run, members: Sets) -> list[dict[str, Any]]:
    rows = []
    for cluster in sorted(frozenset().union(*members)):
        inside = [client for client, own in enumerate(members) if cluster in own]
        counts = run.partition.label_counts
        held = [sum(column) for column in zip(*(counts[client] for client in inside), strict=True)] if counts else []
        largest = sorted((label for label, n in enumerate(held) if n), key=lambda label: -held[label])[:3]
        classes = [(run.partition.class_name(label), held[label] / sum(held)) for label in largest]
        named = [run.partition.names[client] for client in inside] if run.partition.names else inside
        rows.append({"number": cluster, "colour": colour(cluster), "clients": named, "classes": classes})
    return rows


def barred(totals: Mapping[str, float]) -> list[dict[str, Any]]:
    most = max(totals.values(), default=0) or 1
    whole = sum(totals.values()) or 1
    return [{"name": n, "value": v, "share": v / whole, "width": 100 * v / most} for n, v in totals.items() if v]


def paired(first: Mapping[str, float], second: Mapping[str, float]) -> list[dict[str, Any]]:
    """Two columns with bars, each by its largest, sorted by the first."""
    most = [max(column.values(), default=0) or 1 for column in (first, second)]
    names = sorted({*first, *second}, key=lambda n: (-first.get(n, 0), -second.get(n, 0), n))
    return [
        {
            "name": name,
            "values": [column.get(name) for column in (first, second)],
            "widths": [100 * column.get(name, 0) / top for column, top in zip((first, second), most, strict=True)],
        }
        for name in names
    ]


def mishaps(run: Run) -> list[dict[str, Any]]:
    """What, how often, and the number of rows left out."""
    lost = (f"{_ROUND.sub('', what)}: {why}" for part in run.costs for what, why in part.lost.items())
    far = "with weights over a hundred times the model's own, or a hundred times the usual part in a mean"
    skipped = (line.notes.skipped for line in run.rounds if line.notes.skipped is not None)
    slow = Counter(name for line in run.rounds for name in line.notes.too_slow)
    kinds = (
        ("Late", "answers that came after their round", Counter(name for part in run.costs for name in part.late)),
        ("Lost", "messages that never arrived in time", Counter(lost)),
        ("Refused", "messages that their receiver could not accept", Counter(run.total("refused"))),
        ("Outliers", far, Counter(name for line in run.rounds for name in line.notes.outliers)),
        ("Too slow", "devices for which no time budget has room", slow),
        ("Skipped", "rounds that could not be completed, or moved no model", Counter(skipped)),
    )
    return [
        {
            "kind": kind,
            "meaning": meaning,
            "total": sum(counts.values()),
            "rows": counts.most_common(_SHOWN),
            "more": max(len(counts) - _SHOWN, 0),
        }
        for kind, meaning, counts in kinds
        if counts
    ]


def comparison_table(groups: Sequence[RunGroup]) -> dict[str, Any]:
    """A part for each metric, and one for other counts. The best means of the leading metric's sides, in any form, are
    marked.
    """
    measure, others = leading(groups), groups[0].runs[0].others
    scored = {one: _columns(one) for one in (measure, *others)}
    columns = {field: of for part in (*scored.values(), _COLUMNS) for field, of in part.items()}
    every = [{f: found.value(partial(_value, field=f)) for f in columns} for found in groups]
    fields = [f for f in columns if any(row[f] for row in every)]
    titled = [(f"results_{_NO_WORD.sub('_', one.name)}", capital(one.label), of) for one, of in scored.items()]
    titled.append(("costs", "Costs, and what else was counted", _COLUMNS))
    both, best_of = explained(measure), max if measure.higher else min
    targets = {f: common_target(groups, f, measure) for f in both}
    cells = [{f: row[f] for f in fields} for row in every]
    best: dict[str, float | None] = {}
    for field in both:
        rivals = (field, *(f"{form}_{field}" for form in ("fine_tuned", "prior", "mixed")))
        means = [cell[0] for row in cells for f in rivals if (cell := row.get(f))]
        best |= dict.fromkeys(rivals, best_of(means) if len(means) > 1 else None)
    return {
        "parts": [
            {"name": name, "title": title, "columns": [(f, *of[f]) for f in fields if f in of], "costs": of is _COLUMNS}
            for name, title, of in titled
        ],
        "fields": fields,
        "targets": {f: target for f, target in targets.items() if target is not None},
        "best": best,
        "rows": [
            {
                "group": found,
                "crypto": found.runs[0].result.crypto,
                "cells": row,
                "reached": {
                    f: (
                        found.rounds_to(f, t, higher=measure.higher),
                        found.seconds_to(f, t, higher=measure.higher),
                    )
                    for f, t in targets.items()
                    if t is not None
                },
            }
            for found, row in zip(groups, cells, strict=True)
        ],
    }


_COLUMNS = {
    "backdoor_success": ("backdoor success", "percent"),
    "detection_rate": ("attackers flagged", "percent"),
    "false_alarms": ("false alarms", "percent"),
    "ari": ("groups found", "index"),
    "sent": ("sent by a client a round", "size"),
    "received": ("received by a client a round", "size"),
    "seconds": ("real time", "duration"),
    "virtual_seconds": ("virtual time", "duration"),
}


def _columns(measure: Measure) -> dict[str, tuple[str, str]]:
    unit = "percent" if measure.share else "plain"
    return {field: (where.removesuffix(","), unit) for field, where in places(measure).items()}


def _value(run: Run, field: str) -> float | None:
    if field in MOVED:
        return per_client_and_round(run, MOVED[field])
    if field == "ari":
        return None if run.result.grouping is None else run.result.grouping.ari
    if field in ("detection_rate", "false_alarms"):
        found = run.result.detection
        return None if found is None else getattr(found, field.removeprefix("detection_"))
    value = run.result.score(field)
    if value is None and field.startswith("fine_tuned"):
        tuned = run.points(field)[1]
        return tuned[-1] if tuned else None
    return value


def by_reason(not_applicable: Mapping[str, str]) -> list[tuple[str, str]]:
    """Attacks that can't be applied, ``"a; b"``, by reason."""
    found: dict[str, list[str]] = {}
    for name, why in not_applicable.items():
        found.setdefault(why, []).append(name)
    return [("; ".join(names), why) for why, names in found.items()]


def by_role(not_judged: Iterable[Unread | Mapping[str, str]]) -> list[tuple[str, str]]:
    """Fields that no attack has read: ``"Update.cipher (bytes), Report.n (a number)"``."""
    found: dict[str, list[str]] = {}
    for one in msgspec.convert(list(not_judged), list[Unread], from_attributes=True):
        words = f"{one.message}.{one.field} ({one.why})"
        if words not in found.setdefault(one.role, []):
            found[one.role].append(words)
    return [(role, ", ".join(fields)) for role, fields in found.items()]


def audit_table(audits: Sequence[AuditRecord | None]) -> dict[str, Any] | None:
    known = [audit for audit in audits if audit is not None]
    if not known or len(known) < len(audits):
        return None
    rows = merged([msgspec.to_builtins(audit.attacks) for audit in known])
    return {
        "rows": [{**row, "half": leak_half(noise(row)), "control": is_control(row["name"])} for row in rows],
        "halves": leak_halves([noise(row) for row in rows]),
        "runs": len(known),
        "not_applicable": by_reason({name: why for audit in known for name, why in audit.not_applicable.items()}),
        "not_judged": by_role(one for audit in known for one in audit.not_judged),
        "stopped": [audit.stopped for audit in known if audit.stopped is not None],
        "drifted": [audit.drifted for audit in known if audit.drifted is not None],
    }


def device_table(used: Mapping[str, Used] | None) -> list[dict[str, Any]]:
    """Means over clients, and the largest memory."""
    rows = []
    for name, one in (used or {}).items():
        joules = [getattr(one.joules, part) / one.clients for part in ("compute", "radio", "idle")]
        rows.append(
            {
                "name": name,
                "clients": one.clients,
                "compute_s": one.compute_s / one.clients,
                "radio_s": one.radio_s / one.clients,
                "there_s": one.there_s / one.clients,
                "joules": [*joules, sum(joules)],
                "peak_memory_bytes": one.peak_memory_bytes,
                "memory_bytes": one.memory_gib * 2**30,
                "fits": one.peak_memory_bytes <= one.memory_gib * 2**30,
            }
        )
    return rows
