"""What the papers' tables and figures show is judged by records that exist, and numbers of pages name their record."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import evidence, pages
from coterie.reproductions import items
from coterie.reproductions.study import Calculation, Cell, Item
from coterie.runs import RunConfig

ROOT = Path(__file__).parents[2]
FOUND = evidence.verdicts()
PAPERS = ("fedcaprivacy", "fedepc", "mingledpie", "ofl", "pafed")
FIVE_LINES = ("Holds", "Does not hold", "Reading", "How sure", "What it would take")

# -- verdicts and their records ----------------------------------------------------------------------------------------


def problems(name: str, verdict: Mapping[str, Any]) -> list[str]:
    """What is wrong with a verdict."""
    wrong = [f"no {word}" for word in ("verdict", "reading", "says", "sure") if not verdict.get(word)]
    if verdict.get("verdict") not in evidence.VERDICTS:
        wrong.append(f"verdict {verdict.get('verdict')!r}")
    item = items().get(verdict.get("item", name))
    if item is None:
        return [*wrong, "no item"]
    known = {cell.name for cell in item.cells}
    paths = evidence.records(name, verdict)
    for path in paths:
        if not (ROOT / path).exists():
            wrong.append(f"no record {path}")
            continue
        record = json.loads((ROOT / path).read_text())
        strange = set(record["cells"]) - known
        if strange == set(record["cells"]) or (strange and record["item"] == item.name):
            wrong.append(f"{path}: unknown cells {sorted(strange)[:3]}")
        if f"--seeds {len(record['seeds'])}" not in record["command"]:
            wrong.append(f"{path}: its command has other seeds")
        lacking = {cell for cell, own in record.get("curves", {}).items() if not own} | (
            set(record["cells"]) - set(record.get("curves", record["cells"]))
        )
        wrong += [f"{path}: no curve of {sorted(lacking)[:3]}"] if lacking else []
    if not wrong and (verdict["verdict"] == "not run") == bool(evidence.run_of(item, paths)):
        wrong.append("'not run' beside runs, or a verdict without any")
    return wrong


@pytest.mark.parametrize("name", FOUND)
def test_a_verdict_has_its_words_and_records_of_its_own_cells(name: str) -> None:
    assert problems(name, FOUND[name]) == []


def test_every_item_has_a_verdict() -> None:
    assert items().keys() <= FOUND.keys()
    ours = [name for name in FOUND if evidence.OF_PAPER.search(FOUND[name].get("title", "")) is None]
    shown = [name for name in ours if evidence.OF_PAPER.search(items()[name].title) is None]
    assert len(FOUND) - len(shown) == 42


def test_the_summary_counts_every_item_once() -> None:
    _, _, *rows = evidence.summary(FOUND).splitlines()
    assert len(rows) == len(PAPERS)
    assert sum(int(cell) for row in rows for cell in row.strip("| ").split(" | ")[1:]) == len(FOUND)


def test_a_false_verdict_is_noticed() -> None:
    good = FOUND["fedepc/table4"]
    assert problems("fedepc/table9", good) == ["no item"]
    assert "no sure" in problems("fedepc/table4", {**good, "sure": ""})
    assert problems("fedepc/table4", {**good, "records": ["docs/none.json"]}) == ["no record docs/none.json"]
    assert problems("fedepc/table4", {**good, "verdict": "not run"})
    assert problems("fedepc/fig5", good | {"records": ["docs/reproduction/fedepc/table4.json"]})


def test_what_is_left_is_what_was_not_run_at_its_length(tmp_path: Path) -> None:
    runs = (
        Cell("a", RunConfig("fedavg", "digits", rounds=10, model="linear")),
        Cell("b", RunConfig("fedavg", "x", rounds=10)),
    )
    item = Item("p/one", "p", runs, list)
    costs = {evidence.kind(item, runs[0]): {"seconds": 360.0, "samples": None}}
    short = {"command": "c --seeds 2 --rounds 4", "seeds": [0, 1], "cells": {"a": {}}}
    curves = {"a": [{"seed": 1}], "other": [{"seed": 0}]}
    whole = {"command": "c --seeds 3", "seeds": [0, 1, 2], "cells": dict.fromkeys(curves), "curves": curves}
    for name, record in (("short", short), ("whole", whole)):
        (tmp_path / name).write_text(json.dumps(record))
    done = evidence.run_of(item, [str(tmp_path / "short"), str(tmp_path / "whole")])
    assert done == {("a", 0): 4, ("a", 1): 10}
    assert evidence.left(item, done, costs) == "1.6 h + `x`"  # 6 + 0 + 10 rounds of a tenth of an hour
    assert evidence.left(Item("p/two", "p", (Calculation("c", float),), list), {}, costs) == "0.0 h"


def test_a_round_takes_longer_with_more_samples_where_their_number_is_known() -> None:
    few = Cell("a", RunConfig("fedavg", "digits", rounds=10, model="linear", samples=100))
    item, every = Item("p/one", "p", (few,), list), replace(few, config=replace(few.config, samples=None))
    known, unknown = ({evidence.kind(item, few): {"seconds": 10.0, "samples": samples}} for samples in (500, None))
    assert [evidence.seconds(item, cell, known) for cell in (few, every)] == [2.0, 10.0]
    assert [evidence.seconds(item, cell, unknown) for cell in (few, every)] == [10.0, 10.0]


@pytest.mark.parametrize("paper", PAPERS)
def test_a_reproduction_opens_with_five_lines(paper: str) -> None:
    head = (ROOT / "docs" / "reproduction" / f"{paper}.md").read_text().partition("\n## ")[0]
    assert re.findall(r"^- \*\*([^*:]+):\*\*", head, re.M) == list(FIVE_LINES)
    assert f"(../evidence/papers.md#{paper})" in head


# -- numbers and their records -----------------------------------------------------------------------------------------

MEASURED = re.compile(r"\d\.\d|(?<!\w)\.\d|±|\d ?%|\d (?:s|ms|MB|kB|GB|h)\b")
CLAIMED = re.compile(r"(?<![\w.^])(?!95 %)\d*\.?\d+ (?:%|points?\b)|\d×")
WITHOUT: Mapping[tuple[str, str], str] = {
    ("docs/audits.md", "How to read a row"): "limits of the verdicts' words, nothing measured",
    ("docs/data.md", "Four hospitals: `heart`"): "counts of the built-in data",
    ("docs/resources.md", "Fleet `jetson`"): "the paper's boards, and rates that a test compares with the code",
    ("docs/threshold.md", "Precision"): "bounds that a test compares with the code",
    ("docs/systems/mingledpie.md", "Threshold keys"): "shares of draws of identity sets, without training",
    ("docs/systems/fedcaprivacy_appendix.md", "Departures from the text"): "an attack that a test repeats",
}
"""Page and head of the section: why its numbers need no record."""


def sections(path: Path) -> Iterator[tuple[str, str]]:
    """Heads and texts of a page, without blocks of code."""
    text = re.sub(r"^```.*?^```\n", "", path.read_text(), flags=re.M | re.S)
    text = re.sub(r"^    .*\n", "", text, flags=re.M)
    head = ""
    for part in re.split(r"^(?=#+ )", text, flags=re.M):
        head = part.partition("\n")[0].lstrip("# ") or head
        yield head, part


def recorded(path: Path, text: str) -> bool:
    """Whether a section has a generated table, or links a record or a page that has either."""
    if pages.MARK.search(text) or re.search(r"\]\([^)]*\.json\)", text):
        return True
    linked = [path.parent / link for link in re.findall(r"\]\(([^)#]+\.md)", text)]
    return any(page.exists() and (pages.MARK.search(t := page.read_text()) or ".json)" in t) for page in linked)


def numeric(table: str) -> bool:
    """Whether at least a quarter of a table's cells, and three, are measured."""
    cells = [cell for line in table.splitlines()[2:] for cell in line.strip("| ").split(" | ")]
    return (count := sum(bool(MEASURED.search(cell)) for cell in cells)) >= 3 and 4 * count >= len(cells)


