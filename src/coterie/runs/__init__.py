"""Runs: ``from coterie.runs import RunConfig, run``; ``run(RunConfig("fedavg"))`` trains and writes a run folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.protocol.lazily import lazily

if TYPE_CHECKING:
    from coterie.runs.config import RunConfig, from_toml, resolve, to_toml
    from coterie.runs.experiment import Experiment, build
    from coterie.runs.registry import SYSTEMS, get, register
    from coterie.runs.runner import Interrupted, Result, load_result, run

_HOMES = {
    "config": ("RunConfig", "from_toml", "resolve", "to_toml"),
    "experiment": ("Experiment", "build"),
    "registry": ("SYSTEMS", "get", "register"),
    "runner": ("Interrupted", "Result", "load_result", "run"),
}

__all__ = [
    "SYSTEMS",
    "Experiment",
    "Interrupted",
    "Result",
    "RunConfig",
    "build",
    "from_toml",
    "get",
    "load_result",
    "register",
    "resolve",
    "run",
    "to_toml",
]


__getattr__ = lazily(__name__, _HOMES)
