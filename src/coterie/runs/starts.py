"""The weights that a run's models start with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.data.partition import Split
from coterie.protocol.errors import UserError
from coterie.protocol.randomness import rng
from coterie.runs.config import Resolved
from coterie.runs.on_data import ClientData
from coterie.training.engine import fit_many
from coterie.training.jobs import Job
from coterie.training.model import Model


def try_loss(model: Model, weights: NDArray[np.float32], own: ClientData) -> None:
    """Raises UserError unless two samples' loss is one number, or two, with a gradient."""
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
    """(count, d) weights, from the seed alone."""
    seeds = [int(rng(seed, "hub", "initial weights", 0, i).integers(1 << 62)) for i in range(count)]
    return np.stack([model.initial(one) for one in seeds])


def start_weights(
    config: Resolved, settings: Any, model: Model, split: Split, data: Mapping[str, ClientData]
) -> NDArray[np.float32]:
    """(k, d) weights: random, or trained on the data's own k groups. Raises UserError without these."""
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
