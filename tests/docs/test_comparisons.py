"""The page of comparisons: every table is the record that its command writes, and the commands say the same work."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from coterie.report import race

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "comparisons.md").read_text()
RECORDS = {path.name: json.loads(path.read_text()) for path in sorted((DOCS / "comparisons").glob("*.json"))}
ENTRIES = dict(re.findall(r"^`(coterie compare [^`]+)`\n\(\[.*?\]\(comparisons/(.*?)\)\)", PAGE, re.MULTILINE))
"""Command -> name of its record."""
TABLES = dict(re.findall(r"\(comparisons/([^)]*)\)\).*?\n\n((?:\|[^\n]*\n)+)", PAGE, re.DOTALL))

Row = Mapping[str, Any]


def shown(spread: Row | None, digits: int = 1, factor: float = 100) -> str:
    """Mean ± half of the 95 % interval."""
    return "–" if spread is None else f"{factor * spread['mean']:.{digits}f} ± {factor * spread['interval']:.{digits}f}"


def lead(record: Row, method: str) -> str:
    """Of the first method, both tuned, in points."""
    found = [one["fine_tuned_local_accuracy"] for one in record["leads"] if one["over"] == method]
    return f"{100 * found[0]['mean']:+.1f} ± {100 * found[0]['interval']:.1f}".replace("-", "−") if found else "–"


def cells(record: Row, row: Row) -> list[str]:
    """What the page has of a method."""
    found = [f"`{row['method']}`", shown(row["local_accuracy"]), shown(row["fine_tuned_local_accuracy"])]
    found.append(shown(row["global_accuracy"]))
    if any(one["ari"] for one in record["rows"]):
        found.append(shown(row["ari"], 2, 1))
    return [*found, lead(record, row["method"])]


def table(record: Row) -> str:
    """The whole of it, in Markdown."""
    first = record["rows"][0]["method"]
    head = ["method", "local %", "local %, tuned", "global %"]
    head += ["groups found"] * any(one["ari"] for one in record["rows"]) + [f"lead of `{first}`, both tuned, points"]
    rows = [head, ["---"] * len(head), *(cells(record, row) for row in record["rows"])]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def test_every_record_has_its_place_and_its_command() -> None:
    assert sorted(ENTRIES.values()) == sorted(RECORDS)
    assert len(ENTRIES) == len(RECORDS) > 0


@pytest.mark.parametrize(("command", "name"), ENTRIES.items(), ids=ENTRIES.values())
def test_a_command_is_the_one_of_its_record(command: str, name: str) -> None:
    record, (_, _, *words) = RECORDS[name], shlex.split(command)
    methods = [row["method"] for row in record["rows"]]
    named = words[: next(i for i, word in enumerate(words) if word.startswith("--"))]
    assert [*named, *(["local"] if "local" not in named else [])] == methods
    options = list(zip(words[len(named) :: 2], words[len(named) + 1 :: 2], strict=True))
    for option, value in options:
        if option == "--set":
            key, _, setting = value.partition("=")
            if key in record["budget"]:
                assert float(setting) == record["budget"][key]
        elif option == "--seeds":
            assert record["seeds"] == list(range(int(value)))
        elif option == "--crypto":
            assert {row["crypto"] for row in record["rows"]} <= {value, "none"}
        elif option != "--eval-every":
            assert str(record[option.removeprefix("--")]) == value
    assert record["fine_tune"] == "held_out"


@pytest.mark.parametrize("name", RECORDS)
def test_a_table_and_what_stands_around_it_are_those_of_the_record(name: str) -> None:
    record = RECORDS[name]
    assert TABLES[name] == table(record)
    after = PAGE.partition(f"(comparisons/{name}))")[2].partition("\n## ")[0]
    text = re.sub(r"\s+", " ", after)
    for line in (race.budget(record), *race.not_shared(record), *race.sentences(record)):
        assert re.sub(r"\s+", " ", line).rstrip(".") in text, line


def test_the_page_is_linked() -> None:
    assert "(docs/comparisons.md)" in (DOCS.parent / "README.md").read_text()
