"""What the parties of a system find out, measured on whole runs: what the documentation says, over seeds, modes and
settings.

    python -m studies.security fedcaprivacy docs/security/fedcaprivacy.json
    python -m studies.security mingledpie docs/security/mingledpie.json
    python -m studies.security pafed docs/security/pafed.json
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from studies.security import fedcaprivacy, mingledpie, pafed

STUDIES: Mapping[str, Callable[..., dict[str, Any]]] = {
    "fedcaprivacy": fedcaprivacy.study,
    "mingledpie": mingledpie.study,
    "pafed": pafed.study,
}
"""Options, where given: seeds, and clients, rounds and partition of the runs that train."""
