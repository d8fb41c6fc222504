"""The report: one self-contained HTML file about one run, or about several side by side."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jinja2

from coterie import __version__
from coterie.protocol.errors import UserError
from coterie.record.comparison import Measure
from coterie.record.files import atomic_write
from coterie.record.load import Run, compared, find, load
from coterie.report import audits, clusters, comparison, devices, ledger, plots, poisoning, race, selection, words
from coterie.report.figure import colour
from coterie.runs.metrics import score

_ROUND = re.compile(r" of round \d+")
_SHOWN = 20  # rows of a list of mishaps
_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=True,  # names, settings and words in a run folder are other people's
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_NUMBERS = (words.percent, words.metric, words.size, words.energy, words.duration, words.number, words.plural)


def _unbroken(shown: Callable[..., str]) -> Callable[..., str]:
    """The same words, whose narrow spaces do not break between a number and its unit."""
    return lambda *args: re.sub(r"(?<=[\d±]) ", "\u202f", shown(*args))


_TEMPLATES.filters |= {of.__name__: _unbroken(of) for of in _NUMBERS}
_TEMPLATES.filters |= {"capital": words.capital, "listed": words.listed}


def render(folders: Sequence[Path], out: Path | None = None) -> Path:
    """Draw the report of one run, or the comparison of several, as one self-contained HTML file; gives its path.

    folders: run folders, or folders that hold run folders (as a comparison does). out: the file to write; without it
    ``report.html`` in the one folder that was named, or in the folder that holds all that were named.

    Raises UserError for a folder without runs, or a file of a run that is missing, corrupt or foreign; RunError where
    the report cannot be written.
    """
    folders = [Path(folder) for folder in folders]
    runs = [load(folder) for folder in find(folders)]
    target = Path(out) if out is not None else _home(folders) / "report.html"
    if not target.parent.is_dir():
        raise UserError(f"{target.parent}: no such folder to write the report to; create it or name another")
    told = compared(folders[0]) if len(folders) == 1 else None
    page = run_page(runs[0]) if len(runs) == 1 else comparison_page(runs, told)
    atomic_write(target, page.encode(errors="replace"))
    return target


def run_page(run: Run) -> str:
    """The page of one run."""
    return _TEMPLATES.get_template("template.html").render(
        title=f"{run.result.name} on {run.result.data}", run=_run_view(run, "run"), comparison=None, version=__version__
    )


def comparison_page(runs: Sequence[Run], told: Mapping[str, Any] | None = None) -> str:
    """The page of several runs: all of them in one picture and one table, then each by itself.

    told: of ``compare.json``, where ``coterie compare`` made the runs.
    """
    groups = comparison.group(runs)
    measure, fields = comparison.leading(groups), _sides(comparison.leading(groups))
    names = list(dict.fromkeys(run.result.name for run in runs))
    view = {
        "heading": " and ".join(names) if len(names) < 3 else f"{', '.join(names[:-1])} and {names[-1]}",
        "groups": groups,
        "runs": [
            _run_view(run, f"run{number}") | {"label": next(found.label for found in groups if run in found.runs)}
            for number, run in enumerate(runs)
        ],
        "differing": comparison.differing_work(runs),
        "emulated": sorted({run.result.name for run in runs if run.result.crypto == "emulated"}),
        "first": runs[0].result,
        "table": _table(groups),
        "race": _race(told) if told else None,
        "audits": [
            (one.label, audit) for one in groups if (audit := audits.table([run.result.audit for run in one.runs]))
        ],
        "repeated": any(len(found.runs) > 1 for found in groups),
        "tuned": any(run.points(field)[0] for run in runs for field in fields if field.startswith("fine")),
        "leading": measure,
        "scores": comparison.scores("scores", groups),
        "costs": comparison.costs("costs", groups) if comparison.counted(groups) else None,
    }
    return _TEMPLATES.get_template("template.html").render(
        title=f"Comparison: {view['heading']}", run=None, comparison=view, version=__version__
    )


def _home(folders: Sequence[Path]) -> Path:
    if len(folders) == 1:
        return folders[0]
    parents = {folder.resolve().parent for folder in folders}
    if len(parents) > 1:
        raise UserError("the runs lie in different folders; say where the report of all of them should go")
    return parents.pop()


def _run_view(run: Run, key: str) -> dict[str, Any]:
    """Everything that the template shows of a run; figures and tables that it has nothing for are None or empty."""
    members = clusters.final_members(run)
    order = clusters.order(members, run.partition.groups) if members else tuple(range(run.result.shown))
    history = clusters.history(run)
    lines = run.rounds
    sized = any(line.notes.clusters and line.notes.clusters.sizes for line in lines)
    timed = any(line.bytes_up or line.phase_seconds for line in lines)
    counts, matrix = run.partition.label_counts, run.observed.affinity
    features, chosen = run.observed.features or (), selection.selected(run)
    described = sum(map(bool, features)) > 1
    figures = {
        "leading": plots.scores(f"{key}-leading", run, run.leading)
        if any(run.points(field)[0] for field in _sides(run.leading))
        else None,
        "metrics": [
            plots.scores(f"{key}-{number}-metric", run, measure)
            for number, measure in enumerate(run.others)
            if any(run.points(field)[0] for field in plots.explained(measure))
        ],
        "loss": plots.loss(f"{key}-loss", run) if any(run.points(f)[0] for f in _LOSSES) else None,
        "membership": plots.membership(f"{key}-membership", history) if history else None,
        "agreement": plots.agreement(f"{key}-agreement", run) if any(line.grouping for line in lines) else None,
        "sizes": plots.sizes(f"{key}-sizes", lines) if sized and not history else None,
        "affinity": plots.affinity(f"{key}-affinity", matrix, order, members) if matrix else None,
        "classes": plots.classes(f"{key}-classes", run.partition, order, members) if counts and counts[0] else None,
        "per_round": plots.per_round(f"{key}-per-round", run) if timed else None,
        "features": selection.feature_space(f"{key}-features", features, members, run.partition.groups)
        if described
        else None,
        "timeline": selection.timeline(f"{key}-timeline", run) if any(line.notes.events for line in lines) else None,
        "selections": selection.selections(f"{key}-selections", chosen, order, members) if chosen else None,
    }
    return {
        **vars(run),
        "key": key,
        "leading": run.leading,
        "others": run.others,
        "attackers": None
        if run.result.attack is None
        else poisoning.attackers(run.result.attack, run.result.attacker_names, run.result.clients),
        "figures": figures,
        "ends": _ends(run),
        "named": _named(run),
        "traffic": [per_client_and_round(run, field) for field in _MOVED.values()],
        "history": history,
        "clusters": _clusters(run, members) if members else [],
        "mingled": clusters.mingled(run),
        "events": clusters.events(run),
        "bytes_by_role": _paired(run.total("bytes_up"), run.total("bytes_down")),
        "bytes_by_message": _barred(run.total("message_bytes")),
        "seconds_by_work": _barred(run.total("phase_seconds")),
        "virtual_seconds_by_message": _barred(run.total("phase_virtual_seconds")),
        "selection": selection.view(run),
        "cluster_events": selection.events(run),
        "latencies": selection.latencies(run) if run.result.deployment is None else [],
        "mishaps": _mishaps(run),
        "audit": audits.table([run.result.audit]),
        "ledger": ledger.table(run.result.ledger),
        "dp_audit": ledger.audited(run.result.dp_audit),
        "devices": devices.table(run.result.devices_used),
        "participants": [line.notes.participants for line in lines if line.notes.participants is not None],
    }


_SIDES = {
    "global": "global",
    "local": "local",
    "fine_tuned_global": "global, fine-tuned,",
    "fine_tuned_local": "local, fine-tuned,",
}
_LOSSES = ("global_loss", "local_loss")
_MOVED = {"sent": "bytes_up", "received": "bytes_down"}


def _sides(measure: Measure) -> dict[str, str]:
    """The fields of a metric, and their names."""
    return {f"{side}_{measure.name}": f"{where} {measure.label}" for side, where in _SIDES.items()}


def per_client_and_round(run: Run, field: str) -> float | None:
    """Bytes that a client moved (``bytes_up``, ``bytes_down``), mean over clients and rounds; None if not counted."""
    moved = run.client_bytes(field)
    return None if moved is None else sum(moved) / len(moved)


def _ends(run: Run) -> list[dict[str, Any]]:
    """Where each metric started, its best, where it ended, and the worst and best off client there."""
    rows = []
    named = {field: (name, one) for one in (run.leading, *run.others) for field, name in _sides(one).items()}
    for field, (name, measure) in named.items():
        _, values = run.points(field)
        bands = [] if field.startswith("fine") else run.bands(field)
        worst, *_, best = (bands[-1][1] if measure.higher else bands[-1][1][::-1]) if bands else (None, None)
        if values:
            top = max(values) if measure.higher else min(values)
            rows.append({"name": name, "cells": [values[0], top, values[-1], worst, best], "share": measure.share})
    return rows


def _named(run: Run) -> dict[str, Any] | None:
    """Every client's own scores, where the data name their clients: columns, and a row for each."""
    names, samples = run.partition.names, run.partition.samples
    if not names or samples is None:
        return None
    at = {
        client: i for i, client in enumerate(run.each.get("clients", ()))
    }  # a client that has not joined has no model
    found = [(m, run.each[f"local_{m.name}"]) for m in run.result.measures if f"local_{m.name}" in run.each]
    rows = []
    for i, (name, n) in enumerate(zip(names, samples, strict=True)):
        here = at.get(f"client/{i}")
        cells = [(None if here is None else values[here], m.share) for m, values in found]
        rows.append({"name": name, "samples": n, "cells": cells})
    return {"columns": [f"local {m.label}" for m, _ in found], "rows": rows}


