"""A data set: checked arrays, kept as stored, normalised when asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from math import prod
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from coterie.data.columns import Column
from coterie.data.targets import Targets
from coterie.protocol.arrays import Array, Doubles, Floats, Integers
from coterie.protocol.errors import UserError
from coterie.protocol.randomness import rng

Kind = Literal["image", "tabular", "series", "volume", "graph"]
Part = Literal["train", "test"]
Scaling = Literal["standard", "unit"]

_CHUNK = 1 << 18  # elements converted to float64 at a time while the moments are taken: 2 MiB, fits a cache
ALIGNED = 64
"""A matrix product's last bit may depend on where a sample begins, modulo this."""
_CHANNELS = (1, 3, 4)
_KINDS: dict[int, Kind] = {2: "tabular", 3: "series", 4: "image", 5: "volume"}  # by the axes of the stored samples


@dataclass(frozen=True, eq=False)
class Graph:
    """Labelled nodes.  x: (n, f) float32, rows sum to 1, empty ones to 0.  edges: (2, E) int64 node pairs; undirected,
    each once, no self-loops, unless the file says otherwise.  y: (n,) int64 classes, -1 for none.  train, val, test:
    int64 node numbers, disjoint.
    """

    x: Floats
    edges: Integers
    y: Integers
    train: Integers
    val: Integers
    test: Integers


@dataclass(frozen=True, eq=False)
class Owners:
    """column: that names the clients.  train, test: (N,) int64, client numbers."""

    column: str
    names: tuple[str, ...]
    train: Integers
    test: Integers


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test samples with labels, made and checked by :func:`from_arrays` or ``load``.

    x_train, x_test: as stored (``uint8`` or ``float32``), read-only: (N, C, H, W) for images, (N, f) for tables and
        graphs, whose rows are nodes, (N, t, f) for series of t steps, and (N, C, D, H, W) for volumes.
    y_train, y_test: (N,) int64 in 0..classes-1, or as ``targets`` says.  input_shape: of one sample.
    classes: for other tasks the number of outputs.  features, label_columns: of a table, or ().
    columns: of a table with gaps or categories, or a schema, which has ``scaled`` them.
    rows_test: (N,) rows of test samples in a table whose split follows the seed, or None.
    source: origin and number of the samples, for people.
    graph: rows of ``x_train`` are ``graph.x[graph.train]``.

    ``inputs`` normalises by the training samples: each channel of images and volumes, each feature of others.
    ``standard``: (x - mean) / std. ``unit``: the lowest value becomes 0, the highest 1, over all channels. Tables of
    zeros and ones stay, and a constant becomes 0.
    """

    name: str
    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array
    classes: int
    kind: Kind
    input_shape: tuple[int, ...]
    source: str
    graph: Graph | None = None
    scaling: Scaling = "standard"
    targets: Targets = field(default_factory=Targets)
    owners: Owners | None = None
    features: tuple[str, ...] = ()
    label_columns: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    rows_test: Integers | None = None
    scaled: bool = False

    @cached_property
    def zero_and_unit(self) -> tuple[Floats, Floats]:
        """What ``inputs`` subtracts and divides by, in stored units."""
        x = self.x_train
        words = self.kind == "tabular" and all(np.isin(part, (0, 1)).all() for part in _chunks(x))
        if self.scaled or self.kind == "graph" or words:
            return np.zeros(1, np.float32), np.ones(1, np.float32)
        every, spatial = tuple(range(x.ndim)), self.kind in ("image", "volume")
        if self.scaling == "standard":
            zero, unit = _moments(x, (0, *every[2:]) if spatial else every[:-1])
        else:
            axes = every if spatial else every[:-1]
            zero, top = (find(x, axis=axes, keepdims=True)[0].astype(np.float64) for find in (np.min, np.max))
            unit = top - zero
        return zero.astype(np.float32), np.where(unit > 0, unit, 1).astype(np.float32)

    @cached_property
    def digest(self) -> str:
        """Hex, of stored samples and labels, the labels' names and units, and owners."""
        arrays = [self.x_train, self.y_train, self.x_test, self.y_test, self.targets.zero, self.targets.unit]
        arrays += [] if self.owners is None else [self.owners.train, self.owners.test]
        arrays += [] if self.graph is None else [self.graph.x, self.graph.edges]
        known = [array for array in arrays if array is not None]
        words = self.targets.names, None if self.owners is None else (self.owners.column, self.owners.names)
        hashed = hashlib.blake2b(
            repr((words, [(array.dtype, array.shape) for array in known])).encode(), digest_size=16
        )
        for array in known:
            hashed.update(np.ascontiguousarray(array).data)
        return hashed.hexdigest()

    def inputs(self, indices: ArrayLike | None = None, split: Part = "train") -> Floats:
        """Normalised samples ``(n, *input_shape) float32``, made anew and aligned; by default the whole split."""
        stored, (zero, unit) = _rows(self.x_train, self.x_test, indices, split), self.zero_and_unit
        x = _aligned(stored.shape)
        for part, as_stored in zip(_chunks(x), _chunks(stored), strict=True):  # both steps while it is in a cache
            np.subtract(as_stored, zero, out=part)
            np.divide(part, unit, out=part)
        return x

    def labels(self, indices: ArrayLike | None = None, split: Part = "train") -> Integers:
        """``(n,) int64``, of the samples of ``inputs``."""
        return _rows(self.y_train, self.y_test, indices, split)


