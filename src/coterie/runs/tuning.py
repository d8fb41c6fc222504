"""Fine-tuning of clients' models by the observer, on their own samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from coterie.protocol.effects import Fit, Fitted, Vector
from coterie.runs.interpreter import LocalEffects
from coterie.training.evaluate import evaluate_many
from coterie.training.solvers import Sgd

MOST_EPOCHS = 50
PATIENCE = 5
"""Epochs without a lower held-out loss after which a client stops."""


@dataclass(frozen=True, eq=False)
class Tuned:
    """weights: (d,) float32.  epochs: trained so far.  diverged: whether the next epoch diverged."""

    weights: Vector
    epochs: int
    diverged: bool = False


def tune_by_held_out(
    effects: LocalEffects, models: Mapping[str, Vector], solver: Sgd, seed: Callable[[str, int], int]
) -> dict[str, Tuned]:
    """Each client's model after the epochs, 0 to ``MOST_EPOCHS``, with the lowest loss on its held-out samples.

    models: (d,) by client, the starts.  seed(client, epoch): of the batches.  A client without held-out samples keeps
    its model. Ties go to fewer epochs. Momentum starts anew in each epoch.
    """
    held_out = {name: own for name in models if (own := effects.data[name].held_out) and len(own.y)}

    def loss(name: str, weights: Vector) -> float:
        own = held_out[name]
        (seen,) = evaluate_many(effects.model, np.array(weights)[None], own.x, own.y, device=effects.how["device"])
        return seen.loss if np.isfinite(seen.loss) else np.inf

    best = {name: Tuned(weights, 0) for name, weights in models.items()}
    least = {name: loss(name, models[name]) for name in held_out}
    current = {name: models[name] for name in least}
    for epoch in range(1, MOST_EPOCHS + 1):
        fits = [(name, Fit(weights, solver, 1, seed(name, epoch))) for name, weights in current.items()]
        for (name, _), fitted in zip(fits, effects.run(fits), strict=True):
            if not isinstance(fitted, Fitted):
                best[name] = replace(best[name], diverged=True)
                del current[name]
                continue
            current[name] = fitted.weights
            if (now := loss(name, fitted.weights)) < least[name]:
                least[name], best[name] = now, Tuned(fitted.weights, epoch)
            elif epoch - best[name].epochs >= PATIENCE:
                del current[name]
    return best


def tune_by_own_epochs(
    effects: LocalEffects,
    models: Mapping[str, Vector],
    epochs: Mapping[str, int],
    solver: Sgd,
    seed: Callable[[str, int], int],
) -> dict[str, Tuned]:
    fits = [(name, Fit(weights, solver, epochs[name], seed(name, 0))) for name, weights in models.items()]
    return {
        name: Tuned(fitted.weights, fit.epochs) if isinstance(fitted, Fitted) else Tuned(models[name], 0, True)
        for (name, fit), fitted in zip(fits, effects.run(fits), strict=True)
    }
