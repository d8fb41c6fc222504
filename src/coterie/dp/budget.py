"""A privacy budget: whether one more release of a client still fits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from coterie.dp.gaussian import LEAST_DELTA, MOST_EPSILON
from coterie.dp.ledger import DELTA, Ledger, Neighbours, Release
from coterie.protocol.errors import UserError
from coterie.protocol.options import LARGEST, AtLeastOne


@dataclass(frozen=True)
class Budget:
    """The most epsilon, at ``delta``, of all of one client's releases together, for one relation of neighbours.
    Raises UserError for impossible numbers.
    """

    epsilon: float
    delta: float = DELTA
    neighbours: Neighbours = "replace one client"

    def __post_init__(self) -> None:
        if not 0 < self.epsilon <= MOST_EPSILON:
            raise UserError(
                f"a budget of epsilon {self.epsilon}: it is positive and at most {MOST_EPSILON:g}; with none left no "
                "client may send anything"
            )
        if not LEAST_DELTA <= self.delta < 1:
            raise UserError(
                f"a budget at delta {self.delta}: delta is at least {LEAST_DELTA:g} and below 1, since with delta 1 "
                "everything may be told: take 1e-5, or less than 1 / clients"
            )

    def spent(self, ledger: Ledger) -> float:
        """Infinite if something in the ledger has no proof."""
        return ledger.epsilon(self.delta, self.neighbours)

    def fits(self, ledger: Ledger, *more: Release) -> bool:
        """Whether a client with this ledger may also make these releases."""
        # By noise and number of the releases alone: that a client has stopped tells nothing of its data.
        return self.spent(ledger.after(*more)) <= self.epsilon

    def left(self, ledger: Ledger) -> float:
        return max(0.0, self.epsilon - self.spent(ledger)) if math.isfinite(self.spent(ledger)) else 0.0


@dataclass(frozen=True)
class Budgeted:
    """Settings of noise that may follow from a budget.

    noise: standard deviation of the noise over the sensitivity; None for what ``epsilon`` asks for.
    epsilon: budget of a client, which uploads nothing that would take it beyond this; None for no budget.
    private_rounds: the uploads that this budget is for, where ``noise`` follows from it.
    dp_delta: delta of the budget and of the ledger.
    """

    noise: Annotated[float | None, Meta(ge=0, le=LARGEST)] = None
    epsilon: float | None = None
    private_rounds: AtLeastOne = 10
    dp_delta: float = 1e-5

    def budget(self) -> Budget | None:
        return None if self.epsilon is None else Budget(self.epsilon, self.dp_delta)
