"""What a party computes on its own data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

import coterie.protocol.core as fl
from coterie.data.form import read_data
from coterie.data.targets import Targets
from coterie.deploy.home import Home
from coterie.deploy.plan import Plan
from coterie.devices.profiles import Profile
from coterie.runs.config import Resolved
from coterie.runs.interpreter import LocalEffects
from coterie.runs.metrics import class_weights
from coterie.runs.on_data import ClientData, TensorSamples
from coterie.training.model import Model


@dataclass(frozen=True, eq=False)
class OwnWork:
    """data: of this party alone, or None.  allowed: scores that operator and owner agree on."""

    name: str
    config: Resolved
    model: Model
    data: ClientData | None
    effects: LocalEffects
    allowed: tuple[str, ...]


def own_work(home: Home, plan: Plan, config: Resolved, model: Model, device: Profile | None) -> OwnWork:
    """Raises UserError for a client without data, and without a GPU that it has named."""
    data, settings = _data(home, plan), plan.settings
    if data is None and home.role == plan.client_role:
        raise fl.UserError(f"{home.path} has no data, and {home.name} trains: join again with --data")
    effects = LocalEffects(
        model,
        {} if data is None else {home.name: data},
        config.how if settings.rehearsal else {"precision": config.precision, "device": _accelerator(home)},
        emulated=config.emulated,
        devices={} if device is None else {home.name: device},
        class_weights=class_weights(config.class_weights, Targets(config.task), plan.facts.outputs),
    )
    allowed = tuple(name for name in settings.scores if name in home.report)
    return OwnWork(home.name, config, model, data, effects, allowed)


def _data(home: Home, plan: Plan) -> ClientData | None:
    if not home.data.exists():
        return None
    own = read_data(home.data, plan.facts, tests=home.name != plan.roster.hub)
    # clone: memory of torch's own, which begins at a multiple of 64 bytes, as in a simulation
    x, y, x_test, y_test = (torch.from_numpy(array).clone() for array in (own.x, own.y, own.x_test, own.y_test))
    return ClientData(x, y, np.arange(len(y_test)), TensorSamples(x_test, y_test))


def _accelerator(home: Home) -> str:
    wanted, there = home.about.accelerator, torch.cuda.is_available()
    if wanted == "cuda" and not there:
        raise fl.UserError(f"{home.path} says that it has a GPU (accelerator cuda), but torch finds none here")
    return "cuda" if there and wanted == "auto" else "cpu" if wanted == "auto" else wanted
