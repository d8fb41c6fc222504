"""Rules that keep a page readable: on a telephone, in grey, in the dark, and in a spreadsheet."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser
from typing import Any
from urllib.parse import unquote

import pytest
from report_folders import edit, write_comparison, write_run

from coterie.record.schema import Partition
from coterie.report import plots, render
from coterie.report.drawing import looks
from coterie.report.figure import METHODS, Axis, Bars, Figure, Panel, marker
from coterie.report.inline import stacked
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
    both = write_comparison(here / "both", clients=45, seeds=2, rounds=3)
    for result in both.glob("*/result.json"):
        edit(result, measures=[AUROC, ACCURACY], metrics=SCORES, audit={"attacks": [ATTACK, {**ATTACK, "round": 3}]})
    compared = write_comparison(here / "c", clients=5, seeds=2, rounds=3)
    folders = write_run(here / "one", clients=6, rounds=4), compared, both
    return [render([folder]).read_text() for folder in folders]


AUROC = {"name": "auroc", "label": "AUROC", "share": True, "higher": True}
ACCURACY = {"name": "accuracy", "label": "accuracy", "share": True, "higher": True}
SCORES = dict.fromkeys((f"{form}{side}_auroc" for form in ("", "fine_tuned_") for side in ("global", "local")), 0.87)
SCORES |= {"prior_local_auroc": 0.9, "mixed_local_auroc": 0.9, "prior_local_accuracy": 0.9, "mixed_local_accuracy": 0.9}
ATTACK: dict[str, Any] = {
    "name": "server: models, as they are sent",
    "verdict": "everything",
    "leak": 1.0,
    "error": 0.0,
    "metric": "correlation with the true label shares",
    "chance": 0.0,
    "perfect": 1.0,
    "clients": 4,
}


def test_no_box_is_wider_than_a_telephone_but_those_that_scroll(pages: list[str]) -> None:
    for page in pages:
        for tag, attrs, around in Nesting(page).found:
            if tag == "svg" and attrs["class"] != "mark":
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
            assert int(value) <= NARROW, rule


# -- on a telephone nothing scrolls sideways --------------------------------------------------------------------------

Rows = list[list[tuple[str, dict[str, str | None], str]]]
"""Of cells: their tag, their attributes, and their text."""
COLUMN = 340
"""Pixels of a telephone's page without its margins; of a run in a comparison a tenth less."""
SVG = re.compile(r'<svg class="(\w+)" viewBox="0 0 ([\d.]+) ([\d.]+)"(.*?)</svg>', re.DOTALL)
TEXT = re.compile(
    r'<text x="([\d.-]+)" y="([\d.-]+)" fill="[^"]*" font-size="([\d.]+)" text-anchor="(\w+)"([^>]*)>([^<]*)'
)


def spans(drawing: str) -> Iterator[tuple[float, float, float, str]]:
    """Of words that lie: their height, left and right end, and themselves. A letter is half as wide as high."""
    for x, y, size, anchor, more, words in TEXT.findall(drawing):
        if "rotate" not in more:
            wide = 0.5 * float(size) * len(unescape(words))
            left = float(x) - {"start": 0, "middle": wide / 2, "end": wide}[anchor]
            yield float(y), left, left + wide, words


def test_every_figure_has_a_form_for_a_telephone_with_all_words_in_it(pages: list[str]) -> None:
    for page in pages:
        every = [found for found in SVG.findall(page) if found[0] != "mark"]
        assert [kind for kind, *_ in every] == ["screen", "phone"] * page.count("<figure>")
        for kind, width, _, drawing in every:
            assert kind == "screen" or float(width) <= COLUMN
            told = list(spans(drawing))
            assert told
            for height, left, right, words in told:
                assert -2 <= left < right <= float(width) + 2, words
                assert not [
                    other for y, a, b, other in told if (y, a) > (height, left) and y < height + 4 and a < right < b
                ], words


