"""The example of docs/clustering.md runs, and its tables and conclusions are those of the records beside it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.clustering import ITEMS, TABLE_2
from coterie.clustering.isomorphic import Aidc
from coterie.reproductions.study import _text

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "clustering.md").read_text()
RECORDS = {path.stem: json.loads(path.read_text()) for path in sorted((DOCS / "clustering").glob("*.json"))}


def test_the_example_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(code, "docs/clustering.md", "exec"), {"__name__": "example"})


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_a_table_is_the_record_that_its_command_writes(name: str) -> None:
    record = RECORDS[name]
    found = re.findall(
        rf"^`{re.escape(record['command'])}` \(\[{name}\.json\]\(clustering/{name}\.json\)\)\n\n((?:\|.*\n)+)",
        PAGE,
        re.M,
    )
    (table,) = found
    head, _, *rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in table.splitlines()]
    assert head == list(record["rows"][0])
    assert rows == [[_text(row[column]) for column in head] for row in record["rows"]]


def test_every_item_has_its_record() -> None:
    assert {f"clustering/{name}" for name in RECORDS} == set(ITEMS)
    for name, record in RECORDS.items():
        assert list(record["cells"]) == [cell.name for cell in ITEMS[f"clustering/{name}"].cells]
    assert [row["merge / split"] for row in RECORDS["thresholds"]["rows"]] == [f"{m:.2f} / {s:.2f}" for m, s in TABLE_2]


def test_the_conclusions_hold() -> None:
    groups = RECORDS["groups"]
    assert all(row["lowest ARI"] >= 0.95 and row["ARI, literal"] == 0 for row in groups["rows"])
    assert all(row["right number"] == f"{len(groups['seeds'])} of {len(groups['seeds'])}" for row in groups["rows"])
    assert len(groups["seeds"]) >= 10
    assert all(row["lowest ARI"] >= 0.98 for row in RECORDS["updates"]["rows"])
    assert all(row["most clusters changed"] == 0 for row in RECORDS["liars"]["rows"])
    *_, last = RECORDS["large"]["rows"]
    assert last["devices"] == "10,000"
    assert last["CPU s"] < 120
    assert last["GiB"] < 3
    assert all(row["largest relative error"] < 2e-4 for row in RECORDS["large"]["rows"])


def test_the_settings_on_the_page_are_the_defaults() -> None:
    usual = Aidc()
    told = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", PAGE, re.M))
    assert float(told["gamma"]) == usual.gamma
    assert int(told["neighbours"]) == usual.neighbours
    assert float(told["floors_per_scale"]) == usual.floors_per_scale
    assert int(told["passes"]) == usual.passes
    assert (
        f"| `theta_merge`, `theta_split` | {usual.theta_merge:.2f}, {usual.theta_split:.2f} |".replace("0.", ".")
        in PAGE
    )
    assert set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`\w+`(?:, `\w+`)?) \|", PAGE, re.M)))) >= set(
        vars(usual)
    )
