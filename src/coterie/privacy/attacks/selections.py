"""What the frequency of a client's selection reveals.

Who: a server that selects clients, or anyone who sees whom it asks. On: how many times each client was selected. A
selection by data size, loss or variety reveals something of these, even where updates are hidden.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from coterie.privacy.attacks.result import AttackResult, shares_of
from coterie.protocol.errors import UserError


def label_entropy(label_counts: NDArray[Any]) -> NDArray[np.float64]:
    """(n, classes) label counts -> (n,) entropy of each client's label shares, in nats."""
    shares = shares_of(label_counts)
    return np.asarray(-(shares * np.log(np.where(shares > 0, shares, 1.0))).sum(axis=1))


def rank_correlation(guess: NDArray[Any], truth: NDArray[Any], of: str) -> AttackResult:
    """Absolute Spearman correlation of a guess (n,) with the truth (n,) about each client, named ``of``.

    Absolute, since the attacker may know neither sign nor scale. Chance is its mean when the guesses are handed to
    random clients (200 times, fixed seed). Raises UserError where guess or truth is constant.
    """
    values = [np.asarray(side, np.float64) for side in (guess, truth)]
    n = len(values[0])
    if not all(side.shape == (n,) and n >= 3 and np.isfinite(side).all() for side in values):
        raise UserError(f"{of}: expected one finite number for each of at least 3 clients")
    if any(np.ptp(side) == 0 for side in values):
        raise UserError(f"{of}: selections or truth are the same for all clients, so no order exists")
    a, b = (rankdata(side) - (n + 1) / 2 for side in values)
    norm = float(np.linalg.norm(a) * np.linalg.norm(b))
    rng = np.random.default_rng(0)
    by_luck = [abs(float(rng.permutation(a) @ b)) / norm for _ in range(200)]
    return AttackResult(
        f"rank correlation with {of}, absolute",
        min(abs(float(a @ b)) / norm, 1.0),
        float(np.mean(by_luck)),
        1.0,
        n,
        float(np.std(by_luck, ddof=1)),
    )
