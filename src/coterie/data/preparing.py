"""Tables by a schema: findings, samples, new samples, and a proposed schema."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from math import inf, isfinite
from pathlib import Path
from shlex import quote
from typing import Any

import msgspec
import numpy as np
import tomli_w

from coterie.data.columns import (
    MISSING,
    MOST_CATEGORIES,
    Cells,
    Column,
    Schema,
    encoded,
    inputs_of,
    one_category_twice,
    ordered,
    word_of,
)
from coterie.data.samples import (
    OF_CLIENTS,
    SPLIT,
    TARGETS,
    Samples,
    Table,
    label_columns_of,
    owners_of,
    read_table,
    test_rows,
    words,
)
from coterie.data.targets import check_words, has_decimal_comma, is_number, whole
from coterie.protocol.arrays import Array, Integers
from coterie.protocol.errors import UserError, suggest
from coterie.protocol.model_spec import TaskKind

DATES = ("%Y-%m-%d", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d")
"""Formats that are recognised."""
_EPOCH = datetime(1970, 1, 1)
_FAR = 10  # a value is strange that lies so many times beyond a column's middle half as this half is wide
_HEAD = """\
# What all parties' tables have in common. Check every line; the numbers come from the files that it was proposed from.
# low, high: what is plausible, of a date in days since 1970. An input is (value - mean) / scale.
# fill: what a gap becomes; a number's or date's gap without it is refused; a category's is 0 in all its inputs.
# kind: number, category (with values), date (with a format), id (kept beside predictions), ignore.

"""


@dataclass(frozen=True)
class Remark:
    """where: file, column and rows.  what: is wrong, and helps.  fault: the file cannot be used."""

    where: str
    what: str
    fault: bool = True

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" if self.where else self.what


def read_schema(path: Path) -> Schema:
    """Raises UserError that names the file and the fault."""
    try:
        return msgspec.convert(tomllib.loads(path.read_bytes().decode()), Schema)
    except OSError as error:
        raise UserError(f"cannot read the schema {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise UserError(f"{path} is not a schema: {error}; coterie prepare propose writes one to begin with") from None


def to_toml(schema: Schema) -> str:
    said = {name: value for name, value in msgspec.to_builtins(schema).items() if name != "column"}
    return _HEAD + "\n".join([tomli_w.dumps(said), *(f"[[column]]\n{_written(one)}" for one in schema.columns)])


def _written(column: Column) -> str:
    """With comments: a date's fill as a date, and places for the ends of what is plausible."""
    lines = tomli_w.dumps({"name": column.name, "kind": column.kind} | msgspec.to_builtins(column))
    if column.format is not None and column.fill is not None:
        date = date_of(column.fill, column.format)
        lines = re.sub(
            r"^fill = .*", lambda fill: f"{fill[0]}  # {date}, in days since 1970", lines, flags=re.MULTILINE
        )
    if column.kind in ("number", "date"):
        lines += "".join(f"# {end} =\n" for end in ("low", "high") if getattr(column, end) is None)
    return lines


def date_of(value: float, format: str) -> str:
    """value: days since 1970."""
    return (_EPOCH + timedelta(days=value)).strftime(format)


def days(cell: Any, format: str) -> float:
    """Days since 1970. Raises ValueError for another form."""
    if isinstance(cell, np.datetime64):
        return float(cell.astype("datetime64[s]").astype(np.int64)) / 86400
    return (datetime.strptime(str(cell).strip(), format) - _EPOCH).total_seconds() / 86400


def value_of(column: Column, cell: Any) -> float | str | None:
    """A number, a category's word, or None for a gap.

    Raises ValueError with what helps, ``{}`` standing for the cell.
    """
    word = str(int(cell)) if isinstance(cell, bool | np.bool_) else str(cell).strip()
    if word.lower() in MISSING:
        if column.fill is None and column.values is None:
            raise ValueError("the cell is empty, and nothing is stated that fills it: fill it, or leave the row out")
        return None
    if column.values is not None:
        if word_of(cell) not in column.values:
            raise ValueError(f"{{}} is none of {', '.join(column.values)}; leave the cell empty, or correct it")
        return word_of(cell)
    try:
        value = float(word) if column.format is None else days(cell, column.format)
    except ValueError:
        if column.format is None and has_decimal_comma(word):
            raise ValueError("{} has a decimal comma: write decimal points, such as 1.5") from None
        if column.format is None:
            raise ValueError("{} is not a number: correct it, or leave the cell empty") from None
        other = next((one for one in DATES if is_date(word, one)), None)
        said = "no date" if other is None else f"a date in another form, {other}, not"
        raise ValueError(f"{{}} is {said} of the form {column.format}: write all dates so") from None
    if not isfinite(value):
        raise ValueError("{} is not a finite number: leave the cell empty")
    low, high = plausible(column)
    if not low <= value <= high:
        ends = " to ".join("any" if end is None else f"{end:g}" for end in (column.low, column.high))
        raise ValueError(f"{{}} is not plausible, outside {ends}: correct it, or leave the cell empty")
    return value


