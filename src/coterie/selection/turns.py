"""Which clients a round leaves out under a time budget, by past answering times alone: slow ones are asked in turn."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil


def left_out(paces: Mapping[str, tuple[int, float]], budget_s: float, r: int, most: int) -> frozenset[str]:
    """The clients that round r does not ask, at most so many.

    paces: by client, the round that asked it last and the seconds that it took. A client that took k budgets (rounded
    up) is asked once in k rounds, or those that have waited longest.
    """
    waited = {name: (r - asked) / ceil(seconds / budget_s) for name, (asked, seconds) in paces.items() if seconds > 0}
    waiting = sorted((share, name) for name, share in waited.items() if share < 1)
    return frozenset(name for _, name in waiting[:most])
