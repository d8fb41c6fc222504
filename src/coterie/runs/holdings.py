"""The parties' data, or what makes them when asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from math import ceil
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.data.catalogue import is_synthetic
from coterie.data.dataset import ALIGNED, Dataset, Part
from coterie.data.neighbourhoods import Nodes, augmented, in_subgraphs
from coterie.data.partition import Split, held_out_of, hold_out
from coterie.data.synthetic import HELD_CLIENTS, Drawn, deal_synthetic
from coterie.data.tasks import Task, deal, of_clients
from coterie.protocol.errors import UserError
from coterie.protocol.names import Names
from coterie.protocol.randomness import rng
from coterie.runs.config import Resolved
from coterie.runs.on_data import ClientData, TensorSamples


def client_data(
    split: Split, tasks: Sequence[Task], names: Sequence[str], augment: int = 0, share: float = 1.0
) -> tuple[dict[str, ClientData], ClientData | None]:
    """Every client's data, changed by its task, and the hub's public data, if any.

    augment: views of a client's subgraph (``data/neighbourhoods.py``). Raises UserError for data without such.
    share: of the clients that a round asks. Twice as many have their training samples in memory, the last that used
    them; the others' are made when asked for.
    """
    if augment and not all(isinstance(task.dataset, Nodes) for task in tasks):
        raise UserError(f"augment={augment} adds views of a graph, and has no effect without model gcn: leave it out")
    tests = {task: samples_of(task, None, "test") for task in tasks}
    held_out = split.held_out or (None,) * len(names)
    found = {}
    own_tasks, of_hub = in_subgraphs(split, tasks)

    @lru_cache(maxsize=ceil(2 * share * len(names)))
    def inputs(client: int) -> Tensor:
        return inputs_of(own_tasks[client], split.train[client], "train")

    for client, (name, task, own_task, train, held, test) in enumerate(
        zip(names, of_clients(split, tasks), own_tasks, split.train, held_out, split.test, strict=True)
    ):
        kept = None if held is None else samples_of(own_task, held, "train")
        if augment:
            views = [own_task, *_views(own_task, augment, split.seed, name)]
            every = [samples_of(view, train, "train") for view in views]
            x, y = torch.cat([view.x for view in every]), torch.cat([view.y for view in every])
            found[name] = ClientData(x, y, test, tests[task], kept)
        else:
            y = labels_of(own_task, train, "train")
            found[name] = ClientData(partial(inputs, client), y, test, tests[task], kept)
    return found, public_data(of_hub, split.public) if len(split.public) else None


def _views(task: Task, augment: int, seed: int, name: str) -> Iterator[Task]:
    for view in range(augment):
        assert isinstance(task.dataset, Nodes)
        yield replace(task, dataset=augmented(task.dataset, rng(seed, name, "augmentation", 0, view)))


def public_data(task: Task, indices: NDArray[np.int64]) -> ClientData:
    own = samples_of(task, indices, "train")
    return ClientData(own.x, own.y, np.empty(0, np.int64), TensorSamples(own.x[:0], own.y[:0]))


def samples_of(task: Task, indices: NDArray[np.int64] | None, split: Part) -> TensorSamples:
    """Copies."""
    return TensorSamples(inputs_of(task, indices, split), labels_of(task, indices, split))


def inputs_of(task: Task, indices: NDArray[np.int64] | None, split: Part) -> Tensor:
    """Aligned to ``ALIGNED``, so a resumed run has the same losses."""
    x = torch.from_numpy(task.inputs(indices, split))
    return x if x.data_ptr() % ALIGNED == 0 else x.clone()


def labels_of(task: Task, indices: NDArray[np.int64] | None, split: Part) -> Tensor:
    return torch.from_numpy(task.labels(indices, split).copy())  # all are a read-only view, which torch cannot mark


class Holdings(Mapping[str, ClientData]):
    """Only the last few clients' data are in memory.  make, size: a client's data and training samples, by its number.
    others: of other parties.
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
        self._givers = givers

    def as_dealt(self) -> Holdings:
        return Holdings(self.clients, self._make, self._size, self._others)

    def _giver(self, name: str) -> int:
        place = self.clients.place(name)
        if place is None:
            raise KeyError(name)
        return place if self._givers is None else self._givers[place]


def dealt(
    config: Resolved, dataset: Dataset, hub: str, load: Callable[..., Dataset]
) -> tuple[Split, tuple[Task, ...], Holdings]:
    """load: other data sets by name.  Raises UserError for a partition that is unknown or cannot be met."""
    share: Any = {"min_samples": config.min_samples, "public": config.public, "samples": config.samples}
    if is_synthetic(config.data):
        drawn, tasks = deal_synthetic(config.partition, dataset, int(config.clients or 0), config.seed, **share)
        return drawn, tasks, _made(config, drawn, tasks, hub)
    split, tasks = deal(config.partition, dataset, config.clients, config.seed, load=load, **share)
    split = hold_out(split) if config.holds_out else split
    return split, tasks, _dealt(config, split, tasks, hub)


def _dealt(config: Resolved, split: Split, tasks: Sequence[Task], hub: str) -> Holdings:
    names = Names(split.clients)
    slow = any(isinstance(task.dataset, Nodes) or task.change is not None for task in tasks)
    share = 1.0 if slow else config.settings.get("participation", 1.0)
    found, public = client_data(split, tasks, names, config.augment, share)
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
