"""Clustered training with one model for each cluster: the start of the models, and how a client finds its own.

IFCA and MingledPie use it. They differ in what the server may see.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from coterie.protocol.effects import Evaluate, Evaluated, Vector
from coterie.protocol.party import Work
from coterie.protocols.local_training import LocalTraining
from coterie.protocols.unused import at_least, refuse_unused
from coterie.training.solvers import Sgd


@dataclass(frozen=True)
class ClusterModels(LocalTraining):
    """clusters: k, the number of models.

    start: "random", each model with weights of its own; or "pretrained", each also trained beforehand on all data of
    one of the data's own groups, as MingledPie's authors do ("prior knowledge"). Then the models differ from the start,
    but the server must hold the clients' data.  pretrain_epochs: passes over those data.
    pretrain_batch: samples a step in the pre-training; 0 for all at once, so that an epoch is one gradient step.
    """

    clusters: int = 5
    start: Literal["random", "pretrained"] = "random"
    pretrain_epochs: int = 1
    pretrain_batch: int = 50

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, clusters=1, pretrain_epochs=1, pretrain_batch=0)
        random = self.start == "random"
        refuse_unused(self, ((name, "start=random", random) for name in ("pretrain_epochs", "pretrain_batch")))

    def beyond_budget(self) -> Mapping[str, str]:
        """The pre-training, which no budget counts."""
        if self.start == "random":
            return {}
        return {"start": f"its models begin after {self.pretrain_epochs} epochs on all data of the true groups"}

    @property
    def models(self) -> int:
        """One a cluster."""
        return self.clusters

    def pretraining(self) -> tuple[Sgd, int] | None:
        """Solver and epochs of the pre-training, each model on all data of one of the data's own groups."""
        if self.start == "random":
            return None
        return Sgd(self.lr, self.pretrain_batch or 1 << 40), self.pretrain_epochs


def best_model(models: Iterable[Vector]) -> Work[int]:
    """The number of the model with the lowest loss on the party's training data (MingledPie eq. 2); ties: the first.

    A diverged model, with a loss of NaN, is the worst.
    """
    losses = []
    for weights in models:
        seen: Evaluated = yield Evaluate(weights, "train")
        losses.append(seen.loss)
    return int(np.argmin([np.inf if np.isnan(loss) else loss for loss in losses]))
