"""The site that ``make docs`` builds: whole, without other hosts, and every question is answered within two clicks.

It is also the test of the notebooks: the build executes them, and fails where one does.
"""

from __future__ import annotations

import json
import re
import tomllib
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

bs4 = pytest.importorskip("bs4", reason="the extra docs is not installed")

ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
SITE = ROOT / "build" / "site" / VERSION
QUESTIONS = {
    question: page
    for asked in tomllib.loads((ROOT / "docs" / "questions.toml").read_text()).values()
    for question, page in asked.items()
}
pytestmark = pytest.mark.skipif(
    not (SITE / "index.html").exists(), reason="there is no site of this version: make docs"
)
SAYS = {
    "1_first_run": ["accuracy on all test data", "Linear", "config.toml", "<img"],
    "2_four_hospitals": ["va           alone", "Predictions of 200 samples", "Sequential"],
    "3_attack_a_system": ["nothing found"],
    "4_compare_for_a_paper": ["@misc", r"\begin{tabular}", "| fedprox |", "<svg"],
    "5_your_own_method": ["Near, sealed", "server with any client"],
    "6_deploy_on_this_machine": ["models_sha256", "accuracy"],
}
"""What the outputs of each have, among other things."""


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


def test_the_notebooks_are_these() -> None:
    assert [path.stem for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))] == list(SAYS)


@pytest.mark.parametrize("name", SAYS)
def test_a_notebook_is_shown_with_its_outputs(name: str) -> None:
    outputs = parsed(SITE / "notebooks" / f"{name}.html").select(".cell_output")
    text, markup = "\n".join(one.get_text() for one in outputs), "\n".join(map(str, outputs))
    assert [words for words in SAYS[name] if words not in text and words not in markup] == []
    assert not re.search("Traceback|Error:", text)
    assert text.count("setting up") < 3  # no bar that is drawn again and again


@pytest.mark.parametrize("name", SAYS)
def test_a_notebook_takes_less_than_two_minutes(name: str) -> None:
    site = pytest.importorskip("benchmarks.site")
    seconds = json.loads((SITE / site.SECONDS).read_text())
    assert 0 < seconds[f"notebooks/{name}"] < 120


# -- versions ----------------------------------------------------------------------------------------------------------


def test_every_page_says_its_version_and_loads_the_others() -> None:
    listed = (SITE.parent / "versions.js").read_text()
    assert f'"{VERSION}"' in listed
    assert (SITE.parent / "index.html").exists()
    for page in built():
        (chosen,) = parsed(page).select("select#version option[selected]")
        assert chosen.get_text() == VERSION


def test_versions_are_the_folders_beside_and_the_newest_comes_first(tmp_path: Path) -> None:
    site = pytest.importorskip("benchmarks.site")
    for name in ("0.9.0", "0.10.0", "0.10.0rc1", "1.0"):
        (tmp_path / name).mkdir()
    for name in ("0.9.0", "0.10.0", "0.10.0rc1"):  # 1.0 is being built
        (tmp_path / name / "index.html").write_text("")
    site.write_versions(tmp_path)
    assert (tmp_path / "versions.js").read_text() == 'coterieVersions = ["0.10.0", "0.10.0rc1", "0.9.0"];\n'
    assert "url=0.10.0/index.html" in (tmp_path / "index.html").read_text()


def test_notebooks_are_executed_again_when_a_file_of_the_package_changes(tmp_path: Path) -> None:
    site = pytest.importorskip("benchmarks.site")
    (tmp_path / "inner").mkdir()
    path = tmp_path / "inner" / "one.py"
    path.write_text("x = 1")
    first = site.digest(tmp_path)
    path.with_suffix(".pyc").write_bytes(b"compiled")
    assert site.digest(tmp_path) == first
    path.write_text("x = 2")
    assert site.digest(tmp_path) != first