def test_panels_beside_each_other_stand_one_under_the_other_with_the_words_that_they_shared() -> None:
    panels = [[Panel("left", Axis(), Axis("up")), Panel("right", Axis())], [Panel("", Axis("a")), Panel("", Axis("b"))]]
    found = stacked(Figure(1000, 400, panels))
    assert [len(row) for row in found.panels] == [1, 1, 1, 1]
    (first,), (second,), (third,), (fourth,) = found.panels
    assert [panel and panel.title for panel in (first, second, third, fourth)] == ["left", "right"] * 2
    assert [panel and panel.x.name for panel in (first, second, third, fourth)] == ["a", "b"] * 2
    assert first is not None
    assert second is not None
    assert first.y.name == second.y.name == "up"
    scale = stacked(Figure(1000, 400, [[Panel(), Panel()]], widths=(1, 0.02)))
    assert [len(row) for row in scale.panels] == [2]  # a scale stays beside
    many = Axis(ticks=[(k, str(k)) for k in range(40)])
    ((thinned,),) = stacked(Figure(1000, 400, [[Panel(x=many)]])).panels
    assert thinned is not None
    assert 5 <= len(thinned.x.ticks or ()) <= 20


class Tables(HTMLParser):
    """Of each table its classes and its rows."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tables: list[tuple[str, Rows]] = []
        self.inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self.tables.append((dict(attrs).get("class") or "", []))
        elif tag == "tr":
            self.tables[-1][1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][1][-1].append((tag, dict(attrs), ""))
            self.inside = True

    def handle_endtag(self, tag: str) -> None:
        self.inside &= tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self.inside:
            tag, attrs, text = self.tables[-1][1][-1][-1]
            self.tables[-1][1][-1][-1] = tag, attrs, text + data


def needed(rows: Rows, letter: float, gap: float, *, breaks: bool) -> float:
    """Pixels of a table. breaks: whether lines break at every space, as on a telephone, or only in heads and words."""
    wide: dict[int, float] = {}
    for row in rows:
        for place, (tag, attrs, text) in enumerate(row):
            kind = (attrs.get("class") or "").split()
            parts = re.split(r"[ \n]+", text.strip()) if breaks or tag == "th" or "words" in kind else [text.strip()]
            own = 45 if "bar" in kind else letter * max(map(len, parts)) + gap
            wide[place] = max(wide.get(place, 0), own)
    return sum(wide.values())


def test_a_table_without_room_folds_and_its_cells_bear_their_heads(pages: list[str]) -> None:
    folded = []
    for page in pages:
        for kind, rows in Tables(page).tables:
            assert needed(rows, 6.6, 8, breaks=False) <= 1044, rows[0]  # of a page of 1280
            if "fold" not in kind.split():
                assert needed(rows, 6.0, 6, breaks=True) <= 0.9 * COLUMN, rows[0]
                continue
            heads = [" ".join(text.split()) for *_, text in rows[0]]
            folded.append(heads)
            for row in rows[1:]:
                assert [attrs.get("data-head") for _, attrs, _ in row] == heads
    assert any("virtual time" in heads for heads in folded)
    assert any(heads[:3] == ["attack", "verdict", "leak"] for heads in folded)
    assert "fold" not in tabled("<thead><tr><th>a</th></tr></thead><tbody><tr><td>1</td></tr></tbody>", "a")


def test_the_page_shows_one_form_of_a_figure_and_folds_on_a_telephone(pages: list[str]) -> None:
    (style,) = re.findall(r"<style>(.*?)</style>", pages[0], re.DOTALL)
    screen, _, rest = style.partition("@media (max-width: 640px) {")
    phone = rest.partition("@media")[0]
    assert "svg.phone { display: none; }" in screen
    for rule in ("svg.screen { display: none; }", "svg.phone { display: block; }", "thead { display: none; }"):
        assert rule in phone
    assert re.search(r"table\.fold tr \{ display: grid", phone)
    assert "content: attr(data-head)" in phone
    assert "min-width: 820px" not in style


def test_methods_have_their_charts_marks_in_tables(pages: list[str]) -> None:
    """In grey a square says nothing, so shapes tell methods apart."""
    marks = re.findall(r'<svg class="mark"[^>]*><path d="([^"]+)" fill="(var\(--m\d\))"/></svg>(\w+)', pages[1])
    by_name = {name: (shape, ink) for shape, ink, name in marks}
    assert len(marks) > len(by_name) >= 3  # in several tables
    assert len(set(by_name.values())) == len({shape for shape, _ in by_name.values()})
    assert by_name["IFCA"] == (marker(2, 5.5, (6, 6)), "var(--m2)")  # the last by name


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
