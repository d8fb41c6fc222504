"""A party's own samples: what an owner's file holds, and ``data.npz`` in its home, which its node reads.

Nobody else's samples are known. So samples are scaled by the party's own training samples, unless the file says that
they are the model's inputs already (an array ``scaled``). Then the parties have agreed upon a scaling by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.data.catalogue import FOUR
from coterie.data.dataset import Dataset, Scaling, fixed_split, from_arrays
from coterie.data.formats import Arrays, read_npz
from coterie.data.own import TEST_SHARE
from coterie.data.samples import Samples, from_npz, npz_keys, read
from coterie.deploy.plan import Facts
from coterie.protocol.errors import UserError
from coterie.runs.interpreter import ClientData
from coterie.runs.interpreter import Samples as Tensors

SCALED = "scaled"


def of_file(path: Path, facts: Facts, *, target: str | None = None, test_share: float = TEST_SHARE) -> Arrays:
    """An owner's samples (npz, csv or parquet) as ``data.npz`` holds them: x_train, y_train, x_test and y_test.

    Without a split of its own, a share of the samples of each class is kept for tests. Raises UserError for samples
    that the plan's model does not take.
    """
    if path.suffix == ".npz" and SCALED in (arrays := read_npz(path)):
        _inputs(arrays, facts, path)
        return arrays
    own = read(path, None, target)
    if not len(own.x):
        raise UserError(f"{path} has no samples")
    test = own.test
    if test is None:
        test = np.zeros(len(own.x), np.bool_)
        classes = np.unique(own.y.astype(np.str_), axis=0, return_inverse=True)[1].reshape(-1)
        test[fixed_split(classes, test_share)[1]] = True
    if test.all() or not test.any():
        raise UserError(f"{path} has no {'training' if test.all() else 'test'} sample: give it more samples")
    own = replace(own, y=_numbers(own.y, str(path)), test=test)
    _dataset(own, facts, "standard")
    parts = ((own.x, ~test), (own.y, ~test), (own.x, test), (own.y, test))
    kind = {"kind": np.array(own.kind)} if own.kind is not None else {}
    return dict(zip(FOUR, (values[rows] for values, rows in parts), strict=True)) | kind


def scaled(data: ClientData) -> Arrays:
    """Samples that are the model's inputs already, as ``data.npz`` holds them."""
    test = (data.test_set.x[data.test], data.test_set.y[data.test])
    tensors = dict(zip(FOUR, (data.x, data.y, *test), strict=True))
    return {**{name: tensor.numpy() for name, tensor in tensors.items()}, SCALED: np.array(True)}


def read_data(path: Path, facts: Facts, scaling: Scaling = "standard") -> ClientData:
    """The samples of ``data.npz``. Raises UserError for what the plan's model does not take."""
    arrays = read_npz(path)
    if SCALED in arrays:
        x_train, y_train, x_test, y_test = _inputs(arrays, facts, path)
    else:
        made = _dataset(from_npz(arrays, None, str(path)), facts, scaling)
        x_train, y_train = made.inputs(), made.labels()
        x_test, y_test = made.inputs(split="test"), made.labels(split="test")
    # clone: memory of torch's own, which begins at a multiple of 64 bytes, as a simulation has it
    train, test = (
        Tensors(torch.from_numpy(np.ascontiguousarray(x)).clone(), torch.from_numpy(np.array(y)))
        for x, y in ((x_train, y_train), (x_test, y_test))
    )
    return ClientData(train.x, train.y, np.arange(len(test.y)), test)


def _inputs(arrays: Mapping[str, NDArray[Any]], facts: Facts, path: Path) -> list[NDArray[Any]]:
    """The four arrays of a file of a model's inputs. Raises UserError."""
    npz_keys(set(arrays) - {SCALED}, None, str(path))
    if missing := [key for key in FOUR if key not in arrays]:
        raise UserError(f"{path} holds samples that are scaled, and lacks {missing[0]}: it needs {', '.join(FOUR)}")
    found: list[NDArray[Any]] = []
    for x, y in (FOUR[:2], FOUR[2:]):
        values = arrays[x]
        if values.dtype.kind not in "buif" or not np.isfinite(values).all():
            raise UserError(f"{path}: {x} must hold finite numbers")
        if values.shape[1:] != facts.input_shape or arrays[y].shape[:1] != values.shape[:1]:
            shapes = f"{x} is {values.shape} and {y} {arrays[y].shape}"
            raise UserError(f"{path}: {shapes}: the plan's model takes samples {facts.input_shape} with a label each")
        found += [values.astype(np.float32), _labels(arrays[y], facts, f"{path}: {y}")]
    return found


def _dataset(own: Samples, facts: Facts, scaling: Scaling) -> Dataset:
    """The party's own samples as a data set, which scales them by themselves. Raises UserError."""
    assert own.test is not None, "it has a split"
    train, test = ~own.test, own.test
    labels = [_labels(own.y[rows], facts, f"{own.where}: labels") for rows in (train, test)]
    plain = labels if facts.task == "classes" else [np.zeros(len(y), np.int64) for y in labels]
    grey = own.x.ndim == 3 and len(facts.input_shape) == 3
    kind: Any = own.kind or ("image" if grey else "series" if own.x.ndim == 3 else None)
    made = from_arrays(
        own.where, own.x[train], plain[0], own.x[test], plain[1], classes=max(2, facts.outputs), kind=kind
    )
    if made.input_shape != facts.input_shape:
        raise UserError(
            f"{own.where}: a sample has shape {made.input_shape}, and the plan's model takes {facts.input_shape}"
        )
    return replace(made, y_train=labels[0], y_test=labels[1], scaling=scaling)


def _labels(y: NDArray[Any], facts: Facts, where: str) -> NDArray[Any]:
    """Labels as a model's loss takes them. Raises UserError for a label that the model has no output for."""
    if facts.task == "classes":
        if y.ndim != 1 or y.dtype.kind not in "buif" or (y != np.floor(y)).any():
            raise UserError(f"{where} must be whole numbers, one for each sample: the classes 0 to {facts.outputs - 1}")
        if len(y) and not 0 <= int(y.min()) <= int(y.max()) < facts.outputs:
            raise UserError(
                f"{where} go from {y.min()} to {y.max()}, and the plan's classes from 0 to {facts.outputs - 1}"
            )
        return y.astype(np.int64)
    several = y.reshape(len(y), -1) if y.size else y.reshape(0, facts.outputs)
    if several.dtype.kind not in "buif" or several.shape[1] != facts.outputs or not np.isfinite(several).all():
        raise UserError(f"{where} are {y.shape}: the plan's model gives {facts.outputs} numbers for each sample")
    if facts.task == "multilabel" and not np.isin(several, (0, 1)).all():
        raise UserError(f"{where} must be zeros and ones")
    return several.astype(np.float32)


def _numbers(y: NDArray[Any], where: str) -> NDArray[Any]:
    """Labels as numbers. Raises UserError for text: which class a word stands for is not the party's to say."""
    if y.dtype.kind in "buif":
        return y
    try:
        return y.astype(np.float64)
    except (ValueError, TypeError):
        raise UserError(
            f"{where}: labels are text, such as {str(y.reshape(-1)[0])!r}; write the numbers of the classes instead, "
            "as the parties have agreed upon them"
        ) from None
