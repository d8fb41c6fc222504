"""The pages are short, use plain words, and the glossary has every word of the tables that are printed."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks import pages
from coterie.cli.comparing import tables
from coterie.record.comparison import ACCURACY
from coterie.report import comparison, gains, score_table
from coterie.report.words import sides
from coterie.runs.options import OPTIONS

ROOT = Path(__file__).parents[2]
LIMIT, FRONT = 1500, 1200
"""Words of a page, and of the README, as ``wc -w`` counts them, without generated tables and marks of numbers."""
TEXTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")] + pages.pages()
ODD = (
    "the same for the same",
    "told nothing",
    "as good as none",
    "could tell twice",
    "without memory",
    "hollow",
    r"\bhabits?\b",
    r"\b(?:the|a|an|its|their|every) (?:who|what)\b",
)
"""Words that readers stumbled over."""


def words(text: str) -> int:
    return len(pages.NUMBER.sub(r"\5", pages.MARK.sub("", text)).split())


def is_short(path: Path) -> bool:
    """Whether the limit holds: not for appendices, and for what is generated."""
    return not path.stem.endswith("_appendix") and path.parent.name != "evidence"


@pytest.mark.parametrize("path", list(filter(is_short, pages.pages())), ids=lambda path: path.stem)
def test_a_page_is_short(path: Path) -> None:
    assert words(path.read_text()) <= LIMIT


def test_the_readme_is_short() -> None:
    assert len(pages.NUMBER.sub(r"\5", (ROOT / "README.md").read_text()).split()) <= FRONT


@cache
def strings_of_code() -> dict[Path, str]:
    """Docstrings and what is printed, of the package's files that may have odd words: to parse all takes seconds."""
    found = {}
    for path in (ROOT / "src").rglob("*.py"):
        text = path.read_text()
        if re.search("|".join(ODD), " ".join(text.split()), re.IGNORECASE):
            constants = (one.value for one in ast.walk(ast.parse(text)) if isinstance(one, ast.Constant))
            found[path] = "\n".join(one for one in constants if isinstance(one, str))
    return found


@pytest.mark.parametrize("phrase", ODD)
def test_no_page_and_no_text_of_the_code_has_odd_words(phrase: str) -> None:
    texts = {path: path.read_text() for path in TEXTS} | strings_of_code()
    assert [path.name for path, text in texts.items() if re.search(phrase, " ".join(text.split()), re.IGNORECASE)] == []


def test_every_option_of_a_run_is_on_a_page() -> None:
    text = "\n".join(path.read_text() for path in TEXTS)
    flags = ["--" + name.replace("_", "-") for name in OPTIONS]
    assert [flag for flag in flags if not re.search(rf"{flag}(?![\w-])", text)] == []


# -- the glossary ------------------------------------------------------------------------------------------------------


def explained() -> set[str]:
    text = (ROOT / "docs" / "glossary.md").read_text()
    return {" ".join(term.lower().split()) for term in re.findall(r"\*\*([^*]+)\*\*", text)}


def terms(head: str) -> Iterator[str]:
    """The words of a column's head: ``local %, tuned`` has two."""
    for part in re.split(r"[,:]", re.sub(r"<[^>]*>|\[.*?\]|%", " ", head)):
        found = " ".join(part.lower().split()).removesuffix(" of")
        if len(names := found.split()) > 1 and names[-1] == ACCURACY.label:
            yield from (" ".join(names[:-1]), names[-1])
        elif found:
            yield found


def spread(value: float = 0.5) -> dict[str, Any]:
    return {"mean": value, "interval": 0.1, "values": [value]}


def printed() -> Iterator[str]:
    """The heads of all columns of ``coterie compare``."""
    from rich.console import Console

    accuracies = {field: spread() for field in sides(ACCURACY)}
    row: dict[str, Any] = {
        "method": "fedavg",
        "crypto": "real",
        "runs": [""],
        "learned": {topic: spread() for topic in comparison.TOPICS},
        **{field: spread() for field in ("backdoor_success", "detection_rate", "false_alarms", "ari")},
        **{field: spread() for field in ("bytes_up", "seconds", "virtual_seconds")},
        **accuracies,
    }
    for table in tables([row], Console(width=1000)):
        yield from (str(column.header) for column in table.columns)
    row["clients"] = {"local_accuracy": {"worst_decile": spread(), "interval": 0.1}}
    others = ("local_balanced_accuracy", "own_classes_accuracy", "all_classes_accuracy", "local_dropped")
    row |= {f"prior_{one}": spread() for one in others}
    row["clients"]["prior_local_accuracy"] = row["clients"]["local_accuracy"]
    content = {"rows": [row], "leads": [{"over": "local", **accuracies}]}
    yield from score_table.form_table(content)[0]
    yield from (head for _, head, _ in comparison.lead_columns(content))
    yield from gains.HELP_HEADS
    yield from (column.head for column in score_table.score_columns([row]))


def reported() -> Iterator[str]:
    """The heads of all columns of a report: those of its templates, and of the table of methods."""
    from coterie.report import tables as made

    for path in Path(made.__file__).parent.glob("*.html"):
        text = re.sub(r"\{[{%].*?[%}]\}", " ", path.read_text())
        yield from re.findall(r"<th(?=[ >])[^>]*>(.*?)</th>", text, re.DOTALL)
    yield from (name for name, _ in made._COLUMNS.values())  # templates have an expression there
    yield from sides(ACCURACY).values()
    yield from comparison.TOPICS


@pytest.mark.parametrize("source", [printed, reported])
def test_every_head_of_a_column_is_in_the_glossary(source: Any) -> None:
    heads = [*source()]
    assert len(heads) > 20
    assert {term for head in heads for term in terms(head)} - explained() == set()


def test_words_of_tables_cells_are_in_the_glossary() -> None:
    """Of metrics, rows of audits and ciphers."""
    assert explained() >= {"auroc", "average precision", "brier score", "control", "paillier", "ckks"}


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_a_command_that_goes_on_in_the_next_line_says_so(path: Path) -> None:
    for kind, block in re.findall(r"^```(\w*).*?\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE):
        lines = ["", *block.splitlines()] if kind in ("", "bash") else []
        for before, line in itertools.pairwise(lines):
            assert not re.match(r"\s*--[a-z]", line) or before.endswith("\\"), line
