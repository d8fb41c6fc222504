"""The inputs of a run, from the config alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.data.dataset import Dataset
from coterie.data.drift import Drift, drifted, parse_drift
from coterie.data.neighbourhoods import as_nodes
from coterie.data.partition import Split
from coterie.data.preparing import read_schema
from coterie.data.sources import load
from coterie.data.tasks import Task, column_of, with_fewer_tests
from coterie.runs.config import Resolved
from coterie.runs.holdings import Holdings, dealt
from coterie.training.model import Model
from coterie.training.models import build as build_model
from coterie.training.names import GRAPH_MODEL


@dataclass(frozen=True)
class Inputs:
    """dataset: of the first task.  tasks: of the split's groups, or one.  data: of clients and hub.  drift: None if the
    data stay.  givers: for every client, whose data it has after the drift.
    """

    dataset: Dataset
    tasks: tuple[Task, ...]
    split: Split
    model: Model
    data: Holdings
    drift: Drift | None
    givers: tuple[int, ...]

    def exchanged(self) -> Inputs:
        """After the drift; ``data`` change in place."""
        self.data.exchange(self.givers)
        return replace(self, split=drifted(self.split, self.givers))

    def label_counts(self, clients: Sequence[str]) -> NDArray[np.int64]:
        """(clients, classes) training samples, with the labels of their tasks."""
        targets, classes = self.dataset.targets, self.dataset.classes
        return np.stack([targets.counts(self.data[name].y.numpy(), classes) for name in clients])

    def groups(self, clients: Sequence[str]) -> list[int] | None:
        found, places = self.split.groups, self.data.clients
        return None if found is None else [int(found[places.index(name)]) for name in clients]


def inputs_of(config: Resolved, hub: str) -> Inputs:
    """hub: of the public data, if any. Raises UserError for data, partitions and models that are unavailable or do not
    fit.
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
    split, tasks, data = dealt(config, dataset, hub, data_set)
    model = build_model(config.model, dataset.input_shape, dataset.classes, config.task, config.loss)
    drift = None if config.drift is None else parse_drift(config.drift, config.rounds)
    givers = () if drift is None else drift.givers(split.clients, config.seed)
    return Inputs(dataset, tasks, split, model, data, drift, givers)
