"""Clients' releases by kind, from ``result.json``: a table and words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from coterie.record.schema import CLIENT, SAMPLE, Epsilon, LedgerRecord, NoiseRecord, ReleaseRecord
from coterie.report.words import MISSING, number

NO_PROOF = "no proof"
_VAIN = 100.0  # of an epsilon: e to the 100 times as likely is no bound


def released(ledgers: Any) -> str:
    found = ledger_table(msgspec.convert(ledgers or {}, dict[str, LedgerRecord]))
    if found is None:
        return ""
    unit = {True: "a whole client", False: "one sample"}
    proved = [
        f"{row['what']}: epsilon {row['epsilon']} for {unit[row['neighbours'] == CLIENT]}"
        for row in found["rows"]
        if row["epsilon"] != NO_PROOF
    ]
    parts = [f"{'; '.join(proved)} (delta {found['delta']})"] if proved else []
    parts += [
        f"all together, against {whom}: {NO_PROOF if epsilon == NO_PROOF else f'epsilon {epsilon}'}"
        for epsilon, whom in found["against"].items()
    ]
    if proved and not found["open"]:
        parts.append(f"together {found['together']}, after one more round {found['further']}")
    if found["open"]:
        parts.append(f"no proof for: {'; '.join(found['open'])}")
    parts += [f"its paper claims epsilon {row['claimed']}" for row in found["rows"] if row["claimed"] != MISSING]
    return "; ".join(parts)


def ledger_table(ledgers: Mapping[str, LedgerRecord] | None) -> dict[str, Any] | None:
    """A row for each kind of release; None without any.

    claimed: by a publication, for one client's of this kind.  together: of all its releases.  further: after one more
    round. of: the protected unit, a client where every proved release protects that.  open: kinds without a proof.
    against: by an epsilon, against whom it holds.
    """
    every = list((ledgers or {}).values())
    kinds: dict[tuple[str, str, str, tuple[str, ...]], list[list[ReleaseRecord]]] = {}
    for one in every:
        own: dict[tuple[str, str, str, tuple[str, ...]], list[ReleaseRecord]] = {}
        for release in one.releases:
            kind = release.what, release.mechanism, release.neighbours, release.against
            own.setdefault(kind, []).append(release)
        for kind, releases in own.items():
            kinds.setdefault(kind, []).append(releases)
    if not kinds:
        return None
    rows = [
        {
            "what": what,
            "mechanism": mechanism,
            "neighbours": neighbours,
            "against": ", ".join(against),
            "clients": len(clients),
            "count": between([sum(release.count for release in own) for own in clients]),
            "epsilon": in_words([release.epsilon for own in clients for release in own]),
            "more": in_words([release.epsilon_after_one_more for own in clients for release in own]),
            "claimed": in_words(list(filter(None, map(claimed, clients)))),
        }
        for (what, mechanism, neighbours, against), clients in kinds.items()
    ]
    proved = {row["neighbours"] for row in rows if row["epsilon"] != NO_PROOF}
    relation = CLIENT if proved == {CLIENT} else SAMPLE
    return {
        "rows": rows,
        "delta": between([one.delta for one in every]),
        "together": in_words([one.epsilon.get(relation, "infinite") for one in every]),
        "further": in_words([one.epsilon_after_one_more_round.get(relation, "infinite") for one in every]),
        "against": _against(every, relation),
        "of": "a client as a whole" if relation == CLIENT else "one of its samples",
        "open": [row["what"] for row in rows if row["epsilon"] == NO_PROOF],
    }


def _against(every: Sequence[LedgerRecord], relation: str) -> dict[str, str]:
    """Never observers that pool what they know: a server knows its own noise."""
    found: dict[str, list[str]] = {}
    for observer in dict.fromkeys(name for one in every for name in one.against):
        seen = [one.against[observer].get(relation, "infinite") for one in every if observer in one.against]
        found.setdefault(in_words(seen), []).append(observer)
    return {
        epsilon: " or ".join(names) + (", each of them alone" if len(names) > 1 else " alone")
        for epsilon, names in found.items()
    }


def claimed(releases: Sequence[ReleaseRecord]) -> float:
    """A publication's epsilons for these, summed; 0 without a claim."""
    return sum(release.count * (release.claimed_epsilon or 0.0) for release in releases)


def noise_table(rows: Sequence[NoiseRecord] | None) -> list[dict[str, Any]]:
    return [
        {
            "mechanism": one.mechanism,
            "neighbours": one.neighbours,
            "claimed": in_words([one.claimed_epsilon]),
            "proved": measured(one.lower_bound),
            "exact": MISSING if one.exact_epsilon is None else measured(one.exact_epsilon),
            "delta": number(one.delta),
            "trials": one.trials,
            "verdict": "the claim is not contradicted" if one.holds else "the claim is false",
        }
        for one in rows or ()
    ]


def measured(epsilon: Epsilon) -> str:
    return epsilon if isinstance(epsilon, str) else number(epsilon)


def in_words(epsilons: Sequence[Epsilon]) -> str:
    """Of clients that differ, the smallest to the largest."""
    known = [value for value in epsilons if not isinstance(value, str)]
    if epsilons and not known:
        return NO_PROOF
    above = f"above {_VAIN:.0f} it " if min(known, default=0.0) <= _VAIN else ""
    vain = f" ({above}proves nothing)" if max(known, default=0.0) > _VAIN else ""
    return between(known) + vain + (f", or {NO_PROOF}" if len(known) < len(epsilons) else "")


def between(values: Sequence[float]) -> str:
    return " to ".join(dict.fromkeys((number(min(values)), number(max(values))))) if values else MISSING
