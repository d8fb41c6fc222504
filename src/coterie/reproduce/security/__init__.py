"""What the parties of a system find out, measured on whole runs.

``AUDITS``: by system, every attack on one recorded run (``coterie audit DIR``). ``ACTIVE``: by system, those that
repeat the run with a client that deviates (``coterie audit DIR --active``). ``STUDIES``: by system, what the
documentation says, over seeds, modes and settings:

    python -m coterie.reproduce.security fedcaprivacy docs/security/fedcaprivacy.json
    python -m coterie.reproduce.security mingledpie docs/security/mingledpie.json
    python -m coterie.reproduce.security pafed docs/security/pafed.json
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from coterie.audit.findings import Finding
from coterie.reproduce.security import active, fedcaprivacy, mingledpie, mingledpie_study, pafed, plain
from coterie.reproduce.security.recorded import Recorded

AUDITS: Mapping[str, Callable[[Recorded], list[Finding]]] = {
    "fedcaprivacy": fedcaprivacy.audit,
    "mingledpie": mingledpie.audit,
    "pafed": pafed.audit,
    **dict.fromkeys(("fedavg", "fedprox", "ifca"), plain.audit),
    "local": plain.nothing,
}

ACTIVE: Mapping[str, Callable[[Recorded], list[Finding]]] = {"pafed": active.stolen_key}

STUDIES: Mapping[str, Callable[..., dict[str, Any]]] = {
    "fedcaprivacy": fedcaprivacy.study,
    "mingledpie": mingledpie_study.study,
    "pafed": pafed.study,
}
"""Options, where given: seeds, and clients, rounds and partition of the runs that train."""
