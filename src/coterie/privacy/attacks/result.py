"""An attack's success as one number, comparable between attacks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.protocol.errors import UserError


@dataclass(frozen=True)
class AttackResult:
    """One measured attack.  chance: of the metric, without the leak.  perfect: all leaks.

    n: clients that were scored.  chance_sd: the metric's standard deviation over random guesses.  chance_known: False
    where other things than the leak differ, too.
    """

    metric: str
    value: float
    chance: float
    perfect: float
    n: int
    chance_sd: float = 0.0
    chance_known: bool = True

    @property
    def room(self) -> float:
        """Between chance and perfect; 0 leaves nothing to find."""
        return self.perfect - self.chance

    @property
    def leak(self) -> float:
        """0 at chance (also where chance is perfect), 1 for a full leak, negative below chance."""
        return (self.value - self.chance) / self.room if self.room else 0.0


CANNOT_TELL = "cannot tell"
VERDICTS = ("nothing found", CANNOT_TELL, "a little", "much", "everything")
"""What an attack found, from the least to the most.

``CANNOT_TELL``: nothing, in an interval that reaches ``BLIND``, where chance is perfect, or beside an unknown chance.
"""
_LEAST, MUCH, _ALL = 0.02, 0.3, 0.995
BLIND = 0.5
"""Half of everything."""


def verdict(leak: float, noise: float = 0.0, *, chance_known: bool = True) -> str:
    """A leak in words.  noise: half of its 95 % interval; a leak within it counts as chance.

    ``a little`` is less than 0.3, ``everything`` at least 0.995, nothing up to 0.02.
    """
    if not leak > max(noise, _LEAST):
        return VERDICTS[0] if chance_known and max(leak, 0.0) + noise < BLIND else CANNOT_TELL
    return VERDICTS[2 + (leak >= MUCH) + (leak >= _ALL)]


@dataclass(frozen=True)
class Expected:
    """The closed form of a score.  accuracy: its mean.  sd: of one client's score.  drawn_sd: for an attacker that
    breaks ties at random.
    """

    accuracy: float
    sd: float
    drawn_sd: float

    @classmethod
    def of_moments(cls, mean: float, square: float) -> Expected:
        return cls(mean, *(math.sqrt(max(0.0, second - mean**2)) for second in (square, mean)))

    def standard_error(self, clients: int) -> float:
        """Of an accuracy over clients with independent scores."""
        return self.sd / math.sqrt(clients)


def real_rows(name: str, rows: NDArray[Any]) -> NDArray[np.float64]:
    """(n, d) finite float64, or UserError naming the argument."""
    array = np.asarray(rows)
    if array.ndim != 2 or 0 in array.shape or array.dtype.kind not in "fiub":
        raise UserError(
            f"{name} must be a non-empty (clients, d) array of real numbers, not {array.shape} {array.dtype}"
        )
    if not np.isfinite(array := array.astype(np.float64)).all():
        raise UserError(f"{name} holds NaN or infinity: score only what the party accepted")
    return array


def shares_of(label_counts: NDArray[Any]) -> NDArray[np.float64]:
    """(n, classes) shares that sum to 1. Raises UserError for a client without samples."""
    counts = real_rows("label counts", label_counts)
    if (counts < 0).any() or (counts.sum(axis=1) <= 0).any():
        raise UserError("label counts must not be negative, and every client needs a sample")
    return np.asarray(counts / counts.sum(axis=1, keepdims=True))


def handed_out(scores: NDArray[np.float64]) -> tuple[float, float, float]:
    """(n, n) scores of client i under the guess for client j -> mean score, chance (guesses of random clients), its
    exact standard deviation.
    """
    n = len(scores)
    centred = scores - scores.mean(axis=0) - scores.mean(axis=1, keepdims=True) + scores.mean()
    sd = float(np.linalg.norm(centred)) / math.sqrt(max(n - 1, 1)) / n
    return float(np.trace(scores)) / n, float(scores.mean()), sd


def top_share(posterior: NDArray[np.float64]) -> NDArray[np.float64]:
    """(..., k) 1 over the number of the likeliest, or 0; robust to rounding."""
    best = posterior >= posterior.max(axis=-1, keepdims=True) * (1 - 1e-9)
    return np.asarray(best / best.sum(axis=-1, keepdims=True))
