"""One's own data (docs/data.md): files and Python objects whose samples belong to named clients.

Every source becomes :class:`Samples`, one for each client or for all. Four arrays of an npz file (``x_train``, ...)
have ``NAME_train`` and ``NAME_test`` for clients.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from coterie.data.catalogue import BUILT_IN, KNOWN, is_synthetic
from coterie.data.columns import Schema, encoded, fitted, inputs_of
from coterie.data.dataset import Dataset, Kind, Owners, fixed_split, folded, from_arrays
from coterie.data.formats import Arrays, swollen
from coterie.data.preparing import prepared as prepared_by
from coterie.data.samples import KIND, NAMES, Prepared, Samples, is_table, joined, read, samples_of, text
from coterie.data.targets import Targets, coded, several, standardised
from coterie.protocol.arrays import Array, Flags
from coterie.protocol.errors import CoterieWarning, UserError, suggest
from coterie.protocol.model_spec import TaskKind

CLIENT = "client"
TEST_SHARE = 0.2
TABLES = (".csv", ".parquet")
SUFFIXES = (*TABLES, ".npz")
Fold = tuple[int, int]
"""Parts of a cut, and the seed that says which one tests (``dataset.folded``)."""


PARTIES = "parties-own"
"""Data that nobody has in one place."""


def is_path(data: str) -> bool:
    """Whether a data set's name is a path. Known names win: ./mnist is such a folder. Raises UserError for no file."""
    if data in ("", *BUILT_IN, PARTIES, *KNOWN) or is_synthetic(data):
        return False
    try:
        os.stat(data)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except ValueError:  # it is no text that a path can be
        return False
    except OSError as error:
        raise UserError(f"no file can have the name {data[:80]!r}: {error}") from None
    return "/" in data or "\\" in data or data.lower().endswith(SUFFIXES) or Path(data).is_dir()


def name_of(data: str) -> str:
    """For people and folders: a path's last part without its ending."""
    return Path(data).stem if is_path(data) else data


def load_own(
    path: Path,
    *,
    by: str | None,
    target: str | None,
    test_share: float | None,
    kind: str | None,
    task: TaskKind = "classes",
    fold: Fold | None = None,
    gaps: str | None = None,
    categories: str | None = None,
    schema: Schema | None = None,
) -> Dataset:
    """The data set in one file, or in a folder of one file a client. by: the column that names clients.

    test_share, fold: as of ``dataset``.  gaps, categories: as the options.  schema: of tables, which says all but `by`.
    Raises UserError naming the client, the file and the column.
    """
    named_columns = tuple(word.strip() for word in (categories or "").split(",") if word.strip())
    prepared = Prepared(gaps is not None, named_columns) if gaps or named_columns else None

    def samples(file: Path, by: str | None) -> Samples:
        return read(file, by, target, prepared) if schema is None else prepared_by(file, schema, by)

    with _advising(path, schema, target):
        if path.is_dir():
            files = sorted(file for file in path.iterdir() if not file.name.startswith("."))
            if strange := [file.name for file in files if file.suffix.lower() not in SUFFIXES]:
                raise UserError(
                    f"{path}: {strange[0]} is not a csv, npz or parquet file; a folder has one such file a client"
                )
            if strange := [file.name for file in files if not file.is_file()]:
                raise UserError(f"{path}: {strange[0]} is not an ordinary file; a folder has one file for each client")
            if not files:
                raise UserError(f"{path} holds no csv, npz or parquet file: put one file for each client there")
            if by not in (None, CLIENT):
                raise UserError(f"{path} is a folder of one file a client, so it is dealt by:client, not by:{by}")
            clients = [(file.stem, samples(file, None)) for file in files]
            name, parts, by = path.name, named(clients), CLIENT
        elif path.is_file():
            name, parts = path.stem, [samples(path, by)]
        else:
            raise UserError(f"there is no data at {path}: --data takes a known name, a folder of files, or a file")
        found = dataset(name, parts, column=by, test_share=test_share, kind=kind, task=task, fold=fold)
    return replace(found, source=f"{path}: {found.source}")


@contextlib.contextmanager
def _advising(path: Path, schema: Schema | None, target: str | None) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        files = path.glob("*") if path.is_dir() else (path,)
        tables = [one for one in files if one.suffix.lower() in TABLES and one.is_file()]
        if schema is not None or not tables:
            raise
        those = path if path.is_file() else path / f"*{tables[0].suffix}"
        label = f" --label {target}" if target else ""
        raise UserError(
            f"{error}\nFor gaps, categories and dates, stated once, and all findings at once: coterie prepare propose "
            f"{those}{label} --out schema.toml, coterie prepare check schema.toml {those}, and --schema schema.toml "
            "here"
        ) from None


