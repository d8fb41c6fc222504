"""What a run is built from: the data of every party, start weights, and digests that tell such inputs apart."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.data.augmentation import augmented
from coterie.data.dataset import Part
from coterie.data.drift import parse_drift
from coterie.data.neighbourhoods import Nodes, in_subgraphs
from coterie.data.partition import Split
from coterie.data.synthetic import Drawn
from coterie.data.tasks import Task, of_clients
from coterie.protocol.errors import UserError
from coterie.protocol.import_path import code_of
from coterie.protocol.names import Made
from coterie.protocol.randomness import rng
from coterie.runs.config import Resolved
from coterie.runs.on_data import ClientData, Samples
from coterie.training.engine import fit_many
from coterie.training.jobs import Job
from coterie.training.model import Model


@dataclass(frozen=True)
class Dealt:
    """What clients were dealt, whatever drifts later. label_counts: (clients, classes).  data: of every party."""

    split: Split
    label_counts: NDArray[np.int64]
    data: Mapping[str, ClientData]


@dataclass(frozen=True)
class Drifting:
    """The drift of a run. round: before which.  givers: by client, the number of the one whose data it has then."""

    round: int
    givers: tuple[int, ...]


def drift_of(config: Resolved, clients: int) -> Drifting | None:
    """The drift of a resolved run of so many clients, if it has any."""
    drift = None if config.drift is None else parse_drift(config.drift, config.rounds)
    return None if drift is None else Drifting(drift.round, drift.givers(clients, config.seed))


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
    """The weights that so many models start with, (count, d). They follow from the seed alone."""
    seeds = [int(rng(seed, "hub", "initial weights", 0, i).integers(1 << 62)) for i in range(count)]
    return np.stack([model.initial(one) for one in seeds])


def start_weights(
    config: Resolved, settings: Any, model: Model, split: Split, data: Mapping[str, ClientData]
) -> NDArray[np.float32]:
    """The weights that the system's models start with, (k, d): random, or trained on the data's own k groups.

    No real server has the data for the latter. Raises UserError if there are not k groups.
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
    fits = fit_many(model, jobs, precision=config.precision, device=config.accelerator)
    return np.stack([fitted.weights for fitted in fits])


def client_data(
    split: Split, tasks: Sequence[Task], names: Sequence[str], augment: int = 0
) -> tuple[dict[str, ClientData], ClientData | None]:
    """The data of every client, as its task changes them, and the hub's public data, if there are any.

    The test set of a task is made once.  augment: augmented views of a client's subgraph that are added to its training
    samples (``data/augmentation.py``). Raises UserError for data without such views.
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
            own = Samples(torch.cat([view.x for view in views]), torch.cat([view.y for view in views]))
        found[name] = ClientData(own.x, own.y, test, tests[task], kept)
    return found, public_data(of_hub, split.public) if len(split.public) else None


def _views(task: Task, augment: int, seed: int, name: str) -> Iterator[Task]:
    """The task in so many augmented views of its graph."""
    for view in range(augment):
        assert isinstance(task.dataset, Nodes)
        yield replace(task, dataset=augmented(task.dataset, rng(seed, name, "augmentation", 0, view)))


def public_data(task: Task, indices: NDArray[np.int64]) -> ClientData:
    """The hub's own samples, of the plain task. It has no test samples: those that exist are the observer's."""
    own = samples_of(task, indices, "train")
    return ClientData(own.x, own.y, np.empty(0, np.int64), Samples(own.x[:0], own.y[:0]))


def samples_of(task: Task, indices: NDArray[np.int64] | None, split: Part) -> Samples:
    """Copies in torch's own memory, which begins at a multiple of 64 bytes. Numpy's need not, and on some processors
    the last bit of a matrix product depends on it: then a resumed run would have other losses."""
    labels = task.labels(indices, split).copy()  # all of them are a read-only view, which torch cannot mark
    return Samples(torch.from_numpy(task.inputs(indices, split)).clone(), torch.from_numpy(labels))


def inputs_digest(config: Resolved, tasks: Sequence[Task], model: Model) -> str:
    """A digest of the data, and of a model and a loss of one's own: names in a config do not tell these apart."""
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
    """A digest that two builds of the same work share: of data, code, partition, tasks and initial weights.

    What follows from the seed when it is asked for is told by its law.
    """
    arrays = [*split.train, *split.held_out, *split.test, starts]
    arrays += [] if split.groups is None else [split.groups]
    arrays += [split.public] if len(split.public) else []
    of_tasks = [(str(task.turn), None if task.names is None else task.names.tolist()) for task in tasks]
    known: list[Any] = [inputs, of_tasks, "by the seed" if isinstance(epochs, Made) else sorted(epochs.items())]
    known += [split.spec, split.seed, split.clients] if isinstance(split, Drawn) else []
    hashed = hashlib.blake2b(repr(tuple(known)).encode(), digest_size=16)
    for array in arrays:
        hashed.update(np.ascontiguousarray(array).tobytes())
    return hashed.hexdigest()
