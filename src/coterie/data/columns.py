"""Columns of a table with gaps and categories, as inputs of a model.

A category becomes one input for each of its values, 1 where the row has it; a gap has none. The gap of a number becomes
the mean of the column over all training samples that have it. Clients could add up such means without showing a row.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from coterie.data.targets import is_number
from coterie.protocol.errors import UserError

MOST_CATEGORIES = 1000
"""Of a column: each is an input of its own."""
Cells = NDArray[Any]
"""Rows (n, columns) of objects: floats, words of categories, and None in gaps."""


class Column(msgspec.Struct, frozen=True):
    """A column of a table. fill: what a number's gap becomes.  values: of a category; None for a number."""

    name: Annotated[str, msgspec.Meta(max_length=1 << 10)]
    fill: float = 0.0
    values: tuple[Annotated[str, msgspec.Meta(max_length=1 << 10)], ...] | None = None


def word_of(cell: Any) -> str:
    """The value of a category in a cell; ``1`` and ``1.0`` are one, ``007`` and ``7`` are two."""
    word = str(cell).strip()
    return word[:-2] if word.endswith(".0") and word[:-2].lstrip("-").isdigit() else word


def fitted(columns: Sequence[Column], rows: Cells, train: NDArray[np.bool_], where: str) -> tuple[Column, ...]:
    """The columns with the values that all rows have, and the means of the training rows, (n,) ``train``.

    Raises UserError for a column of gaps alone, and for two inputs of one name.
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
        order = sorted(values, key=lambda word: (0, float(word), "") if is_number(word) else (1, 0.0, word))
        found.append(msgspec.structs.replace(column, values=tuple(order)))
    if twice := _twice(inputs_of(found)):
        raise UserError(
            f"{where}: two inputs are called {twice!r}, since a category's are called COLUMN=VALUE: rename one"
        )
    return tuple(found)


def check_columns(columns: Sequence[Column]) -> None:
    """Raises ValueError unless these can be what ``fitted`` gives."""
    if twice := _twice([column.name for column in columns]) or _twice(inputs_of(columns)):
        raise ValueError(f"columns: two columns or inputs are called {twice!r}")
    for column in columns:
        if not math.isfinite(column.fill):
            raise ValueError(f"columns: {column.name!r} has the fill {column.fill}")
        if column.values is not None and not ("" not in column.values and 1 <= len(column.values) <= MOST_CATEGORIES):
            raise ValueError(f"columns: {column.name!r} has {len(column.values)} values, or an empty one")


def _twice(names: Sequence[str]) -> str | None:
    return next((name for name, count in Counter(names).items() if count > 1), None)


def encoded(columns: Sequence[Column], rows: Cells) -> NDArray[np.float64]:
    """The inputs (n, inputs) of rows."""
    parts = []
    for column, cells in zip(columns, rows.T, strict=True):
        if column.values is None:
            parts.append(np.array([[column.fill if cell is None else cell] for cell in cells], np.float64))
        else:
            parts.append(np.array([[cell == value for value in column.values] for cell in cells], np.float64))
    return np.concatenate(parts, axis=1)


def inputs_of(columns: Sequence[Column]) -> tuple[str, ...]:
    """The names of the inputs: ``age``, or ``cp=1``, ``cp=2``, ... of a category."""
    return tuple(
        name
        for column in columns
        for name in ([column.name] if column.values is None else [f"{column.name}={value}" for value in column.values])
    )
