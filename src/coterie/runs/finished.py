"""A finished run, and whether another one is the same work."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike, NDArray
from torch import nn

import coterie.method as fl
from coterie.record import folder
from coterie.record.load import read_summary
from coterie.record.summary import Line
from coterie.runs.config import Resolved
from coterie.runs.config_file import differences
from coterie.runs.folder import resumed
from coterie.runs.models import Models, export_model, load_models
from coterie.runs.own_code import check_same_code, own_code
from coterie.runs.trained import OwnModel


@dataclass(frozen=True)
class FinishedRun:
    """summary: ``result.json``.  rounds: the lines.  architecture: of the models, if given as a Python object.

    A client is named as a party (``"client/3"``) or by its own name.
    """

    folder: Path
    summary: Mapping[str, Any]
    rounds: Sequence[Line]
    architecture: OwnModel | None = None

    @cached_property
    def models(self) -> Models:
        return load_models(self.folder)

    @property
    def clients(self) -> tuple[str, ...]:
        return self.models.clients

    def model(self, client: str) -> nn.Module:
        """In evaluation mode, for scaled samples (``TrainedModel.module``)."""
        return self.models.of(client).module(self.architecture)

    def predict(self, client: str, x: ArrayLike, proba: bool = False) -> NDArray[Any]:
        """Classes, or probabilities (n, K), of samples x (n, ...) as the data set stores them."""
        return self.models.of(client).predict(x, proba, model=self.architecture)

    def export(self, client: str, path: str | Path) -> None:
        export_model(self.models.of(client), path)


def load_result(out: str | Path, model: OwnModel | None = None) -> FinishedRun:
    """Raises UserError without a finished run.  model: the architecture, if given as a Python object."""
    out = Path(out)
    return FinishedRun(out, read_summary(out), folder.read_lines(out / folder.METRICS), model)


def check_inputs(result: FinishedRun, present: str) -> None:
    """Raises UserError for a run of other inputs than present ones (``Experiment.inputs_digest``)."""
    if result.summary.get("inputs_digest", present) != present:
        raise fl.UserError(
            f"{result.folder} was run with other data, or with another model or loss of your own, than there are now "
            "under these names: restore them, or run again into another folder"
        )


def finished(config: Resolved, inputs: str) -> FinishedRun | None:
    """The run in ``config.out`` if all its rounds are done, else None.  inputs: as of ``check_inputs``. Raises
    UserError for another run, other inputs or own code.
    """
    out = resumable(config)
    if not (out / folder.RESULT).exists() or (found := load_result(out)).summary["rounds"] != config.rounds:
        return None
    check_inputs(found, inputs)
    check_same_code(found.summary.get("own_code", {}), own_code(config), str(out))
    return found


load = load_result
"""``load_result`` for users: ``load("runs/a").predict("client/3", x)``."""


def resumable(config: Resolved) -> Path:
    """Raises UserError unless the folder holds the same work."""
    if config.out is None:
        raise fl.UserError("--resume continues the run in a folder: say which with --out")
    out = Path(config.out)
    folder.check_writable(out)
    if found := differences(resumed(out), config):
        raise fl.UserError(
            f"{out} holds another run ({'; '.join(found)}): choose another --out, or resume it with the options it was "
            f"started with, as coterie run --resume --out {shlex.quote(str(out))} alone does"
        )
    return out
