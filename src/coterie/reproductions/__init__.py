"""Tables and figures of the papers, run again: the paper's number beside ours.

Those of the five papers are in the repository's ``papers/``, whose modules name them in ``ITEMS``; an installed package
lacks them. One's own system names its items itself (``System.reproductions``).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.protocol.errors import UserError
from coterie.protocol.import_path import import_object
from coterie.reproductions.study import Item, OnRound, study
from coterie.runs.registry import get
from coterie.runs.settings import unknown

PAPERS = Path(__file__).parents[3] / "papers"


def items(paper: str | None = None) -> Mapping[str, Item[Any]]:
    """The items of the five papers, of one, or of one's own system (``module:ATTRIBUTE``), by name such as
    ``pafed/table5``.

    Empty for a system without a paper here.
    """
    if paper is not None and ":" in paper:
        return {name: item for path in get(paper).reproductions for name, item in import_object(path, "items").items()}
    return {name: item for name, item in _papers() if paper in (None, name.partition("/")[0])}


def _papers() -> Iterator[tuple[str, Item[Any]]]:
    if PAPERS.is_dir() and str(PAPERS.parent) not in sys.path:
        sys.path.append(str(PAPERS.parent))
    for path in sorted(PAPERS.glob("[!_]*.py")):
        yield from getattr(importlib.import_module(f"papers.{path.stem}"), "ITEMS", {}).items()


def found(item: str) -> Item[Any]:
    """The item of this name; else UserError that lists the paper's, or all."""
    own = items(item.partition("/")[0])
    if not PAPERS.is_dir() and ":" not in item:
        raise UserError(
            f"the reproduction {item!r} is not part of the installed package: run the command with coterie installed "
            "from a clone of its repository (make demo), whose folder papers/ has the tables and figures"
        )
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
    Raises UserError for an unknown item or cell, no seeds, no rounds and an unwritable folder.
    """
    wanted, folder = found(item), folder_of(item, out)
    options: dict[str, Any] = {"only": only, "rounds": rounds, "data_dir": data_dir, "on_round": on_round}
    options["workers"] = workers
    return study(wanted, folder, seeds=range(seeds), **options)
