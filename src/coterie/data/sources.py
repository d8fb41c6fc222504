"""Data sets by name: ``load("mnist")``.

``digits`` (scikit-learn's) and ``heart`` (four hospitals) are embedded; ``synthetic:64x10`` is made up. Others are
looked for in ``--data-dir``, COTERIE_DATA, and a per-user cache, into which public sets with a checksum are downloaded.
In each folder the first of these forms counts:

- ``NAME.npz`` with x_train, y_train, x_test, y_test, see ``dataset.from_arrays``;
- ``NAME.npz`` with x, y (or features, labels): split 80/20 by ``dataset.fixed_split``;
- ``NAME.npz`` with a graph: see ``graphs.graph_from_arrays``;
- for the known names the publishers' own files, see ``catalogue``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import platformdirs

from coterie.data import catalogue
from coterie.data.dataset import Dataset, Graph, fixed_split, from_arrays, from_graph
from coterie.data.formats import Arrays, read_npz
from coterie.data.graphs import GRAPH_KEYS, graph_from_arrays, with_all_labels
from coterie.data.own import Fold, checked_kind, is_path, load_own
from coterie.data.samples import KIND
from coterie.data.synthetic import synthetic
from coterie.protocol.errors import UserError, suggest
from coterie.protocol.party import freeze

NAMES: tuple[str, ...] = (*catalogue.BUILT_IN, *catalogue.KNOWN, *catalogue.ALL_LABELS)
"""Every data set known by name."""


def load(
    name: str,
    data_dir: str | Path | None = None,
    *,
    download: bool = True,
    progress: catalogue.Progress | None = None,
    own: Mapping[str, Any] = MappingProxyType({}),
) -> Dataset:
    """The data set ``name``: one of ``NAMES``, of a file ``NAME.npz``, or one's own at a path, checked.

    own: how to read one's own data (``load_own``); ``heart`` takes ``by``, ``test_share`` and ``fold``.  data_dir:
    looked in first.  download: a missing set may be fetched.  progress: told of it. Raises UserError if data are
    missing (saying what to put where) or bad.
    """
    said = {key: value for key, value in own.items() if value is not None}
    if is_path(name):
        return load_own(Path(name), **{"by": None, "target": None, "test_share": None, "kind": None, **said})
    if name == "heart":
        said.pop("by", None)  # the partition says it again
        share, fold = said.pop("test_share", None), said.pop("fold", None)
    if said:
        key, value = next(iter(said.items()))
        key, value = ("folds", value[0]) if key == "fold" else (key, value)
        why = f"there is no folder {name!r} here: check its name"
        if name in NAMES or catalogue.is_synthetic(name):
            why = f"has no effect on {name}: leave it out"
        raise UserError(f"{key}={value} is for your own data at a path, and {why}")
    if name == "digits":
        return _digits()
    if name == "heart":
        return _heart(share, fold)
    if catalogue.is_synthetic(name):
        return synthetic(name)
    stem = catalogue.ALL_LABELS.get(name, name)
    known, known_names = catalogue.KNOWN.get(stem), ", ".join([*NAMES, catalogue.SYNTHETIC])
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
        raise UserError(f"data set {name!r}: a name has letters, digits, '_', '-' and '.' only; known: {known_names}")
    folders = _folders(data_dir)
    for folder in folders:
        if found := _find(stem, known, folder):
            return _dataset(name, known, found)
    if known is None:
        raise UserError(
            f"unknown data set {name!r}{suggest(name, NAMES)} Known: {known_names}. For your own data give the path of "
            f"a folder of one file a client, or of a csv, npz or parquet file; or put {name}.npz with "
            f"{', '.join(catalogue.FOUR)} into {_either(folders)}, or say where it is with --data-dir or COTERIE_DATA"
        )
    if known.remote and download:
        return _dataset(name, known, _download(stem, known, folders, progress))
    raise UserError(_not_there(stem, known, folders))


def cache_dir() -> Path:
    """The user's folder of downloads, such as ``~/.cache/coterie``."""
    return platformdirs.user_cache_path("coterie", appauthor=False)


def _old_cache_dir() -> Path | None:
    """Where older versions kept downloads if $XDG_CACHE_HOME was set."""
    xdg = Path(os.environ.get("XDG_CACHE_HOME", ""))
    old = xdg / "coterie"
    return old if xdg.is_absolute() and old.is_dir() and old != cache_dir() else None


def _folders(data_dir: str | Path | None) -> list[Path]:
    if data_dir is not None and not Path(data_dir).is_dir():
        raise UserError(f"data folder {data_dir} (--data-dir) does not exist or is not a folder")
    named = (data_dir, os.environ.get("COTERIE_DATA") or None, _old_cache_dir())
    return [*(Path(folder) for folder in named if folder is not None), cache_dir()]


def _find(name: str, known: catalogue.NamedDataSet | None, folder: Path) -> catalogue.Found | None:
    path = folder / f"{name}.npz"
    if path.is_file():
        arrays = read_npz(path)
        return (graph_from_arrays(arrays, str(path)) if "x_indptr" in arrays else arrays), str(path)
    return (known.read(folder / name) or known.read(folder / known.place)) if known else None