PAGES = [ROOT / "README.md", *pages.pages()]


@pytest.mark.parametrize("path", PAGES, ids=[path.relative_to(ROOT).as_posix() for path in PAGES])
def test_a_table_of_numbers_names_its_record(path: Path) -> None:
    name = path.relative_to(ROOT).as_posix()
    for head, text in sections(path):
        by_hand = pages.MARK.sub("", text)
        if any(map(numeric, re.findall(r"(?:^\|.*\n)+", by_hand, re.M))) and not re.search(r"\]\([^)]*\.json\)", text):
            assert (name, head) in WITHOUT, f"{name}: the table of {head!r} links no record"


CLAIMING = [ROOT / "README.md", *sorted((ROOT / "docs" / "systems").glob("*.md"))]


@pytest.mark.parametrize("path", CLAIMING, ids=[path.relative_to(ROOT).as_posix() for path in CLAIMING])
def test_a_claim_lies_beside_its_record(path: Path) -> None:
    name = path.relative_to(ROOT).as_posix()
    for head, text in sections(path):
        if (claim := CLAIMED.search(text)) and not recorded(path, text):
            assert (name, head) in WITHOUT, f"{name}: {claim[0]!r} in {head!r} has no record near it"


def test_no_section_is_excused_in_vain() -> None:
    assert {(p.relative_to(ROOT).as_posix(), head) for p in PAGES for head, _ in sections(p)} >= WITHOUT.keys()