def from_python(data: Any, *, by: str | None = None, target: str | None = None) -> list[Samples]:
    """by: the column that names the clients of a table. Raises UserError.

    data: a mapping client -> one client's samples; a table (a dict of columns, a pandas ``DataFrame``, a Hugging Face
        dataset); a torch ``Dataset`` of pairs, or a pair of them for training and test; ``(x, y)``; or ``(x_train,
        y_train, x_test, y_test)``. One client's are any of these but a mapping.
    """
    if isinstance(data, Mapping) and data and not is_table(data):
        if by not in (None, CLIENT):
            raise UserError(f"a mapping of clients is dealt by:client, not by:{by}")
        return named([(str(name), samples_of(own, None, target, f"client {name!r}")) for name, own in data.items()])
    return [samples_of(data, by, target, "the data")]


def named(clients: Sequence[tuple[str, Samples]]) -> list[Samples]:
    """Clients' samples by name. Raises UserError for repeated or empty ones."""
    names = [text(name.strip(), "the name of a client") for name, _ in clients]
    if twice := [name for name, count in Counter(names).items() if count > 1 or not name]:
        raise UserError(f"two clients are called {twice[0]!r}: rename one" if twice[0] else "a client has no name")
    return [
        replace(own, owner=np.full(len(own.x), name, object)) for name, (_, own) in zip(names, clients, strict=True)
    ]


def to_arrays(
    parts: Sequence[Samples], column: str | None, test_share: float | None, kind: str | None, folds: int | None = None
) -> Arrays:
    """An npz file's arrays, which :func:`load_own` reads as the same data set.  folds: data with these are not split
    here.
    """
    one = _join(parts, test_share, None if folds is None else (folds, 0))
    assert one.test is not None
    if column in ("x", "y"):
        raise UserError(f"by={column!r}: the column cannot be called x or y, as samples and labels are: rename it")
    arrays: Arrays = {}
    y = one.y if one.y.dtype.kind in "biuf" else one.y.astype(np.str_)
    values = {"x": one.x, "y": y} | ({} if column is None or one.owner is None else {column: one.owner.astype(np.str_)})
    for name, value in values.items():
        both = {f"{name}_train": value[~one.test], f"{name}_test": value[one.test]}
        arrays |= both if folds is None else {name: value}
    kind = kind or one.kind
    arrays |= {NAMES: np.array(one.targets)} if one.targets else {}
    return arrays | ({} if kind is None else {KIND: np.array(kind)})


def packed(arrays: Arrays) -> tuple[str, bytes]:
    """A file's name and content; equal arrays have equal names."""
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # type: ignore[arg-type]  # a bool is expected by its stub
    if swollen(content.tell(), sum(array.nbytes for array in arrays.values())):
        content = io.BytesIO()
        np.savez(content, **arrays)  # type: ignore[arg-type]
    data = content.getvalue()
    return f"own-{hashlib.blake2b(data, digest_size=6).hexdigest()}.npz", data


def dataset(
    name: str,
    parts: Sequence[Samples],
    *,
    column: str | None,
    test_share: float | None,
    kind: str | None,
    task: TaskKind = "classes",
    fold: Fold | None = None,
) -> Dataset:
    """The data set of all samples.  column: names their clients. Raises UserError.

    test_share: of every client's samples without a split (by default .2), evenly over labels, without a seed.  fold:
    tests instead.
    """
    one = _join(parts, test_share, fold)
    assert one.test is not None
    if one.test.all() or not one.test.any():
        raise UserError(f"{one.where}: there is no {'training' if one.test.all() else 'test'} sample")
    train, test = ~one.test, one.test
    names = one.targets or None
    y_train: Array
    y_test: Array
    if task == "multilabel":
        y_train, y_test, targets = several(one.y[train], one.y[test], names, one.where)
    elif task == "regression":
        y_train, y_test, targets = standardised(one.y[train], one.y[test], names, one.where)
    else:
        if one.schema is None:
            codes, names = coded([(part.where, part.y) for part in parts])
        else:
            codes, names = one.y, one.schema.names
        y_train, y_test, targets = codes[train], codes[test], Targets("classes", names)
    classes = len(names or ()) if task == "classes" else y_train.shape[1]
    kind = checked_kind(kind or one.kind)
    x, features, columns = one.x, one.features, one.columns
    if one.schema is not None:
        columns = one.schema.columns
    elif columns:
        columns = fitted(columns, x, train, one.where)
        x, features = encoded(columns, x), inputs_of(columns)
    # x is checked beside class 0: labels of other tasks are no classes
    labels = (y_train, y_test) if task == "classes" else (np.zeros(len(y), np.int64) for y in (y_train, y_test))
    of_train, of_test = labels
    made = from_arrays(
        name, x[train], of_train, x[test], of_test, classes=max(2, classes), kind=kind, source="own data"
    )
    made = replace(made, y_train=y_train, y_test=y_test, classes=classes, targets=targets)
    made = replace(made, features=features, label_columns=one.targets, columns=columns, scaled=one.schema is not None)
    made = replace(made, rows_test=None if fold is None else np.flatnonzero(test))
    owners = None
    if column is not None and one.owner is not None:
        called = tuple(dict.fromkeys(map(str, one.owner)))  # in their order
        number = {name: i for i, name in enumerate(called)}
        of = np.array([number[str(name)] for name in one.owner], np.int64)
        owners = Owners(column, called, of[train], of[test])
        _check_owners(parts, owners, made)
    return replace(made, owners=owners)


