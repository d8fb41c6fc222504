"""Results for notebooks: frames, figures and small tables of HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from statistics import fmean
from typing import TYPE_CHECKING, Any

from coterie.protocol.errors import UserError, to_install
from coterie.runs.logs import numbers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SIDES = {"local": "on test data of each client's own kind", "global": "on all test data"}


def frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """A pandas ``DataFrame`` with a row for each of these. Raises UserError without pandas."""
    try:
        import pandas
    except ImportError:
        raise UserError(f"a frame needs pandas: {to_install('tables')}") from None
    return pandas.DataFrame(rows)


def scores(runs: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]], measures: Sequence[Mapping[str, Any]]) -> Figure:
    """Both sides of every metric over the rounds, the mean over each label's runs; one row of panels a metric."""
    from coterie.report.drawing import new_figure, percent_axis

    if not measures:
        raise UserError("there are no measures to plot: run again")
    figure = new_figure(10.4, 3.9 * len(measures))
    panels = figure.subplots(len(measures), 2, sharey="row", squeeze=False)
    for measure, row in zip(measures, panels, strict=True):
        for panel, (side, title) in zip(row, _SIDES.items(), strict=True):
            field = f"{side}_{measure['name']}"
            for label, every in runs.items():
                curves = [
                    {line["round"]: float(v) for line in run if (v := numbers(line).get(field)) is not None}
                    for run in every
                ]
                known = [r for r in curves[0] if all(r in curve for curve in curves)]
                panel.plot(known, [fmean(curve[r] for curve in curves) for r in known], label=label)
            panel.set(title=title, xlabel="round")
        if measure["share"]:
            percent_axis(row[0], measure["label"])
        else:
            row[0].set_ylabel(measure["label"])
    if len(runs) > 1:
        panels[0, 0].legend(frameon=False)
    return figure


class Findings(dict[str, Any]):
    """An audit, which a notebook shows as a table of what attacks have found, the worst first."""

    def _repr_html_(self) -> str:
        return "".join(
            table(f"{one['title']}: leaks, 0 for chance and 1 for everything", [*map(_found, one["attacks"])])
            for one in self.get("methods", [self])
        )


def _found(row: Mapping[str, Any]) -> tuple[str, str]:
    from coterie.runs.audited import noise  # it loads all attacks

    numbers = " ± ".join(f"{value:.2f}" for value in (row["leak"], noise(row)) if value is not None)
    return row["name"], f"{row['verdict']} ({numbers})" if numbers else row["verdict"]


def table(head: str, rows: Sequence[tuple[str, str]], folder: str = "") -> str:
    cells = "".join(f"<tr><th style='text-align:left'>{escape(a)}</th><td>{escape(b)}</td></tr>" for a, b in rows)
    below = f"<p><code>{escape(folder)}</code></p>" if folder else ""
    return f"<p><b>{escape(head)}</b></p><table>{cells}</table>{below}"
