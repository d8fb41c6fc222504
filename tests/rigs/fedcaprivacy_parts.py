"""FedCAPrivacy under test: settings that may be said for all modes, and two groups of three clients."""

from __future__ import annotations

from typing import Any

import numpy as np
from federation import Pulled, Rig, planted, rig

from coterie.systems.fedcaprivacy import SYSTEM
from coterie.systems.fedcaprivacy.config import HARDENED, WITHOUT_SIGNATURE


def by_models(**options: Any) -> dict[str, Any]:
    """A federation's options, with clusters made by models in mode hardened, too, if nothing else is said."""
    return {**({"descriptor": "model"} if options.get("mode") == "hardened" else {}), **options}


def where_they_count(**options: Any) -> dict[str, Any]:
    """Of a federation's options those that mean something in its mode: how it is hardened counts in mode hardened only.

    A schedule takes the place of the decay, and a rotation that of the sketches.
    """
    options = by_models(**options)
    unused = set() if options.get("mode") == "hardened" else set(HARDENED)
    if options.get("hardening") == "rotation":
        unused.add("sketch_dim")
    if options.get("descriptor") == "signature":
        unused |= set(WITHOUT_SIGNATURE)
    if options.get("schedule", "decay") != "decay":
        unused.add("alpha")
    return {name: value for name, value in options.items() if name not in unused}


TWO_GROUPS = planted([0, 0, 0, 1, 1, 1], 40)


def two_groups(**settings: Any) -> Rig:
    """Settings without effect in a mode are left out."""
    options = {"clusters": 2, "effects": lambda targets: Pulled(targets, noise=0.02), **settings}
    return rig(SYSTEM, TWO_GROUPS, **where_they_count(**options))


def at_own_model(run: Rig) -> list[bool]:
    """Which clients have no cluster model and go on with what they trained."""
    own = np.stack([run.party(name).state.weights for name in run.common.clients])
    return (run.models() == own).all(axis=1).tolist()
