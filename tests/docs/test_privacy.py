"""The page on privacy: its table is the record that its command writes, and its example gives what it says."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "privacy.md").read_text()


def line(row: Mapping[str, Any]) -> str:
    """A row of the record as the page has it."""
    grouped = row["ARI"] or ("–" if row["sent"] == "clear" else row["same clusters as in the clear (ARI)"])
    cells = (
        f"`{row['partition']}`",
        row["samples a device"],
        row["sent"],
        grouped,
        f"{row['by name: total variation']} ({mean(row['prior'])})",
        f"{row['by name: top label %']} ({mean(row['luck %'])})",
        f"{row['helper, no names: total variation']} ({mean(row['luck'])})",
        row["hub: pairs, by clusters"] or "–",
        row["vectors with clusters by name: total variation"],
    )
    return f"| {' | '.join(map(str, cells))} |"


def mean(text: str) -> str:
    """Without the interval."""
    return text.partition(" ±")[0]


def test_the_table_is_the_record() -> None:
    record = json.loads((DOCS / "fedepc" / "privacy.json").read_text())
    assert f"`{record['command']}`" in PAGE
    assert len(record["seeds"]) >= 5
    start = PAGE.index("| partition | samples |")
    table = PAGE[start : PAGE.index("\n\n", start)].splitlines()[2:]
    assert table == [line(row) for row in record["rows"] if row["partition"] != "iid"]
    assert {row["clusters"] for row in record["rows"] if row["partition"] == "iid"} == {", ".join("11111")}


def test_the_example_gives_what_it_says() -> None:
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
    names: dict[str, Any] = {}
    exec(code, names)
    said = re.findall(r"^(ledger\.\S+(?:\(.*?\))+) +# ([\d.]+)", code, re.MULTILINE)
    assert len(said) == 2
    for expression, value in said:
        assert eval(expression, names) == pytest.approx(float(value), abs=0.05)
    assert names["z"] == pytest.approx(1.08, abs=0.005)
    assert len(names["sent"].releases) == 44
    for expression, value in re.findall(r"^((?:true_epsilon|claimed)\(.*\)) +# ([\d.]+)", code, re.MULTILINE):
        assert eval(expression, names) == pytest.approx(float(value), abs=0.05)


@pytest.mark.parametrize("item", ["audits", "noise", "membership"])
def test_the_tables_of_noisy_uploads_are_their_records(item: str) -> None:
    record = json.loads((DOCS / "ofl" / f"{item}.json").read_text())
    assert f"`{record['command']}`" in PAGE
    assert len(record["seeds"]) == 5
    for row in record["rows"]:
        assert f"| {' | '.join('–' if value is None else str(value) for value in row.values())} |" in PAGE
    assert f"| {' | '.join(record['rows'][0])} |" in PAGE


def run_line(row: Mapping[str, Any]) -> str:
    """A row of a record of whole runs as the page has it."""
    cells = (
        f"`{row['partition']}`",
        row["sent"],
        row["local accuracy %"],
        row["tuned %"],
        row["ARI"] or "–",
        row["clusters"],
        f"{row['vectors by name: total variation']} ({mean(row['vectors by name: total variation, by luck'])})",
        row["pairs, by clusters"],
        row["label shares, by models"],
        f"{row['samples, by selections']} ({mean(row['samples, by selections, by luck'])})",
        f"{row['variety, by selections']} ({mean(row['variety, by selections, by luck'])})",
    )
    return f"| {' | '.join(map(str, cells))} |"


@pytest.mark.parametrize("ground", [path.stem.removeprefix("privacy_") for path in DOCS.glob("fedepc/privacy_*.json")])
def test_the_tables_of_whole_runs_are_their_records(ground: str) -> None:
    record = json.loads((DOCS / "fedepc" / f"privacy_{ground}.json").read_text())
    assert f"`{record['command']}`" in PAGE
    assert len(record["seeds"]) >= 3
    lines = PAGE.splitlines()
    assert [line for line in map(run_line, record["rows"]) if line not in lines] == []
