"""Samples of a table (csv, parquet, columns), named arrays (npz), or torch ``Dataset``."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data.catalogue import FOUR
from coterie.data.columns import MISSING, Column, Schema, word_of
from coterie.data.formats import Arrays, check_claim, read_npz
from coterie.data.targets import has_decimal_comma, is_number
from coterie.protocol.arrays import Array, Doubles, Flags
from coterie.protocol.errors import UserError, suggest, to_install

SPLIT, KIND, NAMES = "split", "kind", "targets"
TARGETS = ("label", "y", "target", "class")
"""Columns of labels where ``target`` is not said."""
OF_CLIENTS = frozenset({"client", "site", "hospital", "center", "centre", "institution"})
"""Columns that are no features by mistake."""
MAX_CELL = 1_000
"""Characters in a csv file's cell."""
_SHOWN = 5  # rows in a message
_GAPS = "fill it, leave out the row, or say gaps=mean (--gaps)"
_IGNORED = 'in a schema kind = "ignore" or "id"'


@dataclass(frozen=True)
class Prepared:
    """gaps: whether features may have some.  categories: columns that are no numbers."""

    gaps: bool = False
    categories: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples of one client, or of many.  where: the client and file, for errors.

    x: (N, ...) numbers.  y: (N,) whole numbers or text; (N, k) if several.  owner: (N,) names of clients, or None.
    test: (N,) bool, or None if a share is to be split off.  features, targets: a table's columns of x and y.  kind:
    where the source says it.  columns: of x, then cells (``data/columns.py``).  schema: by which x are inputs and y
    classes already.
    """

    where: str
    x: Array
    y: Array
    owner: Array | None = None
    test: Flags | None = None
    features: tuple[str, ...] = ()
    kind: str | None = None
    targets: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    schema: Schema | None = None


@dataclass(frozen=True, eq=False)
class Table:
    """Columns (N,).  where: client and file.  lines: of the file, one a row."""

    where: str
    columns: Mapping[str, Array]
    lines: Sequence[int] = ()

    def at(self, name: str, row: int) -> str:
        return self.among(name, [row])

    def among(self, name: str, rows: Sequence[int]) -> str:
        some = [str(self.lines[row] if self.lines else row + 1) for row in rows[:_SHOWN]]
        more = f" and {len(rows) - _SHOWN:,} more" if len(rows) > _SHOWN else ""
        unit = f"{'line' if self.lines else 'row'}{'s' * (len(rows) > 1)}"
        return f"{self.where}, column {name!r}, {unit} {', '.join(some)}{more}"


def read(path: Path, by: str | None, target: str | None, prepared: Prepared | None = None) -> Samples:
    """The samples of one file.  prepared: for gaps or categories. Raises UserError."""
    if path.suffix.lower() == ".npz":
        if target is not None:
            raise UserError(f"{path}: an npz file has its labels in y, so target={target} has no effect: leave it out")
        if prepared is not None:
            raise UserError(
                f"{path}: gaps and categories are read from csv and parquet files, not from npz: write it as one of "
                "these, or fill its gaps and leave --gaps and --categories out"
            )
        return from_npz(read_npz(path, lambda arrays: npz_keys(arrays, by, str(path))), by, str(path))
    return from_table(read_table(path), by, target, prepared)


def read_table(path: Path) -> Table:
    """The columns of a csv or parquet file. Raises UserError."""
    if path.is_dir():
        raise UserError(f"{path} is a folder: name the files in it, such as {path}/*.csv")
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise UserError(f"{path} is not a table: a schema is for csv and parquet files")
    return _read_csv(path) if path.suffix.lower() == ".csv" else _read_parquet(path)


def npz_keys(arrays: Arrays, by: str | None, where: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the arrays of samples, labels and clients.

    Raises UserError, also for an unused array or one of another length.
    """
    pairs = ("x", "y") if "x" in arrays else ("features", "labels")
    whole = all(key in arrays for key in pairs)
    keys = pairs if whole else FOUR
    if missing := [key for key in keys if key not in arrays]:
        if "x_indptr" in arrays:
            stem = Path(where).stem
            raise UserError(
                f"{where} is a graph: give its name and its folder, --data {stem} --data-dir {Path(where).parent}"
            )
        raise UserError(f"{where} lacks {', '.join(missing)}: it needs x and y, or {', '.join(FOUR)}")
    owners = () if by is None else (by,) if whole else (f"{by}_train", f"{by}_test")
    if taken := sorted({*owners} & {*keys, KIND, NAMES}):
        raise UserError(
            f"{where}: {taken[0]} is one of the arrays of samples and labels: put the names of clients into another one"
        )
    if missing := [key for key in owners if key not in arrays]:
        raise no_column(where, missing[0], [key for key in arrays if key not in keys])
    if unused := sorted(set(arrays) - {*keys, *owners, KIND, NAMES}):
        column = unused[0].removesuffix("_train").removesuffix("_test")
        raise UserError(
            f"{where} holds {unused[0]!r}, which is not used: deal the samples by it with --partition by:{column}, or "
            "remove it from the file"
        )
    for key in (*keys, *owners):
        x = arrays[keys[2 if key.endswith("_test") and not whole else 0]]
        if not x.ndim or arrays[key].shape[:1] != x.shape[:1]:
            raise UserError(f"{where}: {key} is {arrays[key].shape}, but x is {x.shape}: give one for each sample")
    return keys, owners


