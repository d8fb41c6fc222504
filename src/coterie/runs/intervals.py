"""Means over seeds, and their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any


def spread(values: Sequence[float | None]) -> dict[str, Any] | None:
    """Values, mean, standard deviation (from two on) and ``interval``, half of Student's 95 % one; None if one is
    missing.
    """
    known = [float(value) for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    mean, half = mean_and_interval(known)
    return {"mean": mean, "std": stdev(known) if len(known) > 1 else None, "interval": half, "values": known}


def mean_and_interval(values: Sequence[float]) -> tuple[float, float | None]:
    """And half of Student's 95 % interval, None of one value."""
    from scipy.special import stdtrit  # slow to import, and scipy.stats much slower

    if len(values) < 2:
        return fmean(values), None
    return fmean(values), float(stdtrit(len(values) - 1, 0.975)) * stdev(values) / len(values) ** 0.5
