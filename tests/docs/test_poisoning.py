"""What docs/poisoning.md says of attacks and baselines is what they are, and its numbers are those of its file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.poisoning import ATTACKS, METHODS, PARTITIONS, accuracies, backdoors, detections
from coterie.baselines.robust import SYSTEMS, RobustConfig
from coterie.privacy.attacks.active import KINDS, parse
from coterie.runs.registry import SYSTEMS as EVERY

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "poisoning.md").read_text()


def test_the_table_of_attacks_is_complete_and_has_their_strengths() -> None:
    table = dict(re.findall(r"^\| `(\w+)` \| [^|]+ \| [^|(]+ \((\S+)\) \|$", PAGE, re.MULTILINE))
    assert {name: float(strength) for name, strength in table.items()} == {
        name: kind.strength for name, kind in KINDS.items()
    }


def test_the_table_of_baselines_is_complete() -> None:
    assert set(SYSTEMS) <= set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))
    assert f"--set faulty={RobustConfig().faulty:g}" in PAGE


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("table", [accuracies, backdoors, detections])
def test_the_tables_are_those_of_the_file(table, partition: str) -> None:
    found = json.loads((DOCS / "poisoning" / "digits.json").read_text())
    made = table(found["rows"], partition)
    assert made.count("\n") >= 3
    assert made in PAGE
    assert f"{found['seeds']} seeds" in PAGE


def test_the_study_names_attacks_and_systems_that_there_are() -> None:
    assert set(METHODS) <= set(EVERY)
    for attack in filter(None, ATTACKS):
        parse(attack)
