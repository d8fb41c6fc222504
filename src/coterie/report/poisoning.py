"""Clients that misbehave, in words: who they are, what their backdoor achieved, and who was taken for one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from coterie.record.schema import Detection
from coterie.report.words import percent, plural

_SHOWN = 8


def attackers(attack: str, names: Sequence[str], clients: int) -> str:
    """``5 of 20 clients misbehave, scale:10 (client/0, client/3, ...). Scores are means over the honest ones.``"""
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    verb = "misbehaves" if len(names) == 1 else "misbehave"
    return (
        f"{len(names)} of {plural(clients, 'client')} {verb}, {attack} ({shown}). Scores are means over the honest ones"
    )


def detected(found: Detection | Mapping[str, Any]) -> str:
    """``80.0 % of the poisoned contributions, 5.0 % of the others, in 10 rounds``, or without the first part."""
    found = msgspec.convert(found, Detection, from_attributes=True)
    parts = [] if found.rate is None else [f"{percent(found.rate)} of the poisoned contributions"]
    if found.false_alarms is not None:
        parts.append(f"{percent(found.false_alarms)} of the {'others' if parts else 'contributions, all honest'}")
    return f"{', '.join(parts)}, in {plural(found.rounds, 'round')}"
