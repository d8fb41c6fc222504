"""The templates of pages, with filters. Tables have their cells as CSV, and fold on a phone without room."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

import jinja2
from markupsafe import Markup, escape

from coterie.report import clusters, comparison, gains, ledger, score_table, tables, words
from coterie.report.figure import METHODS, swatch
from coterie.report.summary import attackers

TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=True,  # names, settings and words in a run folder are other people's
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_NUMBERS = (words.percent, words.metric, words.size, words.energy, words.duration, words.number, words.plural)


def _unbroken(shown: Callable[..., str]) -> Callable[..., str]:
    return lambda *args: re.sub(r"(?<=[\d±]) ", "\u202f", shown(*args))


TEMPLATES.filters |= {of.__name__: _unbroken(of) for of in _NUMBERS}

_UNSEEN = r"[\s\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]*"
# a cell that a spreadsheet would run, full width included
_FORMULA = re.compile(_UNSEEN + r"(?:[=@\uff1d\uff20\uff0b\uff0d]|[-+](?![\d.,%\[\] +-]*\Z))")


class _Cells(HTMLParser):
    """Of a ``<data>`` its value, as measured."""

    def __init__(self, table: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self._of_data = False
        self.feed(table)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th") and self.rows:
            self.rows[-1].append("")
        elif tag == "data" and self.rows:
            self.rows[-1][-1] += dict(attrs)["value"] or ""
            self._of_data = True

    def handle_endtag(self, tag: str) -> None:
        if tag == "data":
            self._of_data = False

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1] and not self._of_data:
            self.rows[-1][-1] += data


def table_csv(table: str) -> str:
    """Formulas begin with a quote."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    for row in _Cells(table).rows:
        cells = (" ".join(cell.replace("\u202f", " ").split()) for cell in row)
        writer.writerow(map(_inert, cells))
    return written.getvalue()


def _inert(cell: str) -> str:
    """Also for a spreadsheet that splits lines at semicolons."""
    return ";".join(f"'{part}" if _FORMULA.match(part) else part for part in cell.split(";"))


PHONE = 300
"""Pixels of a table on a phone: 7 a letter, a column 6 beside its longest word."""
_LETTER, _GAP, _BAR = 7, 6, 48
_CELL, _TAG = re.compile(r"<(t[hd])\b([^>]*)>(.*?)</\1>", re.DOTALL), re.compile(r"<[^>]+>")


def least_width(rows: str) -> int:
    """Pixels on a phone, with lines broken at every space."""
    columns: dict[int, int] = {}
    for row in rows.split("</tr>"):
        for place, (_, kind, text) in enumerate(_CELL.findall(row)):
            words = re.split(r"[ \n]", unescape(_TAG.sub("", text)))
            wide = _BAR if 'class="bar"' in kind else _LETTER * max(map(len, words)) + _GAP
            columns[place] = max(columns.get(place, 0), wide)
    return sum(columns.values())


def folding(rows: str) -> str:
    """Rows whose cells bear their heads: on a phone a cell is a line."""
    head, _, body = rows.partition("</thead>")
    heads = [" ".join(_TAG.sub("", text).split()) for *_, text in _CELL.findall(head)]

    def named(row: str) -> str:
        left = iter(heads)
        return re.sub(r"<td\b", lambda cell: f'{cell[0]} data-head="{next(left, "")}"', row)

    return f"{head}</thead>{'</tr>'.join(map(named, body.split('</tr>')))}"


def tabled(rows: str, name: str, kind: str = "") -> Markup:
    """Around its rows (markup), with a link to ``name.csv``."""
    link = f"data:text/csv;charset=utf-8,{quote(table_csv(rows).encode(errors='replace'))}"
    fold = "</thead>" in rows and least_width(rows) > PHONE
    kinds = " ".join(filter(None, [escape(kind), "fold" * fold]))
    of_kind = f' class="{kinds}"' if kinds else ""
    return Markup(
        f'<div class="scroll"><table{of_kind}>{folding(rows) if fold else rows}</table></div>'
        f'<a class="csv" download="{escape(name)}.csv" href="{link}">CSV</a>'
    )


def coded(words: str) -> Markup:
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(words))))


_WORDS = (words.capital, words.listed, words.divided, tabled, coded)
TEMPLATES.filters |= {of.__name__: of for of in _WORDS}
TEMPLATES.globals |= {"inks": METHODS, "mark": swatch, "attackers": attackers, "clusters": clusters, "tables": tables}
TEMPLATES.globals |= {"comparison": comparison, "gains": gains, "ledger": ledger, "score_table": score_table}
