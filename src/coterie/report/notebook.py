"""Results for notebooks: frames, figures and small tables of HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import msgspec

from coterie.protocol.errors import UserError, to_install
from coterie.record.comparison import Measure
from coterie.report.compared_plots import COSTS, WIDE, mark_radii, trade
from coterie.report.comparison import Content, RunGroup, measures
from coterie.report.gains import help_sentences
from coterie.report.verdict import MethodStanding, standings, verdict
from coterie.report.verdict import table as standing_table
from coterie.report.words import leak_half, size
from coterie.runs.findings import noise

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SIDES = {"local": "on test data of each client's own kind", "global": "on all test data"}


def frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """A pandas ``DataFrame``. Raises UserError without pandas."""
    try:
        import pandas
    except ImportError:
        raise UserError(f"a frame needs pandas: {to_install('tables')}") from None
    return pandas.DataFrame(rows)


AGAINST = ("rounds", "bytes", "time")
"""Rounds, bytes that a client has sent, simulated seconds."""


def curves(groups: Sequence[RunGroup], against: str = "rounds", known: Sequence[str] = AGAINST) -> Figure:
    """Both sides of every metric, a row of panels each: means over seeds, and one standard deviation. Raises UserError
    for an unknown word, and for what a run has not counted.
    """
    from coterie.report.drawing import curve, looks, new_figure, percent_axis, tidy, whole_rounds

    if against not in AGAINST:
        raise UserError(f"there are no curves over {against!r}: take one of {', '.join(known)}")
    first = groups[0].runs[0]
    every, cost = [first.leading, *first.others], COSTS.get(against)
    if cost is not None and any(cost.until(run) is None for found in groups for run in found.runs):
        raise UserError(f"not every run has counted its {against}: draw the curves over rounds")
    figure = new_figure(10.4, 3.9 * len(every))
    panels = figure.subplots(len(every), 2, sharey="row", squeeze=False)
    styles = looks([found.legend for found in groups])
    for measure, row in zip(every, panels, strict=True):
        for panel, (side, title) in zip(row, _SIDES.items(), strict=True):
            for found in groups:
                rounds, mean, std = found.curve(f"{side}_{measure.name}")
                x = rounds if cost is None else found.cost(rounds, cost.until)
                band = None if std is None else (mean - std, mean + std)
                curve(panel, found.legend, x, mean, band, **styles[found.legend])
            panel.set_title(title)
            tidy(panel)
            if cost is None:
                whole_rounds(panel)
            else:
                panel.set_xlabel(cost.unit)
                panel.xaxis.set_major_formatter(lambda value, _, form=cost.form: form(value))
        if measure.share:
            percent_axis(row[0], measure.label)
        else:
            row[0].set_ylabel(measure.label)
    if len(groups) > 1:
        panels[0, 0].legend(frameon=False)
    return figure


def leaks(content: Content) -> Figure:
    """The leading metric against what servers learn. Raises UserError if nothing was attacked."""
    from coterie.report.drawing import new_figure

    figure = new_figure(6.4, 4.2)
    draw_leaks(figure.subplots(), standings(content), msgspec.convert(measures(content)[0], Measure))
    return figure


def draw_leaks(
    axis: Axes, found: Sequence[MethodStanding], measure: Measure, *, dark: bool = False, short: bool = False
) -> None:
    """As ``compared_plots.tradeoff``: a mark a method, its area by bytes sent.  short: without words for bytes."""
    from coterie.report.drawing import MARKERS, looks, percent_axis, tidy

    shown = [(one, one.own, 100 * one.worst[1]) for one in found if one.own and one.worst]
    if not shown:
        raise UserError("no server's view was attacked: compare with audit=True (--audit)")
    styles, paper = list(looks([one.method for one in found], dark=dark).values()), axis.get_facecolor()
    radii = mark_radii([one.sent for one, *_ in shown], True)
    for (one, own, x), radius in zip(shown, radii, strict=True):
        number = found.index(one)
        colour, marker = styles[number]["color"], MARKERS[number % len(MARKERS)]
        axis.errorbar(
            x,
            own["mean"],
            yerr=own["interval"],
            fmt=marker,
            color=colour,
            markersize=1.3 * radius,
            markeredgecolor=paper,
            zorder=2 + 1 / radius,  # small ones before large ones
        )
        if one.tuned:
            axis.plot([x, x], [own["mean"], one.tuned["mean"]], color=colour, linewidth=1, linestyle="--")
            axis.plot(x, one.tuned["mean"], marker, color=colour, markerfacecolor=paper, zorder=3)
    low, high = axis.get_ylim()
    for right in (False, True):
        lowest = high
        beside = [one for one in zip(shown, radii, strict=True) if (one[0][2] > 60) == right]
        for (one, own, x), radius in sorted(beside, key=lambda each: -float(each[0][1]["mean"])):
            lowest = min(own["mean"], lowest - 0.06 * (high - low))  # names below each other
            axis.annotate(
                one.marked + (f", {size(one.sent)}" if one.sent and not short else ""),
                (x, lowest),
                xytext=(-radius - 4 if right else radius + 4, 0),
                textcoords="offset points",
                ha="right" if right else "left",
                va="center",
            )
    opened = ["An open mark: after each client's own fine-tuning"] if any(one.tuned for one, *_ in shown) else []
    lost = [one.left_out for one in found if one.own and one.left_out]
    notes = "".join(f"\n{words}" for words in [*opened, *(one.note for one, *_ in shown if one.note), *lost])
    axis.set(xlabel=f"what servers learn, worst: 0 is chance, 100 is everything{notes}", xlim=(-4, 104))
    tidy(axis)
    name = f"{measure.label} on own kind of data"
    if measure.share:
        percent_axis(axis, name)
        axis.set_ylim(low, high)  # an interval may end beyond 100 %
    else:
        axis.set_ylabel(name)


def shown_comparison(content: Content, folder: str) -> str:
    """As a report begins: the verdict, the chart, five columns."""
    from coterie.report.templates import TEMPLATES

    chart, alt = trade(standings(content), msgspec.convert(measures(content)[0], Measure))
    view = {"chart": chart.svg(alt), "table": standing_table(content), "wide": WIDE, "folder": folder}
    said = [" ".join(words) for words in (verdict(content), help_sentences(content))]
    return TEMPLATES.get_template("notebook.html").render(said=said, **view)


class Findings(dict[str, Any]):
    """An audit, as a table, the worst first."""

    def _repr_html_(self) -> str:
        return "".join(
            table(f"{one['title']}: leaks, 0 for chance and 1 for everything", [*map(_found, one["attacks"])])
            for one in self.get("methods", [self])
        )


def _found(row: Mapping[str, Any]) -> tuple[str, str]:
    return row["name"], f"{row['verdict']} ({row['leak']:.2f} ± {leak_half(noise(row))})"


def table(head: str, rows: Sequence[tuple[str, str]], folder: str = "") -> str:
    cells = "".join(f"<tr><th style='text-align:left'>{escape(a)}</th><td>{escape(b)}</td></tr>" for a, b in rows)
    below = f"<p><code>{escape(folder)}</code></p>" if folder else ""
    return f"<p><b>{escape(head)}</b></p><table>{cells}</table>{below}"
