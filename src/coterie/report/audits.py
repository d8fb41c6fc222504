"""What attacks found in runs that were audited, for their tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from coterie.record.schema import Audit, Unread
from coterie.runs.audited import merged, noise


def by_reason(not_applicable: Mapping[str, str]) -> list[tuple[str, str]]:
    """The attacks that can't be applied, as ``"a, b"``, with their common reason."""
    found: dict[str, list[str]] = {}
    for name, why in not_applicable.items():
        found.setdefault(why, []).append(name)
    return [(", ".join(names), why) for why, names in found.items()]


def by_role(not_judged: Iterable[Unread | Mapping[str, str]]) -> list[tuple[str, str]]:
    """By role, the fields that it received and no attack has read: ``"Update.cipher (bytes), Report.n (a number)"``."""
    found: dict[str, list[str]] = {}
    for one in msgspec.convert(list(not_judged), list[Unread], from_attributes=True):
        words = f"{one.message}.{one.field} ({one.why})"
        if words not in found.setdefault(one.role, []):
            found[one.role].append(words)
    return [(role, ", ".join(fields)) for role, fields in found.items()]


def table(audits: Sequence[Audit | None]) -> dict[str, Any] | None:
    """The table of runs that differ in their seed at most. None where one of them was not audited."""
    known = [audit for audit in audits if audit is not None]
    if not known or len(known) < len(audits):
        return None
    rows = merged([msgspec.to_builtins(audit.attacks) for audit in known])
    return {
        "rows": [{**row, "half": noise(row)} for row in rows],
        "runs": len(known),
        "not_applicable": by_reason({name: why for audit in known for name, why in audit.not_applicable.items()}),
        "not_judged": by_role(one for audit in known for one in audit.not_judged),
        "stopped": [audit.stopped for audit in known if audit.stopped is not None],
        "drifted": [audit.drifted for audit in known if audit.drifted is not None],
    }
