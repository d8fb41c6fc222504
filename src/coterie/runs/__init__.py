"""``run(RunConfig("fedavg"))`` trains and writes a run folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.protocol.import_path import lazily

if TYPE_CHECKING:
    from coterie.runs.config import Resolved, RunConfig, resolve
    from coterie.runs.config_file import from_toml, read_toml, to_toml
    from coterie.runs.defaults import defaults_for
    from coterie.runs.experiment import Experiment, build
    from coterie.runs.finished import FinishedRun, load, load_result
    from coterie.runs.models import export_model, load_exported, load_models
    from coterie.runs.registry import SYSTEMS, get, register
    from coterie.runs.runner import run
    from coterie.runs.running import Interrupted

__all__ = [
    "SYSTEMS",
    "Experiment",
    "FinishedRun",
    "Interrupted",
    "Resolved",
    "RunConfig",
    "build",
    "defaults_for",
    "export_model",
    "from_toml",
    "get",
    "load",
    "load_exported",
    "load_models",
    "load_result",
    "read_toml",
    "register",
    "resolve",
    "run",
    "to_toml",
]

_HOMES = ("config", "config_file", "defaults", "registry", "models", "finished", "running", "runner", "experiment")
__getattr__ = lazily(__name__, __all__, _HOMES)
