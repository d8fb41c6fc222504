"""The audit of systems without encryption: what a server reads off the models that it is sent."""

from __future__ import annotations

from coterie.audit.findings import Finding
from coterie.audit.profiling import plain_findings
from coterie.reproduce.security.recorded import Recorded


def audit(run: Recorded) -> list[Finding]:
    """Preference profiling of every client by the hub, in every round."""
    return plain_findings(run.views, run.clients, run.label_counts, run.spec, run.groups)


def nothing(run: Recorded) -> list[Finding]:
    """No server receives anything of models or data, so there is nothing to attack."""
    return []
