"""The inputs of a run, from the config alone: data sets, model, start weights, and every client's data."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.data.catalogue import is_synthetic
from coterie.data.dataset import ALIGNED, Dataset, Part
from coterie.data.drift import Drift, parse_drift
from coterie.data.neighbourhoods import Nodes, as_nodes, augmented, in_subgraphs
from coterie.data.partition import Split, held_out_of, hold_out
from coterie.data.preparing import read_schema
from coterie.data.sources import load
from coterie.data.synthetic import HELD_CLIENTS, Drawn, deal_synthetic
from coterie.data.tasks import Task, column_of, deal, of_clients, with_fewer_tests
from coterie.protocol.errors import UserError
from coterie.protocol.import_path import code_of
from coterie.protocol.names import LazyMapping, Names
from coterie.protocol.randomness import rng
from coterie.runs.config import Resolved
from coterie.runs.on_data import ClientData, TensorSamples
from coterie.training.engine import fit_many
from coterie.training.jobs import Job
from coterie.training.model import Model
from coterie.training.models import build as build_model
from coterie.training.names import GRAPH_MODEL


def try_loss(model: Model, weights: NDArray[np.float32], own: ClientData) -> None:
    """Raises UserError unless the loss of two samples is one number, or two, with a gradient."""
    outputs, labels = model.module_with(weights)(own.x[:2]).float(), own.y[:2]
    try:
        loss = model.loss(outputs, labels)
        fits = loss.shape in ((), labels.shape[:1]) and loss.requires_grad
    except Exception as error:  # whatever a user's function raises
        raise UserError(f"the loss fails on outputs {tuple(outputs.shape)}: {error!r}") from error
    if not fits:
        raise UserError(
            f"the loss gives {tuple(loss.shape)} for {len(labels)} samples: it must give a tensor with a gradient, of "
            "one number for each sample, or the mean"
        )


def random_starts(seed: int, count: int, model: Model) -> NDArray[np.float32]:
    """The weights that this many models start with, (count, d), from the seed alone."""
    seeds = [int(rng(seed, "hub", "initial weights", 0, i).integers(1 << 62)) for i in range(count)]
    return np.stack([model.initial(one) for one in seeds])


def start_weights(
    config: Resolved, settings: Any, model: Model, split: Split, data: Mapping[str, ClientData]
) -> NDArray[np.float32]:
    """The weights that the system's models start with, (k, d): random, or trained on the data's own k groups.

    Raises UserError if there are not k groups.
    """
    k, pretraining = settings.models, settings.pretraining()
    random = random_starts(config.seed, k, model)
    if pretraining is None:
        return random
    groups = split.groups
    if groups is None or int(groups.max()) + 1 != k:
        known = "none" if groups is None else int(groups.max()) + 1
        raise UserError(
            f"start=pretrained wants the data of {k} known groups, and partition {config.partition} has {known}: "
            f"choose labelsets:{k} or permute:{k}, for example, or start=random"
        )
    solver, epochs = pretraining
    jobs = []
    for group, start in enumerate(random):
        own = [data[f"client/{client}"] for client in np.flatnonzero(groups == group)]
        x, y = torch.cat([one.x for one in own]), torch.cat([one.y for one in own])
        seed = int(rng(config.seed, "hub", "pre-training", 0, group).integers(1 << 62))
        jobs.append(Job(start, solver, epochs, seed, x, y))
    fits = fit_many(model, jobs, **config.how)
    return np.stack([fitted.weights for fitted in fits])


def client_data(
    split: Split, tasks: Sequence[Task], names: Sequence[str], augment: int = 0
) -> tuple[dict[str, ClientData], ClientData | None]:
    """The data of every client, as its task changes them, and the hub's public data, if any.

    augment: augmented views of a client's subgraph for its training samples (``data/neighbourhoods.py``). Raises
    UserError for data without such views.
    """
    if augment and not all(isinstance(task.dataset, Nodes) for task in tasks):
        raise UserError(f"augment={augment} adds views of a graph, and has no effect without model gcn: leave it out")
    tests = {task: samples_of(task, None, "test") for task in tasks}
    held_out = split.held_out or (None,) * len(names)
    found = {}
    own_tasks, of_hub = in_subgraphs(split, tasks)
    for name, task, own_task, train, held, test in zip(
        names, of_clients(split, tasks), own_tasks, split.train, held_out, split.test, strict=True
    ):
        own, kept = samples_of(own_task, train, "train"), None if held is None else samples_of(own_task, held, "train")
        if augment:
            views = [own, *(samples_of(view, train, "train") for view in _views(own_task, augment, split.seed, name))]
            own = TensorSamples(torch.cat([view.x for view in views]), torch.cat([view.y for view in views]))
        found[name] = ClientData(own.x, own.y, test, tests[task], kept)
    return found, public_data(of_hub, split.public) if len(split.public) else None


def _views(task: Task, augment: int, seed: int, name: str) -> Iterator[Task]:
    for view in range(augment):
        assert isinstance(task.dataset, Nodes)
        yield replace(task, dataset=augmented(task.dataset, rng(seed, name, "augmentation", 0, view)))


def public_data(task: Task, indices: NDArray[np.int64]) -> ClientData:
    own = samples_of(task, indices, "train")
    return ClientData(own.x, own.y, np.empty(0, np.int64), TensorSamples(own.x[:0], own.y[:0]))


def samples_of(task: Task, indices: NDArray[np.int64] | None, split: Part) -> TensorSamples:
    """Copies that begin at a multiple of ``ALIGNED`` bytes, so that a resumed run has the same losses."""
    labels = task.labels(indices, split).copy()  # all of them are a read-only view, which torch cannot mark
    x = torch.from_numpy(task.inputs(indices, split))
    return TensorSamples(x if x.data_ptr() % ALIGNED == 0 else x.clone(), torch.from_numpy(labels))


def inputs_digest(config: Resolved, tasks: Sequence[Task], model: Model) -> str:
    parts = [*dict.fromkeys(task.dataset.digest for task in tasks)]
    if ":" in config.model:
        kinds = {type(layer) for layer in model.module.modules() if not type(layer).__module__.startswith("torch.")}
        parts += [re.sub(" at 0x[0-9a-f]+", "", repr(model.module)), *sorted(code_of(kind.forward) for kind in kinds)]
    if config.loss is not None and ":" in config.loss:
        parts.append(code_of(model.loss))
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def fingerprint(
    inputs: str, split: Split, tasks: Sequence[Task], starts: NDArray[np.float32], epochs: Mapping[str, int]
) -> str:
    """A digest that two builds of the same work share: of data, code, partition, tasks and initial weights."""
    arrays = [*split.train, *split.held_out, *split.test, starts]
    arrays += [] if split.groups is None else [split.groups]
    arrays += [split.public] if len(split.public) else []
    of_tasks = [
        ("0" if task.change is None else task.change.key, None if task.names is None else task.names.tolist())
        for task in tasks
    ]
    known: list[Any] = [inputs, of_tasks, "by the seed" if isinstance(epochs, LazyMapping) else sorted(epochs.items())]
    known += [split.spec, split.seed, split.clients] if isinstance(split, Drawn) else []
    hashed = hashlib.blake2b(repr(tuple(known)).encode(), digest_size=16)
    for array in arrays:
        hashed.update(np.ascontiguousarray(array).tobytes())
    return hashed.hexdigest()


class Holdings(Mapping[str, ClientData]):
    """What every party holds, by name. Where ``make`` makes a client's data, only the last few are in memory.

    clients: names.  make: a client's data, by its number.  size: its number of training samples.  others: of other
    parties.
    """

    def __init__(
        self,
        clients: Names,
        make: Callable[[int], ClientData],
        size: Callable[[int], int],
        others: Mapping[str, ClientData],
        givers: Sequence[int] | None = None,
    ) -> None:
        self.clients, self._make, self._size, self._others = clients, make, size, dict(others)
        self._givers = givers

    def __getitem__(self, name: str) -> ClientData:
        return self._others[name] if name in self._others else self._make(self._giver(name))

    def __setitem__(self, name: str, data: ClientData) -> None:
        self._others[name] = data

    def samples(self, name: str) -> int:
        if name in self._others:
            return len(self._others[name].y)
        return self._size(self._giver(name)) if name in self.clients else 0

    def __contains__(self, name: object) -> bool:
        return name in self._others or name in self.clients

    def __iter__(self) -> Iterator[str]:
        yield from self.clients
        yield from (name for name in self._others if name not in self.clients)

    def __len__(self) -> int:
        return len(self.clients) + sum(name not in self.clients for name in self._others)

    def exchange(self, givers: Sequence[int]) -> None:
        """From now on every client holds the data dealt to the one of this number."""
        self._givers = givers

    def as_dealt(self) -> Holdings:
        return Holdings(self.clients, self._make, self._size, self._others)

    def _giver(self, name: str) -> int:
        place = self.clients.place(name)
        if place is None:
            raise KeyError(name)
        return place if self._givers is None else self._givers[place]


@dataclass(frozen=True)
class Inputs:
    """dataset: of the first task.  tasks: of the split's groups, or the one of all.  data: of clients and hub.

    drift: None if the data stay.  givers: for every client the number of the one whose data it has after the drift.
    """

    dataset: Dataset
    tasks: tuple[Task, ...]
    split: Split
    model: Model
    data: Holdings
    drift: Drift | None
    givers: tuple[int, ...]


def inputs_of(config: Resolved, hub: str) -> Inputs:
    """The inputs of a resolved run. hub: the party that holds the public data, if any.

    Raises UserError for data, partitions and models that are unavailable or do not fit each other.
    """

    def data_set(name: str, **own: Any) -> Dataset:
        found = replace(load(name, config.data_dir, own=own), scaling=config.scaling)
        if config.test_samples is not None:
            found = with_fewer_tests(found, config.test_samples, config.seed)
        return as_nodes(found) if config.model == GRAPH_MODEL else found

    dataset = data_set(
        config.data,
        by=column_of(config.partition),
        target=config.target,
        gaps=config.gaps,
        categories=config.categories,
        schema=None if config.schema is None else read_schema(Path(config.schema)),
        test_share=config.test_share,
        fold=None if config.folds is None else (config.folds, config.seed),
        kind=config.kind,
        task=None if config.task == "classes" else config.task,
    )
    share: Any = {"min_samples": config.min_samples, "public": config.public, "samples": config.samples}
    split: Split
    if is_synthetic(config.data):
        split, tasks = deal_synthetic(config.partition, dataset, int(config.clients or 0), config.seed, **share)
        data = _made(config, split, tasks, hub)
    else:
        split, tasks = deal(config.partition, dataset, config.clients, config.seed, load=data_set, **share)
        split = hold_out(split) if config.holds_out else split
        data = _dealt(config, split, tasks, hub)
    model = build_model(config.model, dataset.input_shape, dataset.classes, config.task, config.loss)
    drift = None if config.drift is None else parse_drift(config.drift, config.rounds)
    givers = () if drift is None else drift.givers(split.clients, config.seed)
    return Inputs(dataset, tasks, split, model, data, drift, givers)


def _dealt(config: Resolved, split: Split, tasks: Sequence[Task], hub: str) -> Holdings:
    names = Names(split.clients)
    found, public = client_data(split, tasks, names, config.augment)
    everybodys = [found[name] for name in names]
    others = {} if public is None else {hub: public}
    return Holdings(names, everybodys.__getitem__, lambda client: len(everybodys[client].y), others)


def _made(config: Resolved, split: Drawn, tasks: Sequence[Task], hub: str) -> Holdings:
    if config.augment:
        raise UserError(f"augment={config.augment} adds views of a graph, which {config.data} is not: leave it out")
    tests = {task: samples_of(task, None, "test") for task in tasks}

    @lru_cache(maxsize=HELD_CLIENTS)
    def make(client: int) -> ClientData:
        x, y = split.train_samples(client)
        held = None
        if config.holds_out:
            kept, given = held_out_of(split.seed, client, np.arange(len(y)))
            held, x, y = _as_samples(x[given], y[given]), x[kept], y[kept]
        own, task = _as_samples(x, y), split.task(client)
        return ClientData(own.x, own.y, partial(split.test_samples, client), tests[task], held)

    @lru_cache(maxsize=HELD_CLIENTS)
    def size(client: int) -> int:
        many = split.size(client)
        return many if not config.holds_out else len(held_out_of(split.seed, client, np.arange(many))[0])

    public = {} if not len(split.public) else {hub: public_data(Task(tasks[0].dataset), split.public)}
    return Holdings(Names(split.clients), make, size, public)


def _as_samples(x: NDArray[np.float32], y: NDArray[np.int64]) -> TensorSamples:
    return TensorSamples(torch.from_numpy(np.ascontiguousarray(x)).clone(), torch.from_numpy(np.array(y)))