def _clusters(run: Run, members: clusters.Sets) -> list[dict[str, Any]]:
    """The clusters at the end: who is in them, and which classes those hold most of."""
    rows = []
    for number in sorted(frozenset().union(*members)):
        inside = [client for client, own in enumerate(members) if number in own]
        counts = run.partition.label_counts
        held = [sum(column) for column in zip(*(counts[client] for client in inside), strict=True)] if counts else []
        largest = sorted((label for label, n in enumerate(held) if n), key=lambda label: -held[label])[:3]
        classes = [(label, held[label] / sum(held)) for label in largest]
        rows.append({"number": number, "colour": colour(number), "clients": inside, "classes": classes})
    return rows


def _barred(totals: Mapping[str, float]) -> list[dict[str, Any]]:
    most = max(totals.values(), default=0) or 1
    whole = sum(totals.values()) or 1
    return [{"name": n, "value": v, "share": v / whole, "width": 100 * v / most} for n, v in totals.items() if v]


def _paired(first: Mapping[str, float], second: Mapping[str, float]) -> list[dict[str, Any]]:
    """Two columns of numbers with bars, each column by its own largest, rows by the first column."""
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


def _mishaps(run: Run) -> list[dict[str, Any]]:
    """Late, lost, refused, outliers, too slow, skipped: what, how often, and how many rows were left out."""
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


