"""Early stopping: a run keeps the models of the round with the least loss on samples held out of clients' training.

Only the observer of a simulation knows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from pathlib import Path

import numpy as np

from coterie.protocol.errors import UserError
from coterie.protocol.system import ClientModel, Mixture
from coterie.record.summary import Line
from coterie.runs.experiment import Experiment
from coterie.runs.models import load_models, write_models
from coterie.runs.trained import TrainedModel


class Best:
    """The best round so far; a resumed run finds its models in ``models/``."""

    def __init__(self, out: Path, experiment: Experiment) -> None:
        self.out, self.experiment = out, experiment
        self.round, self.loss, self.since = 0, inf, 0
        self.models: dict[str, ClientModel] = {}

    def take(self, line: Line) -> None:
        """Notes in a new round's line that the run has ``stopped``, once its patience is over."""
        r, patience = line["round"], self.experiment.config.early_stop
        if self._improves(line):
            self.models = self.experiment.models(r)
            write_models(self.out, self.experiment, self.models, r)
        elif patience is not None and self.since >= patience:
            times = f"{self.since} evaluation{'s' * (self.since > 1)}"
            why = f"no lower loss on held-out samples in {times} since round {self.round}, which is kept"
            line["notes"].setdefault("stopped", why)

    @property
    def kept(self) -> tuple[dict[str, ClientModel], int] | None:
        return (self.models, self.round) if self.models else None

    def recall(self, lines: Sequence[Line]) -> None:
        """Go on after these lines. Models of a round that is yet to come again are forgotten."""
        for line in lines:
            self._improves(line)
        try:
            kept = load_models(self.out)
            if kept.index.round == self.round:
                self.models = {name: self._weights(kept.of(name)) for name in kept.clients}
        except UserError:  # damaged, or none yet
            self.models = {}
        if not self.models:
            self.round, self.loss, self.since = 0, inf, 0

    def _weights(self, kept: TrainedModel) -> ClientModel:
        parts = self.experiment.model.spec.parts
        flat = [np.concatenate([own[part.name].numpy().reshape(-1) for part in parts]) for own in kept.tensors]
        return flat[0] if len(flat) == 1 else Mixture(kept.shares, np.stack(flat))

    def _improves(self, line: Line) -> bool:
        loss = line.get("held_out_loss")
        if loss is not None and loss < self.loss:
            self.round, self.loss, self.since = line["round"], loss, 0
            return True
        self.since += "held_out_loss" in line
        return False
