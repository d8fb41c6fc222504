"""``result.json``, computed from a run's lines, for simulations and deployments alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import coterie
from coterie.record.schema import FORMAT

Line = dict[str, Any]
"""What one round left, as it stands in ``metrics.jsonl``."""

_SCORES = ("global_accuracy", "local_accuracy", "global_loss", "local_loss")


def stretches(set_up: Line, rounds: Sequence[Line], finish: Line | None) -> list[Line]:
    return [line for line in (set_up, *rounds, finish) if line]


def last_line(rounds: Sequence[Line], finish: Line | None) -> Line:
    return {**rounds[-1], **(finish or {})}


def totals(set_up: Line, rounds: Sequence[Line], finish: Line | None) -> dict[str, Any]:
    """Sums over the set-up, all rounds and the finish, and last scores."""
    everything, last = stretches(set_up, rounds, finish), last_line(rounds, finish)

    def total(key: str) -> Counter[str]:
        counter: Counter[str] = Counter()
        for line in everything:
            counter.update(line.get(key, {}))
        return counter

    up, down, refused = total("bytes_up"), total("bytes_down"), total("refused")
    stopped = rounds[-1]["notes"].get("stopped")
    return {
        "rounds_done": rounds[-1]["round"],
        "stopped": None if stopped is None else str(stopped),
        **{key: last.get(key) for key in _SCORES},
        "metrics": last.get("metrics", {}),
        "bytes_up": up.total(),
        "bytes_down": down.total(),
        "bytes_up_by_role": dict(up),
        "bytes_down_by_role": dict(down),
        "seconds": sum(line.get("seconds", 0.0) for line in everything),
        "virtual_seconds": last.get("virtual_seconds"),
        "refused": refused.total(),
        "refused_why": dict(refused),
        "skipped": {str(line["round"]): str(line["notes"]["skipped"]) for line in rounds if "skipped" in line["notes"]},
        "lost": sum(len(line.get("lost", ())) for line in everything),
        "late": sum(len(line.get("late", ())) for line in everything),
        "set_up": dict(set_up),
        "finish": finish,
        "version": coterie.__version__,
        "format": FORMAT,
    }
