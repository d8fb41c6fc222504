"""A few numbers for what the servers of a recorded run learned on their own, with which methods are compared."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from coterie.audit import Audit, Finding
from coterie.protocol.errors import UserError
from coterie.runs.recorded import read_recorded
from coterie.runs.registry import audit_of, get

TOPICS = {
    "models": ("models",),
    "identity": ("re-linked",),
    "labels": ("label shares", "top label"),
    "groups": ("which pairs", "true cluster"),
}
"""By topic, how the findings begin that belong to it: ``"who: what"``. The others' topic is ``"other"``."""

_KNOWN = ", knowing the start"
"""What may stand behind a server's role: the start weights are public. All else takes more than the server has."""


def attackable(system: str) -> Audit:
    """The audit of a system; raises UserError for one without attacks."""
    found = audit_of(get(system))
    if found is None:
        raise UserError(f"there are no attacks for {system}: leave it out, or compare without --audit")
    return found


def learned(folder: Path, data_dir: str | None = None) -> dict[str, float]:
    """How much a server alone learned, by topic: 0 for chance, 1 for everything, negative below chance.

    The best attack of each topic counts, by its mean over the rounds. A round without a result counts 0. As the best of
    several, it is a little above 0 by chance alone. Curious clients are left out, since this is about servers. Empty if
    no server receives anything to attack. Raises UserError for a folder without views, or a system without an audit.
    """
    run = read_recorded(folder, data_dir)
    audit = attackable(run.options["system"])
    if run.stopped is not None:
        raise UserError(
            f"{folder}: recording stopped in round {run.stopped}, and fewer rounds than the other methods' would be "
            "attacked: give a larger --record-mib than the config has"
        )
    role_of = {one.name: one.role for one in run.federation.common.roster.entries}
    roles = set(role_of.values())
    clients = {role_of[name] for name in run.clients}
    return best_by_topic(audit.passive(run), roles - clients)


def best_by_topic(findings: Iterable[Finding], servers: Collection[str]) -> dict[str, float]:
    """The largest mean leak of each topic among the findings of one server. servers: their roles."""
    found: dict[str, float] = {}
    findings = list(findings)
    rounds = max((len(finding.results) for finding in findings), default=0)
    for finding in findings:
        who, _, what = finding.name.partition(": ")
        if who.removesuffix(_KNOWN).replace(" ", "_") not in servers:
            continue
        topic = next((topic for topic, begins in TOPICS.items() if what.startswith(begins)), "other")
        missed = rounds if len(finding.results) < rounds - 1 else len(finding.results)  # pairs of rounds are one fewer
        leak = sum(result.leak for result in finding.results) / missed
        found[topic] = max(leak, found.get(topic, leak))
    return found