def from_npz(arrays: Arrays, by: str | None, where: str) -> Samples:
    """Raises UserError, also for an unused array."""
    keys, owners = npz_keys(arrays, by, where)
    whole = len(keys) == 2
    parts = [[arrays[key] for key in found] for found in (keys[::2], keys[1::2], owners)]
    x, y = joined(parts[0], where), joined(parts[1], where)
    y = words(y[:, 0] if y.shape[1:] == (1,) else y, "label", lambda i: f"{where}, label of sample {i}")
    named = (
        owners_of(joined(parts[2], where), f"{where}, {by}", lambda i: f"{where}, {by} of sample {i}") if by else None
    )
    names = tuple(map(str, np.ravel(arrays[NAMES]))) if NAMES in arrays else ()
    if names and len(names) != (1 if y.ndim == 1 else y.shape[1]):
        raise UserError(f"{where}: {NAMES} holds {len(names)} names, but y is {y.shape}: give one for each column of y")
    test = None if whole else np.arange(len(x)) >= len(arrays["x_train"])
    kind = str(arrays[KIND]) if KIND in arrays else None
    return Samples(where, x, y, named, test, kind=kind, targets=names)


def from_table(table: Table, by: str | None, target: str | None, prepared: Prepared | None = None) -> Samples:
    """prepared: for gaps and categories. Raises UserError naming column and row or line."""
    where, columns = table.where, table.columns
    labels = label_columns_of(columns, target, by, where)
    if by is not None and by not in columns:
        raise no_column(where, by, [name for name in columns if name not in labels])
    for name, column in columns.items():
        if column.shape[:1] != columns[labels[0]].shape[:1] or not column.ndim:
            raise UserError(
                f"{where}, column {name!r}: it has shape {column.shape}, but column {labels[0]!r} "
                f"{columns[labels[0]].shape}: all columns need one value for each sample"
            )
    features = tuple(name for name in columns if name not in (*labels, by, SPLIT))
    if not features:
        raise UserError(f"{where} has no column of features beside {', '.join(columns)}")
    for name in features:
        if name.strip().lower() in OF_CLIENTS:
            raise UserError(
                f"{where}, column {name!r}: it seems to name clients, and is no feature: deal the samples by it with "
                f"--partition by:{name}, drop it ({_IGNORED}), or give it another name"
            )
    made: tuple[Column, ...] = ()
    if len(features) == 1 and columns[features[0]].ndim > 1:  # one column of arrays, such as images
        x, features = columns[features[0]], ()
    elif prepared is not None:
        if missing := [name for name in prepared.categories if name not in features]:
            raise no_column(where, missing[0], features)
        x = np.stack([_cells(table, name, prepared) for name in features], axis=1)
        made = tuple(Column(name, values=() if name in prepared.categories else None) for name in features)
    else:
        x = np.stack([_numbers(table, name) for name in features], axis=1)
    several = [words(columns[name], "label", partial(table.at, name)) for name in labels]
    y = several[0] if len(labels) == 1 else np.stack([_numbers(table, name) for name in labels], 1)
    owner = None if by is None else owners_of(columns[by], f"{where}, column {by!r}", partial(table.at, by))
    return Samples(where, x, y, owner, test_rows(table), features, targets=labels, columns=made)


def words(values: Array, what: str, at: Callable[[int], str]) -> Array:
    """Labels or names (N,): stripped text as objects; numbers as they are.

    what, at: what and where, for errors. Raises UserError for a missing one or other types.
    """
    if values.dtype.kind in "biu" or values.ndim != 1:
        return values
    if values.dtype.kind == "f":
        if (missing := np.isnan(values)).any():
            raise UserError(f"{at(int(missing.argmax()))}: there is no {what}; fill it in or remove the row")
        return values
    found = np.empty(len(values), object)
    for i, value in enumerate(values):
        word = text(value, f"{at(i)}: the {what}")
        found[i] = str(int(value)) if isinstance(value, bool | np.bool_) else word.strip()
        if found[i].lower() in MISSING:
            raise UserError(
                f"{at(i)}: there is no {what} ({word!r}); fill it in, remove the row, or if this is a {what}, give it "
                "another name"
            )
    return found


