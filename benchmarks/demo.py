"""The demo of the README: its record, and the picture and the table that are made of it.

``python -m benchmarks.demo demo`` keeps ``demo/compare.json``, which ``make demo`` has written, as ``docs/demo.json``,
and draws ``docs/report*.png``: what the report begins with, for a screen and for a phone, light and dark. Without a
folder it draws the record that is there.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import msgspec
from matplotlib.figure import Figure

from benchmarks.markdown import grid
from coterie.record.comparison import Measure
from coterie.report import verdict
from coterie.report.comparison import TOPICS, leak_cell, measures, topics_of
from coterie.report.drawing import DARK, looks, new_figure
from coterie.report.notebook import draw_leaks
from coterie.report.words import size

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "docs" / "demo.json"
COMMAND = "make demo"
Record = Mapping[str, Any]

ACCURACIES = {
    "local %": "local_accuracy",
    "tuned": "fine_tuned_local_accuracy",
    "prior": "prior_local_accuracy",
    "global %": "global_accuracy",
}


def table(record: Record) -> str:
    """The five columns that the report begins with. Links are those of the README."""
    head, *rows = verdict.table(record)
    return grid(head, [[_named(name, "docs/"), *cells] for name, *cells in rows])


def scores(record: Record) -> str:
    """Every method's accuracies, the best in bold, groups found, and bytes sent. Links are those of a page."""
    rows = record["rows"]
    best = {name: max((row[name]["mean"] for row in rows if row[name]), default=None) for name in ACCURACIES.values()}
    lines = []
    for row in rows:
        found = [_share(row[name], best[name]) for name in ACCURACIES.values()]
        groups = "–" if row["ari"] is None else f"{row['ari']['mean']:.2f}"
        lines.append([_named(row["method"]), *found, groups, size(row["bytes_up"]["mean"])])
    return grid(["method", *ACCURACIES, "groups found", "sent by all"], lines)


def leaks(record: Record) -> str:
    """What every method's servers learn, by topic."""
    rows, topics = record["rows"], topics_of(record["rows"])
    lines = [[_named(row["method"]), *(leak_cell(row, topic) for topic in topics)] for row in rows]
    return grid(["method", *(TOPICS[topic].head for topic in topics)], lines)


def _share(spread: Record | None, best: float | None) -> str:
    if spread is None:
        return "–"
    text = f"{100 * spread['mean']:.1f}"
    return f"**{text}**" if spread["mean"] == best else text


def _named(method: str, docs: str = "") -> str:
    """docs: the folder of pages, from the page with the link."""
    page = f"systems/{method}.md"
    if (ROOT / "docs" / page).is_file():
        return f"[`{method}`]({docs}{page})"
    return f"`{method}` (each client alone)" if method == "local" else f"`{method}`"


class Size(NamedTuple):
    """Inches of a picture's width, of its chart's height and of a row's; points of letters in the headline, in words,
    in the table; letters in a line of these.
    """

    width: float
    chart: float
    row: float
    points: tuple[float, float, float]
    letters: tuple[int, int, int]


SIZES = {
    "": Size(9.6, 4.1, 0.3, (14, 11.5, 9.5), (78, 98, 99)),
    "_narrow": Size(3.9, 3.4, 0.42, (11, 9, 7.5), (40, 54, 13)),
}
"""By the end of the file's name. A phone shows the narrow one as large as it is."""
PICTURES = [f"{end}{theme}" for end in SIZES for theme in ("", "_dark")]
"""The ends of the files' names: for a screen and a phone, light and dark."""


def pictures(content: Record) -> Iterator[tuple[str, Figure]]:
    """By the end of the file's name."""
    for end in PICTURES:
        of, dark = SIZES[end.removesuffix("_dark")], end.endswith("_dark")
        settings: Any = {"font.size": of.points[2] + 0.5} | (DARK if dark else {})
        with matplotlib.rc_context(settings):
            yield end, picture(content, of, dark=dark)


def picture(content: Record, of: Size = SIZES[""], *, dark: bool = False) -> Figure:
    """The verdict, the chart and the table of five columns, as the report shows them first."""
    found, told = verdict.standings(content), verdict.table(content)
    head, *rows = [[textwrap.fill(cell, of.letters[2], break_long_words=False) for cell in row] for row in told]
    first, *more = (sentence.replace("`", "") for sentence in verdict.verdict(content))
    parts = [
        textwrap.fill(text, letters, break_on_hyphens=False)
        for text, letters in zip((first, " ".join(more)), of.letters, strict=False)
    ]
    above, below = (1.46 * points / 72 * (1 + part.count("\n")) for part, points in zip(parts, of.points, strict=False))
    numbers_high = of.row * len(rows) + 0.17 * max(1 + cell.count("\n") for cell in head) + 0.3
    heights = [above, below, of.chart, numbers_high]
    figure = new_figure(of.width, sum(heights) + 0.4)
    places: Any = figure.subfigures(4, height_ratios=heights)  # each with margins of its own
    head_line, words, chart, numbers = (place.subplots() for place in places)
    for axis, text, points in zip((head_line, words), parts, of.points, strict=False):
        axis.axis("off")
        weight = "bold" if axis is head_line else "normal"
        axis.text(0, 0.5, text, va="center", fontsize=points, fontweight=weight, linespacing=1.35)
    draw_leaks(chart, found, msgspec.convert(measures(content)[0], Measure), dark=dark, short=of.width < 6)
    chart.set_xlabel("\n".join(textwrap.fill(line, of.letters[1] + 10) for line in chart.get_xlabel().split("\n")))
    numbers.axis("off")
    drawn = numbers.table(rows, colLabels=head, loc="center", cellLoc="right", edges="horizontal", bbox=(0, 0, 1, 1))
    drawn.auto_set_font_size(False)
    _dress(drawn, looks([one.method for one in found], dark=dark), of.points[2], dark=dark)
    return figure


def _dress(drawn: Any, styles: Mapping[str, Mapping[str, str]], points: float, *, dark: bool) -> None:
    """Names with the colours and the shapes of their marks, light rules, and columns as wide as their words."""
    drawn.set_fontsize(points)
    rule, muted, ink = ("#313842", "#a2abb6", "#e6e9ed") if dark else ("#d5dae0", "#59616c", "#1c2026")
    colours = [style["color"] for style in styles.values()]
    for (row, column), cell in drawn.get_celld().items():
        text = cell.get_text()
        cell.set_edgecolor(rule)
        text.set_color(muted if row == 0 else ink)
        if column == 0:
            text.set_horizontalalignment("left")
            if row:
                text.set_text(f"{SHAPES[(row - 1) % len(SHAPES)]} {text.get_text()}")
                text.set_color(colours[row - 1])
                text.set_fontweight("bold")
    drawn.auto_set_column_width(list(range(len(verdict.HEADS))))


SHAPES = "●■▲◆▼⬟★"
"""The letters of ``MARKERS``."""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="of the comparison that `make demo` has made")
    folder = parser.parse_args(arguments).folder
    if folder is not None:
        content = json.loads((folder / "compare.json").read_text())
        RECORD.write_text(json.dumps({"command": COMMAND, **content}, indent=1) + "\n")
    for end, figure in pictures(json.loads(RECORD.read_text())):
        figure.savefig(RECORD.with_name(f"report{end}.png"), dpi=200 if "narrow" in end else 125)


if __name__ == "__main__":
    main()
