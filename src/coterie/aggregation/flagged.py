"""Which parties a round took for malicious, and how often that was right.

A defence notes ``{"influence": {name: weight}}``, each judged contribution's weight, and perhaps ``{"flagged":
[names]}``; else those below half of the median influence are flagged. ``{"stands_for": {leader: [clients]}}`` names the
clients behind a party: it is poisoned if one of them attacks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

LOW = 0.5
"""Of a round's median influence, below which a contribution is flagged."""


def flagged(notes: Mapping[str, Any]) -> frozenset[str] | None:
    """By a round's notes; None where nobody was judged."""
    influence: Mapping[str, float] = notes.get("influence") or {}
    if not influence:
        return None
    if "flagged" in notes:
        return frozenset(notes["flagged"])
    usual = median(influence.values())
    return frozenset(name for name, weight in influence.items() if weight < LOW * usual)


@dataclass(frozen=True)
class Detection:
    """rate: the flagged share of poisoned contributions.  false_alarms: of the others; None without any.  rounds: in
    which somebody was judged.
    """

    rate: float | None
    false_alarms: float | None
    rounds: int


def detection(rounds: Iterable[Mapping[str, Any]], attackers: Collection[str]) -> Detection | None:
    """From rounds' notes; None if nobody was judged. attackers: by name."""
    hits: list[bool] = []
    alarms: list[bool] = []
    judged = 0
    for notes in rounds:
        if (found := flagged(notes)) is None:
            continue
        judged += 1
        for name in notes["influence"]:
            behind = {name, *notes.get("stands_for", {}).get(name, ())}
            (alarms if behind.isdisjoint(attackers) else hits).append(name in found)
    return Detection(_share(hits), _share(alarms), judged) if judged else None


def _share(of: Collection[bool]) -> float | None:
    return sum(of) / len(of) if of else None
