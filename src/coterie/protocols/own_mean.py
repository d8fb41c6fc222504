"""A client's own average of the global models that it was sent, which it predicts with; it trains on the last one.

With models w_1 ... w_n, oldest first, and 0 <= beta < 1 (B. Polyak, A. Juditsky, "Acceleration of stochastic
approximation by averaging", 1992):

    m_n = sum_j beta^(n-j) w_j / sum_j beta^(n-j).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

import coterie.protocol.core as fl
from coterie.protocols.local_training import SteppedTraining


@dataclass(frozen=True)
class KeepsMean(SteppedTraining):
    """ema: beta, how much of its weight a model keeps in a client's own average each time that the client is sent a
    newer one; it predicts with this average. 0: with the last model.
    """

    ema: Annotated[float, fl.Meta(ge=0, lt=1)] = 0.0


class OwnMean(fl.State, frozen=True):
    """mean: (d,) float32, m_n.  weight: the sum of all beta^(n-j)."""

    mean: fl.Vector
    weight: float


def taken(before: OwnMean | None, w: fl.Vector, beta: float) -> OwnMean:
    """m_n from m_(n-1) and w_n, (d,)."""
    if before is None:
        return OwnMean(w, 1.0)
    weight = beta * before.weight + 1.0
    mean = before.mean + (w.astype(np.float64) - before.mean) / weight
    return OwnMean(mean.astype(np.float32), weight)


def averaged(federation: Any, models: Mapping[str, fl.Vector]) -> Mapping[str, fl.Vector]:
    """By client, (d,) what it predicts with at the end."""
    # The model that stands when a run ends counts as one more: between machines every client is sent it.
    beta = federation.look(federation.hub).config.ema
    if not beta:
        return models
    return {name: taken(federation.look(name).state.mean, w, beta).mean for name, w in models.items()}
