"""What a run is dealt: its data sets, its model, and what every client holds, read from the config alone.

An experiment and its workers (``runs/workers.py``) build the same from the same config.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.data.catalogue import is_synthetic
from coterie.data.dataset import Dataset
from coterie.data.neighbourhoods import as_nodes
from coterie.data.partition import Split, held_out_of, hold_out
from coterie.data.sources import load
from coterie.data.synthetic import Drawn, deal_synthetic
from coterie.data.tasks import Task, column_of, deal
from coterie.protocol.errors import UserError
from coterie.protocol.names import Names
from coterie.runs.config import Resolved
from coterie.runs.inputs import client_data, public_data, samples_of
from coterie.runs.on_data import ClientData, Samples
from coterie.training.model import Model
from coterie.training.models import build as build_model
from coterie.training.names import GRAPH_MODEL

HELD_CLIENTS = 4096
"""Clients whose data are kept once they were made."""


class Holdings(Mapping[str, ClientData]):
    """What every party holds, by name. Where ``make`` makes a client's data, only the last few are in memory.

    clients: their names.  make: a client's data, by its number.  size: its number of training samples.
    others: what parties that are no clients hold.
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
        """A party holds this from now on, whatever it was dealt."""
        self._others[name] = data

    def samples(self, name: str) -> int:
        """How many training samples a party holds; 0 for one that holds none."""
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
        """From now on every client holds what the one of this number was dealt."""
        self._givers = givers

    def as_dealt(self) -> Holdings:
        """What everybody was dealt, whatever is exchanged later."""
        return Holdings(self.clients, self._make, self._size, self._others)

    def _giver(self, name: str) -> int:
        place = self.clients.place(name)
        if place is None:
            raise KeyError(name)
        return place if self._givers is None else self._givers[place]


@dataclass(frozen=True)
class Inputs:
    """dataset: of the first task.  tasks: of the split's groups, or the one of all.  data: of clients and hub."""

    dataset: Dataset
    tasks: tuple[Task, ...]
    split: Split
    model: Model
    data: Holdings


def inputs_of(config: Resolved, hub: str) -> Inputs:
    """The inputs of a resolved run. hub: the name of the party that holds the public data, if there are any.

    Raises UserError for data, partitions and models that are not to be had, or do not fit each other.
    """
    by, of_task = column_of(config.partition), None if config.task == "classes" else config.task

    def data_set(name: str, **own: Any) -> Dataset:
        found = replace(load(name, config.data_dir, own=own), scaling=config.scaling)
        return as_nodes(found) if config.model == GRAPH_MODEL else found

    own = {"by": by, "target": config.target, "test_share": config.test_share, "kind": config.kind, "task": of_task}
    dataset = data_set(config.data, **own)
    model_of = (dataset.input_shape, dataset.classes, config.task, config.loss)
    if is_synthetic(config.data):
        drawn, tasks = deal_synthetic(
            config.partition,
            dataset,
            int(config.clients or 0),
            config.seed,
            config.min_samples,
            public=config.public,
            samples=config.samples,
        )
        model = build_model(config.model, *model_of)
        return Inputs(dataset, tasks, drawn, model, _made(config, drawn, tasks, hub))
    split, tasks = deal(
        config.partition,
        dataset,
        config.clients,
        config.seed,
        config.min_samples,
        load=data_set,
        public=config.public,
        samples=config.samples,
    )
    split = hold_out(split) if config.fine_tune == "held_out" else split
    model = build_model(config.model, *model_of)
    names = Names(split.clients)
    found, public = client_data(split, tasks, names, config.augment)
    everybodys = [found[name] for name in names]
    others = {} if public is None else {hub: public}
    data = Holdings(names, everybodys.__getitem__, lambda client: len(everybodys[client].y), others)
    return Inputs(dataset, tasks, split, model, data)


def _made(config: Resolved, split: Drawn, tasks: Sequence[Task], hub: str) -> Holdings:
    """Holdings of clients whose data are made when they are asked for."""
    if config.augment:
        raise UserError(f"augment={config.augment} adds views of a graph, which {config.data} is not: leave it out")
    tests = {task: samples_of(task, None, "test") for task in tasks}

    @lru_cache(maxsize=HELD_CLIENTS)
    def make(client: int) -> ClientData:
        x, y = split.train_samples(client)
        held = None
        if config.fine_tune == "held_out":
            kept, given = held_out_of(split.seed, client, np.arange(len(y)))
            held, x, y = _as_samples(x[given], y[given]), x[kept], y[kept]
        own, task = _as_samples(x, y), split.task(client)
        return ClientData(own.x, own.y, split.test_samples(client), tests[task], held)

    @lru_cache(maxsize=HELD_CLIENTS)
    def size(client: int) -> int:
        many = split.size(client)
        return many if config.fine_tune != "held_out" else len(held_out_of(split.seed, client, np.arange(many))[0])

    public = {} if not len(split.public) else {hub: public_data(Task(tasks[0].dataset), split.public)}
    return Holdings(Names(split.clients), make, size, public)


def _as_samples(x: NDArray[np.float32], y: NDArray[np.int64]) -> Samples:
    return Samples(torch.from_numpy(np.ascontiguousarray(x)).clone(), torch.from_numpy(np.array(y)))
