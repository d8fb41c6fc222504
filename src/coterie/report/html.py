"""The report: one self-contained HTML file about one run, or several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from coterie import __version__
from coterie.protocol.errors import UserError
from coterie.record.comparison import Measure
from coterie.record.files import atomic_write
from coterie.record.load import Run, compared, find, load
from coterie.report import compared_plots, comparison, tables, verdict, words
from coterie.report.run_view import run_view
from coterie.report.templates import TEMPLATES


def render(folders: Sequence[Path], out: Path | None = None) -> Path:
    """Draw the report of one run, or of several, as one self-contained HTML file; returns its path.

    out: by default ``report.html`` in the one folder named, or above all. Raises UserError for a folder without runs or
    a bad file, and RunError.
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
    view = run_view(run, "run") | {"verdict": verdict.of_run(run)}
    title = f"{run.result.name} on {run.result.data}"
    return TEMPLATES.get_template("template.html").render(title=title, run=view, c=None, version=__version__)


def comparison_page(runs: Sequence[Run], told: Mapping[str, Any] | None = None) -> str:
    """In one picture and one table, then each run.  told: of ``compare.json``."""
    groups = comparison.group(runs)
    measure, fields = comparison.leading(groups), words.sides(comparison.leading(groups))
    names = list(dict.fromkeys(run.result.name for run in runs))
    told = told if told and told["rows"] else None
    content = told or comparison.content_of(groups)
    standings = verdict.standings(content)
    view = {
        "heading": " and ".join(names) if len(names) < 3 else f"{', '.join(names[:-1])} and {names[-1]}",
        "verdict": verdict.verdict(content),
        "five": verdict.table(content),
        "attacked": any(one.worst for one in standings),
        "tradeoff": compared_plots.tradeoff(standings, measure),
        "groups": groups,
        "runs": [
            run_view(run, f"run{number}") | {"label": next(found.label for found in groups if run in found.runs)}
            for number, run in enumerate(runs)
        ],
        "emulated": sorted({run.result.name for run in runs if run.result.crypto == "emulated"}),
        "first": runs[0].result,
        "told": told,
        "gains": _gains(told, measure) if told else (),
        "audits": [
            (one.label, audit)
            for one in groups
            if (audit := tables.audit_table([run.result.audit for run in one.runs]))
        ],
        "repeated": any(len(found.runs) > 1 for found in groups),
        "tuned": any(run.points(field)[0] for run in runs for field in fields if field.startswith("fine")),
        "leading": measure,
        "scores": compared_plots.compared_scores(groups),
        "costs": compared_plots.compared_costs(groups) if compared_plots.counted(groups) else None,
    }
    title = f"Comparison: {view['heading']}"
    return TEMPLATES.get_template("template.html").render(title=title, run=None, c=view, version=__version__)


def _home(folders: Sequence[Path]) -> Path:
    if len(folders) == 1:
        return folders[0]
    parents = {folder.resolve().parent for folder in folders}
    if len(parents) > 1:
        raise UserError("the runs lie in different folders; say where the report of all of them should go")
    return parents.pop()


def _gains(told: Mapping[str, Any], measure: Measure) -> Iterator[tuple[str, Markup]]:
    by_method = {one["method"]: one for one in sorted(told["benefits"], key=lambda one: one["tuned"])}
    for method, one in by_method.items():
        if compared_plots.judged(one):
            yield f"{method}, both tuned" if one["tuned"] else method, compared_plots.gains(one, measure)
