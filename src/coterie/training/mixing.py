"""A mixture of a client's models, by samples outside their training."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]

STEPS = 100


def mixing_shares(log_p: Doubles) -> Doubles:
    """(m,) shares, by the log probabilities (m, n) that models give the labels of held-out samples.

    Stacking of densities (Smyth, Wolpert, Machine Learning 1999): the likeliest shares, by EM, where each model has one
    sample of its own beside these. The first model has all, unless the mixture's mean log likelihood is higher by more
    than a standard error. Samples that chose a model's epoch make its share slightly optimistic.
    """
    models, n = log_p.shape
    default: Doubles = np.eye(models)[0]
    if n < 2 or not np.isfinite(log_p).all():
        return default
    shares = np.full(models, 1 / models)
    for _ in range(STEPS):
        parts = np.log(shares)[:, None] + log_p
        shares = (np.exp(parts - np.logaddexp.reduce(parts, axis=0)).sum(axis=1) + 1) / (n + models)
    gains = np.logaddexp.reduce(np.log(shares)[:, None] + log_p, axis=0) - log_p[0]
    return shares if gains.mean() > gains.std(ddof=1) / n**0.5 else default