def from_arrays(
    name: str,
    x_train: ArrayLike,
    y_train: ArrayLike,
    x_test: ArrayLike,
    y_test: ArrayLike,
    *,
    classes: int | None = None,
    kind: Kind | None = None,
    source: str = "arrays",
) -> Dataset:
    """A :class:`Dataset` of one's own arrays. Raises UserError naming the array and what is wrong.

    x: (N, H, W), (N, H, W, C) or (N, C, H, W) with 1, 3 or 4 channels (the last axis decides first) for images, (N, f)
        for tables, (N, t, f) for series, and (N, C, D, H, W) for volumes; any integers, booleans or finite floats.
    y: (N,) or (N, 1) integers, 0..classes-1.
    kind: by default of the axes; three are grey images if all values are whole numbers from 0 to 255, and else need it.
    classes: by default the highest label + 1; each needs a training sample.
    """
    where = f"data set {name!r} ({source})"
    train = _samples(x_train, f"{where}: x_train", kind)
    test = _samples(x_test, f"{where}: x_test", kind)
    if train.shape[1:] != test.shape[1:]:
        raise UserError(
            f"{where}: a sample of x_train has shape {train.shape[1:]}, one of x_test {test.shape[1:]}; "
            "both must have the same shape"
        )
    labels_train = _labels(y_train, len(train), f"{where}: y_train")
    labels_test = _labels(y_test, len(test), f"{where}: y_test")
    if classes is None:
        classes = _count_classes(labels_train, labels_test, where)
    for part, labels in (("y_train", labels_train), ("y_test", labels_test)):
        if (top := labels.max()) >= classes:
            raise UserError(f"{where}: {part} has label {top}, but labels must be 0..{classes - 1}")
    return Dataset(
        name=name,
        x_train=_frozen(train),
        y_train=_frozen(labels_train),
        x_test=_frozen(test),
        y_test=_frozen(labels_test),
        classes=classes,
        kind=_KINDS[train.ndim],
        input_shape=train.shape[1:],
        source=f"{source}: {len(train):,} training and {len(test):,} test samples",
    )


def from_graph(name: str, graph: Graph, *, classes: int, source: str) -> Dataset:
    """Of the training and test nodes of a checked graph."""
    graph = Graph(**{name: _frozen(array) for name, array in vars(graph).items()})
    train, test = graph.train, graph.test
    data = from_arrays(name, graph.x[train], graph.y[train], graph.x[test], graph.y[test], classes=classes)
    words = (
        f"{source}: {len(graph.y):,} nodes, {graph.edges.shape[1]:,} edges, {len(train):,} training, "
        f"{len(graph.val):,} validation and {len(test):,} test nodes"
    )
    return replace(data, kind="graph", graph=graph, source=words)


