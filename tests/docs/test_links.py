"""Links between pages, and from code to pages, lead somewhere: also where nobody builds the site."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from benchmarks import pages

ROOT = Path(__file__).parents[2]
TEXTS = [*sorted(ROOT.glob("*.md")), *pages.pages()]
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


@cache
def anchors(path: Path) -> set[str]:
    """The headings of a page, as code hosts and the site name them."""
    heads = re.findall(r"^#+ (.+)$", FENCE.sub("", path.read_text()), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", head).replace("`", "").lower() for head in heads)
    return {re.sub(r"[^\w\- ]", "", head).replace(" ", "-") for head in plain}


def leads_nowhere(place: Path, link: str) -> bool:
    name, _, anchor = link.partition("#")
    path = place.parent / name if name else place
    return not path.exists() or bool(anchor and path.suffix == ".md" and anchor not in anchors(path))


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_the_links_of_a_page_lead_somewhere(path: Path) -> None:
    links = re.findall(r"\]\((?!\w+:)([^)\s]+)\)", FENCE.sub("", path.read_text()))
    assert [link for link in links if leads_nowhere(path, link)] == []


def test_the_pages_that_code_names_are_there() -> None:
    named = re.compile(r"\bdocs/[\w/]+\.md(?:#[\w-]+)?")
    folders = ("src", "tests", "papers", "benchmarks")
    every = (path for folder in folders for path in (ROOT / folder).rglob("*"))
    files = [path for path in every if path.suffix in (".py", ".html", ".j2")]
    found = {(path, link) for path in files for link in named.findall(path.read_text())}
    assert len(found) > 50
    assert [(path.name, link) for path, link in found if leads_nowhere(ROOT / "README.md", link)] == []