def text(value: Any, what: str) -> str:
    """Raises UserError for what UTF-8 cannot hold. what: it is."""
    try:
        word = str(value, "utf-8") if isinstance(value, bytes) else str(value)
        word.encode()
    except UnicodeError:
        raise UserError(f"{what} {value!r} is not UTF-8; save it as UTF-8") from None
    return word


def owners_of(values: Array, where: str, at: Callable[[int], str]) -> Array:
    """Clients' names (N,), stripped; raises UserError for a missing one."""
    if values.ndim != 1:
        raise UserError(f"{where} has shape {values.shape}: give one name of a client for each sample")
    return np.array([str(name) for name in words(values, "client", at)], object)


def _read_csv(path: Path) -> Table:
    """The columns of a csv file, as text. A header with semicolons and no comma means decimal commas."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            first = file.readline()
            file.seek(0)
            semicolons = ";" in first and "," not in first
            reader = csv.reader(file, delimiter=";" if semicolons else ",", strict=True)
            header = [name.strip() for name in next(reader, [])]
            found = [(reader.line_num, row) for row in reader if row]
    except UnicodeDecodeError:
        raise UserError(f"{path} cannot be read as a csv file: it is not in UTF-8; save it so") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read as a csv file: {error.strerror or error}") from None
    except (ValueError, csv.Error) as error:
        raise UserError(f"{path} cannot be read as a csv file: {error}") from None
    twice = [name for name, count in Counter(header).items() if count > 1 or not name]
    if not header:
        raise UserError(f"{path} must begin with a header of different column names; its first line is empty")
    if twice:
        raise UserError(
            f"{path} must begin with a header of different column names; {twice[:1]} is there twice or empty"
        )
    if len(header) == 1 and (other := next((mark for mark in "\t|" if mark in header[0]), None)):
        raise UserError(
            f"{path}: its columns are separated by {other!r}: save it with commas, and decimal points (1.5)"
        )
    for line, row in found:
        if len(row) != len(header):
            raise UserError(f"{path}, line {line}: {len(row)} cells under a header of {len(header)}")
        if max(map(len, row)) > MAX_CELL:
            name = next(name for name, cell in zip(header, row, strict=True) if len(cell) > MAX_CELL)
            raise UserError(
                f"{path}, column {name!r}, line {line}: the cell has more than {MAX_CELL:,} characters; it must hold "
                "one number, label or name: shorten it, or remove the column"
            )
    rows = [row for _, row in found]
    columns = zip(*rows, strict=True) if rows else ([] for _ in header)
    read = _with_points if semicolons else list
    arrays = {name: np.array(read(column), dtype=object) for name, column in zip(header, columns, strict=True)}
    return Table(str(path), arrays, [line for line, _ in found])


def _with_points(column: Sequence[str]) -> list[str]:
    """Decimal points for commas, unless a cell has a point, which may separate thousands (1.000)."""
    if any("." in cell for cell in column):
        return list(column)
    return [cell.replace(",", ".") if has_decimal_comma(cell) else cell for cell in column]


def _read_parquet(path: Path) -> Table:
    try:
        import pandas
        from pyarrow.parquet import read_metadata
    except ImportError:
        raise UserError(f"{path}: parquet files need pandas and pyarrow: {to_install('tables')}") from None
    try:
        facts = read_metadata(path)
        check_claim(path, _decoded_bytes(facts), "as a csv file")
        columns = [facts.schema.column(j) for j in range(facts.num_columns)]
        words = [one.path for one in columns if one.physical_type == "BYTE_ARRAY"]  # a word that is repeated stays one
        frame = pandas.read_parquet(path, engine="pyarrow", read_dictionary=words)
    except UserError:
        raise
    except Exception as error:  # whatever the reader raises on damaged bytes
        raise UserError(f"{path} cannot be read as a parquet file: {type(error).__name__}: {error}") from None
    return Table(str(path), named_columns(frame.columns, lambda name: _values(frame[name]), str(path)))


def _values(column: Any) -> Array:
    if not hasattr(column, "cat"):
        return np.asarray(column.to_numpy())
    codes, known = column.cat.codes.to_numpy(), column.cat.categories.to_numpy()
    known = known if known.dtype.kind in "biuf" else known.astype(object)
    return np.asarray((known if (codes >= 0).all() else np.append(known, np.nan))[codes])  # a missing one is -1


def _decoded_bytes(facts: Any) -> int:
    """Bytes in memory that a parquet file's footer claims: repeated values take almost none."""
    parts = ((row, column) for row in range(facts.num_row_groups) for column in range(facts.num_columns))
    claimed = 0
    for row, column in parts:
        chunk, width = facts.row_group(row).column(column), facts.schema.column(column).length or 8
        claimed += max(chunk.num_values * width, chunk.total_uncompressed_size)
    return int(max(claimed, facts.num_rows * facts.num_columns * 8))


