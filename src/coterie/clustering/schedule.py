"""When to cluster: the dynamic frequency with iteration-based decay (DFD) of "FedCAPrivacy", section IV-A.

Rounds count from 1, and round 1 always clusters (algorithm 1).
"""

from __future__ import annotations

from dataclasses import dataclass

from coterie.protocol.errors import UserError
from coterie.protocol.options import AtLeastOne, NotNegative, check_bounds


@dataclass(frozen=True)
class Schedule:
    """Cluster in rounds 1, 1 + every, ..., there with probability 1 / (1 + alpha r).

    alpha: decay factor >= 0; 0 is certainty.  every: delta in the paper's figure 3.
    """

    alpha: NotNegative = 0.0
    every: AtLeastOne = 1

    def __post_init__(self) -> None:
        check_bounds(self, "the clustering schedule's {}")

    def probability(self, r: int) -> float:
        if r < 1:
            raise UserError(f"rounds count from 1, not from {r}")
        if r == 1:
            return 1.0  # algorithm 1: there is nothing to reuse yet
        return 1 / (1 + self.alpha * r) if (r - 1) % self.every == 0 else 0.0

    def clusters_now(self, r: int, coin: float) -> bool:
        if not 0 <= coin < 1:
            raise UserError(f"the coin must lie in [0, 1), not be {coin!r}")
        return coin < self.probability(r)


def parse_schedule(text: str, alpha: float) -> Schedule:
    """``decay``, ``always`` (alpha = 0, the paper's "alpha = 1") or ``every:DELTA``; UserError for others."""
    kind, colon, interval = text.partition(":")
    if text == "decay":
        return Schedule(alpha)
    if text == "always":
        return Schedule()
    if kind == "every" and colon and interval.isascii() and interval.isdigit():
        return Schedule(every=int(interval))
    raise UserError(f"unknown clustering schedule {text!r}: use 'decay', 'always' or 'every:DELTA', e.g. 'every:10'")
