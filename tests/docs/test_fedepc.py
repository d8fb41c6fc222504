"""FedEPC's page of reproductions: its tables are those of the records, with the command of each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from coterie.reproductions.study import Cell
from coterie.runs.intervals import mean_and_interval
from papers.fedepc import ITEMS

FOLDER = Path(__file__).parents[2] / "docs" / "reproduction"
PAGE = (FOLDER / "fedepc.md").read_text()
RECORDS = {path.stem: json.loads(path.read_text()) for path in sorted((FOLDER / "fedepc").glob("*.json"))}
COLUMNS: Mapping[str, Sequence[str]] = {
    "table2": (
        *("merge", "split", "paper %", "paper, s to 90 %", "clusters"),
        *("global %", "local %", "virtual s to 90 % local"),
    ),
    "table3": (
        *("method", "paper, 50%", "50% global", "50% local", "paper, 80%", "80% global", "80% local"),
        *("paper, 90%", "90% global", "90% local"),
    ),
    "table4": ("data", "paper's alpha", "method", "paper %", "global %", "local %", "local %, tuned", "clusters"),
    "groups": ("data", "partition", "method", "ari", "clusters", "global %", "local %", "local %, tuned"),
}
"""What the page shows of a record."""
ROUNDS = {cell.name: cell.config.rounds for item in ITEMS.values() for cell in item.cells if isinstance(cell, Cell)}


def text(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:g}" if isinstance(value, float) else str(value)


def table(name: str) -> str:
    """A record's table as it stands on the page."""
    columns = COLUMNS[name]
    rows = [columns, ["---"] * len(columns)]
    rows += [[text(row[column]) for column in columns] for row in RECORDS[name]["rows"]]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


@pytest.mark.parametrize("name", RECORDS)
def test_the_page_has_the_record_and_its_command(name: str) -> None:
    assert table(name) in PAGE
    assert f"`{RECORDS[name]['command']}`" in PAGE
    assert f"(fedepc/{name}.json)" in PAGE


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_keeps_every_seed(name: str) -> None:
    record = RECORDS[name]
    assert record["seeds"] == [0, 1, 2]
    for cell, curves in record["curves"].items():
        assert [one["seed"] for one in curves] == record["seeds"], cell
        assert {len(one[key]) for one in curves for key in ("local_accuracy", "virtual_seconds")} == {ROUNDS[cell]}


MEASURES = {
    "global %": "global_accuracy",
    "local %": "local_accuracy",
    "local %, tuned": "fine_tuned_local_accuracy",
}


def last_rounds(curve: Mapping[str, Any], measure: str) -> float:
    """In percent: the mean of the last five rounds, or the number after the last one."""
    value = curve[measure]
    return 100 * (sum(value[-5:]) / 5 if isinstance(value, list) else value)


def paired_table() -> str:
    """FedEPC less every other method, over the same seeds, by alpha."""
    rows = [("alpha", "less", *MEASURES), ("---",) * 5]
    curves = RECORDS["table4"]["curves"]
    for cell in curves:
        place, _, method = cell.rpartition("/")
        if method == "fedepc":
            continue
        row = [place.rpartition("/")[2], method]
        for measure in MEASURES.values():
            pairs = zip(curves[f"{place}/fedepc"], curves[cell], strict=True)
            mean, half = mean_and_interval([last_rounds(a, measure) - last_rounds(b, measure) for a, b in pairs])
            row.append(f"{mean:+.1f} ± {half:.1f}".replace("-", "−"))
        rows.append(tuple(row))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def test_the_page_has_the_paired_differences() -> None:
    assert paired_table() in PAGE


def decisive_table() -> str:
    """Seconds a round and rounds to 80 % local, means over the seeds, by method."""
    rows = [("method", "seconds a round", "rounds to 80 %"), ("---",) * 3]
    for cell, curves in RECORDS["table3"]["curves"].items():
        clocks = [one["virtual_seconds"] for one in curves]
        seconds = fmean((clock[-1] - clock[0]) / (len(clock) - 1) for clock in clocks)
        firsts = [next(r for r, x in enumerate(one["local_accuracy"], 1) if x >= 0.8) for one in curves]
        rows.append((cell.rpartition("/")[2], f"{seconds:.1f}", f"{fmean(firsts):.1f}"))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def test_the_page_says_what_decides_table_3() -> None:
    assert decisive_table() in PAGE