def fixed_split(y: Array, share: float = 0.2) -> tuple[Integers, Integers]:
    """Training and test indices, ascending, of data in one piece, without a seed.

    share: of test samples: for .2, every fifth in order of class, then of the file.
    """
    order = np.argsort(y, kind="stable")
    exact = Fraction(str(share))
    steps = np.array([i * exact.numerator // exact.denominator for i in range(-1, len(order))])
    is_test = np.zeros(len(order), dtype=bool)
    is_test[order[np.diff(steps) > 0]] = True
    return np.flatnonzero(~is_test).astype(np.int64), np.flatnonzero(is_test).astype(np.int64)


def folded(y: Array, folds: int, seed: int) -> tuple[Integers, Integers]:
    """Training and test indices of a cross-validation: seed s tests part s mod ``folds`` of every class. The next
    ``folds`` seeds cut other parts. Seed 0 of five is ``fixed_split``.
    """
    again, part = divmod(seed, folds)
    draw = rng(again, "split", "folds").permutation(len(y)) if again else np.arange(len(y))
    is_test = np.zeros(len(y), np.bool_)
    is_test[draw[np.argsort(y[draw], kind="stable")][part::folds]] = True
    return np.flatnonzero(~is_test).astype(np.int64), np.flatnonzero(is_test).astype(np.int64)


def _samples(x: ArrayLike, where: str, kind: Kind | None) -> Array:
    x = np.asarray(x)
    if x.dtype.kind not in "buif":
        raise UserError(f"{where} has type {x.dtype}; it must hold numbers")
    if x.ndim not in _KINDS or x.size == 0:
        raise UserError(
            f"{where} has shape {x.shape}; it must be (N, features), (N, height, width), (N, height, width, channels), "
            "(N, steps, features) or (N, channels, depth, height, width), with at least one sample"
        )
    if kind is not None and kind != _KINDS[x.ndim] and (kind, x.ndim) != ("image", 3):
        raise UserError(f"{where} has shape {x.shape}, which is a shape of kind {_KINDS[x.ndim]}, not of {kind}")
    if x.ndim == 4 and not {x.shape[1], x.shape[3]} & set(_CHANNELS):
        raise UserError(f"{where} has shape {x.shape}; images need 1, 3 or 4 channels on their last or second axis")
    x = _stored(x, where)
    if x.ndim == 3 and kind is None and not _is_grey(x):
        raise UserError(
            f"{where} has shape {x.shape}: are these images or series? Say kind=image or kind=series (--kind, or an "
            "array kind in the npz file)"
        )
    if x.ndim == 3 and kind != "series":
        return x[:, None]
    if x.ndim == 4 and x.shape[3] in _CHANNELS:
        return np.ascontiguousarray(np.moveaxis(x, 3, 1))  # once here, not at every call of ``inputs``
    return x


GAPS = ". Arrays take no gaps (NaN): fill them, or write csv or parquet files, whose gaps --gaps mean or a schema fills"


def _stored(x: Array, where: str) -> Array:
    if x.dtype.kind in "bui" and x.min() >= 0 and x.max() <= 255:
        return x.astype(np.uint8, copy=False)
    with np.errstate(over="ignore"):
        return finite(x.astype(np.float32, copy=False), where, GAPS if x.ndim == 2 else "")


def finite(x: Floats, where: str, gaps: str = "") -> Floats:
    """The same samples or targets (n, ...); raises UserError for non-finite ones.  gaps: advice."""
    bad = ~np.isfinite(x).reshape(len(x), -1).all(axis=1)
    if bad.any():
        raise UserError(
            f"{where}: {bad.sum():,} of {len(x):,} samples hold NaN, infinity or a value too large for float32, the "
            f"first is sample {int(bad.argmax())}; clean them first{gaps}"
        )
    return x


def _labels(y: ArrayLike, samples: int, where: str) -> Integers:
    y = np.asarray(y)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.shape != (samples,):
        raise UserError(f"{where} has shape {y.shape}; there are {samples:,} samples, so it must be ({samples},)")
    if y.dtype.kind not in "bui":
        raise UserError(f"{where} has type {y.dtype}; labels must be integers 0, 1, 2, ...")
    if int(y.min()) < 0 or int(y.max()) >= 1 << 31:
        raise UserError(f"{where} has label {int(y.min() if y.min() < 0 else y.max())}; labels must be 0, 1, 2, ...")
    return y.astype(np.int64)


def _count_classes(train: Integers, test: Integers, where: str) -> int:
    present = np.unique(train)
    classes = int(max(train.max(), test.max())) + 1
    if len(present) != classes:
        missing = int(np.flatnonzero(~np.isin(np.arange(min(classes, len(present) + 1)), present))[0])
        raise UserError(
            f"{where}: the highest label is {classes - 1}, but no training sample has label {missing}; "
            "number the classes 0, 1, 2, ... without gaps"
        )
    if classes < 2:
        raise UserError(f"{where}: all training labels are 0; at least two classes are needed")
    return classes


def _rows(train: Array, test: Array, indices: ArrayLike | None, split: str) -> Array:
    if split not in ("train", "test"):
        raise UserError(f"split is {split!r}; it must be 'train' or 'test'")
    stored = test if split == "test" else train
    if indices is None:
        return stored
    chosen = np.asarray(indices)
    rows: Array = stored[chosen if chosen.size else chosen.astype(np.int64)]  # an empty list comes as floats
    return rows


def _frozen(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view


def _is_grey(x: Array) -> bool:
    return all(bool(((part >= 0) & (part <= 255) & (part == np.floor(part))).all()) for part in _chunks(x))


def _chunks(x: Array) -> list[Array]:
    rows = max(1, _CHUNK // prod(x.shape[1:]))
    return [x[i : i + rows] for i in range(0, len(x), rows)]


def _aligned(shape: tuple[int, ...]) -> Floats:
    memory = np.empty(4 * prod(shape) + ALIGNED, np.uint8)
    start = -memory.ctypes.data % ALIGNED
    return memory[start : start + 4 * prod(shape)].view(np.float32).reshape(shape)


def _moments(x: Array, axes: tuple[int, ...]) -> tuple[Doubles, Doubles]:

    def mean_of(sums: Iterator[Array]) -> Doubles:
        over_samples = np.asarray(sum(sums) / len(x))  # first over samples alone: fast, whatever the memory layout
        return np.asarray(over_samples.mean(axis=tuple(a - 1 for a in axes if a), keepdims=True))

    mean = mean_of(part.sum(axis=0, dtype=np.float64) for part in _chunks(x))

    def squared(part: Array) -> Doubles:
        away = part - mean
        np.square(away, out=away)  # a second array of this size would be new pages every time
        return np.asarray(away.sum(axis=0))

    return mean, np.sqrt(mean_of(map(squared, _chunks(x))))
