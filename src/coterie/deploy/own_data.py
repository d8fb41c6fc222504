"""A party's own samples: what an owner's file holds, and ``data.npz`` in its home, which its node reads.

Nobody else's samples are known, so samples are scaled by the party's own training samples, unless the file says that
they are the model's inputs already (``scaled``): then the parties have agreed upon the scaling by themselves.
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
from coterie.data.dataset import Dataset, fixed_split, from_arrays
from coterie.data.formats import Arrays, read_npz
from coterie.data.own import TEST_SHARE
from coterie.data.samples import Samples, from_npz, npz_keys, read
from coterie.data.targets import Targets
from coterie.protocol.errors import UserError
from coterie.runs.config import RunConfig
from coterie.runs.interpreter import ClientData
from coterie.runs.interpreter import Samples as Tensors

SCALED = "scaled"


def of_file(path: Path, config: RunConfig) -> Arrays:
    """An owner's samples (npz, csv or parquet) as ``data.npz`` holds them: x_train, y_train, x_test and y_test.

    A share of the samples is split off for tests if the file has none of its own. Raises UserError.
    """
    if path.suffix == ".npz" and SCALED in (arrays := read_npz(path)):
        return _checked_scaled(arrays, path)
    own = read(path, None, config.target)
    if not len(own.x):
        raise UserError(f"{path} has no samples")
    test = own.test
    if test is None:
        share = TEST_SHARE if config.test_share is None else config.test_share
        test = np.zeros(len(own.x), np.bool_)
        test[fixed_split(np.unique(own.y, axis=0, return_inverse=True)[1].reshape(-1), share)[1]] = True
    if test.all() or not test.any():
        raise UserError(f"{path} has no {'training' if test.all() else 'test'} sample: give it more samples")
    parts = ((own.x, ~test), (own.y, ~test), (own.x, test), (own.y, test))
    kind = {"kind": np.array(own.kind)} if own.kind is not None else {}
    return dict(zip(FOUR, (_plain(values[rows]) for values, rows in parts), strict=True)) | kind


def scaled(data: ClientData) -> Arrays:
    """Samples that are the model's inputs already, as ``data.npz`` holds them."""
    test = (data.test_set.x[data.test], data.test_set.y[data.test])
    tensors = dict(zip(FOUR, (data.x, data.y, *test), strict=True))
    return {**{name: tensor.numpy() for name, tensor in tensors.items()}, SCALED: np.array(True)}


def read_data(path: Path, config: RunConfig, input_shape: tuple[int, ...], outputs: int) -> ClientData:
    """The samples in a home, for a model of these inputs and outputs. Raises UserError for others."""
    arrays = read_npz(path)
    if SCALED in arrays:
        arrays = _checked_scaled(arrays, path)
        found = {key: arrays[key] for key in FOUR}
        x_train, x_test = (found[key].astype(np.float32) for key in FOUR[::2])
        y_train, y_test = (_labels(found[key], config, outputs, f"{path}: {key}") for key in FOUR[1::2])
        if x_train.shape[1:] != input_shape or x_test.shape[1:] != input_shape:
            raise UserError(f"{path}: a sample has shape {x_train.shape[1:]}, and the plan's model takes {input_shape}")
    else:
        dataset = _dataset(from_npz(arrays, None, str(path)), path, config, outputs)
        if tuple(dataset.input_shape) != input_shape:
            raise UserError(
                f"{path}: a sample has shape {dataset.input_shape}, and the plan's model takes {input_shape}"
            )
        x_train, y_train = dataset.inputs(), dataset.labels()
        x_test, y_test = dataset.inputs(split="test"), dataset.labels(split="test")
    # clone: memory of torch's own, which begins at a multiple of 64 bytes, as a simulation has it
    train, test = (
        Tensors(torch.from_numpy(np.ascontiguousarray(x)).clone(), torch.from_numpy(np.array(y)))
        for x, y in ((x_train, y_train), (x_test, y_test))
    )
    return ClientData(train.x, train.y, np.arange(len(test.y)), test)


def _dataset(own: Samples, path: Path, config: RunConfig, outputs: int) -> Dataset:
    """The party's own samples as a data set, which scales them by themselves."""
    assert own.test is not None, "data.npz has a split"
    train, test = ~own.test, own.test
    y_train, y_test = (_labels(own.y[rows], config, outputs, f"{path}: labels") for rows in (train, test))
    zeros = (np.zeros(len(y), np.int64) for y in (y_train, y_test))  # labels of other tasks are no classes
    plain_train, plain_test = (y_train, y_test) if config.task == "classes" else zeros
    kind: Any = config.kind or own.kind
    made = from_arrays(
        path.name, own.x[train], plain_train, own.x[test], plain_test, classes=max(2, outputs), kind=kind
    )
    return replace(made, y_train=y_train, y_test=y_test, targets=Targets(config.task), scaling=config.scaling)


def _labels(y: NDArray[Any], config: RunConfig, outputs: int, where: str) -> NDArray[Any]:
    """Labels as a model's loss takes them. Raises UserError for a label that the model has no output for."""
    if config.task == "classes":
        if y.ndim != 1 or y.dtype.kind not in "biuf" or (y != np.floor(y)).any():
            raise UserError(f"{where} must be whole numbers, one for each sample: the classes 0 to {outputs - 1}")
        if len(y) and not 0 <= int(y.min()) <= int(y.max()) < outputs:
            raise UserError(f"{where} go from {y.min()} to {y.max()}, and the plan's classes from 0 to {outputs - 1}")
        return y.astype(np.int64)
    several = y.reshape(len(y), -1)
    if several.dtype.kind not in "biuf" or several.shape[1] != outputs or not np.isfinite(several).all():
        raise UserError(f"{where} are {y.shape}: the plan's model gives {outputs} numbers for each sample")
    if config.task == "multilabel" and not np.isin(several, (0, 1)).all():
        raise UserError(f"{where} must be zeros and ones")
    return several.astype(np.float32)


def _checked_scaled(arrays: Mapping[str, NDArray[Any]], path: Path) -> Arrays:
    """The arrays of a file of a model's inputs. Raises UserError."""
    npz_keys(set(arrays) - {SCALED}, None, str(path))
    if missing := [key for key in FOUR if key not in arrays]:
        raise UserError(f"{path} holds samples that are scaled, and lacks {missing[0]}: it needs {', '.join(FOUR)}")
    for x, y in (FOUR[:2], FOUR[2:]):
        if arrays[x].dtype.kind not in "biuf" or not np.isfinite(arrays[x]).all():
            raise UserError(f"{path}: {x} must hold finite numbers")
        if arrays[x].ndim < 2 or arrays[y].shape[:1] != arrays[x].shape[:1]:
            raise UserError(f"{path}: {x} is {arrays[x].shape} and {y} {arrays[y].shape}: give a label to each sample")
    return dict(arrays)


def _plain(values: NDArray[Any]) -> NDArray[Any]:
    """Labels that are text as numbers where they are numbers, else as text: an npz file holds no objects."""
    if values.dtype != object:
        return values
    words = values.astype(np.str_)
    try:
        return words.astype(np.int64)
    except ValueError:
        return words