def _race(told: Mapping[str, Any]) -> dict[str, Any]:
    """What a comparison says of its fairness, and what its servers learned."""
    topics, heads = race.topics_of(told["rows"]), race.lead_columns(told)
    return {
        "budget": race.budget(told),
        "attack": race.attack(told),
        "not_shared": list(race.not_shared(told)),
        "sentences": list(race.sentences(told)),
        "lead": race.lead_title(told),
        "lead_note": race.lead_note(told),
        "lead_heads": [head for _, head, _ in heads],
        "leads": [
            (lead["over"], [race.with_interval(score(lead, field), of["share"]) for field, _, of in heads])
            for lead in told["leads"]
            if len(told["rows"][0]["runs"]) > 1
        ],
        "topics": [race.TOPICS[topic] for topic in topics],
        "learned": [
            {"method": row["method"], "cells": [(row["learned"] or {}).get(topic) for topic in topics]}
            for row in told["rows"]
            if row["learned"] is not None
        ],
    }


def _table(groups: Sequence[comparison.Group]) -> dict[str, Any]:
    """The rows of a comparison; the best mean of each side of the leading metric, fine-tuned or not, is marked."""
    measure, others = comparison.leading(groups), groups[0].runs[0].others
    columns = {**_columns(measure), **_COLUMNS}
    for one in others:
        columns |= {field: of for field, of in _columns(one).items() if not field.startswith("fine_tuned_global")}
    every = [{f: found.value(partial(_value, field=f)) for f in columns} for found in groups]
    fields = [f for f in columns if any(row[f] for row in every)]
    explained, best_of = plots.explained(measure), max if measure.higher else min
    targets = {f: comparison.common_target(groups, f, measure) for f in explained}
    cells = [{f: row[f] for f in fields} for row in every]
    best: dict[str, float | None] = {}
    for field in explained:
        rivals = (field, f"fine_tuned_{field}")  # fine-tuning is what a clustered method has to beat
        means = [cell[0] for row in cells for f in rivals if (cell := row.get(f))]
        best |= dict.fromkeys(rivals, best_of(means) if len(means) > 1 else None)
    return {
        "columns": [(f, *columns[f]) for f in fields],
        "grouped": "ari" in fields,
        "targets": {f: target for f, target in targets.items() if target is not None},
        "best": best,
        "rows": [
            {
                "group": found,
                "colour": colour(number),
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
            for number, (found, row) in enumerate(zip(groups, cells, strict=True))
        ],
    }


_COLUMNS = {
    "backdoor_success": ("backdoor success", "percent"),
    "detection_rate": ("attackers flagged", "percent"),
    "false_alarms": ("false alarms", "percent"),
    "ari": ("groups found", "index"),
    "sent": ("sent", "size"),
    "received": ("received", "size"),
    "seconds": ("real time", "duration"),
    "virtual_seconds": ("virtual time", "duration"),
}
"""Of a comparison's table, beside metrics: the name of each and how its numbers are written."""


def _columns(measure: Measure) -> dict[str, tuple[str, str]]:
    """The columns of a metric."""
    return {field: (name, "percent" if measure.share else "plain") for field, name in _sides(measure).items()}


def _value(run: Run, field: str) -> float | None:
    if field in _MOVED:
        return per_client_and_round(run, _MOVED[field])
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
