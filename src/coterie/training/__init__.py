"""Local training of many clients at once: models as flat vectors, solvers, and the engine that picks a path."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.protocol.lazily import lazily

if TYPE_CHECKING:
    from coterie.training.engine import DivergedError, Job, batch_order, choose_path, evaluate_many, fit_many
    from coterie.training.model import Model
    from coterie.training.models import build, default_model
    from coterie.training.solvers import Admm, Proximal, Pull, Scaffold, Sgd, Solver

_HOMES = {
    "engine": (
        "DivergedError",
        "Job",
        "batch_order",
        "choose_path",
        "evaluate_many",
        "fit_many",
    ),
    "model": ("Model",),
    "models": (
        "build",
        "default_model",
    ),
    "solvers": (
        "Admm",
        "Proximal",
        "Pull",
        "Scaffold",
        "Sgd",
        "Solver",
    ),
}

__all__ = [
    "Admm",
    "DivergedError",
    "Job",
    "Model",
    "Proximal",
    "Pull",
    "Scaffold",
    "Sgd",
    "Solver",
    "batch_order",
    "build",
    "choose_path",
    "default_model",
    "evaluate_many",
    "fit_many",
]

__getattr__ = lazily(__name__, _HOMES)
