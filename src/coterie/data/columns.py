"""Columns of a table with gaps and categories, as inputs of a model.

A category becomes one input for each of its values, 1 where the row has it; a gap has none. The gap of a number becomes
the mean of the column over all training samples that have it. Clients could add up such means without showing a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from coterie.protocol.errors import UserError

Doubles = NDArray[np.float64]


class Column(msgspec.Struct, frozen=True):
    """A column of a table. values: of a category; () for a number.  fill: what a number's gap becomes."""

    name: Annotated[str, msgspec.Meta(max_length=1 << 10)]
    values: tuple[float, ...] = ()
    fill: float = 0.0


def fitted(columns: Sequence[Column], x: Doubles, where: str) -> tuple[Column, ...]:
    """The columns with the means of these training samples (n, columns), NaN in gaps.

    Raises UserError for a column of gaps alone.
    """
    known = ~np.isnan(x)
    if (empty := ~known.any(axis=0)).any():
        name = columns[int(empty.argmax())].name
        raise UserError(f"{where}, column {name!r}: no training sample of any client has a value: leave the column out")
    means = np.where(known, x, 0).sum(axis=0) / known.sum(axis=0)
    return tuple(
        column if column.values else msgspec.structs.replace(column, fill=float(mean))
        for column, mean in zip(columns, means, strict=True)
    )


def encoded(columns: Sequence[Column], x: Doubles) -> Doubles:
    """The inputs (n, inputs) of rows (n, columns), NaN in gaps."""
    parts = []
    for column, own in zip(columns, x.T, strict=True):
        numbers = np.where(np.isnan(own), column.fill, own)[:, None]
        parts.append(own[:, None] == np.array(column.values) if column.values else numbers)
    return np.concatenate(parts, axis=1, dtype=np.float64)


def inputs_of(columns: Sequence[Column]) -> tuple[str, ...]:
    """The names of the inputs: ``age``, or ``cp=1``, ``cp=2``, ... of a category."""
    return tuple(
        name
        for column in columns
        for name in ([f"{column.name}={value:g}" for value in column.values] or [column.name])
    )
