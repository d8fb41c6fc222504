"""Why a round moved no model, or a run has no result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from coterie.protocol.errors import RunError, by_kind
from coterie.training.jobs import DivergedError

_SHOWN = 3  # reasons in a line


class AllSkippedError(RunError):
    """Every round of a run was skipped."""


def check_not_all_skipped(lines: Sequence[Mapping[str, Any]]) -> None:
    """Raises AllSkippedError, with the reason.  lines: of ``metrics.jsonl``."""
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


class NoAttackError(RunError):
    """Attackers did only honest work."""


def is_divergence(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, DivergedError):
        error = error.__cause__
    return error is not None


def is_final(error: RunError) -> bool:
    """Whether the same options would end in the same error."""
    return is_divergence(error) or isinstance(error, AllSkippedError | NoAttackError)


def shown(reasons: Sequence[str]) -> str:
    more = f"; and {len(reasons) - _SHOWN} more reasons" if len(reasons) > _SHOWN else ""
    return "; ".join(reasons[:_SHOWN]) + more


def why_still(line: Mapping[str, Any], kept: Sequence[str]) -> str:
    """line: of ``metrics.jsonl``.  kept: clients' reasons to keep models."""
    notes = line["notes"]
    reasons = list(kept)
    for found in (by_kind(line["refused"]), by_kind(Counter(line["lost"].values()))):
        reasons += [f"{reason} ({count} times)" if count > 1 else reason for reason, count in found.most_common()]
    reasons += [f"{len(line['late'])} answers are late"] if line["late"] else []
    if notes.get("asked") == 0:
        head = "nobody was asked"
    elif notes.get("participants") == 0:
        head = "no update came"
    else:
        head = "no model changed"
    return f"{head}: {shown(reasons)}" if reasons else head
