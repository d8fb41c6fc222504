"""Rounds that moved no model. The observer compares all models before and after a round, without any party's help.

Such a round is *skipped*, whatever its hub says of it. It may be that no client took part, that every update was late
or refused, or that all clients kept their models. If all rounds of a run are skipped, it ends with the models of its
start, and has no result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from coterie.protocol.errors import RunError
from coterie.protocol.system import Federation, Mixture, System
from coterie.runs.evaluation import arrays_digest

_SHOWN = 3
"""So many reasons stand in a line."""


class AllSkippedError(RunError):
    """Every round of a run was skipped. The same options would skip them again."""


def digest(system: System, federation: Federation) -> str:
    """A digest of all models, bit for bit. If clients choose among models, these count and not the choice."""
    if system.pool is not None:
        return arrays_digest(system.pool(federation))
    models = system.models(federation).values()
    return arrays_digest(model.models if isinstance(model, Mixture) else model for model in models)


def shown(reasons: Sequence[str]) -> str:
    """The first few reasons, and how many more there are."""
    more = f"; and {len(reasons) - _SHOWN} more reasons" if len(reasons) > _SHOWN else ""
    return "; ".join(reasons[:_SHOWN]) + more


def why_still(line: Mapping[str, Any], kept: Sequence[str]) -> str:
    """Why a round moved no model, in words. line: of ``metrics.jsonl``.  kept: clients' reasons to keep their models.

    Only the observer knows these reasons. Parties tell each other only that they refuse.
    """
    notes = line["notes"]
    reasons = list(kept)
    for found in (Counter(line["refused"]), Counter(line["lost"].values())):
        reasons += [f"{reason} ({count} times)" if count > 1 else reason for reason, count in found.most_common()]
    reasons += [f"{len(line['late'])} answers are late"] if line["late"] else []
    if notes.get("asked") == 0:
        head = "nobody was asked"
    elif notes.get("participants") == 0:
        head = "no update came"
    else:
        head = "no model changed"
    return f"{head}: {shown(reasons)}" if reasons else head


def check_not_all_skipped(lines: Sequence[Mapping[str, Any]]) -> None:
    """Raises AllSkippedError, with the reason, if all rounds of a run (lines of ``metrics.jsonl``) were skipped."""
    skipped = Counter(line["notes"].get("skipped") for line in lines)
    if None in skipped or not lines:
        return
    (why, count), *others = skipped.most_common()
    rounds = "the only round was" if len(lines) == 1 else f"all {len(lines)} rounds were"
    often = f" ({count} of them for this reason, the others as metrics.jsonl says)" if others else ""
    refused: Counter[str] = sum((Counter(line["refused"]) for line in lines), Counter())
    (most, _), *_ = refused.most_common(1) or [("", 0)]
    often += f"; refused most often: {most}" if most and most not in why else ""
    if any(line["notes"].get("participants") for line in lines):
        advice = "change the mode or the setting that this names, the learning rate, or the data"
    else:
        advice = (
            "give clients more time (deadline_s, fewer or shorter delays, faster devices), ask more of them "
            "(participation), run more rounds, or change what they refuse"
        )
    raise AllSkippedError(f"{rounds} skipped, so there is no result: {why}{often}. To get one, {advice}")
