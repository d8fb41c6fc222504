"""The tables that ``coterie compare`` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from coterie.cli.progress import percent, seconds, size

_HEADS = {
    "models": "models\n%",
    "identity": "links\n%",
    "labels": "labels\n%",
    "groups": "alike\n%",
    "other": "other\n%",
}
"""The heads of the columns, by topic of ``report/race.py``."""

_CIPHER = "cipher"
_UNCUT = 140
_UNBOUNDED = 10_000
Column = tuple[str, Sequence[str]]
"""Its head, and a cell for every method."""


def console() -> Console:
    """Standard output. If it is no terminal, it is wide enough for whole tables."""
    usual = Console(highlight=False, soft_wrap=True)
    return usual if usual.is_terminal else Console(highlight=False, soft_wrap=True, width=max(usual.width, _UNCUT))


def tables(rows: Sequence[Mapping[str, Any]], shell: Console) -> list[Table]:
    """Tables with one row for each method: one table, or on a narrow console three, for accuracies, leaks and costs."""
    parts = [part for part in (_accuracies(rows), _leaks(rows), _costs(rows)) if part]
    whole = _table(rows, [column for part in parts for column in part])
    fits = Measurement.get(shell, shell.options.update(width=_UNBOUNDED), whole).maximum <= shell.width
    made = [whole] if fits else [_table(rows, part) for part in parts]
    made[-1].caption = _notes(rows)
    made[-1].caption_justify = "left"
    return made


def _table(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> Table:
    made = Table(box=SIMPLE, collapse_padding=True, pad_edge=False)
    made.add_column("method", no_wrap=True)
    for head, _ in columns:
        names = head == _CIPHER
        made.add_column(head, justify="left" if names else "right", no_wrap=names)
    for row, *cells in zip(rows, *(cells for _, cells in columns), strict=True):
        made.add_row(row["method"], *cells)
    return made


def _accuracies(rows: Sequence[Mapping[str, Any]]) -> list[Column]:
    columns: list[Column] = [(_CIPHER, [row["crypto"] for row in rows])]
    columns.append(("local\n%", [_shares(row["local_accuracy"]) for row in rows]))
    if _tuned(rows):
        columns.append(("local %,\ntuned", [_shares(row["fine_tuned_local_accuracy"]) for row in rows]))
    columns.append(("global\n%", [_shares(row["global_accuracy"]) for row in rows]))
    if _grouped(rows):
        columns.append(("groups\nfound", [_index(row["ari"]) for row in rows]))
    return columns


def _leaks(rows: Sequence[Mapping[str, Any]]) -> list[Column]:
    return [(_HEADS[topic], [_leak(row, topic) for row in rows]) for topic in _topics(rows)]


def _costs(rows: Sequence[Mapping[str, Any]]) -> list[Column]:
    return [
        ("sent", [_mean(row["bytes_up"], size) for row in rows]),
        ("time", [_mean(row["seconds"], seconds) for row in rows]),
        ("virtual\ntime", [_mean(row["virtual_seconds"], seconds) for row in rows]),
    ]


def _notes(rows: Sequence[Mapping[str, Any]]) -> str:
    notes = ["local, global: accuracy on data of each client's own kind, and on all test data"]
    if any(len(row["runs"]) > 1 for row in rows):
        notes.append("±: half of the 95 % interval of the mean over the seeds")
    if _tuned(rows):
        notes.append("tuned: after each client's own fine-tuning")
    if _grouped(rows):
        notes.append("groups found: adjusted Rand index, 1 for the data's own groups, 0 for chance")
    if _topics(rows):
        notes.append(
            "models, links, labels, alike, other: what the servers learn on their own, by the best of our attacks "
            "(clients' models, which models of two rounds are of the same client, label shares, which clients have "
            "similar data, other secrets); 0 is chance for one attack, and 100 is everything; a dash: no attack applies"
        )
    return ". ".join(note[0].upper() + note[1:] for note in notes) + "."


def _tuned(rows: Sequence[Mapping[str, Any]]) -> bool:
    return any(row["fine_tuned_local_accuracy"] for row in rows)


def _grouped(rows: Sequence[Mapping[str, Any]]) -> bool:
    return any(row["ari"] for row in rows)


def _topics(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    from coterie.report.race import TOPICS

    return [topic for topic in TOPICS if any(topic in (row.get("learned") or {}) for row in rows)]


def lead_table(first: str, leads: Sequence[Mapping[str, Any]]) -> Table:
    """The lead of the first method over each other one in points, paired by seed."""
    made = Table("", "local accuracy", "local, both tuned", "global accuracy", box=SIMPLE, pad_edge=False)
    made.title = f"Lead of {first}, in points, with its 95 % interval over paired seeds"
    made.title_justify = "left"
    made.columns[0].no_wrap = True
    for column in made.columns[1:]:
        column.justify = "right"
    for lead in leads:
        measures = ("local_accuracy", "fine_tuned_local_accuracy", "global_accuracy")
        made.add_row(f"over {lead['over']}", *(_points(lead[measure]) for measure in measures))
    made.caption = "An interval that contains 0 shows no difference."
    made.caption_justify = "left"
    return made


def _shares(spread: Mapping[str, Any] | None) -> str:
    if spread is None:
        return percent(None)
    return f"{100 * spread['mean']:.1f}" + ("" if spread["interval"] is None else f" ± {100 * spread['interval']:.1f}")


def _index(spread: Mapping[str, Any] | None) -> str:
    if spread is None:
        return percent(None)
    return f"{spread['mean']:.2f}" + ("" if spread["interval"] is None else f" ± {spread['interval']:.2f}")


def _points(spread: Mapping[str, Any] | None) -> str:
    if spread is None:
        return percent(None)
    if spread["interval"] is None:
        return f"{100 * spread['mean']:+.1f}"
    low, high = (100 * (spread["mean"] + sign * spread["interval"]) for sign in (-1, 1))
    return f"{100 * spread['mean']:+.1f} [{low:+.1f}, {high:+.1f}]"


def _leak(row: Mapping[str, Any], topic: str) -> str:
    leak = (row.get("learned") or {}).get(topic)
    return percent(None) if leak is None else f"{100 * max(leak['mean'], 0.0):.0f}"


def _mean(spread: Mapping[str, Any] | None, shown: Any) -> str:
    return str(shown(None if spread is None else spread["mean"]))
