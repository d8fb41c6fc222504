"""Tables and figures of the papers, run again: the paper's number beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.protocol.errors import UserError
from coterie.protocol.import_path import import_object
from coterie.reproductions.study import Item, OnRound, study
from coterie.runs.registry import SYSTEMS, get
from coterie.runs.settings import unknown


def items(paper: str | None = None) -> Mapping[str, Item[Any]]:
    """The items of all systems, or of one, by name: ``pafed/table5``. None for what is no system."""
    systems = SYSTEMS.values() if paper is None else [get(paper)] if paper in SYSTEMS or ":" in paper else []
    paths = [path for system in systems for path in system.reproductions]
    return {name: item for path in paths for name, item in import_object(path, "reproductions").items()}


def found(item: str) -> Item[Any]:
    """The item of this name; UserError that says which there are, for the name of a paper which that one has."""
    own = items(item.partition("/")[0])
    if item in own:
        return own[item]
    if own and "/" not in item:
        raise UserError(f"which item of {item}? It has: {', '.join(own)}")
    raise unknown("item", item, items())


def folder_of(item: str, out: Path | None = None) -> Path:
    """Where an item is written to, if not ``out``."""
    return out or Path("reproduction") / item.partition("/")[0]


def reproduce(
    item: str,
    *,
    only: Sequence[str] = (),
    seeds: int = 3,
    rounds: int | None = None,
    out: Path | None = None,
    data_dir: str | None = None,
    workers: str | None = None,
    on_round: OnRound | None = None,
) -> Path:
    """Run an item and write its JSON, Markdown and picture under ``out`` (default ``reproduction/<paper>``).

    seeds: how many, from 0 on.  rounds: of every run instead of the item's own.
    only: names of cells, or of all up to a slash (``mnist/0.3``).  workers: where trainings run (``runs/workers.py``).
    Raises UserError for an unknown item or cell, no seeds, no rounds and a folder that cannot be written to.
    """
    wanted, folder = found(item), folder_of(item, out)
    options: dict[str, Any] = {"only": only, "rounds": rounds, "data_dir": data_dir, "on_round": on_round}
    options["workers"] = workers
    return study(wanted, folder, seeds=range(seeds), **options)