def named_columns(names: Iterable[Any], column: Callable[[Any], Any], where: str) -> dict[str, Array]:
    """Raises UserError for two names of the same text."""
    names = list(names)
    if twice := [name for name, count in Counter(map(str, names)).items() if count > 1]:
        raise UserError(f"{where}: two columns are called {twice[0]!r}: rename one")
    return {text(name, f"{where}: the name of a column"): column(name) for name in names}


def label_columns_of(table: Mapping[str, Any], target: str | None, by: str | None, where: str) -> tuple[str, ...]:
    """The columns of labels: ``target`` names one, or several with commas."""
    if target is not None:
        names = (target,) if target in table else tuple(name.strip() for name in target.split(","))
        if missing := [name for name in names if name not in table]:
            raise no_column(where, missing[0], list(table))
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise UserError(f"target={target} names the column {twice[0]!r} twice: name each column of labels once")
        return names
    if found := [name for name in TARGETS if name in table and name != by]:
        if len(found) > 1:
            raise UserError(
                f"{where}: {' and '.join(found)} could both be the label, and the other would be a feature: say with "
                "target (--target) which it is, and remove the other"
            )
        return (found[0],)
    raise UserError(
        f"{where} has no column {', '.join(TARGETS)}: say with target (--target) which is the label: {', '.join(table)}"
    )


def _numbers(table: Table, name: str, gaps: Flags | None = None) -> Doubles:
    """(N,) finite numbers, 0 in ``gaps`` (N,)."""
    column = table.columns[name]
    if gaps is not None and gaps.any():
        column = np.where(gaps, 0, column.astype(object))
    if column.ndim != 1:
        raise UserError(
            f"{table.where}, column {name!r}: it holds arrays of shape {column.shape[1:]}: give them as x of an npz"
        )
    if column.dtype.kind in "mMc":
        raise UserError(
            f"{table.where}, column {name!r}: it holds {column.dtype}; encode it as plain numbers, or drop it"
        )
    try:
        values = column.astype(np.float64)
    except (ValueError, TypeError):
        row, value = next((i, value) for i, value in enumerate(column) if not is_number(value))
        if not str(value).strip():
            raise UserError(f"{table.at(name, row)}: the cell is empty; {_GAPS}") from None
        raise UserError(
            f"{table.at(name, row)}: {str(value)!r} is not a number; {_what_to_do(name, table.columns[name])}"
        ) from None
    if not (finite := np.isfinite(values)).all():
        row = int(np.argmin(finite))
        raise UserError(f"{table.at(name, row)}: {column[row]} is not a finite number; clean it first")
    return values


def _what_to_do(name: str, column: Array) -> str:
    known = [word for cell in column if (word := str(cell).strip()).lower() not in MISSING]
    if any(map(has_decimal_comma, known)):
        return "write decimal points (1.5), not commas"
    if 2 * sum(map(is_number, known)) >= len(known):
        return "the column's others are: leave the cell empty, and say gaps=mean (--gaps)"
    if 2 * len(set(known)) > len(known) > 2:
        return f"nearly every row has another word: drop the column ({_IGNORED})"
    return (
        f"say categories={name} (--categories), drop the column ({_IGNORED}), or if it names clients, deal by it with "
        f"--partition by:{name}"
    )


def _cells(table: Table, name: str, prepared: Prepared) -> Array:
    """(N,) finite numbers, or a category's words, None in gaps."""
    cells, found = table.columns[name], np.empty(len(table.columns[name]), object)
    gaps = np.array([str(cell).strip().lower() in MISSING for cell in cells], np.bool_)
    if gaps.any() and not prepared.gaps:
        raise UserError(f"{table.at(name, int(gaps.argmax()))}: the cell is empty; {_GAPS}")
    if name in prepared.categories:
        found[:] = [word_of(cell) for cell in cells]
    else:
        found[:] = _numbers(table, name, gaps)
    found[gaps] = None
    return found


