"""What an audit hands over: for each attack its result in every round, and what theory says where it says something."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import Any

from coterie.attacks.result import Expected, Result
from coterie.protocol.errors import UserError


@dataclass(frozen=True)
class Finding:
    """One attack on one run.

    name: ``"who: what"``.  results: of the rounds in which there was something to attack, in order; at least one.
    expected: the closed form of each, or nothing where there is none.
    round: of the run, in which an attack succeeded that waits for its chance.
    """

    name: str
    results: tuple[Result, ...]
    expected: tuple[Expected, ...] = ()
    round: int | None = None

    def __post_init__(self) -> None:
        if not self.results or len(self.expected) not in (0, len(self.results)):
            raise UserError(f"{self.name}: {len(self.results)} results with {len(self.expected)} closed forms")

    def row(self) -> dict[str, Any]:
        """Means over the rounds, as numbers; first, last: of these rounds. closed_form: None where there is none."""
        return {
            "name": self.name,
            "metric": self.results[0].metric,
            "value": fmean(result.value for result in self.results),
            "first": self.results[0].value,
            "last": self.results[-1].value,
            "chance": fmean(result.chance for result in self.results),
            "perfect": self.results[0].perfect,
            "closed_form": fmean(one.accuracy for one in self.expected) if self.expected else None,
            "clients": self.results[-1].n,
            "rounds": len(self.results),
            "round": self.round,
        }
