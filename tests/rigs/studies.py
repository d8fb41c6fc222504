"""Curves, small runs and rows for the tests of the papers' tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from coterie.reproductions import items
from coterie.reproductions.study import Curve, Row
from coterie.runs.config import RunConfig


def curve(
    values: Sequence[float | None], local: Sequence[float | None] | None = None, seed: int = 0, **more: Any
) -> Curve:
    """A run with these accuracies, global and local ones alike unless ``local`` is given."""
    clustered = more.pop("clustered", (True,) * len(values))
    return Curve(seed, tuple(values), tuple(values if local is None else local), tuple(clustered), **more)


def tiny(config: RunConfig, clients: int, rounds: int, **settings: Any) -> RunConfig:
    """The same cell on digits, small, with their own model."""
    settings = {**config.settings, **settings}
    return replace(config, data="digits", clients=clients, rounds=rounds, model=None, settings=settings)


def rows(item: str, outcomes: Mapping[str, Sequence[Any]]) -> Sequence[Row]:
    """The rows that an item makes of these outcomes by cell."""
    return items()[item].summarise(outcomes)
