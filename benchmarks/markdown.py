"""Cells and tables of Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coterie.runs.intervals import mean_and_interval


def grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = (head, ["---"] * len(head), *rows)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines).replace("|  ", "| ")


def cell(value: Any, digits: int = 4) -> str:
    if value is None:
        return "–"
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)


def interval(spread: Mapping[str, float] | None, digits: int = 1, factor: float = 1, sign: str = "") -> str:
    """Mean and half of the 95 % interval."""
    if spread is None:
        return "–"
    mean = f"{factor * spread['mean']:{sign}.{digits}f}"
    return f"{mean} ± {factor * spread['interval']:.{digits}f}".replace("-", "−")


def of_seeds(values: Sequence[float], sign: str = "") -> str:
    mean, half = mean_and_interval(values)
    return interval({"mean": mean, "interval": half or 0.0}, sign=sign)


def error(row: Mapping[str, float] | None) -> str:
    """A value and its standard error."""
    return "–" if row is None else f"{row['value']:.2f} ± {row['standard_error']:.2f}"


def without_interval(text: str) -> str:
    return text.partition(" ±")[0]


def median(row: Mapping[str, float], digits: int) -> str:
    return f"{row['median']:.{digits}f} ({row['least']:.{digits}f} to {row['most']:.{digits}f})"
