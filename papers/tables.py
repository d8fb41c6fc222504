"""Tables as data. A paper's TOML file states its runs, cells, columns and printed numbers; its module has functions.

``[run]``: options of every run.  ``[axis.NAME.VALUE]``: what this value adds to them. Keys that are no options of a run
are words for columns and pictures.  ``[printed.TABLE]``: the paper's numbers, nested by ``by``.
``[[item]]``: name, title, ``cells`` (a format of their names), ``grid`` (blocks of values by axis, multiplied in this
order), ``each`` (axes outside the blocks), ``run`` and ``axis`` of its own, and ``columns``: by heading, the name of an
axis, option or word, a format of them, or a function ``f(found, cell, *words)`` with further words.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from coterie.reproductions.study import Calculation, Cell, Curve, Item, Row, by_cell, named, percent
from coterie.runs.config import RunConfig
from papers.plots import accuracy_panels, curves_figure

Functions = Mapping[str, Any]
_OPTIONS = {one.name for one in fields(RunConfig)}


@dataclass(frozen=True)
class Entry:
    """A cell of a table as its functions see it. words: by axis, option or key, its value."""

    name: str
    words: Mapping[str, Any]
    printed: Any

    def __getitem__(self, key: str) -> Any:
        return self.words[key]


def load(name: str) -> dict[str, Any]:
    return tomllib.loads((Path(__file__).parent / f"{name}.toml").read_text())


def items(name: str, functions: Functions) -> Mapping[str, Item[Any]]:
    """The items of ``papers/NAME.toml``.

    functions: of the paper's module, which columns name. ``options(words, options)`` may change a cell's options.
    """
    paper = load(name)
    functions = {**globals(), **functions}
    return named(*(_item(paper, one, functions) for one in paper["item"]))


def _item(paper: Mapping[str, Any], item: Mapping[str, Any], functions: Functions) -> Item[Any]:
    by = item.get("by", ())
    printed = paper.get("printed", {}).get(item.get("printed", item["name"].partition("/")[2]))
    cells: list[Any] = []
    entries: dict[str, Entry] = {}
    for values in _values(item):
        options = _options(paper, item, values, functions)
        words = {**options, **values}
        name = item["cells"].format(**words)
        entries[name] = Entry(name, words, _at(printed, [words[key] for key in by]))
        if "compute" in item:
            given = [words[key] for key in item["arguments"]]
            says = {key: words[key] for key in item["says"]}
            cells.append(Calculation(name, partial(functions[item["compute"]], *given), says))
        else:
            known = {key: one for key, one in options.items() if key in _OPTIONS}
            cells.append(Cell(name, RunConfig(**{"precision": "fp32", **known})))  # the same on every machine
    columns = item.get("columns", {})
    if isinstance(columns, str):
        columns = paper["columns"][columns]

    def row(name: str, found: Sequence[Any]) -> Row:
        made: dict[str, Any] = {}
        for heading, text in columns.items():
            value = _column(text, found, entries[name], functions)
            made |= value if heading.startswith("*") else {heading: value}
        return made

    summarise = functions[item["rows"]] if "rows" in item else by_cell(row)
    draw = partial(_draw, item["picture"], entries) if "picture" in item else None
    return Item(item["name"], item["title"], tuple(cells), summarise, draw)


def _values(item: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The values of each cell by axis, in order."""
    for outer in _product(item.get("each", {})):
        for block in item["grid"]:
            for inner in _product(block):
                yield outer | inner


def _product(axes: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    every = [values if isinstance(values, list) else [values] for values in axes.values()]
    for chosen in product(*every):
        yield dict(zip(axes, chosen, strict=True))


def _options(
    paper: Mapping[str, Any], item: Mapping[str, Any], values: Mapping[str, Any], functions: Functions
) -> dict[str, Any]:
    parts = [paper.get("run", {})]
    for axes in (paper.get("axis", {}), item.get("axis", {})):
        parts += [axes[axis][_key(value)] for axis, value in values.items() if _key(value) in axes.get(axis, {})]
    found: dict[str, Any] = {"settings": {}}
    for part in (*parts, item.get("run", {})):
        found |= part | {"settings": {**found["settings"], **part.get("settings", {})}}
    if "options" in functions:
        functions["options"]({**found, **values}, found)
    return found


def _key(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _at(numbers: Any, path: Sequence[Any]) -> Any:
    """The paper's number under these keys, or None. What follows a hyphen in a name of data is ours."""
    for step in path:
        key = _key(step)
        numbers = (numbers or {}).get(key, (numbers or {}).get(key.partition("-")[0]))
    return numbers


def _column(text: str, found: Sequence[Any], entry: Entry, functions: Functions) -> Any:
    if "{" in text:
        return text.format(**entry.words)
    name, *words = text.split()
    return entry[name] if name in entry.words else functions[name](found, entry, *words)


# ---- columns of several papers


def printed(found: Sequence[Any], cell: Entry, which: str = "") -> Any:
    """The paper's number. which: of several in one cell."""
    return cell.printed if not which or cell.printed is None else cell.printed[which]


def last(found: Sequence[Curve], cell: Entry, which: str, window: str = "10") -> str | None:
    """The mean accuracy of the last rounds. which: global or local."""
    return percent([curve.last(f"{which}_accuracy", int(window)) for curve in found])


def tuned(found: Sequence[Curve], cell: Entry, which: str) -> str | None:
    """The accuracy after each client's own tuning."""
    return percent([curve.summary.get(f"fine_tuned_{which}_accuracy") for curve in found])


def case(found: Sequence[Any], cell: Entry) -> str:
    """The cell's name after the data set."""
    return cell.name.partition("/")[2].replace("/", " ")


def count_seeds(found: Sequence[Any], cell: Entry) -> int:
    return len(found)


def count_rounds(found: Sequence[Curve], cell: Entry) -> int:
    return len(found[0].local_accuracy)


def mean(found: Sequence[Row], cell: Entry, which: str, times: str = "1") -> float:
    """Of one number of a calculation, over the seeds."""
    return float(times) * fmean(one[which] for one in found)


# ---- pictures


def _draw(
    picture: Mapping[str, str], entries: Mapping[str, Entry], curves: Mapping[str, Sequence[Curve]], path: Path
) -> None:
    """Two panels of all cells; or a panel for each ``panel``, and over ``x`` for each ``ends`` with several values.

    A line is named by ``line``. ``sides``: panels for both accuracies.
    """
    if "panel" not in picture:
        curves_figure(curves, picture["title"]).savefig(path)
        return
    panels: dict[str, dict[str, Sequence[Curve]]] = {}
    ends: dict[str, dict[str, dict[float, float]]] = {}
    measures: dict[str, str] = {}
    for side in ("global", "local") if "{side}" in picture["panel"] else ("global",):
        for name, found in curves.items():
            words = {**entries[name].words, "name": name, "side": side}
            case, line = picture["panel"].format(**words), picture["line"].format(**words)
            panels.setdefault(case, {})[line] = found
            measures[case] = f"{side}_accuracy"
            if "ends" in picture and picture["x"] in words:
                points = ends.setdefault(picture["ends"].format(**words), {}).setdefault(line, {})
                points[words[picture["x"]]] = fmean(curve.last("global_accuracy") for curve in found)
    several = {case: lines for case, lines in ends.items() if max(map(len, lines.values())) > 1}
    accuracy_panels(panels, several, picture["title"], measures).savefig(path)
