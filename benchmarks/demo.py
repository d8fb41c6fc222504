"""The demo of the README: its record, and the picture and the table that are made of it.

``python -m benchmarks.demo demo`` keeps ``demo/compare.json``, which ``make demo`` has written, as ``docs/demo.json``,
and draws ``docs/report.png``: what the report begins with. Without a folder it draws the record that is there.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from matplotlib.figure import Figure

from benchmarks.markdown import grid
from coterie.record.comparison import Measure
from coterie.report import verdict
from coterie.report.comparison import TOPICS, leak_cell, measures, topics_of
from coterie.report.drawing import looks, new_figure
from coterie.report.notebook import draw_leaks
from coterie.report.words import size

ROOT = Path(__file__).parents[1]
RECORD, PICTURE = ROOT / "docs" / "demo.json", ROOT / "docs" / "report.png"
COMMAND = "make demo"
Record = Mapping[str, Any]

ACCURACIES = {
    "local %": "local_accuracy",
    "tuned": "fine_tuned_local_accuracy",
    "prior": "prior_local_accuracy",
    "global %": "global_accuracy",
}


def table(record: Record) -> str:
    """Every method's accuracies, the best in bold, groups found, what its servers learn by topic, and bytes sent."""
    rows, topics = record["rows"], topics_of(record["rows"])
    best = {name: max((row[name]["mean"] for row in rows if row[name]), default=None) for name in ACCURACIES.values()}
    head = ["method", *ACCURACIES, "groups found", *(TOPICS[topic].head for topic in topics), "sent"]
    lines = []
    for row in rows:
        found = [_share(row[name], best[name]) for name in ACCURACIES.values()]
        leaks = [leak_cell(row, topic) for topic in topics]
        lines.append(
            [
                _named(row["method"]),
                *found,
                "–" if row["ari"] is None else f"{row['ari']['mean']:.2f}",
                *leaks,
                size(row["bytes_up"]["mean"]),
            ]
        )
    return grid(head, lines)


def _share(spread: Record | None, best: float | None) -> str:
    if spread is None:
        return "–"
    text = f"{100 * spread['mean']:.1f}"
    return f"**{text}**" if spread["mean"] == best else text


def _named(method: str) -> str:
    page = f"docs/systems/{method}.md"
    if (ROOT / page).is_file():
        return f"[`{method}`]({page})"
    return f"`{method}` (each client alone)" if method == "local" else f"`{method}`"


def picture(content: Record) -> Figure:
    """The verdict, the chart and the table of five columns, as the report shows them first."""
    found, (head, *rows) = verdict.standings(content), verdict.table(content)
    first, *more = (sentence.replace("`", "") for sentence in verdict.verdict(content))
    first, said = textwrap.fill(first, 70), textwrap.fill(" ".join(more), 92)
    above, below = (0.28 * (part.count("\n") + 1) for part in (first, said))
    figure = new_figure(9.6, 4.9 + above + below + 0.3 * len(rows))
    heights = [above, below, 4.1, 0.3 * len(rows) + 0.5]
    head_line, words, chart, numbers = figure.subplots(4, height_ratios=heights)
    for axis, text, size_of in ((head_line, first, 14), (words, said, 11.5)):
        axis.axis("off")
        weight = "bold" if axis is head_line else "normal"
        axis.text(0, 0.5, text, va="center", fontsize=size_of, fontweight=weight, linespacing=1.35)
    draw_leaks(chart, found, msgspec.convert(measures(content)[0], Measure))
    numbers.axis("off")
    drawn = numbers.table(rows, colLabels=head, loc="center", cellLoc="right", edges="horizontal", bbox=(0, 0, 1, 1))
    drawn.auto_set_font_size(False)
    _dress(drawn, [look["color"] for look in looks([one.method for one in found]).values()])
    return figure


def _dress(drawn: Any, colours: Sequence[str]) -> None:
    """Names in the colours of their marks, light rules, and columns as wide as their words."""
    drawn.set_fontsize(9.5)
    for (row, column), cell in drawn.get_celld().items():
        cell.set_edgecolor("#d5dae0")
        cell.get_text().set_color("#59616c" if row == 0 else "#1c2026")
        if column == 0:
            cell.get_text().set_horizontalalignment("left")
            if row:
                cell.get_text().set_color(colours[row - 1])
                cell.get_text().set_fontweight("bold")
    drawn.auto_set_column_width(list(range(len(verdict.HEADS))))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="of the comparison that `make demo` has made")
    folder = parser.parse_args(arguments).folder
    if folder is not None:
        content = json.loads((folder / "compare.json").read_text())
        RECORD.write_text(json.dumps({"command": COMMAND, **content}, indent=1) + "\n")
    picture(json.loads(RECORD.read_text())).savefig(PICTURE, dpi=125, facecolor="white")


if __name__ == "__main__":
    main()
