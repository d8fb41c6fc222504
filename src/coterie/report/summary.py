"""A run's most important results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from coterie.protocol.errors import by_kind
from coterie.record.schema import DetectionRecord, NoiseRecord
from coterie.report.comparison import measures
from coterie.report.ledger import noise_table, released
from coterie.report.words import MISSING, duration, metric, percent, plural, size
from coterie.runs.metrics import score

Row = tuple[str, str]
Summary = Mapping[str, Any]
_SHOWN = 8  # names of attackers


def lasted(summary: Summary) -> str:
    """``30 rounds``, or ``7 of 30 rounds``."""
    early = f"{summary['rounds_done']} of " if summary.get("stopped") is not None else ""
    return f"{early}{plural(summary['rounds'], 'round')}"


def results(summary: Summary) -> list[Row]:
    return [
        *scores(summary),
        *_poisoning(summary),
        *clusters(summary.get("grouping")),
        *_costs(summary),
        *_releases(summary),
        *_mishaps(summary),
    ]


def rehearsed(summary: Summary) -> list[Row]:
    costs = [("sent", size(summary["bytes_up"])), ("time", duration(summary["seconds"]))]
    return [*scores(summary), ("cipher", summary["crypto"]), *costs, *_skipped(summary)]


def scores(summary: Summary) -> list[Row]:
    """All metrics at the end, the leading one first."""
    first, *others = measures(summary)
    name, label, share = first["name"], first["label"], first["share"]
    found = [
        (f"{label} on all test data", metric(score(summary, f"global_{name}"), share)),
        (f"{label} on each client's own kind of data", metric(score(summary, f"local_{name}"), share)),
    ]
    for one in others:
        both = _both_sides(summary, one)
        found.append((f"{one['label']} on all test data, on each client's own", both))
    if summary.get("evaluated"):
        found.append(("evaluated", f"{summary['evaluated']:,} of {summary['clients']:,} clients, drawn by the seed"))
    if sample := summary.get("test_sample"):
        many = f"{sample['samples']:,} of {sample['of']:,} for every model"
        found.append(("test samples", f"{many}: standard error at most {metric(sample['standard_error'], True)}"))
    if any(score(summary, f"fine_tuned_{side}_{name}") is not None for side in ("global", "local")):
        tuned = _both_sides(summary, first, "fine_tuned_")
        found.append((f"{label}, both, after each client's fine-tuning", tuned))
    adjusted = [score(summary, f"{form}_local_{name}") for form in ("prior", "mixed")]
    if adjusted[0] is not None:
        values = ", ".join(metric(value, share) for value in adjusted if value is not None)
        found.append((f"{label} on own data with the prior, and mixed", values))
    return found


def _both_sides(summary: Summary, measure: Mapping[str, Any], stage: str = "") -> str:
    values = (score(summary, f"{stage}{side}_{measure['name']}") for side in ("global", "local"))
    return ", ".join(metric(value, measure["share"]) for value in values)


def _poisoning(summary: Summary) -> Iterable[Row]:
    if summary.get("attack") is not None:
        yield "attackers", attackers(summary["attack"], summary["attacker_names"], summary["clients"])
    if summary.get("backdoor_success") is not None:
        yield "with the trigger, other classes taken for class 0", percent(summary["backdoor_success"])
    if summary.get("detection") is not None:
        yield "flagged as poisoned", detected(summary["detection"])


def clusters(grouping: Mapping[str, Any] | None) -> Iterable[Row]:
    if grouping is None:
        return
    sizes = ", ".join(map(str, grouping["sizes"][:8])) + (", …" if len(grouping["sizes"]) > 8 else "")
    words = f"{grouping['clusters']} (of {sizes} clients)" if sizes else "none"
    if sizes and grouping["per_client"] > 1:
        words += f"; a client is in {grouping['per_client']:.2f} on average"
    if grouping["without"]:
        words += f", {grouping['without']} clients in none"
    yield "clusters", words
    if grouping["ari"] is not None:
        yield "the data's own groups found", f"adjusted Rand index {grouping['ari']:.2f}"


def _costs(summary: Summary) -> Iterable[Row]:
    yield "cipher", summary["crypto"]
    yield "sent", size(summary["bytes_up"])
    here, simulated = duration(summary["seconds"]), duration(summary["virtual_seconds"])
    yield "time", f"{here} here, {simulated} on the simulated devices"
    if summary.get("best_round") not in (None, summary.get("rounds_done")):
        yield "models and scores", f"of round {summary['best_round']}, with the least loss on held-out samples"
    if summary.get("stopped") is not None:
        yield "stopped", f"after round {summary['rounds_done']}: {summary['stopped']}"
    finish = summary.get("finish")
    if finish and finish["message_bytes"]:
        sent = [f"{what}: {size(much)}" for what, much in finish["message_bytes"].items()]
        took = duration(finish["virtual_seconds"] - finish["began_virtual_seconds"])
        yield "after the last round", ", ".join([*sent, f"in {took}"])


def _releases(summary: Summary) -> Iterable[Row]:
    if words := released(summary.get("ledger")):
        yield "privacy", words
    claims = msgspec.convert(summary.get("dp_audit") or [], tuple[NoiseRecord, ...])
    for row in noise_table(claims):
        exact = f", {row['exact']} by a formula" if row["exact"] != MISSING else ""
        proved = f"at least {row['proved']} by a test{exact} ({row['neighbours']})"
        yield "privacy, audited", f"{row['mechanism']}: epsilon claimed {row['claimed']}, {proved}: {row['verdict']}"


def _mishaps(summary: Summary) -> Iterable[Row]:
    if summary["refused"] or summary["lost"] or summary["late"]:
        yield "messages", f"{summary['refused']} refused, {summary['lost']} lost, {summary['late']} late"
    if summary["refused_why"]:
        reasons = by_kind(summary["refused_why"])
        (why, times), others = reasons.most_common(1)[0], len(reasons) - 1
        yield "refused", f"{times} × {why}" + (f"; and for {plural(others, 'other reason')}" if others else "")
    if summary["outliers"]:
        who = ", ".join(f"{name} in {times} rounds" for name, times in summary["outliers"].items())
        yield "updates that stand out", who
    yield from _skipped(summary)


def _skipped(summary: Summary) -> Iterable[Row]:
    if summary["skipped"]:
        number, why = next(iter(summary["skipped"].items()))
        yield "skipped", f"{len(summary['skipped'])} of {summary['rounds']} rounds; round {number}: {why}"


def attackers(attack: str, names: Sequence[str], clients: int) -> str:
    """``5 of 20 clients misbehave, scale:10 (client/0, ...). Scores are means over the honest ones.``"""
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    verb = "misbehaves" if len(names) == 1 else "misbehave"
    return (
        f"{len(names)} of {plural(clients, 'client')} {verb}, {attack} ({shown}). Scores are means over the honest ones"
    )


def detected(found: DetectionRecord | Mapping[str, Any]) -> str:
    """``80.0 % of the poisoned contributions, 5.0 % of the others, in 10 rounds``."""
    found = msgspec.convert(found, DetectionRecord, from_attributes=True)
    parts = [] if found.rate is None else [f"{percent(found.rate)} of the poisoned contributions"]
    if found.false_alarms is not None:
        parts.append(f"{percent(found.false_alarms)} of the {'others' if parts else 'contributions, all honest'}")
    return f"{', '.join(parts)}, in {plural(found.rounds, 'round')}"
