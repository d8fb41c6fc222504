"""Columns of a table, as inputs of a model.

A number's gap becomes a stated value, or with ``gaps=mean`` the training samples' mean. A category becomes an input for
each value; a gap has none. A date is its number of days. Then a column's mean is subtracted, and its scale divides.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Sequence
from math import isfinite
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from coterie.data.targets import is_number, spelt_twice
from coterie.protocol.errors import CoterieWarning, UserError

MOST_CATEGORIES = 1000
"""Of a column, each an input."""
Cells = NDArray[Any]
"""Rows (n, columns) of objects: floats, categories' words, None in gaps."""
MISSING = frozenset({"", "na", "n/a", "nan", "nat", "<na>", "null", "none"})
"""Missing values, in small letters."""
_FORMAT = re.compile(r"(%[YmdHMS]|[-/.: T]){3,20}")

# what a spreadsheet computes, or a terminal obeys: words of a schema stand in files that its readers open
_COMMANDS = re.compile(r"[=@]|[+-].*[(|!]|.*[\x00-\x1f\x7f-\x9f]", re.DOTALL)

Word = Annotated[str, msgspec.Meta(max_length=1 << 10)]


class Column(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A column of a table, as a schema states it.

    kind: by default values make a ``category`` and a format a ``date``. ``id`` and ``ignore`` are no inputs; an id
    stays beside a prediction.  fill: what a gap of a number or date becomes; None refuses gaps.  values: of a
    category.  format: of a date (``%Y-%m-%d``).  low, high: what is plausible, in the column's units.  mean, scale: an
    input is (value - mean) / scale. Raises ValueError.
    """

    name: Word
    kind: Literal["number", "category", "date", "id", "ignore"] = "number"
    unit: Word = ""
    fill: float | None = None
    mean: float = 0.0
    scale: float = 1.0
    low: float | None = None
    high: float | None = None
    values: tuple[Word, ...] | None = None
    format: Word | None = None

    def __post_init__(self) -> None:
        meant = "category" if self.values is not None else "date" if self.format is not None else self.kind
        if self.kind == "number":
            msgspec.structs.force_setattr(self, "kind", meant)
        numbers = [one for one in (self.fill, self.mean, self.scale, self.low, self.high) if one is not None]
        if not all(map(isfinite, numbers)) or self.scale <= 0:
            raise ValueError(f"column {self.name!r} needs finite numbers, and a scale above 0")
        if None not in (self.low, self.high) and self.low > self.high:  # type: ignore[operator]  # neither is None
            raise ValueError(f"column {self.name!r} has low {self.low:g} above high {self.high:g}")
        if (self.kind == "category", self.kind == "date") != (self.values is not None, self.format is not None):
            raise ValueError(f"column {self.name!r} of kind {self.kind}: a category alone has values, a date a format")
        if self.values is not None and not len({*self.values} - {""}) == len(self.values) <= MOST_CATEGORIES:
            raise ValueError(f"column {self.name!r} needs different values, none empty, at most {MOST_CATEGORIES}")
        if self.format is not None and not _is_format(self.format):
            raise ValueError(f"column {self.name!r}: {self.format!r} is not the format of a date, such as %Y-%m-%d")

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names: ``age``, or ``cp=1``, ``cp=2``, ... of a category, or none."""
        if self.values is not None:
            return tuple(f"{self.name}={value}" for value in self.values)
        return (self.name,) if self.kind in ("number", "date") else ()


class Schema(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, rename={"columns": "column"}):
    """What all parties' tables have in common.  label: the column of labels, one of ``classes``.  positive: the class
    of a probability, such as ``ill``. Raises ValueError.
    """

    label: Word
    classes: tuple[Word, ...]
    columns: tuple[Column, ...]
    positive: Word | None = None

    def __post_init__(self) -> None:
        check_columns([Column(self.label), *self.columns])
        if not len({*self.classes}) == len(self.classes) >= 2:
            raise ValueError("classes are two different names or more")
        if self.positive not in (None, *self.classes):
            raise ValueError(f"positive is {self.positive!r}, which is none of the classes {', '.join(self.classes)}")
        if not inputs_of(self.columns):
            raise ValueError("no column is an input: one must be a number, a category or a date")
        words = (self.label, *self.classes, *(column.name for column in self.columns), *inputs_of(self.columns))
        if strange := next(filter(_COMMANDS.match, words), None):
            raise ValueError(f"{strange!r:.80} would be a command in a spreadsheet or terminal: choose another name")

    @property
    def names(self) -> tuple[str, ...]:
        """In the order of outputs: the positive class last."""
        return tuple(sorted(self.classes, key=lambda name: name == self.positive))


def _is_format(words: str) -> bool:
    parts = re.findall("%.", words)
    return bool(_FORMAT.fullmatch(words)) and len({*parts}) == len(parts) and {"%Y", "%m", "%d"} <= {*parts}


def word_of(cell: Any) -> str:
    """A cell's category; ``1`` and ``1.0`` are one, ``007`` and ``7`` two."""
    word = str(cell).strip()
    return word[:-2] if word.endswith(".0") and word[:-2].lstrip("-").isdigit() else word


def ordered(values: set[str]) -> tuple[str, ...]:
    """Of a category, or classes: numbers by size, then words."""
    return tuple(sorted(values, key=lambda word: (0, float(word), "") if is_number(word) else (1, 0.0, word)))


def one_category_twice(column: Column) -> str:
    """A sentence about two values that differ only in case or blanks, or ""."""
    twice = spelt_twice(column.values or ())
    if twice is None:
        return ""
    return f"{twice[0]!r} and {twice[1]!r} are two categories, each an input: if they are one, write it in one way"


def fitted(columns: Sequence[Column], rows: Cells, train: NDArray[np.bool_], where: str) -> tuple[Column, ...]:
    """The columns with all rows' values, and for gaps the means of the training rows, (n,) ``train``. Raises UserError
    for a column of gaps alone, and two inputs of one name.
    """
    found = []
    for column, cells in zip(columns, rows.T, strict=True):
        known = [cell for cell, counts in zip(cells, train, strict=True) if cell is not None and counts]
        if not known:
            raise UserError(f"{where}, column {column.name!r}: no training sample of any client has a value: remove it")
        if column.values is None:
            found.append(msgspec.structs.replace(column, fill=float(np.mean(known))))
            continue
        values = {cell for cell in cells if cell is not None}
        if len(values) > MOST_CATEGORIES:
            raise UserError(
                f"{where}, column {column.name!r}: {len(values)} categories, each an input of its own; at most "
                f"{MOST_CATEGORIES}. Leave the column out, or give it fewer"
            )
        found.append(msgspec.structs.replace(column, values=ordered(values)))
        if note := one_category_twice(found[-1]):
            warnings.warn(f"{where}, column {column.name!r}: {note}", CoterieWarning, stacklevel=2)
    try:
        check_columns(found)
    except ValueError as error:
        raise UserError(f"{where}: {error}: rename one") from None
    return tuple(found)


def check_columns(columns: Sequence[Column]) -> None:
    """Raises ValueError for two columns, or inputs, of one name, and a category without values."""
    if empty := [column.name for column in columns if column.values == ()]:
        raise ValueError(f"the category {empty[0]!r} has no value")
    for names in ([column.name for column in columns], inputs_of(columns)):
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise ValueError(f"two columns or inputs are called {twice[0]!r} (a category's inputs are COLUMN=VALUE)")


def encoded(columns: Sequence[Column], rows: Cells) -> NDArray[np.float64]:
    """The inputs (n, inputs) of rows (n, columns)."""
    parts = []
    for column, cells in zip(columns, rows.T, strict=True):
        if column.values is None:
            filled = np.array([[column.fill if cell is None else cell] for cell in cells], np.float64)
            parts.append((filled - column.mean) / column.scale)
        else:
            parts.append(np.array([[cell == value for value in column.values] for cell in cells], np.float64))
    return np.concatenate(parts, axis=1)


def inputs_of(columns: Sequence[Column]) -> tuple[str, ...]:
    return tuple(name for column in columns for name in column.inputs)
