"""Fine-tuning by the observer, on clients' own samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.protocol.effects import Fit, Fitted, Vector
from coterie.runs.interpreter import LocalEffects
from coterie.runs.on_data import TensorSamples
from coterie.training.evaluate import evaluate_many, judge_many
from coterie.training.solvers import Sgd

MOST_EPOCHS = 50
PATIENCE = 5
"""Epochs without a lower held-out loss after which a client stops."""


@dataclass(frozen=True, eq=False)
class Tuned:
    """weights: (d,) float32.  epochs: so far.  diverged: the next epoch did.  gains: the client predicts with them, not
    with its start.
    """

    weights: Vector
    epochs: int
    diverged: bool = False
    gains: bool = True

    def of(self, start: Vector) -> Vector:
        """Those (d,) that the client predicts with. start: its model before."""
        return self.weights if self.gains else start


def gain_shown(differences: NDArray[Any]) -> bool:
    """The mean of paired differences (n,) is above 0 by a standard error or more."""
    n, mean = len(differences), float(differences.mean())
    return n > 1 and mean > 0 and mean * n**0.5 >= float(differences.std(ddof=1)) * (1 - 1e-9)


def tune_by_held_out(
    effects: LocalEffects, models: Mapping[str, Vector], solver: Sgd, seed: Callable[[str, int], int]
) -> dict[str, Tuned]:
    """Each client's model after the epochs, 0 to ``MOST_EPOCHS``, with the lowest loss on its held-out samples.

    models: (d,) by client; without held-out samples one is kept.  seed(client, epoch): of batches. The model ``gains``
    if held-out loss and, of a classifier, accuracy are better by a standard error of paired differences.
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
    return {
        name: replace(one, gains=name in least and _gains(effects, held_out[name], models[name], one))
        for name, one in best.items()
    }


def _gains(effects: LocalEffects, held_out: TensorSamples, start: Vector, one: Tuned) -> bool:
    if not one.epochs:
        return False
    both = np.stack([start, one.weights])
    losses, right = judge_many(effects.model, both, held_out.x, held_out.y, device=effects.how["device"])
    if not gain_shown(losses[0].astype(np.float64) - losses[1]):
        return False
    return not effects.model.is_classifier or gain_shown(right[1].astype(np.float64) - right[0])


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
