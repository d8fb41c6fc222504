"""Samples of Python objects: arrays, tables and torch ``Dataset``s, without importing their libraries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.data.catalogue import FOUR
from coterie.data.samples import Samples, Table, from_npz, from_table, named_columns
from coterie.protocol.errors import UserError


def samples_of(data: Any, by: str | None, target: str | None, where: str) -> Samples:
    """One object's samples: a table, arrays, or a torch ``Dataset``."""
    if (table := _table(data, where)) is not None:
        if set(table) & {"x", "x_train"} and all(np.ndim(v) > 1 for k, v in table.items() if k.startswith("x")):
            return from_npz(dict(table), by, where)
        return from_table(Table(where, table), by, target)
    if by is not None:
        raise UserError(f"by={by!r} names a column, but {where} are no table: give a mapping of clients")
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
    """Whether an object gives samples by number, and is neither an array nor a plain list."""
    known = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    return known and not hasattr(data, "shape") and not isinstance(data, list | tuple | str)


def _materialised(data: Any, where: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """All pairs of a torch ``Dataset`` as two arrays."""
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
    """Whether a mapping is of columns, arrays or flat lists, and not of clients."""
    return all(
        isinstance(column, np.ndarray) or (isinstance(column, list) and all(np.ndim(value) == 0 for value in column))
        for column in data.values()
    )


def _table(data: Any, where: str) -> dict[str, NDArray[Any]] | None:
    """The columns of a table, or None for what is none."""
    if isinstance(data, Mapping):
        return named_columns(data, lambda name: _array(data[name], f"{where}: column {name!r}"), where)
    if hasattr(data, "column_names") and hasattr(data, "with_format"):  # a Hugging Face dataset
        arrays = data.with_format("numpy")
        return named_columns(data.column_names, lambda name: _array(arrays[name], f"{where}: column {name!r}"), where)
    if hasattr(data, "columns") and hasattr(data, "to_numpy"):  # a pandas DataFrame
        return named_columns(data.columns, lambda name: data[name].to_numpy(), where)
    return None


def _array(value: Any, where: str) -> NDArray[Any]:
    """A list, an array or a tensor as an array; raises UserError."""
    try:
        if hasattr(value, "detach"):  # a tensor; numpy has no bfloat16
            value = value.detach().cpu()
            value = value.float() if value.is_floating_point() and value.element_size() < 4 else value
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise UserError(f"{where} cannot become an array, {error}: give an array of equal rows") from None
