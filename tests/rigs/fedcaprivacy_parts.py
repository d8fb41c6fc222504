"""FedCAPrivacy under test: settings that may be said for all modes."""

from __future__ import annotations

from typing import Any

from coterie.systems.fedcaprivacy.config import UNUSED, WITHOUT_SIGNATURE


def by_models(**options: Any) -> dict[str, Any]:
    """A federation's options, with clusters made by models in mode hardened, too, if nothing else is said."""
    return {**({"descriptor": "model"} if options.get("mode") == "hardened" else {}), **options}


def where_they_count(**options: Any) -> dict[str, Any]:
    """Of a federation's options those that mean something in its mode: how it is hardened counts in mode hardened only.

    A schedule takes the place of the decay, and a rotation that of the sketches.
    """
    options = by_models(**options)
    unused = set(UNUSED[options.get("mode", "paper")])
    if options.get("hardening") == "rotation":
        unused.add("sketch_dim")
    if options.get("descriptor") == "signature":
        unused |= set(WITHOUT_SIGNATURE)
    if options.get("schedule", "decay") != "decay":
        unused.add("alpha")
    return {name: value for name, value in options.items() if name not in unused}
