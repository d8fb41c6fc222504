"""Samples as one file or one object gives them: readers of tables (csv, parquet) and of named arrays (npz)."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.data.catalogue import FOUR
from coterie.data.formats import Arrays, read_npz
from coterie.protocol.errors import UserError, suggest

SPLIT, KIND = "split", "kind"
TARGETS = ("label", "y", "target", "class")
"""Columns that are taken for the labels of a table where ``target`` is not said."""


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples of one client, or of many. where: the client and file, for errors.

    x: (N, ...) numbers.  y: (N,) labels: whole numbers or text; (N, k) if there are several.
    owner: (N,) names of clients, or None.
    test: (N,) bool, which are test samples, or None if a share is to be split off.
    features, targets: the names of the columns of x and y, for a table.
    kind: of the samples, where the source says it.
    """

    where: str
    x: NDArray[Any]
    y: NDArray[Any]
    owner: NDArray[np.str_] | None = None
    test: NDArray[np.bool_] | None = None
    features: tuple[str, ...] = ()
    kind: str | None = None
    targets: tuple[str, ...] = ()


def read(path: Path, by: str | None, target: str | None) -> Samples:
    """The samples of one file; raises UserError."""
    if path.suffix == ".npz":
        if target is not None:
            raise UserError(f"{path}: an npz file has its labels in y, so target={target} has no effect: leave it out")
        return from_npz(read_npz(path), by, str(path))
    table = _read_csv(path) if path.suffix == ".csv" else _read_parquet(path)
    return from_table(table, by, target, str(path))


def from_npz(arrays: Arrays, by: str | None, where: str) -> Samples:
    """Samples of named arrays, as an npz file holds them. Raises UserError, also for an array that is not used."""
    pairs = ("x", "y") if "x" in arrays else ("features", "labels")
    whole = all(key in arrays for key in pairs)
    keys = pairs if whole else FOUR
    if missing := [key for key in keys if key not in arrays]:
        raise UserError(f"{where} lacks {', '.join(missing)}: it needs x and y, or {', '.join(FOUR)}")
    owners = () if by is None else (by,) if whole else (f"{by}_train", f"{by}_test")
    if missing := [key for key in owners if key not in arrays]:
        raise _no_column(where, missing[0], [key for key in arrays if key not in keys])
    if unused := sorted(set(arrays) - {*keys, *owners, KIND}):
        column = unused[0].removesuffix("_train").removesuffix("_test")
        raise UserError(
            f"{where} holds {unused[0]!r}, which is not used: deal the samples by it with --partition by:{column}, or "
            "remove it from the file"
        )
    parts = [[arrays[key] for key in found] for found in (keys[::2], keys[1::2], owners)]
    for key in (*keys, *owners):
        x = arrays[keys[2 if key.endswith("_test") and not whole else 0]]
        if arrays[key].shape[:1] != x.shape[:1]:
            raise UserError(f"{where}: {key} is {arrays[key].shape}, but x is {x.shape}: give one for each sample")
    x, y = joined(parts[0], where), joined(parts[1], where)
    names = joined(parts[2], where).astype(np.str_) if parts[2] else None
    test = None if whole else np.arange(len(x)) >= len(arrays["x_train"])
    kind = str(arrays[KIND]) if KIND in arrays else None
    return Samples(where, x, y, names, test, kind=kind)


def from_table(table: Mapping[str, NDArray[Any]], by: str | None, target: str | None, where: str) -> Samples:
    """Samples of a table's columns (N,). Raises UserError that names the column and the row."""
    labels = _label_columns(table, target, where)
    if by is not None and by not in table:
        raise _no_column(where, by, [name for name in table if name not in labels])
    features = tuple(name for name in table if name not in (*labels, by, SPLIT))
    if not features:
        raise UserError(f"{where} has no column of features beside {', '.join(table)}")
    if len(features) == 1 and table[features[0]].ndim > 1:  # one column of arrays, such as images
        x, features = table[features[0]], ()
    else:
        x = np.stack([_numbers(table[name], name, where) for name in features], axis=1)
    for label in labels:
        empty = [i for i, value in enumerate(table[label]) if value is None or str(value).strip() in ("", "nan")]
        if empty:
            raise UserError(f"{where}, column {label!r}: row {empty[0] + 1} has no label; fill it in or remove the row")
    y = table[labels[0]] if len(labels) == 1 else np.stack([_numbers(table[name], name, where) for name in labels], 1)
    owner = None if by is None else table[by].astype(np.str_)
    return Samples(where, x, y, owner, _test_rows(table, where), features, targets=labels)


