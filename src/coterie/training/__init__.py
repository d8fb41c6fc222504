"""Local training of many clients at once, as flat vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.protocol.import_path import lazily

if TYPE_CHECKING:
    from coterie.training.engine import choose_path, fit_many
    from coterie.training.evaluate import evaluate_many
    from coterie.training.jobs import DivergedError, Job, batch_order
    from coterie.training.model import Model
    from coterie.training.models import build, default_model
    from coterie.training.solvers import Admm, Objective, Proximal, Pull, Scaffold, Sgd, Solver

__all__ = [
    "Admm",
    "DivergedError",
    "Job",
    "Model",
    "Objective",
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

__getattr__ = lazily(__name__, __all__, ("solvers", "jobs", "model", "models", "evaluate", "engine"))