def _join(parts: Sequence[Samples], test_share: float | None, fold: Fold | None = None) -> Samples:
    first = parts[0]
    share = TEST_SHARE if test_share is None else test_share
    if test_share is not None and fold is not None:
        raise UserError(f"test_share={share:g} has no effect beside folds={fold[0]}: leave one of the two out")
    if not 0 < share < 1:
        raise UserError(f"test_share is {share}: it must lie between 0 and 1")
    aligned = [_aligned(part, first) for part in parts]
    for part in aligned:
        if not len(part.x):
            raise UserError(f"{part.where} has no samples: give it some, or leave it out")
        if part.x.shape[1:] != first.x.shape[1:]:
            raise UserError(
                f"{part.where}: a sample has shape {part.x.shape[1:]}, but {first.x.shape[1:]} in {first.where}; all "
                "clients must have the same"
            )
        if part.test is not None and test_share is not None:
            raise UserError(f"test_share has no effect: {part.where} says itself which samples are for testing")
        if part.test is not None and fold is not None:
            raise UserError(f"folds has no effect: {part.where} says itself which samples are for testing")
    kinds = {part.kind: part.where for part in aligned if part.kind is not None}
    if len(kinds) > 1:
        said = " and ".join(f"{kind} in {where}" for kind, where in kinds.items())
        raise UserError(f"the kind of the samples is {said}: it must be the same for all clients")
    tests = [_split(part, share, fold) if part.test is None else part.test for part in aligned]
    owners = [part.owner for part in aligned if part.owner is not None]
    where = first.where if len(parts) == 1 else f"{first.where} and {len(parts) - 1} more"
    return Samples(
        where,
        joined([part.x for part in aligned], where),
        joined([part.y for part in aligned], where),
        np.concatenate(owners) if owners else None,
        np.concatenate(tests),
        first.features,
        next(iter(kinds), None),
        first.targets,
        first.columns,
        first.schema,
    )


def _split(part: Samples, share: float, fold: Fold | None) -> Flags:
    test = np.zeros(len(part.x), np.bool_)
    owner = np.zeros(len(part.x), np.int64) if part.owner is None else np.unique(part.owner, return_inverse=True)[1]
    y = _comparable(part.y)
    labels = np.unique(y, axis=0, return_inverse=True)[1].reshape(-1)
    for client in range(int(owner.max()) + 1 if len(owner) else 0):
        own = np.flatnonzero(owner == client)
        _, chosen = fixed_split(labels[own], share) if fold is None else folded(labels[own], *fold)
        test[own[chosen]] = True
    return test


def _comparable(y: Array) -> Array:
    """Numbers if all are, else text, whatever the kind of file."""
    try:
        return y.astype(np.float64)
    except (ValueError, TypeError):
        return y.astype(np.str_)


def _aligned(part: Samples, first: Samples) -> Samples:
    if part.features == first.features:
        return part
    ours, theirs = set(part.features), set(first.features)
    if ours != theirs:
        lacks, more = sorted(theirs - ours), sorted(ours - theirs)
        said = f"lacks the column {lacks[0]!r}" if lacks else f"has the column {more[0]!r}, too"
        hint = "; add it with empty cells, and say gaps=mean (--gaps)" if lacks else ""
        raise UserError(f"{part.where} {said}: all clients must have the columns of {first.where}{hint}")
    place = {name: i for i, name in enumerate(part.features)}
    order = [place[name] for name in first.features]
    return replace(part, x=part.x[:, order], features=first.features)


def _check_owners(parts: Sequence[Samples], owners: Owners, made: Dataset) -> None:
    of = {str(part.owner[0]): part.where for part in parts if len(parts) > 1 and part.owner is not None}
    for code, name in enumerate(owners.names):
        where = of.get(name, f"client {name!r} ({owners.column}, {parts[0].where})")
        if re.fullmatch("client/[0-9]+", name):
            raise UserError(f"{where} has a name like those that a run gives its parties: choose another")
        labels = made.y_train[owners.train == code]
        for what, count in (("training", len(labels)), ("test", int((owners.test == code).sum()))):
            if not count:
                raise UserError(f"{where} has no {what} sample: give it more samples, or leave it out")
        if made.targets.task == "classes" and len(np.unique(labels)) < 2:
            column = "".join(f", column {name!r}" for name in made.label_columns)
            what = made.targets.names[labels[0]] if made.targets.names else str(labels[0])
            warnings.warn(
                f"{where}{column}: all labels of its training samples are {what!r}. It trains, but its own tests tell "
                "little, and have no AUROC: give it samples of another class, or leave it out",
                CoterieWarning,
                stacklevel=2,
            )


def checked_kind(kind: str | None) -> Kind | None:
    """Raises UserError for an unknown one."""
    if kind is not None and kind not in get_args(Kind):
        raise UserError(f"kind is {kind!r}{suggest(kind, get_args(Kind))} Known: {', '.join(get_args(Kind))}")
    return kind  # type: ignore[return-value]
