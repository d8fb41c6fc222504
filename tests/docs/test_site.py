"""The site that ``make docs`` builds: whole, without other hosts, and every question is answered within two clicks."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

bs4 = pytest.importorskip("bs4", reason="the extra docs is not installed")

ROOT = Path(__file__).parents[2]
SITE = ROOT / "build" / "site"
QUESTIONS = {
    question: page
    for asked in tomllib.loads((ROOT / "docs" / "questions.toml").read_text()).values()
    for question, page in asked.items()
}
pytestmark = pytest.mark.skipif(not (SITE / "index.html").exists(), reason="there is no build/site: make docs")


@cache
def parsed(path: Path) -> bs4.BeautifulSoup:
    return bs4.BeautifulSoup(path.read_text(), "html.parser")


def target(page: Path, link: str) -> tuple[Path, str] | None:
    """The file and the anchor of a link; None for another host."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    return ((page.parent / unquote(parts.path)).resolve() if parts.path else page), unquote(parts.fragment)


def built() -> list[Path]:
    return sorted(SITE.rglob("*.html"))


def links(page: Path) -> list[tuple[Path, str]]:
    """Of a page's text, without the navigation beside it."""
    found = [target(page, one["href"]) for one in parsed(page).select("article a[href]")]
    return [one for one in found if one is not None]


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_is_answered_within_two_clicks_of_the_front_page(question: str) -> None:
    name, _, anchor = QUESTIONS[question].partition("#")
    wanted, front = SITE / Path(name).with_suffix(".html"), SITE / "index.html"
    first = {page for page, _ in links(front)}
    second = {page for one in first if one.suffix == ".html" for page, _ in links(one)}
    assert wanted in first | second
    assert not anchor or parsed(wanted).find(id=anchor)


def test_there_are_ten_questions_of_each_reader() -> None:
    asked = tomllib.loads((ROOT / "docs" / "questions.toml").read_text())
    assert {reader: len(found) for reader, found in asked.items()} == {"researcher": 10, "hospital": 10}


def test_every_page_of_the_folder_is_on_the_site() -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert pages <= {path.relative_to(SITE) for path in built()}


def test_no_link_within_the_site_is_broken() -> None:
    broken = []
    for page in built():
        for one in parsed(page).select("[href], [src]"):
            found = target(page, one.get("href") or one.get("src"))
            if found is None or str(found[0]).startswith(str(SITE / "genindex")):
                continue
            path, anchor = found
            if not path.exists() or (anchor and path.suffix == ".html" and not parsed(path).find(id=anchor)):
                broken.append(f"{page.name}: {one.get('href') or one.get('src')}")
    assert broken == []


def test_nothing_is_loaded_from_another_host() -> None:
    """Scripts, styles, fonts and pictures lie in the site, so it works without network."""
    for page in built():
        loaded = [one.get("src") or one["href"] for one in parsed(page).select("script[src], img[src], link[href]")]
        assert [one for one in loaded if urlsplit(one).netloc] == [], page
    for style in SITE.rglob("*.css"):
        assert "url(http" not in style.read_text().replace('"', "").replace("'", ""), style


def test_the_search_knows_the_pages() -> None:
    index = (SITE / "searchindex.js").read_text()
    assert '"glossary"' in index
    assert '"systems/coterie"' in index