def test_rows(table: Table) -> Flags | None:
    if SPLIT not in table.columns:
        return None
    found = [str(word).strip().lower() for word in table.columns[SPLIT]]
    for row, word in enumerate(found):
        if word not in ("train", "test"):
            raise UserError(f"{table.at(SPLIT, row)}: {word!r} is neither train nor test")
    return np.array([word == "test" for word in found], np.bool_)


def joined(arrays: Iterable[Array], where: str) -> Array:
    arrays = list(arrays)
    if len({array.shape[1:] for array in arrays}) > 1:
        raise UserError(f"{where}: arrays of shapes {', '.join(str(a.shape) for a in arrays[:3])} do not fit together")
    if {a.dtype.kind for a in arrays} > {"O"}:
        arrays = [array.astype(object) for array in arrays]
    return np.concatenate(arrays)


def no_column(where: str, name: str, known: Sequence[str]) -> UserError:
    return UserError(
        f"{where} has no column {name!r}{suggest(name, known)} There are: {', '.join(known) or 'no others'}"
    )


def samples_of(data: Any, by: str | None, target: str | None, where: str) -> Samples:
    if (table := _table(data, where)) is not None:
        if set(table) & {"x", "x_train"} and all(np.ndim(v) > 1 for k, v in table.items() if k.startswith("x")):
            return from_npz(dict(table), by, where)
        return from_table(Table(where, table), by, target)
    if by is not None:
        raise UserError(f"by={by!r} names a column, but {where} are not a table: give a mapping of clients")
    parts = [_materialised(one, where) for one in data] if _is_pair_of_datasets(data) else None
    if parts is not None:
        data = (*parts[0], *parts[1])
    elif _is_torch_dataset(data):
        data = _materialised(data, where)
    if not isinstance(data, tuple | list) or len(data) not in (2, 4):
        raise UserError(
            f"{where}: {type(data).__name__} is neither (x, y) nor (x_train, y_train, x_test, y_test), a table, or a "
            "torch Dataset of pairs"
        )
    keys = FOUR if len(data) == 4 else ("x", "y")
    return from_npz({key: _array(value, f"{where}: {key}") for key, value in zip(keys, data, strict=True)}, None, where)


def _is_pair_of_datasets(data: Any) -> bool:
    return isinstance(data, tuple | list) and len(data) == 2 and all(map(_is_torch_dataset, data))


def _is_torch_dataset(data: Any) -> bool:
    known = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    return known and not hasattr(data, "shape") and not isinstance(data, list | tuple | str)


def _materialised(data: Any, where: str) -> tuple[Array, Array]:
    pairs = [data[i] for i in range(len(data))]
    if not pairs:
        raise UserError(f"{where} has no samples: give it some, or leave it out")
    if any(not isinstance(pair, tuple | list) or len(pair) != 2 for pair in pairs):
        raise UserError(f"{where}: a Dataset must give pairs of a sample and its label")
    x, y = (
        [_array(value, f"{where}: a sample or its label") for value in column] for column in zip(*pairs, strict=True)
    )
    if len({value.shape for value in x}) > 1:
        raise UserError(f"{where}: samples have different shapes, such as {x[0].shape}; all must have the same")
    if len({value.shape for value in y}) > 1:
        raise UserError(f"{where}: labels have different shapes, such as {y[0].shape}; all must have the same")
    return np.stack(x), np.stack(y)


def is_table(data: Mapping[Any, Any]) -> bool:
    """Whether a mapping is of columns (arrays or flat lists)."""
    return all(
        isinstance(column, np.ndarray) or (isinstance(column, list) and all(np.ndim(value) == 0 for value in column))
        for column in data.values()
    )


def _table(data: Any, where: str) -> dict[str, Array] | None:
    if isinstance(data, Mapping):
        return named_columns(data, lambda name: _array(data[name], f"{where}: column {name!r}"), where)
    if hasattr(data, "column_names") and hasattr(data, "with_format"):  # a Hugging Face dataset
        arrays = data.with_format("numpy")
        return named_columns(data.column_names, lambda name: _array(arrays[name], f"{where}: column {name!r}"), where)
    if hasattr(data, "columns") and hasattr(data, "to_numpy"):  # a pandas DataFrame
        return named_columns(data.columns, lambda name: data[name].to_numpy(), where)
    return None


def _array(value: Any, where: str) -> Array:
    try:
        if hasattr(value, "detach"):  # a tensor; numpy has no bfloat16
            value = value.detach().cpu()
            value = value.float() if value.is_floating_point() and value.element_size() < 4 else value
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise UserError(f"{where} cannot become an array, {error}: give an array of equal rows") from None