def _download(
    name: str, known: catalogue.NamedDataSet, folders: list[Path], progress: catalogue.Progress | None
) -> catalogue.Found:
    target = cache_dir() / name
    try:
        for remote in known.remote:
            if not (target / remote.file_name).is_file():
                catalogue.fetch(remote, target, progress)
    except UserError as exc:
        raise UserError(f"{exc}. {_not_there(name, known, folders)}") from exc
    found = known.read(target)
    if found is None:
        raise UserError(f"data set {name!r}: the files in {target} do not make up the data set; remove that folder")
    return found


def _dataset(name: str, known: catalogue.NamedDataSet | None, found: catalogue.Found) -> Dataset:
    content, source = found
    if isinstance(content, Graph):
        top = int(content.y.max())
        if known and top >= known.classes:
            raise UserError(f"data set {name!r} ({source}): y has class {top}, but {name} has {known.classes} classes")
        if name in catalogue.ALL_LABELS:
            content, source = with_all_labels(content), f"{source}, all labels"
        return from_graph(name, content, classes=known.classes if known else top + 1, source=source)
    arrays, split = _four(name, content, source)
    said = "image" if known and np.ndim(arrays[0]) == 3 else str(content[KIND]) if KIND in content else None
    classes = known.classes if known else None
    data = from_arrays(name, *arrays, classes=classes, kind=checked_kind(said), source=source)
    if split:
        return replace(data, source=f"{data.source} (fixed 80/20 split)")
    have = (len(data.y_train), len(data.y_test))
    if known and known.samples and have != known.samples:
        complete = f"{known.samples[0]:,} and {known.samples[1]:,}"
        return replace(data, source=f"{data.source} (the complete set has {complete})")
    return data


def _four(name: str, arrays: Arrays, source: str) -> tuple[list[Any], bool]:
    if all(key in arrays for key in catalogue.FOUR):
        return [arrays[key] for key in catalogue.FOUR], False
    where = f"data set {name!r} ({source})"
    for x_key, y_key in (("x", "y"), ("features", "labels")):
        if x_key not in arrays or y_key not in arrays:
            continue
        x, y = arrays[x_key], arrays[y_key]
        if y.ndim == 2 and y.shape[1] > 1:
            if y.dtype.kind not in "buif" or not (np.isin(y, (0, 1)).all() and (y.sum(axis=1) == 1).all()):
                raise UserError(
                    f"{where}: {y_key} is {y.shape}; it must be one label a sample, or rows with a single 1"
                )
            y = y.argmax(axis=1)
        if x.ndim == 0 or y.shape[:1] != x.shape[:1] or y.size != len(y) or len(y) < 2:
            raise UserError(
                f"{where}: {x_key} is {x.shape} and {y_key} {y.shape}; there must be one label for each sample"
            )
        train, test = fixed_split(y.reshape(-1))
        return [x[train], y[train], x[test], y[test]], True
    raise UserError(
        f"data set {name!r}: {source} holds {', '.join(sorted(arrays)) or 'nothing'}; it needs "
        f"{', '.join(catalogue.FOUR)}, or x and y (split 80/20), or for a graph {', '.join(GRAPH_KEYS)}"
    )


@cache
def _digits() -> Dataset:
    # scikit-learn's functions take a second to import
    (home,) = find_spec("sklearn").submodule_search_locations  # type: ignore[misc, union-attr]  # a dependency
    table = np.loadtxt(Path(home, "datasets", "data", "digits.csv.gz"), dtype=np.uint8, delimiter=",")
    x, y = table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(int)
    train, test = fixed_split(y)
    return from_arrays("digits", x[train], y[train], x[test], y[test], classes=10, source="scikit-learn, embedded")


@cache
def _heart(test_share: float | None, fold: Fold | None) -> Dataset:
    """Heart Disease (UCI; Janosi, Steinbrunn, Pfisterer, Detrano, 1989), by hospital."""
    found = load_own(
        Path(__file__).with_name("heart"),
        by=None,
        target="disease",
        test_share=test_share,
        kind=None,
        fold=fold,
        gaps="mean",
        categories="cp,restecg,slope,thal",
    )
    assert found.owners is not None
    freeze([found.y_train, found.y_test, found.owners.train, found.owners.test])
    source = found.source.rpartition(": ")[2]
    return replace(found, source=f"UCI, embedded: {source}", owners=replace(found.owners, column="hospital"))


def _either(folders: list[Path]) -> str:
    return " or ".join(f"{folder}{'' if folder.is_dir() else ' (not there yet)'}" for folder in folders)


def _not_there(name: str, known: catalogue.NamedDataSet, folders: list[Path]) -> str:
    files = ", ".join(f"{name}/{remote.file_name}" for remote in known.remote)
    address = f" from {known.remote[0].url.rpartition('/')[0]}/" if known.remote else ""
    return (
        f"Data set {name!r} is not in {_either(folders)}: put {name}.npz there, or "
        f"{known.by_hand or files + address}. --data-dir or COTERIE_DATA name another folder; the data set 'digits' "
        "needs no files"
    )