def plausible(column: Column) -> tuple[float, float]:
    return -inf if column.low is None else column.low, inf if column.high is None else column.high


def is_date(word: str, format: str) -> bool:
    try:
        days(word, format)
    except ValueError:
        return False
    return True


def checked(path: Path, schema: Schema, by: str | None = None) -> tuple[Samples | None, list[Remark]]:
    """The samples of a csv or parquet file, None if there is a fault, and all findings.

    x: (n, inputs) float64, scaled.  y: (n,) int64, of ``schema.names``.  by: the column of clients.
    """
    try:
        table = read_table(path)
    except UserError as error:
        return None, [Remark("", str(error))]
    rows, found = cells_of(table, schema.columns, (schema.label, SPLIT, by), "the schema")
    y, of_labels = _labels(table, schema)
    found += [*of_labels, *_numbers_of_ids(table, schema)]
    owner = test = None
    try:
        test = test_rows(table)
        if test is not None and test.all():
            found.append(Remark(f"{path}, column {SPLIT!r}", "no row is for training: write train in some"))
        if by is not None and by not in table.columns:
            found.append(_lacking(table, by))
        elif by is not None:
            owner = owners_of(table.columns[by], f"{path}, column {by!r}", partial(table.at, by))
    except UserError as error:
        found.append(Remark("", str(error)))
    if any(one.fault for one in found):
        return None, found
    x, features = encoded(_inputs(schema.columns), rows), inputs_of(schema.columns)
    return Samples(str(path), x, y, owner, test, features, targets=(schema.label,), schema=schema), found


def prepared(
    path: Path, schema: Schema, by: str | None = None, tell: Callable[[str], None] = lambda note: None
) -> Samples:
    """As ``checked``; raises UserError with all faults.  tell: is told notes."""
    samples, found = checked(path, schema, by)
    if samples is None:
        _refuse(found, f"`coterie prepare check SCHEMA {path.name}` lists all findings")
    assert samples is not None
    for note in found:
        tell(str(note))
    return samples


def new_samples(
    path: Path, columns: Sequence[Column], labels: Sequence[str] = (), task: TaskKind = "classes"
) -> tuple[Array, Array | None, dict[str, list[str]]]:
    """Samples of a csv or parquet file to predict, their labels, and what names them, by column.

    columns: of training.  labels: its columns of labels; if unknown, one of ``TARGETS``. Labels are None without them,
    and for other tasks than ``classes``. Raises UserError.
    """
    if not columns:
        raise UserError(f"{path}: this model was trained on arrays without names of columns: give an npz file with x")
    table, names = read_table(path), {column.name for column in columns}
    labels = [name for name in table.columns if name in (labels or TARGETS) and name not in names]
    rows, found = cells_of(table, columns, (*labels, SPLIT), "the model")
    _refuse(found)
    x = encoded(_inputs(columns), rows)
    own = [column.name for column in columns if column.kind == "id" and column.name in table.columns]
    ids = {name: [str(cell).strip() for cell in table.columns[name]] for name in own}
    if not labels or task != "classes":
        return x, None, ids
    y = words(table.columns[labels[0]], "label", partial(table.at, labels[0]))
    numbers = whole(y, str(path))
    return x, y if numbers is None else numbers, ids


def cells_of(
    table: Table, columns: Sequence[Column], beside: Collection[str | None], who: str
) -> tuple[Cells, list[Remark]]:
    """The cells of inputs, (n, columns), and what is wrong with them and the table's columns.

    beside: other possible columns.  who: knows the columns.
    """
    inputs, known = _inputs(columns), {column.name for column in columns} | {*beside}
    absent = [column.name for column in inputs if column.name not in table.columns]
    found = [_lacking(table, name, ". Add it, with empty cells where nothing is known") for name in absent]
    strange = (name for name in table.columns if name not in known)
    found += [Remark(table.where, f"{who} does not know the column {name!r}: remove it") for name in strange]
    rows = np.empty((_length(table), len(inputs)), object)
    if not len(rows):
        return rows, [*found, Remark(table.where, "there is no row below the header")]
    for j, column in enumerate(inputs):
        if column.name in table.columns:
            rows[:, j], wrong = _read_column(table, column)
            if not wrong and all(cell is None for cell in rows[:, j]):
                what = "every cell is empty, so the column tells nothing here: leave it so, or fill it"
                wrong = [Remark(f"{table.where}, column {column.name!r}", what, fault=False)]
            found += wrong
    return rows, found


