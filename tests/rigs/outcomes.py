"""What a run left, to compare with what another left: a resumed one with one that was never stopped, say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coterie.record.folder import read_lines

REAL = {"seconds", "phase_seconds", "observing_seconds"}
"""Keys of real time, which differs from run to run."""


def told(line: dict[str, Any]) -> dict[str, Any]:
    """A line without real time."""
    return {key: value for key, value in line.items() if key not in REAL}


def numbers(out: Path) -> list[dict[str, Any]]:
    """The lines of a run without real time."""
    return [told(line) for line in read_lines(out / "metrics.jsonl")]


def alike(value: Any, key: str = "") -> Any:
    """What equals ``value`` but for the last bits of losses.

    Models are the same bit for bit wherever a run goes on. Their losses are sums of float32 products, whose last bit a
    library may choose by where a process has put its arrays.
    """
    if isinstance(value, dict):
        return {name: alike(inner, str(name) if "loss" in str(name) else key) for name, inner in value.items()}
    if isinstance(value, list):
        return [alike(inner, key) for inner in value]
    return pytest.approx(value, rel=1e-6, nan_ok=True) if isinstance(value, float) and key else value
