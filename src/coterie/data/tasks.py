"""Partitions over groups of clients whose *tasks* differ: other inputs, or other labels (docs/partitions.md).

``rotate`` is of Ghosh et al. (NeurIPS 2020), ``permute`` of Sattler, Müller and Samek (2020). Each data set of
``domains`` is normalised by itself. A seed deals the same indices with and without groups.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import factorial

import numpy as np
from numpy.typing import ArrayLike

from coterie.data.changes import SampleChange, changes_of
from coterie.data.dataset import Dataset, Part
from coterie.data.partition import Split, kept_of, partition, set_aside, whole
from coterie.data.schemes import FORMS, TASK_FORMS, even_sizes, is_own, kinds
from coterie.protocol.arrays import Floats, Integers
from coterie.protocol.errors import UserError, suggest
from coterie.protocol.randomness import rng

CHANGES = ("rotate", "shift", "blur", "colour")
"""Groups see other samples (``data/changes.py``)."""

Load = Callable[[str], Dataset]


@dataclass(frozen=True, eq=False)
class Task:
    """Changed samples of a data set, with renamed labels.  names: (classes,) int64, what each becomes;
    None for itself.
    """

    dataset: Dataset
    change: SampleChange | None = None
    names: Integers | None = None

    def inputs(self, indices: ArrayLike | None = None, split: Part = "train") -> Floats:
        """Normalised samples ``(n, *input_shape) float32``; by default the whole split."""
        x = self.dataset.inputs(indices, split)
        return x if self.change is None else self.change.apply(x, self.dataset)

    def labels(self, indices: ArrayLike | None = None, split: Part = "train") -> Integers:
        """Labels ``(n,) int64``."""
        y = self.dataset.labels(indices, split)
        return y if self.names is None else self.names[y]

    @property
    def words(self) -> str:
        """For people: ``"mnist, turned by 90 degrees"``."""
        changed = "" if self.change is None else f", {self.change.words}"
        named = "" if self.names is None else f", labels 0, 1, ... called {', '.join(map(str, self.names))}"
        return f"{self.dataset.name}{changed}{named}"


def deal(
    spec: str,
    dataset: Dataset,
    clients: int | None,
    seed: int,
    min_samples: int | None = None,
    *,
    load: Load | None = None,
    public: float = 0.0,
    samples: int | None = None,
) -> tuple[Split, tuple[Task, ...]]:
    """Any partition of a data set, and the task of each group; one where all have the same.

    The split's indices are into the data set of the client's own task.  min_samples: as in ``partition``.
    load: the other data sets of ``domains``.  clients: None, or the right number, for ``by:COLUMN``.
    public: share of ``dataset``'s training samples that no client gets, stratified by class, or for ``by:COLUMN`` by
        client.  samples: that are used of each data set, stratified by class; None for all. Raises UserError for a
        spec that is unknown or cannot be met.
    """
    if column_of(spec) is not None:
        if samples is not None:
            raise UserError(
                f"samples={samples:,} has no effect with partition {spec}: its clients have samples of their own"
            )
        return _as_owned(spec, dataset, clients, seed, min_samples or 1, public), (Task(dataset),)
    if clients is None:
        raise UserError(f"partition {spec} deals the samples to any number of clients: say how many")
    task, skew = parts_of(spec)
    if dataset.targets.task != "classes" and spec != "iid":
        raise UserError(
            f"partition {spec} deals samples by their class, but the task is {dataset.targets.task}: use iid, or "
            "by:COLUMN"
        )
    whole("seed", seed, 0)
    used = {id(dataset): kept_of(_labels(dataset), samples, seed)}
    taken = used[id(dataset)][set_aside(_labels(dataset)[used[id(dataset)]], public, seed)]

    def part_of(skew: str, data: Dataset, count: int, own_seed: int) -> Split:
        y, y_test = _labels(data), _labels(data, "test")
        left = used.setdefault(id(data), kept_of(y, samples, seed))
        left = np.setdiff1d(left, taken, assume_unique=True) if data is dataset else left
        try:
            part = partition(skew, y[left], y_test, count, own_seed, min_samples)
        except UserError as error:
            before = f" ({len(taken):,} samples are public and dealt to nobody)" if len(taken) else ""
            raise UserError(f"{error}{before}") from None
        return replace(part, train=tuple(left[own] for own in part.train), public=taken)

    if not task:
        return part_of(spec, dataset, clients, seed), (Task(dataset),)
    whole("clients", clients, 1)
    tasks = tasks_of(task, dataset, clients, seed, load)
    return replace(_in_groups(spec, skew, tasks, clients, seed, part_of), public=taken), tasks


def _in_groups(
    spec: str,
    skew: str,
    tasks: Sequence[Task],
    clients: int,
    seed: int,
    part_of: Callable[[str, Dataset, int, int], Split],
) -> Split:
    dataset = tasks[0].dataset
    draw = rng(seed, "partition", "groups")
    groups = draw.permutation(np.repeat(np.arange(len(tasks)), even_sizes(clients, len(tasks), draw)))
    if all(one.dataset is dataset for one in tasks):
        dealt = [(dataset, np.arange(clients), seed)]
    else:
        seeds = [int(rng(seed, "partition", "domain", g).integers(1 << 62)) for g in range(len(tasks))]
        dealt = [(one.dataset, np.flatnonzero(groups == g), seeds[g]) for g, one in enumerate(tasks)]
    train, test = ([np.empty(0, np.int64)] * clients for _ in range(2))
    for data, members, own_seed in dealt:
        part = part_of(skew, data, len(members), own_seed)
        if part.groups is not None:
            task = spec.partition("+")[0]
            raise UserError(f"partition {spec!r}: {skew} makes groups of its own, and so does {task}: leave one out")
        for i, own_train, own_test in zip(members, part.train, part.test, strict=True):
            train[i], test[i] = own_train, own_test
    return Split(spec, int(seed), tuple(train), tuple(test), groups)


def with_fewer_tests(dataset: Dataset, samples: int, seed: int) -> Dataset:
    """With so many test samples, drawn by the seed, each class by its share. Raises UserError where they belong to
    clients or are nodes of a graph, and for a wrong number.
    """
    if dataset.owners is not None or dataset.graph is not None:
        whose = "are those of its clients" if dataset.graph is None else "are nodes of a graph"
        raise UserError(f"test_samples={samples:,} has no effect: the test samples of {dataset.name} {whose}")
    kept = kept_of(_labels(dataset, "test"), samples, seed, "test")
    words = f"{dataset.source}, of which {len(kept):,} test"
    return replace(dataset, x_test=dataset.x_test[kept], y_test=dataset.y_test[kept], source=words)


def _labels(dataset: Dataset, part: Part = "train") -> Integers:
    y = dataset.labels(split=part)
    return y if dataset.targets.task == "classes" else np.zeros(len(y), np.int64)


def column_of(spec: str) -> str | None:
    """COLUMN of ``by:COLUMN``, else None. Raises UserError if it names none."""
    if not isinstance(spec, str):
        raise UserError(f"partition is {spec!r}; it must be a text such as {next(iter(FORMS))}")
    word, _, column = spec.partition(":")
    if word == "by" and not column:
        raise UserError(f"partition {spec!r} names no column: write by:COLUMN, or by:client for a folder of files")
    return column if word == "by" else None


def _as_owned(spec: str, dataset: Dataset, clients: int | None, seed: int, least: int, public: float) -> Split:
    owners = dataset.owners
    if owners is None or spec != f"by:{owners.column}":
        known = "which does not name its clients" if owners is None else f"whose clients are in {owners.column!r}"
        raise UserError(f"partition {spec} needs your own data with that column, not {dataset.name}, {known}")
    if clients not in (None, len(owners.names)):
        raise UserError(f"partition {spec} makes {len(owners.names)} clients, not {clients}: leave out clients")
    taken = set_aside(owners.train, public, seed)
    left = owners.train.copy()
    left[taken] = -1  # nobody's
    train, test = (
        tuple(np.flatnonzero(codes == i).astype(np.int64) for i in range(len(owners.names)))
        for codes in (left, owners.test)
    )
    for name, own in zip(owners.names, train, strict=True):
        if len(own) < least:
            raise UserError(f"client {name!r} has {len(own)} training samples, fewer than min_samples = {least}")
    return Split(spec, int(seed), train, test, names=owners.names, public=taken)


def of_clients(split: Split, tasks: Sequence[Task]) -> tuple[Task, ...]:
    """The task of every client; those of a group share the object."""
    if len(tasks) == 1 or split.groups is None:
        return (tasks[0],) * split.clients
    return tuple(tasks[g] for g in split.groups)


def parts_of(spec: str) -> tuple[str, str]:
    """The task (``""`` for none) and the label skew; raises UserError."""
    if is_own(spec):
        return "", spec
    tasks, skews = kinds(TASK_FORMS), kinds(FORMS)
    task, plus, skew = spec.partition("+")
    first, second = task.partition(":")[0], skew.partition(":")[0]
    if first not in (*tasks, *skews):
        hint = suggest(first, [*tasks, *skews])
        raise UserError(f"partition {spec!r}: there is no {first!r}{hint} Known: {', '.join([*FORMS, *TASK_FORMS])}")
    if first not in tasks:
        if second in tasks:
            raise UserError(f"partition {spec!r}: the task comes before the label skew: {skew}+{task}")
        return "", spec
    if second in tasks:
        raise UserError(f"partition {spec!r}: a group has one task, so {task} and {skew} do not go together")
    if second == "labelsets":
        raise UserError(
            f"partition {spec!r}: labelsets makes groups of its own; cross {task} with another label skew, for example "
            f"{task}+labels:2"
        )
    if plus and not skew:
        raise UserError(f"partition {spec!r}: a label skew must follow the +, for example {task}+dirichlet:0.3")
    return task, skew or "iid"


def tasks_of(spec: str, dataset: Dataset, clients: int, seed: int, load: Load | None) -> tuple[Task, ...]:
    """Of all groups; raises UserError where this data set, or so few clients, cannot have them."""
    kind, _, rest = spec.partition(":")
    names = rest.split(",")
    if kind != "domains" and (not re.fullmatch("[0-9]{1,9}", rest) or not int(rest)):
        raise UserError(f"partition {spec!r}: {kind}:K takes a number of groups, at least 1, for example {kind}:4")
    groups, classes = len(names) if kind == "domains" else int(rest), dataset.classes
    if clients < groups:
        raise UserError(
            f"partition {spec} makes {groups:,} groups, but there are only {clients:,} clients: add clients"
        )
    if kind == "domains":
        return _domains(spec, names, dataset, load)
    if kind in CHANGES:
        found = changes_of(kind, dataset, groups, rng(seed, "partition", kind))
        return tuple(Task(dataset, change) for change in found)
    if kind == "swap":
        if groups > classes // 2:
            raise UserError(
                f"partition {spec}: {classes} labels make {classes // 2} pairs, one a group: use at most "
                f"swap:{classes // 2}, or permute:{groups}"
            )
        labels = np.arange(classes, dtype=np.int64)  # the lower label of a pair is even, so a pair differs in one bit
        return tuple(Task(dataset, names=np.where(labels // 2 == g, labels ^ 1, labels)) for g in range(groups))
    if classes < 13 and groups > factorial(classes):
        raise UserError(f"partition {spec}: {classes} labels have only {factorial(classes)} orders: use fewer groups")
    _, *orders = permutations(classes, groups, rng(seed, "partition", "names"))
    return Task(dataset), *(Task(dataset, names=names) for names in orders)


def _domains(spec: str, names: Sequence[str], dataset: Dataset, load: Load | None) -> tuple[Task, ...]:
    if not all(names) or len(set(names)) != len(names):
        raise UserError(
            f"partition {spec!r}: domains takes different data sets, one a group, as in domains:mnist,fashion_mnist"
        )
    if names[0] != dataset.name:
        raise UserError(
            f"partition {spec} begins with {names[0]}, but the data set is {dataset.name}: say --data {names[0]} "
            "(model, clients and learning rate are by default what that data set takes)"
        )
    if load is None and len(names) > 1:
        raise UserError(f"partition {spec} needs more data sets: say with load= where they come from")
    others = [load(name) for name in names[1:]] if load else []
    for name, other in zip(names[1:], others, strict=True):
        for what in ("input_shape", "classes"):
            if (mine := getattr(dataset, what)) != (theirs := getattr(other, what)):
                raise UserError(
                    f"partition {spec}: all groups train one kind of model, but {what.replace('_', ' ')} is {mine} in "
                    f"{dataset.name} and {theirs} in {name}"
                )
    return tuple(map(Task, (dataset, *others)))


def permutations(classes: int, groups: int, draw: np.random.Generator) -> tuple[Integers, ...]:
    """``groups`` (<= classes!) different orders (classes,) int64 of the labels, the first as they are.

    Any two of the first ``classes`` differ at every label: turns of a random circle. The rest are random.
    """
    circle = draw.permutation(classes)
    steps = [0, *draw.permutation(np.arange(1, classes))][:groups]
    place = np.argsort(circle)
    found = {names.tobytes(): names for names in (circle[(place + step) % classes] for step in steps)}
    while len(found) < groups:
        names = draw.permutation(classes)
        found.setdefault(names.tobytes(), names)
    return tuple(found.values())
