"""An attack as it is listed, and what it achieved, as one number that can be read without knowing the attack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.protocol.errors import UserError


@dataclass(frozen=True)
class Result:
    """One measured attack.

    metric: what ``value`` is.  chance: what the same metric gives without the leak (each score says how).  perfect: its
    value when everything leaks.  n: how many clients were scored.  chance_sd: standard deviation of the metric
    over random guesses of the same kind, 0 where chance is no random guess.
    """

    metric: str
    value: float
    chance: float
    perfect: float
    n: int
    chance_sd: float = 0.0

    @property
    def leak(self) -> float:
        """0 at chance (also where chance is perfect already), 1 when everything leaks, negative below chance."""
        room = self.perfect - self.chance
        return (self.value - self.chance) / room if room else 0.0


@dataclass(frozen=True)
class Attack:
    """An attack as listed to a person. adversary: the party that runs it.  summary: what it finds out."""

    name: str
    adversary: str
    summary: str


def shuffled_sd(score: Callable[[NDArray[np.intp]], float], n: int, draws: int = 200) -> float:
    """Standard deviation of ``score(permutation)`` over random permutations of n clients (fixed seed)."""
    rng = np.random.default_rng(0)
    return float(np.std([score(rng.permutation(n)) for _ in range(draws)], ddof=1))


def real_rows(name: str, rows: NDArray[Any]) -> NDArray[np.float64]:
    """(n, d) finite float64, or UserError naming the argument."""
    array = np.asarray(rows)
    if array.ndim != 2 or 0 in array.shape or array.dtype.kind not in "fiub":
        raise UserError(
            f"{name} must be a non-empty (clients, d) array of real numbers, not {array.shape} {array.dtype}"
        )
    array = array.astype(np.float64)
    if not np.isfinite(array).all():
        raise UserError(f"{name} holds NaN or infinity: score only what the party accepted")
    return array


def same_shape(name: str, a: NDArray[Any], other: str, b: NDArray[Any]) -> None:
    """UserError unless both arrays have one shape."""
    if a.shape != b.shape:
        raise UserError(f"{name} of shape {a.shape} and {other} of shape {b.shape} must have one shape")