def _inputs(columns: Iterable[Column]) -> list[Column]:
    return [column for column in columns if column.kind not in ("id", "ignore")]


def _length(table: Table) -> int:
    return len(next(iter(table.columns.values()), ()))


def _lacking(table: Table, name: str, advice: str = "") -> Remark:
    there = f"There are: {', '.join(table.columns) or 'no others'}"
    return Remark(table.where, f"has no column {name!r}{suggest(name, table.columns)} {there}{advice}")


def _read_column(table: Table, column: Column) -> tuple[Array, list[Remark]]:
    """As ``_read``, but fast for good numbers."""
    cells = table.columns[column.name]
    if column.kind == "number" and cells.dtype.kind in "biufO":
        low, high = plausible(column)
        with suppress(ValueError, TypeError):
            values = cells.astype(np.float64)
            if (np.isfinite(values) & (low <= values) & (values <= high)).all():
                return values.astype(object), []
    return _read(table, column.name, partial(value_of, column))


def _read(table: Table, name: str, read: Callable[[Any], Any]) -> tuple[Array, list[Remark]]:
    cells, values = table.columns[name], np.empty(_length(table), object)
    wrong: dict[str, list[int]] = {}
    for row, cell in enumerate(cells):
        try:
            values[row] = read(cell)
        except ValueError as problem:
            wrong.setdefault(str(problem), []).append(row)
    return values, [
        Remark(table.among(name, rows), problem.replace("{}", repr(str(cells[rows[0]])), 1))
        for problem, rows in wrong.items()
    ]


def _labels(table: Table, schema: Schema) -> tuple[Integers, list[Remark]]:
    number = {name: i for i, name in enumerate(schema.names)}

    def code(cell: Any) -> int:
        if str(cell).strip().lower() in MISSING:
            raise ValueError("there is no label: fill it in, or remove the row")
        if word_of(cell) not in number:
            raise ValueError(f"{{}} is none of the classes {', '.join(schema.classes)}: correct it, or remove the row")
        return number[word_of(cell)]

    if schema.label not in table.columns:
        return np.zeros(_length(table), np.int64), [_lacking(table, schema.label)]
    values, found = _read(table, schema.label, code)
    codes = np.array([value or 0 for value in values], np.int64)
    if not found and len(codes) and len({*codes}) == 1:
        what = f"all labels are {schema.names[codes[0]]!r}: the client trains, but its own tests have no AUROC"
        found = [Remark(f"{table.where}, column {schema.label!r}", what, fault=False)]
    return codes, found


def _numbers_of_ids(table: Table, schema: Schema) -> Iterator[Remark]:
    for name in (column.name for column in schema.columns if column.kind == "id" and column.name in table.columns):
        words = [word for cell in table.columns[name] if (word := str(cell).strip()).lower() not in MISSING]
        if len({*words}) < len(words) and all(is_number(word) or has_decimal_comma(word) for word in words):
            what = (
                'it is an id, so no input, but holds numbers, some of them twice: if it is one, state kind = "number"'
            )
            yield Remark(f"{table.where}, column {name!r}", what, fault=False)


def _refuse(found: Iterable[Remark], advice: str = "") -> None:
    if faults := [str(one) for one in found if one.fault]:
        raise UserError("\n".join([*faults, *([advice] if advice and len(faults) > 1 else [])]))


# -- a proposal -------------------------------------------------------------------------------------------------------


