"""The numbers of docs/scale.md are those of its records, and its claims hold of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from coterie.data.schemes import kinds
from coterie.data.synthetic import _LAWS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "scale.md").read_text()


def test_the_table_of_clients_is_that_of_its_record() -> None:
    record = json.loads((DOCS / "scale" / "clients.json").read_text())
    assert (record["asked"], record["evaluated"], record["rounds"]) == (1000, 1000, 3)
    for one in record["runs"]:
        cells = [f"{one['peak_mb']:.0f}", f"{one['round_processor_s']:.1f}", f"{one['run_processor_s']:.1f}"]
        cells += [f"{one['round_s']:.1f}", f"{one['files']:,}", f"{one['folder_mb']:.1f}"]
        assert f"| {one['clients']:,} | {' | '.join(cells)} |" in PAGE


def test_memory_and_time_are_flat_in_the_record() -> None:
    _, some, most = json.loads((DOCS / "scale" / "clients.json").read_text())["runs"]
    assert most["clients"] == 10 * some["clients"] == 100_000
    assert most["peak_mb"] < 1.1 * some["peak_mb"]
    assert most["run_processor_s"] < 1.5 * some["run_processor_s"]


def test_the_table_of_workers_is_that_of_its_record() -> None:
    record = json.loads((DOCS / "scale" / "workers.json").read_text())
    assert record["same_models"]
    for name, words in (("ray:1", "one worker"), ("ray:2", "two workers")):
        of = record[name]
        cells = [f"{of['chunk']['here_s']:.2f}", f"{of['chunk']['there_s']:.2f}"]
        cells += [f"{1000 * of['one'][side]:.0f}" for side in ("here_s", "there_s")]
        assert f"| {words} | {' | '.join(cells)} |" in PAGE
    assert f"{1000 * record['overhead_of_one_s']:.0f} ms" in PAGE
    assert f"{record['overhead_of_chunk_s']:.1f} s" in PAGE


@pytest.mark.parametrize("kind", _LAWS)
def test_every_law_is_on_the_page(kind: str) -> None:
    forms = re.findall(r"^\| `([^`]+)`", PAGE.partition("## Made-up data")[2].partition("## Workers")[0], re.MULTILINE)
    assert kind in kinds(forms)
