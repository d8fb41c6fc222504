"""``result.json``, computed from a run's lines, for simulations and deployments alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import coterie
from coterie.record.schema import FORMAT

Line = dict[str, Any]
"""A round's line of ``metrics.jsonl``."""

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


def with_facts(found: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """A deployment's ``result.json`` with these facts, and in words what nobody knows then."""
    whole = {**found, **facts}
    known = {key for key, value in whole.items() if value is not None}
    if found["deployment"]["rehearsal"]:
        known.add("label_counts")  # the data were dealt
    unknown = [words for key, words in _UNKNOWN.items() if key not in known]
    return {**whole, "deployment": {**found["deployment"], "unknown": unknown}}


_UNKNOWN = {
    "global_accuracy": "Accuracy on a common test set: there is none. A client scores its model on samples of its own, "
    "and reports what its owner allows.",
    "models_sha256": "Whether a round changed a model: nobody sees all models. A round counts as skipped if the hub "
    "says so.",
    "message_bytes": "Bytes by kind of message: packets are sealed, and a party reports the sum of its packets.",
    "refused_reasons": "Why a message was refused: the reason is in the log of the party that refused it.",
    "label_counts": "How the data are distributed among the clients, and whether clusters agree with that.",
    "ledger": "How much the clients have released of their data (the privacy ledger). Parties do not report it: each "
    "one's own log and `coterie export` state its epsilon.",
    "virtual_seconds": "Virtual time: seconds are those of the hub's clock.",
}