def propose(
    paths: Sequence[Path], label: str | None, positive: str | None = None, categories: Collection[str] = ()
) -> tuple[Schema, list[Remark]]:
    """A schema for csv or parquet files, and what its reader should know.  label: None for one of ``TARGETS``.
    positive: None for the last of two.  categories: columns of numbers. Raises UserError.
    """
    tables = [read_table(path) for path in paths]
    names = list(dict.fromkeys(name for table in tables for name in table.columns))
    if label is None and len(found := [name for name in TARGETS if name in names]) != 1:
        what = f"the columns {' and '.join(found)}" if found else f"no column {', '.join(TARGETS)}"
        raise UserError(f"{paths[0]} has {what}: name the label with --label. There are: {', '.join(names)}")
    labels = label_columns_of(dict.fromkeys(names, ()), label, None, str(paths[0]))
    if len(labels) > 1:
        raise UserError(f"a schema has one column of labels, not {', '.join(labels)}: name one with --label")
    if missing := [name for name in categories if name not in names]:
        raise UserError(f"no file has the column {missing[0]!r}{suggest(missing[0], names)} Check --categories")

    def known(table: Table, name: str) -> list[Any]:
        return [cell for cell in table.columns.get(name, ()) if str(cell).strip().lower() not in MISSING]

    def cells(name: str) -> list[Any]:
        return [cell for table in tables for cell in known(table, name)]

    check_words([(table.where, map(word_of, known(table, labels[0]))) for table in tables])
    classes = ordered({word_of(cell) for cell in cells(labels[0])})
    features = [name for name in names if name not in (labels[0], SPLIT)]
    columns, notes = [], []
    for name in features:
        column, note = _proposed(name, cells(name), name in categories)
        columns.append(column)
        if note:
            notes.append(Remark(f"column {name!r}", note, fault=False))
    if positive is None and len(classes) == 2 and classes != ("0", "1"):
        what = f"{classes[1]!r} is taken for the positive class, of which probabilities speak"
        other = f"{what}: if that is {classes[0]!r}, say --positive {quote(classes[0])}"
        notes.append(Remark(f"column {labels[0]!r}", other, fault=False))
    try:
        made = Schema(labels[0], classes, tuple(columns), positive or (classes[-1] if len(classes) == 2 else None))
    except ValueError as error:
        raise UserError("\n".join([f"{paths[0]}: these files give no schema: {error}", *map(str, notes)])) from None
    return made, notes


def _proposed(name: str, cells: Sequence[Any], category: bool) -> tuple[Column, str]:
    found, plain = [word_of(cell) for cell in cells], name.strip().lower()
    formats = [one for one in DATES if all(is_date(cell, one) for cell in cells)]
    points = (word.replace(",", ".", 1) if has_decimal_comma(word) else word for word in found)  # a fault of the file
    numbers = [float(word) for word in points if is_number(word) and np.isfinite(float(word))]
    many = 2 * len({*found}) > len(found) > 2 or len({*found}) > MOST_CATEGORIES
    if not found:
        return Column(name, "ignore"), "every cell is empty, so it is ignored"
    if plain in OF_CLIENTS:
        return Column(name, "ignore"), ""
    if plain == "id" or plain.endswith(("_id", " id")):
        return Column(name, "id"), ""
    if formats and not category:
        numbers = [days(cell, formats[0]) for cell in cells]
    elif not category and (forms := _forms(found)):
        why = f"its dates have several forms (write all alike), such as {' and '.join(map(repr, forms))}"
        return Column(name, "id"), f"{why}, so it is an id, and no input"
    elif category or 2 * len(numbers) < len(found):
        if category or not many:
            made = Column(name, values=ordered({*found}))
            return made, one_category_twice(made)
        why = f"it has too many words for a category, such as {found[0]!r}, so it is an id, and no input"
        return Column(name, "id"), why
    mean, scale, fill = (float(f"{of(numbers):.6g}") for of in (np.mean, np.std, np.median))
    format = formats[0] if formats else None
    others = ", ".join(formats[1:])
    notes = [f"its dates are read as {format}, and fit {others}, too: see which it is"] if others else []
    notes += _far(numbers, format)
    made = Column(name, format=format, fill=fill, mean=mean, scale=scale if scale > 0 else 1.0)
    return made, "; ".join(notes)


def _forms(words: Sequence[str]) -> Sequence[str]:
    """Two of these dates with different forms, if all are dates."""
    of = {word: next((one for one in DATES if is_date(word, one)), None) for word in {*words}}
    if None in of.values():
        return ()
    return words[0], next(word for word in words if not is_date(word, of[words[0]] or ""))


def _far(numbers: Sequence[float], format: str | None) -> Iterator[str]:
    """A sentence about a strange farthest value.  format: of dates."""

    def word(value: float) -> str:
        return f"{value:g}" if format is None else date_of(value, format)

    low, high = np.quantile(numbers, (0.25, 0.75))
    far = max(numbers, key=lambda value: max(low - value, value - high))
    if 0 < _FAR * (high - low) < max(low - far, far - high):
        middle = f"half of its values are from {word(low)} to {word(high)}, and one is {word(far)}"
        yield f"{middle}: if that is an error, correct it, and state low and high, which all files are then checked for"
