"""The tables that ``coterie compare`` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from coterie.cli.progress import percent, seconds, size

_HEADS = {
    "models": "models\n%",
    "identity": "links\n%",
    "labels": "labels\n%",
    "groups": "alike\n%",
    "other": "other\n%",
}
"""How the column of a topic of ``report/race.py`` is called."""

_UNCUT = 140


def console() -> Console:
    """Standard output; where it is no terminal, wide enough for whole tables."""
    usual = Console(highlight=False, soft_wrap=True)
    return usual if usual.is_terminal else Console(highlight=False, soft_wrap=True, width=max(usual.width, _UNCUT))


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """One row a method."""
    from coterie.report.race import TOPICS

    tuned = any(row["fine_tuned_local_accuracy"] for row in rows)
    grouped = any(row["ari"] for row in rows)
    topics = [topic for topic in TOPICS if any(topic in (row.get("learned") or {}) for row in rows)]
    names = ["method", "cipher", "local\n%"]
    names += ["local %,\ntuned"] * tuned + ["global\n%"] + ["groups\nfound"] * grouped
    names += [_HEADS[topic] for topic in topics] + ["sent", "time", "virtual\ntime"]
    made = Table(*names, box=SIMPLE, collapse_padding=True, pad_edge=False)
    for column in made.columns:
        column.no_wrap = True
    for column in made.columns[2:]:
        column.justify = "right"
    for row in rows:
        cells = [_shares(row["local_accuracy"])]
        cells += [_shares(row["fine_tuned_local_accuracy"])] * tuned
        cells += [_shares(row["global_accuracy"])] + [_index(row["ari"])] * grouped
        cells += [_leak(row, topic) for topic in topics]
        cells += [_mean(row["bytes_up"], size), _mean(row["seconds"], seconds), _mean(row["virtual_seconds"], seconds)]
        made.add_row(row["method"], row["crypto"], *cells)
    notes = ["local, global: accuracy on data of each client's own kind, and on all test data"]
    if any(len(row["runs"]) > 1 for row in rows):
        notes.append("±: half of the 95 % interval of the mean over the seeds")
    if tuned:
        notes.append("tuned: after each client's own fine-tuning")
    if grouped:
        notes.append("groups found: adjusted Rand index, 1 for the data's own groups, 0 for chance")
    if topics:
        notes.append(
            "models, links, labels, alike, other: what the servers learn on their own, by the best of our attacks "
            "(clients' models, whose model is whose from round to round, label shares, which clients are alike, other "
            "secrets); 0 is chance for one attack, 100 everything; a dash: no attack of ours applies"
        )
    made.caption = ". ".join(note[0].upper() + note[1:] for note in notes) + "."
    made.caption_justify = "left"
    return made


def lead_table(first: str, leads: Sequence[Mapping[str, Any]]) -> Table:
    """By how many points the first method is ahead of each other one, paired by seed."""
    made = Table("", "local accuracy", "local, both tuned", "global accuracy", box=SIMPLE, pad_edge=False)
    made.title = f"Lead of {first}, in points, with its 95 % interval over paired seeds"
    made.title_justify = "left"
    for column in made.columns[1:]:
        column.justify = "right"
    for lead in leads:
        measures = ("local_accuracy", "fine_tuned_local_accuracy", "global_accuracy")
        made.add_row(f"over {lead['over']}", *(_points(lead[measure]) for measure in measures))
    made.caption = "An interval that holds 0 shows no difference."
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
