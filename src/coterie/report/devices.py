"""What a run cost the clients' devices, by type, for the report: from ``result.json`` (``runs/device_costs.py``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coterie.record.schema import Used

PARTS = ("compute", "radio", "idle")


def table(used: Mapping[str, Used] | None) -> list[dict[str, Any]]:
    """A row for each type of device: means over its clients, and the largest memory. Empty if nothing was counted."""
    rows = []
    for name, one in (used or {}).items():
        joules = [getattr(one.joules, part) / one.clients for part in PARTS]
        rows.append(
            {
                "name": name,
                "clients": one.clients,
                "compute_s": one.compute_s / one.clients,
                "radio_s": one.radio_s / one.clients,
                "there_s": one.there_s / one.clients,
                "joules": [*joules, sum(joules)],
                "peak_memory_bytes": one.peak_memory_bytes,
                "memory_bytes": one.memory_gib * 2**30,
                "fits": one.peak_memory_bytes <= one.memory_gib * 2**30,
            }
        )
    return rows
