"""The form of all parties' samples, and a party's own in it.

The plan's schema scales tables; owners of arrays agree on it. Bytes are divided by 255.
"""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from coterie.data.columns import Schema, inputs_of
from coterie.data.dataset import GAPS, finite, fixed_split
from coterie.data.formats import Arrays, read_npz
from coterie.data.preparing import prepared
from coterie.protocol.errors import CoterieWarning, UserError, suggest

ARRAYS = ("x", "y", "x_test", "y_test")
TEST_SHARE = 0.2
Size = Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]


class SampleForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """input_shape: of one sample.  outputs: classes, or a model's outputs.  task: ``RunConfig.task``.  schema: of
    tables, with these inputs and classes.
    """

    input_shape: tuple[Size, ...]
    outputs: Size
    task: str = "classes"
    schema: Schema | None = None

    def __post_init__(self) -> None:
        if self.schema is not None and (self.input_shape, self.outputs, self.task) != _form_of(self.schema):
            raise ValueError("the form of the samples is not that of their schema")

    @classmethod
    def of(cls, schema: Schema) -> SampleForm:
        return cls(*_form_of(schema), schema=schema)


def _form_of(schema: Schema) -> tuple[tuple[int, ...], int, str]:
    return (len(inputs_of(schema.columns)),), len(schema.classes), "classes"


@dataclass(frozen=True, eq=False)
class OwnSamples:
    """x, x_test: (n, *input_shape) float32.  y, y_test: (n,) int64, or (n, outputs) float32 for other tasks."""

    x: NDArray[np.float32]
    y: NDArray[np.int64] | NDArray[np.float32]
    x_test: NDArray[np.float32]
    y_test: NDArray[np.int64] | NDArray[np.float32]

    def to_bytes(self) -> bytes:
        """An npz file for ``read_data``."""
        file = io.BytesIO()
        np.savez(file, x=self.x, y=self.y, x_test=self.x_test, y_test=self.y_test)
        return file.getvalue()


def read_data(path: Path, facts: SampleForm, *, tests: bool = True) -> OwnSamples:
    """The samples of a csv or parquet file by the plan's schema, or of an ``.npz`` file: x, y, perhaps x_test, y_test;
    without these every fifth sample of each class is for tests, with an empty x_test none.

    tests: False for the hub's public samples. Raises UserError for what the model cannot take.
    """
    if not path.is_file():
        raise UserError(f"there is no file {path}: --data names an .npz file with the arrays x and y of this party")
    if path.suffix.lower() in (".csv", ".parquet") and facts.schema is not None:
        return _of_table(path, facts.schema, tests)
    arrays = read_npz(path, lambda found: _check_forms(found, facts, path))
    x, y = _samples(arrays["x"], f"{path}: x"), _labels(arrays["y"], facts, f"{path}: y")
    if "x_test" in arrays and not len(arrays["x_test"]) and not len(arrays["y_test"]):
        return OwnSamples(x, y, x[:0], y[:0])
    if "x_test" in arrays:
        x_test = _samples(arrays["x_test"], f"{path}: x_test")
        return OwnSamples(x, y, x_test, _labels(arrays["y_test"], facts, f"{path}: y_test"))
    if not tests:
        return OwnSamples(x, y, x[:0], y[:0])
    if len(x) < 2:
        raise UserError(f"{path} has one sample: give another for tests, or x_test and y_test")
    return _parted(x, y, *fixed_split(y if y.ndim == 1 else np.zeros(len(y)), TEST_SHARE))


def _of_table(path: Path, schema: Schema, tests: bool) -> OwnSamples:
    own = prepared(path, schema, tell=lambda note: warnings.warn(note, CoterieWarning, stacklevel=4))
    x = _samples(own.x, str(path))
    if not tests:
        return OwnSamples(x, own.y, x[:0], own.y[:0])
    both = fixed_split(own.y, TEST_SHARE) if own.test is None else map(np.flatnonzero, (~own.test, own.test))
    return _parted(x, own.y, *both)


def _parted(x: Any, y: Any, train: NDArray[np.int64], test: NDArray[np.int64]) -> OwnSamples:
    return OwnSamples(x[train], y[train], x[test], y[test])


def _check_forms(arrays: Arrays, facts: SampleForm, path: Path) -> None:
    for name in arrays:
        if name not in ARRAYS:
            raise UserError(f"{path} has an array {name!r}{suggest(name, ARRAYS)} It may have: {', '.join(ARRAYS)}")
    for name in ("x", "y"):
        if name not in arrays:
            raise UserError(f"{path} has no array {name!r}: write it with numpy.savez(path, x=samples, y=labels)")
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise UserError(f"{path} has one of x_test and y_test: give both, or none")
    for x, y in (ARRAYS[:2], ARRAYS[2:]):
        if x in arrays and (x == "x" or len(arrays[x]) or len(arrays[y])):
            _check_samples(arrays[x], facts, f"{path}: {x}")
            _check_labels(arrays[y], len(arrays[x]), facts, f"{path}: {y}")


def _check_samples(x: NDArray[np.generic], facts: SampleForm, where: str) -> None:
    if x.dtype.kind not in "buif":
        raise UserError(f"{where} has type {x.dtype}; it must hold numbers")
    if x.shape[1:] != facts.input_shape:
        wanted = ", ".join(("n", *map(str, facts.input_shape)))
        raise UserError(f"{where} has shape {x.shape}; the plan's model takes ({wanted})")
    if not len(x):
        raise UserError(f"{where} has no sample")


def _samples(x: NDArray[np.generic], where: str) -> NDArray[np.float32]:
    if x.dtype == np.uint8:
        return np.asarray(x, np.float32) / np.float32(255)
    with np.errstate(over="ignore"):
        found = np.ascontiguousarray(x, np.float32)
    return finite(found, where, GAPS if x.ndim == 2 else "")


def _check_labels(y: NDArray[np.generic], samples: int, facts: SampleForm, where: str) -> None:
    if y.dtype.kind not in "buif":
        raise UserError(f"{where} has type {y.dtype}; labels must be numbers")
    if facts.task == "classes":
        if y.shape != (samples,):
            raise UserError(f"{where} has shape {y.shape}; there are {samples} samples, so it must be ({samples},)")
    elif y.shape != (samples, facts.outputs) and not (facts.outputs == 1 and y.shape == (samples,)):
        raise UserError(f"{where} has shape {y.shape}; it must be ({samples}, {facts.outputs})")


def _labels(y: NDArray[np.generic], facts: SampleForm, where: str) -> NDArray[np.int64] | NDArray[np.float32]:
    if facts.task == "classes":
        if y.dtype.kind == "f" and not (np.isfinite(y) & (y == np.floor(y))).all():
            raise UserError(f"{where} has labels that are no whole numbers; they must be 0 to {facts.outputs - 1}")
        low, high = int(y.min()), int(y.max())
        if low < 0 or high >= facts.outputs:
            raise UserError(f"{where} has label {low if low < 0 else high}; labels are 0 to {facts.outputs - 1}")
        return y.astype(np.int64)
    y = y[:, None] if y.ndim == 1 else y
    with np.errstate(over="ignore"):
        found = finite(np.ascontiguousarray(y, np.float32), where)
    if facts.task == "multilabel" and not np.isin(found, (0, 1)).all():
        raise UserError(f"{where} has values other than 0 and 1, which say whether a sample has a label")
    return found
