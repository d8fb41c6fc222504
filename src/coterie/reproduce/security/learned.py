"""What the servers of a recorded run learned on their own, in a few numbers that compare methods."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from coterie.audit.findings import Finding
from coterie.protocol.errors import UserError
from coterie.reproduce.security import AUDITS
from coterie.reproduce.security.recorded import read_recorded

TOPICS = {
    "models": ("models",),
    "identity": ("re-linked",),
    "labels": ("label shares", "top label"),
    "groups": ("which pairs", "true cluster"),
}
"""By topic, how the findings begin that belong to it: ``"who: what"``."""

_ALONE = ("", ", knowing the start")
"""What may stand behind the adversary's role: the start weights are public, all else takes another party's help."""


def learned(folder: Path, data_dir: str | None = None) -> dict[str, float]:
    """By topic, how much a server alone learned: 0 for chance, 1 for everything, negative below chance.

    The best attack of each topic counts, as its mean over the rounds. Clients that are curious are left out: this is
    about servers. Raises UserError for a folder without views, or a system without an audit.
    """
    run = read_recorded(folder, data_dir)
    attacks = AUDITS.get(run.system.name)
    if attacks is None:
        raise UserError(f"there are no attacks for {run.system.name}: leave it out, or compare without --audit")
    clients = {run.federation.parties[name].role for name in run.clients}
    return best_by_topic(attacks(run), clients)


def best_by_topic(findings: Iterable[Finding], clients: Iterable[str]) -> dict[str, float]:
    """The largest mean leak of each topic among findings of one party that is no client. clients: their roles."""
    found: dict[str, float] = {}
    curious = tuple(clients)
    for finding in findings:
        who, _, what = finding.name.partition(": ")
        role, _, help_ = who.partition(",")
        if role in curious or " with " in who or (help_ and f",{help_}" not in _ALONE):
            continue
        topic = next((topic for topic, begins in TOPICS.items() if what.startswith(begins)), None)
        if topic is not None:
            leak = sum(result.leak for result in finding.results) / len(finding.results)
            found[topic] = max(leak, found.get(topic, leak))
    return found
