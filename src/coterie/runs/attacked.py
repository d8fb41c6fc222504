"""What a recorded run's parties received, and what attacks find in it."""

from __future__ import annotations

from dataclasses import asdict
from typing import NamedTuple, cast

from coterie.privacy import label_sums, over_rounds, plain
from coterie.privacy.audits import Attack, Finding, Recorded
from coterie.privacy.fields import NotJudged, field_findings, short_arrays, watched
from coterie.privacy.views import received
from coterie.protocol.errors import UserError
from coterie.protocol.system import BROKER, BROKER_LEARNS
from coterie.record.folder import jsonable
from coterie.runs.findings import Content, worst_first
from coterie.runs.registry import SYSTEMS, audit_of

ON_EVERY_SYSTEM: tuple[Attack, ...] = (*plain.ATTACKS, *over_rounds.ATTACKS, *label_sums.ATTACKS, short_arrays)


class Attacked(NamedTuple):
    """not_applicable: by attack, why not.  not_judged: fields that no attack has read."""

    found: list[Finding]
    not_applicable: dict[str, str]
    not_judged: list[NotJudged]


def attacked(run: Recorded, *, active: bool = False) -> Attacked:
    """active: also with a deviating client. Raises UserError if the system has no such attack."""
    own = audit_of(run.system)
    if active and not (own and own.active):
        some = [name for name, one in SYSTEMS.items() if (its := audit_of(one)) and its.active]
        raise UserError(f"there are no active attacks on {run.system.name}, only on {', '.join(some)}")
    by_update, not_applicable = plain.plain_findings(run)
    sums, no_sums = over_rounds.sums_findings(run)
    found: list[Finding] = []
    seen, read = watched(run)
    if own:
        try:
            found = own.passive(seen)
        except UserError as error:
            not_applicable = {f"attacks on {run.system.name} alone": str(error), **not_applicable}
    counted, no_counts = label_sums.label_sum_findings(seen)
    short, no_arrays, not_judged = field_findings(run, read)
    found = [*found, *by_update, *sums, *counted, *short, *(own.active(run) if active and own and own.active else [])]
    refused = {one.name: one.why for one in found if not one.results}
    reasons = {**refused, **not_applicable, **no_sums, **no_counts, **no_arrays}
    return Attacked([one for one in found if one.results], reasons, not_judged)


def audit_content(run: Recorded, attacks: Attacked) -> Content:
    """What ``coterie audit --json`` prints of one run.

    attacks: findings, the worst first; topic: what one server alone learns by it, else None.
    """
    options, system, views = run.options, run.system, list(run.views.values())
    rows = received(views)
    role_of = {name: one.role for name, one in run.federation.common.roster.by_name.items()}
    servers = {*role_of.values()} - {role_of[name] for name in run.clients}
    learns, heard = system.views(run.mode, run.settings), [row.role for row in rows]
    roles = [
        {
            "role": role,
            "parties": sum(view.role == role for view in views),
            "received": [{**asdict(row), "relayed": row.relayed} for row in rows if row.role == role],
            "learns": learns[role].learns if role in learns else "nothing",
        }
        for role in dict.fromkeys([*(role for role in learns if role in heard), *heard])
    ]
    roles.append({"role": BROKER, "parties": 0, "received": [], "learns": BROKER_LEARNS})
    content: Content = {
        "system": system.name,
        "title": system.title,
        "mode": run.mode,
        "crypto": options["crypto"] if system.encrypts(options["mode"]) else "none",
        **{key: options[key] for key in ("seed", "rounds", "clients")},
        "stopped": run.stopped,
        "drifted": run.drifted,
        "roles": roles,
        "attacks": worst_first(
            {**finding.row(), "topic": finding.topic if finding.who.replace(" ", "_") in servers else None}
            for finding in attacks.found
        ),
        "not_applicable": attacks.not_applicable,
        "not_judged": [one._asdict() for one in attacks.not_judged],
    }
    return cast(Content, jsonable(content))
