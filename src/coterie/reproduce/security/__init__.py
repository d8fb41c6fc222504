"""What the parties of a system find out, measured on whole runs: what the documentation says, over seeds, modes and
settings.

    python -m coterie.reproduce.security fedcaprivacy docs/security/fedcaprivacy.json
    python -m coterie.reproduce.security mingledpie docs/security/mingledpie.json
    python -m coterie.reproduce.security pafed docs/security/pafed.json
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from coterie.reproduce.security import fedcaprivacy, mingledpie_study, pafed

STUDIES: Mapping[str, Callable[..., dict[str, Any]]] = {
    "fedcaprivacy": fedcaprivacy.study,
    "mingledpie": mingledpie_study.study,
    "pafed": pafed.study,
}
"""Options, where given: seeds, and clients, rounds and partition of the runs that train."""