def _read_csv(path: Path) -> dict[str, NDArray[Any]]:
    """The columns of a csv file with a header, as text. Raises UserError."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            header, *rows = list(csv.reader(file, strict=True)) or [[]]
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(f"{path} cannot be read as a csv file: {error}") from None
    header = [name.strip() for name in header]
    twice = [name for i, name in enumerate(header) if name in header[:i] or not name]
    if not header or twice:
        raise UserError(
            f"{path} must begin with a header of different column names; {twice[:1]} is there twice or empty"
        )
    rows = [row for row in rows if row]
    for number, row in enumerate(rows, 1):
        if len(row) != len(header):
            raise UserError(f"{path}, row {number}: {len(row)} cells under a header of {len(header)}")
    columns = zip(*rows, strict=True) if rows else ([] for _ in header)
    return {name: np.array(column, dtype=np.str_) for name, column in zip(header, columns, strict=True)}


def _read_parquet(path: Path) -> dict[str, NDArray[Any]]:
    try:
        import pandas
    except ImportError:
        raise UserError(f"{path}: parquet files need pandas and pyarrow: pip install 'coterie[tables]'") from None
    try:
        frame = pandas.read_parquet(path)
    except Exception as error:  # whatever the reader raises on damaged bytes
        raise UserError(f"{path} cannot be read as a parquet file: {type(error).__name__}: {error}") from None
    return {str(name): frame[name].to_numpy() for name in frame.columns}


def _label_columns(table: Mapping[str, Any], target: str | None, where: str) -> tuple[str, ...]:
    """The column of labels, or several: ``target`` may name them with commas between."""
    if target is not None:
        names = (target,) if target in table else tuple(name.strip() for name in target.split(","))
        if missing := [name for name in names if name not in table]:
            raise _no_column(where, missing[0], list(table))
        return names
    if found := [name for name in TARGETS if name in table]:
        return (found[0],)
    raise UserError(
        f"{where} has no column {', '.join(TARGETS)}: say with target (--target) which is the label: {', '.join(table)}"
    )


def _numbers(column: NDArray[Any], name: str, where: str) -> NDArray[np.float64]:
    """A column (N,) of finite numbers; raises UserError with the row."""
    if column.ndim != 1:
        raise UserError(
            f"{where}, column {name!r}: it holds arrays of shape {column.shape[1:]}: give them as x of an npz file"
        )
    try:
        values = column.astype(np.float64)
    except (ValueError, TypeError):
        row, value = next((i, value) for i, value in enumerate(column) if not _is_number(value))
        words = f"{str(value)!r} is no number" if str(value).strip() else "the cell is empty"
        raise UserError(
            f"{where}, column {name!r}, row {row + 1}: {words}; encode the column as numbers, drop it, or if it names "
            f"clients, deal by it with --partition by:{name}"
        ) from None
    if not (finite := np.isfinite(values)).all():
        row = int(np.argmin(finite))
        raise UserError(f"{where}, column {name!r}, row {row + 1}: {column[row]} is no finite number; clean it first")
    return values


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (ValueError, TypeError):
        return False
    return True


def _test_rows(table: Mapping[str, NDArray[Any]], where: str) -> NDArray[np.bool_] | None:
    if SPLIT not in table:
        return None
    words = np.char.lower(np.char.strip(table[SPLIT].astype(np.str_)))
    for row, word in enumerate(words):
        if word not in ("train", "test"):
            raise UserError(f"{where}, column {SPLIT!r}, row {row + 1}: {str(word)!r} is neither train nor test")
    return np.asarray(words == "test")


def joined(arrays: Iterable[NDArray[Any]], where: str) -> NDArray[Any]:
    arrays = list(arrays)
    if len({array.shape[1:] for array in arrays}) > 1:
        raise UserError(f"{where}: arrays of shapes {', '.join(str(a.shape) for a in arrays[:3])} do not fit together")
    if {a.dtype.kind for a in arrays} > {"O"}:
        arrays = [array.astype(object) for array in arrays]
    return np.concatenate(arrays)


def _no_column(where: str, name: str, known: Sequence[str]) -> UserError:
    return UserError(
        f"{where} has no column {name!r}{suggest(name, known)} There are: {', '.join(known) or 'no others'}"
    )
