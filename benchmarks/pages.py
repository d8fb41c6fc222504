"""Tables and numbers of the README and of the pages under docs, made of the records beside them.

A page marks where a table stands, and of what::

    <!-- table: docs/ofl/noise.json rows -->
    (what stands here is generated)
    <!-- end -->

The first word is the record, the second the kind of table (``benchmarks/tables.py``). Its arguments follow, separated
by semicolons: columns that stand there, and ``column=value|value`` for the rows that do. A table of any kind can
be narrowed: ``only A | B`` keeps the rows that have one of these cells, ``without A | B`` leaves columns out.

A number in a sentence is one of such a table. Two more arguments say which: a cell of its row, without backticks and
without ``--``, which no comment may have, and its column, with ``/2`` for the second number there::

    a round takes <!-- number: docs/bench.json ciphers fedcaprivacy, paper; ratio -->61.3<!-- end --> emulated ones

``make docs-tables`` writes all of them, and draws the studies' pictures (``benchmarks/pictures.py``). ``--check``
writes nothing, and fails where a page differs from its records.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from benchmarks import pictures
from benchmarks.markdown import grid
from benchmarks.tables import ROOT, TABLES, Record

MARK = re.compile(r"(<!-- table: (\S+) ([\w-]+) ?([^\n]*?) ?-->\n)(.*?)(<!-- end -->\n)", re.DOTALL)
NUMBER = re.compile(r"(<!-- number: (\S+) ([\w-]+) (.*?) -->)(.*?)(<!-- end -->)")
_FIGURE = re.compile(r"–|[+−-]?\d[\d,]*(?:\.\d+)?(?:e[+-]\d+)?(?: ± [\d.]+)?")


def read(record: str) -> Record:
    text = (ROOT / record).read_text()
    return tomllib.loads(text) if record.endswith(".toml") else json.loads(text)


def cells(table: str) -> list[list[str]]:
    """Of a table's head and rows."""
    head, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines())
    return [head, *rows]


def narrowed(text: str, choices: Sequence[str]) -> str:
    """A table with fewer rows and columns. Each choice is ``only A | B`` or ``without A | B``.

    Raises ValueError for a name that the table lacks: a row would go without a word.
    """
    head, *found = cells(text)
    left_out: set[str] = set()
    for choice in choices:
        verb, _, words = choice.partition(" ")
        named = {word.strip(" `") for word in words.split("|")}
        there = {cell.strip("`") for row in found for cell in row} if verb == "only" else set(head)
        if lacking := named - there:
            raise ValueError(f"{choice}: the table lacks {', '.join(sorted(lacking))}")
        if verb == "only":
            found = [row for row in found if named & {cell.strip("`") for cell in row}]
        else:
            left_out |= named
    kept = [i for i, name in enumerate(head) if name.strip("`") not in left_out]
    return grid([head[i] for i in kept], [[row[i] for i in kept] for row in found])


def made(record: str, kind: str, arguments: Sequence[str]) -> str:
    """The table of a mark."""
    choices = [word for word in arguments if word.startswith(("only ", "without "))]
    table = TABLES[kind](read(record), *(word for word in arguments if word not in choices))
    return narrowed(table, choices) if choices else table


def number(table: str, row: str, column: str) -> str:
    """One number of a table, with its interval and without a plus sign. Raises ValueError where there is none."""
    (head, *rows), (name, _, which) = cells(table), column.partition(" /")
    found = [one for one in rows if row in map(_bare, one)]
    if len(found) != 1:
        raise ValueError(f"{row}; {column}: {len(found)} rows of the table have this cell")
    texts = [text for one, text in zip(head, found[0], strict=True) if _bare(one) == name]
    figures: list[str] = [figure for text in texts for figure in _FIGURE.findall(text)]
    if len(figures) < int(which or 1) or (figure := figures[int(which or 1) - 1]) == "–":
        raise ValueError(f"{row}; {column}: there is no such number, but {', '.join(figures) or 'no column'}")
    return figure.lstrip("+")


def _bare(cell: str) -> str:
    """Without marks of Markdown, the target of a link, and the hyphens before an option."""
    return re.sub(r"--|[`*]", "", re.sub(r"\[(.*?)\]\(.*?\)", r"\1", cell))


def _arguments(text: str) -> list[str]:
    return [word.strip() for word in text.split(";") if word.strip()]


def generated(page: str) -> str:
    """The page with all its tables and numbers as the records have them."""

    def fill(mark: re.Match[str]) -> str:
        opening, record, kind, arguments, _, end = mark.groups()
        return opening + made(record, kind, _arguments(arguments)) + end

    def cite(mark: re.Match[str]) -> str:
        opening, record, kind, arguments, _, end = mark.groups()
        if mark.start() in starts:
            raise ValueError(f"{opening} begins a line, which ends a paragraph of Markdown: move a word before it")
        *given, row, column = _arguments(arguments)
        return opening + number(made(record, kind, given), row, column) + end

    starts = {line.end() for line in re.finditer(r"^[ >*+-]*", page, re.MULTILINE)}
    return MARK.sub(fill, NUMBER.sub(cite, page))


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def main(arguments: list[str] | None = None) -> int:
    """Write tables and numbers and draw pictures, or only compare the former; 1 if a page differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, and fail where a page differs")
    check = parser.parse_args(arguments).check
    differ = [path for path in pages() if generated(path.read_text()) != path.read_text()]
    for path in differ:
        sys.stdout.write(f"{path.relative_to(ROOT)} {'differs from its records' if check else 'written'}\n")
        if not check:
            path.write_text(generated(path.read_text()))
    if not check:
        for picture, record in pictures.of_records():
            pictures.draw(record, picture)
    return int(check and bool(differ))


if __name__ == "__main__":
    raise SystemExit(main())
