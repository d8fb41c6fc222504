"""Training samples from the gradient of a dense first layer, in an update in the clear.

Row k of the weights' gradient over entry k of the bias's is a sample if only one moves neuron k (Phong et al., TIFS
2018; Geiping et al., NeurIPS 2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

import coterie.method as fl
from coterie.clustering.spectral import unit_rows
from coterie.privacy.attacks.result import AttackResult, real_rows

Doubles = NDArray[np.float64]
_STILL = 1e-4  # of the largest move of a bias: below it a quotient is rounding


def dense_inputs(step: NDArray[Any], spec: fl.ModelSpec, features: int) -> Doubles:
    """A model's step (d,) -> (neurons that moved, features), one guess each.

    Raises UserError unless the first layer is dense, with a bias, on this many features, and has moved.
    """
    parts = [part for part in spec.parts if part.kind == "parameter"][:2]
    shapes = [part.shape for part in parts]
    if len(shapes) < 2 or len(shapes[0]) != 2 or shapes[0][1] != features or shapes[1] != shapes[0][:1]:
        raise fl.UserError(
            "the model's first layer is no dense layer with a bias, so no input can be read off its step"
        )
    weights, bias = (
        np.asarray(step[part.offset : part.offset + prod(part.shape)], np.float64).reshape(part.shape) for part in parts
    )
    moved = np.abs(bias) > _STILL * np.abs(bias).max()
    if not moved.any() or not np.isfinite(step).all():
        raise fl.UserError("the bias of the first layer did not move, or is not finite: there is nothing to divide by")
    return np.asarray(weights[moved] / bias[moved, None])


def best_correlation(guesses: NDArray[Any], samples: NDArray[Any]) -> float:
    """The largest Pearson correlation of a guess (k, f) with a sample (n, f)."""
    both = real_rows("guesses", guesses), real_rows("samples", samples)
    a, b = (unit_rows(rows - rows.mean(axis=1, keepdims=True)) for rows in both)
    return float((a @ b.T).max())


def recovery(
    guesses: Sequence[NDArray[Any]],
    own: Sequence[NDArray[Any]],
    alike: Sequence[Sequence[NDArray[Any]]],
    shares: Sequence[float] | None = None,
) -> AttackResult:
    """How well the best guess of each client fits one of its training samples; mean over the clients.

    guesses, own: by client, (k, f) and (n, f).  alike: two or more draws of n other samples of the same classes, whose
    best fit is chance.  shares: of all such samples in a draw, which widens the spread.
    """
    found = [best_correlation(guess, samples) for guess, samples in zip(guesses, own, strict=True)]
    drawn = [[best_correlation(guess, some) for some in draws] for guess, draws in zip(guesses, alike, strict=True)]
    clients = len(found)
    wider = [(1 + f) / (1 - f) for f in shares or [0.0] * clients]
    sd = float(np.sqrt(sum(np.var(one, ddof=1) * more for one, more in zip(drawn, wider, strict=True)))) / clients
    chance = float(np.mean([np.mean(one) for one in drawn]))
    return AttackResult("correlation of the best guess with a sample", float(np.mean(found)), chance, 1.0, clients, sd)
