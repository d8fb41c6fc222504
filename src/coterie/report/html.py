"""The report: one self-contained HTML file about one run, or about several side by side."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from coterie import __version__
from coterie.protocol.errors import UserError
from coterie.record.files import atomic_write
from coterie.record.load import Run, compared, find, load
from coterie.record.schema import RoundRecord
from coterie.report import clusters, comparison, ledger, plots, score_table, tables, words
from coterie.report.summary import attackers

TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=True,  # names, settings and words in a run folder are other people's
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_NUMBERS = (words.percent, words.metric, words.size, words.energy, words.duration, words.number, words.plural)


def _unbroken(shown: Callable[..., str]) -> Callable[..., str]:
    return lambda *args: re.sub(r"(?<=[\d±]) ", "\u202f", shown(*args))


TEMPLATES.filters |= {of.__name__: _unbroken(of) for of in _NUMBERS}
TEMPLATES.filters |= {"capital": words.capital, "listed": words.listed}


def render(folders: Sequence[Path], out: Path | None = None) -> Path:
    """Draw the report of one run, or the comparison of several, as one self-contained HTML file; gives its path.

    folders: run folders, or folders of them. out: the file; by default ``report.html`` in the one folder named, or in
    the folder that holds all those named. Raises UserError for a folder without runs or a bad file, RunError where the
    report cannot be written.
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
    return TEMPLATES.get_template("template.html").render(
        title=f"{run.result.name} on {run.result.data}", run=_run_view(run, "run"), comparison=None, version=__version__
    )


def comparison_page(runs: Sequence[Run], told: Mapping[str, Any] | None = None) -> str:
    """The page of several runs: together in one picture and one table, then each by itself.

    told: of ``compare.json``, if there is one.
    """
    groups = comparison.group(runs)
    measure, fields = comparison.leading(groups), words.sides(comparison.leading(groups))
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
        "table": tables.comparison_table(groups),
        "race": _race(told) if told else None,
        "audits": [
            (one.label, audit)
            for one in groups
            if (audit := tables.audit_table([run.result.audit for run in one.runs]))
        ],
        "repeated": any(len(found.runs) > 1 for found in groups),
        "tuned": any(run.points(field)[0] for run in runs for field in fields if field.startswith("fine")),
        "leading": measure,
        "scores": plots.compared_scores(groups),
        "costs": plots.compared_costs(groups) if comparison.counted(groups) else None,
    }
    return TEMPLATES.get_template("template.html").render(
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
    members, history = clusters.final_members(run), clusters.history(run)
    selected, result = clusters.selected(run), run.result
    return {
        **vars(run),
        "key": key,
        "leading": run.leading,
        "others": run.others,
        "attackers": None if result.attack is None else attackers(result.attack, result.attacker_names, result.clients),
        "figures": figures(run, members, history, selected),
        "ends": tables.ends(run),
        "named": tables.own_scores(run),
        "traffic": [tables.per_client_and_round(run, field) for field in tables.MOVED.values()],
        "history": history,
        "clusters": tables.cluster_table(run, members) if members else [],
        "mingled": clusters.mingled(run),
        "events": clusters.events(run),
        "bytes_by_role": tables.paired(run.total("bytes_up"), run.total("bytes_down")),
        "bytes_by_message": tables.barred(run.total("message_bytes")),
        "seconds_by_work": tables.barred(run.total("phase_seconds")),
        "virtual_seconds_by_message": tables.barred(run.total("phase_virtual_seconds")),
        "selection": clusters.selection_view(run, selected) if selected else None,
        "cluster_events": clusters.cluster_events(run),
        "latencies": clusters.latencies(run) if result.deployment is None else [],
        "mishaps": tables.mishaps(run),
        "audit": tables.audit_table([result.audit]),
        "ledger": ledger.ledger_table(result.ledger),
        "dp_audit": ledger.noise_table(result.dp_audit),
        "devices": tables.device_table(result.devices_used),
        "participants": [line.notes.participants for line in run.rounds if line.notes.participants is not None],
    }


def figures(
    run: Run,
    members: clusters.Sets | None,
    history: clusters.History | None,
    selected: clusters.Selected | None,
) -> dict[str, Any]:
    groups, matrix = run.partition.groups, run.observed.affinity
    order = clusters.order(members, groups) if members else tuple(range(run.result.shown))

    def known(*fields: str) -> bool:
        return any(run.points(field)[0] for field in fields)

    def noted(has: Callable[[RoundRecord], object]) -> bool:
        return any(has(line) for line in run.rounds)

    sized = noted(lambda line: line.notes.clusters and line.notes.clusters.sizes)
    timed = noted(lambda line: line.bytes_up or line.phase_seconds)
    counts, features = run.partition.label_counts, run.observed.features or ()
    told = sum(map(bool, features))
    return {
        "leading": plots.scores(run, run.leading) if known(*words.sides(run.leading)) else None,
        "metrics": [plots.scores(run, measure) for measure in run.others if known(*words.explained(measure))],
        "loss": plots.loss(run) if known("global_loss", "local_loss") else None,
        "membership": plots.membership(history) if history else None,
        "agreement": plots.agreement(run) if noted(lambda line: line.grouping) else None,
        "sizes": plots.sizes(run.rounds) if sized and not history else None,
        "affinity": plots.affinity(matrix, order, members) if matrix else None,
        "classes": plots.classes(run.partition, order, members) if counts and counts[0] else None,
        "per_round": plots.per_round(run) if timed else None,
        "features": plots.feature_space(features, members, groups) if told > 1 else None,
        "timeline": plots.timeline(run) if noted(lambda line: line.notes.events) else None,
        "selections": plots.selections(selected, order, members) if selected else None,
    }


def _race(told: Mapping[str, Any]) -> dict[str, Any]:
    topics, heads = comparison.topics_of(told["rows"]), comparison.lead_columns(told)
    return {
        "help": comparison.help_title(told) if told["benefits"] else None,
        "helps": list(comparison.help_sentences(told)),
        "help_heads": comparison.HELP_HEADS,
        "help_rows": comparison.help_rows(told),
        "help_note": comparison.help_note(told),
        "budget": " ".join([comparison.budget(told), *comparison.chosen(told)]),
        "attack": comparison.attack(told),
        "not_shared": list(comparison.not_shared(told)),
        "sentences": list(comparison.sentences(told)),
        "lead": comparison.lead_title(told),
        "lead_note": comparison.lead_note(told),
        "lead_heads": [head for _, head, _ in heads],
        "leads": comparison.lead_rows(told) if len(told["rows"][0]["runs"]) > 1 else [],
        "forms": score_table.form_table(told),
        "forms_title": score_table.FORMS_TITLE,
        "forms_note": score_table.form_note(told),
        "topics": [comparison.TOPICS[topic] for topic in topics],
        "learned": [
            {"method": row["method"], "cells": [(row["learned"] or {}).get(topic) for topic in topics]}
            for row in told["rows"]
            if row["learned"] is not None
        ],
    }
