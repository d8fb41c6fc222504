"""Rules that keep a page readable: on a telephone, in grey, in the dark, and in a spreadsheet."""

from __future__ import annotations

import csv
import io
import itertools
import re
from html.parser import HTMLParser
from urllib.parse import unquote

import pytest
from report_folders import write_comparison, write_run

from coterie.record.schema import Partition
from coterie.report import plots, render
from coterie.report.drawing import looks
from coterie.report.figure import METHODS, Bars
from coterie.report.templates import coded, table_csv, tabled
from coterie.report.words import divided

NARROW = 390


class Nesting(HTMLParser):
    """Of each start tag: its name, its attributes, and the tags and classes around it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.around: list[tuple[str, str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        of = dict(attrs)
        self.found.append((tag, of, [name for both in self.around for name in both]))
        if tag not in ("meta", "link", "img", "br", "path", "image"):
            self.around.append((tag, of.get("class") or ""))

    def handle_endtag(self, tag: str) -> None:
        if self.around and self.around[-1][0] == tag:
            self.around.pop()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    here = tmp_path_factory.mktemp("pages")
    folders = write_run(here / "one", clients=6, rounds=4), write_comparison(here / "c", clients=5, seeds=2, rounds=3)
    return [render([folder]).read_text() for folder in folders]


def test_no_box_is_wider_than_a_telephone_but_those_that_scroll(pages: list[str]) -> None:
    for page in pages:
        for tag, attrs, around in Nesting(page).found:
            if tag == "svg":
                assert "viewbox" in attrs
                assert "width" not in attrs
                assert "figure" in around
            if tag == "table":
                assert "scroll" in around
            assert not re.search(
                r"\bwidth:\s*(?:[4-9]\d\d|\d{4,})px", (attrs.get("style") or "").replace("max-width", "")
            )
        (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
        for selector in ("figure", ".scroll", "pre"):
            assert re.search(rf"(?m)^{re.escape(selector)} {{[^}}]*overflow-x: auto", style), selector
        for rule, value in re.findall(r"([^{}]*)\{[^{}]*?(?<!max-)\b(?:min-)?width: (\d+)px", style):
            assert int(value) <= NARROW or "figure svg" in rule, rule  # a figure scrolls in its own box


def test_the_first_charts_are_drawn_for_a_telephone_too(pages: list[str]) -> None:
    boxes = [
        float(str(attrs["viewbox"]).split()[2])
        for tag, attrs, around in Nesting(pages[1]).found
        if tag == "svg" and "phone" in around
    ]
    assert boxes
    assert max(boxes) <= NARROW


def test_every_table_has_its_cells_as_csv(pages: list[str]) -> None:
    for page in pages:
        links = re.findall(
            r'<a class="csv" download="[\w-]+\.csv" href="data:text/csv;charset=utf-8,([^"]+)">CSV</a>', page
        )
        assert len(links) == page.count("<table") > 5
        for link in links:
            rows = list(csv.reader(io.StringIO(unquote(link))))
            assert rows
            assert all(rows)


def test_csv_has_measured_values_and_runs_nothing() -> None:
    rows = (
        "<tr><th>client</th><th>gain</th></tr>"
        '<tr><td>=HYPERLINK("x")</td><td><data value="0.123">12.3\u202f%</data></td></tr>'
        "<tr><td>+1+cmd|&#39;x&#39;!A</td><td>+6.5 [+3.1, -9.9]</td></tr>"
        "<tr><td>a, &lt;b&gt;</td><td>-3</td></tr>"
    )
    found = list(csv.reader(io.StringIO(table_csv(rows))))
    assert found == [
        ["client", "gain"],
        ['\'=HYPERLINK("x")', "0.123"],
        ["'+1+cmd|'x'!A", "+6.5 [+3.1, -9.9]"],
        ["a, <b>", "-3"],
    ]
    assert 'download="&#34;x.csv"' in tabled(rows, '"x')


@pytest.mark.parametrize("before", ["", "x;", "x; ", "x;;", "-3;", "\t", "\ufeff", "\u200b \u2060", "x;\u200b"])
@pytest.mark.parametrize("formula", ["=1+1", "@SUM(1)", "+cmd|x", "-[1]a", "\uff1d1", "\uff201", "\uff0b1", "\uff0d1"])
def test_no_part_of_a_csv_is_a_formula_wherever_a_spreadsheet_splits(before: str, formula: str) -> None:
    text = table_csv(f"<tr><td><i>{before}</i>{formula}</td><td>{formula}</td></tr>")
    parts = [part.strip(" \n\ufeff\u200b\u2060") for part in re.split("[;,\t]", text)]
    assert sum(part.startswith("'") and part.endswith(formula) for part in parts) == 2
    assert not any(part.startswith(tuple("=@\uff1d\uff20\uff0b\uff0d")) for part in parts)


def test_numbers_between_semicolons_stay_numbers() -> None:
    assert table_csv("<tr><td>a; -3;+4.5 %</td></tr>") == "a; -3;+4.5 %\n"


def test_names_in_backticks_are_code_and_stay_words() -> None:
    assert coded("`a<b>` is & better") == "<code>a&lt;b&gt;</code> is &amp; better"


# -- colours ----------------------------------------------------------------------------------------------------------


def lightness(colour: str) -> float:
    """CIE L*, from 0 to 100: what remains of a colour in grey."""
    linear = [
        v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4
        for v in (c / 255 for c in bytes.fromhex(colour[1:]))
    ]
    y = sum(part * share for part, share in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return 116 * y ** (1 / 3) - 16 if y > 0.008856 else 903.3 * y


@pytest.mark.parametrize("theme", [0, 1])
def test_no_two_methods_have_the_same_grey(theme: int) -> None:
    greys = [lightness(both[theme]) for both in METHODS]
    assert min(abs(a - b) for a, b in itertools.combinations(greys, 2)) >= 5
    assert min(abs(a - b) for a, b in itertools.combinations(greys[:4], 2)) >= 7
    paper = lightness(("#ffffff", "#1a1f25")[theme])
    assert min(abs(grey - paper) for grey in greys) >= 15


def test_lines_of_papers_differ_in_colour_and_kind() -> None:
    every = [tuple(look.values()) for look in looks(map(str, range(32))).values()]
    assert len(set(every)) == 32
    assert len({line for _, line in every[:4]}) == 4


def test_two_classes_are_two_colours_with_their_names() -> None:
    partition = Partition(label_counts=((3, 1), (2, 2), (0, 5)), class_names=("ill", "healthy"))
    figure, alt = plots.classes.__wrapped__(partition, range(3), None)  # type: ignore[attr-defined]
    ((panel,),) = figure.panels
    assert "viewBox" in figure.svg(alt)
    below, above = (mark for mark in panel.marks if isinstance(mark, Bars))
    assert list(below.top) == [3, 2, 0]
    assert list(above.top) == [4, 4, 5]
    assert [key.words for key in figure.keys] == ["ill", "healthy"]
    assert below.colours != above.colours
    unnamed, _ = plots.classes.__wrapped__(Partition(label_counts=((3, 1),)), range(1), None)  # type: ignore[attr-defined]
    assert [key.words for key in unnamed.keys] == ["class 0", "class 1"]
    assert "2 classes" in alt


# -- words ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("by:client", "each client has data of its own (by:client)"),
        ("iid", "dealt evenly at random (iid)"),
        ("labels:2", "each client holds 2 labels (labels:2)"),
        ("labels:2-4", "each client holds 2 to 4 labels (labels:2-4)"),
        ("labelsets:5:1-2", "the labels dealt into 5 disjoint sets, each to a group of clients (labelsets:5:1-2)"),
        (
            "permute:4+iid",
            "each of 4 groups has the labels in an order of its own; within a group: dealt evenly at random "
            "(permute:4+iid)",
        ),
        ("my.module:deal", "training data are dealt (my.module:deal)"),
    ],
)
def test_a_partition_in_words(spec: str, words: str) -> None:
    assert divided(spec) == words


def test_every_heading_of_a_page_has_a_sentence(pages: list[str]) -> None:
    for page in pages:
        heads = re.findall(r"<summary><h2>[^<]+</h2><span class=\"quiet\">([^<]*)</span></summary>", page)
        assert len(heads) == page.count("<h2>")
        assert all(words.endswith(".") for words in heads)
