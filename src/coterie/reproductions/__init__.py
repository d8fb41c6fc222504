"""Tables and figures of the papers, run again: the paper's number beside ours.

Those of the five papers are in the repository's ``papers/`` (``ITEMS``), which an installed package lacks. One's own
system names its items (``System.reproductions``).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from coterie.protocol.errors import UserError
from coterie.protocol.import_path import import_object
from coterie.reproductions.study import Item
from coterie.runs.registry import get
from coterie.runs.settings import unknown

PAPERS = Path(__file__).parents[3] / "papers"


def items(paper: str | None = None) -> Mapping[str, Item[Any]]:
    """Of the five papers, of one, or of one's own system (``module:ATTRIBUTE``), by name such as ``pafed/table5``."""
    if paper is not None and ":" in paper:
        return {name: item for path in get(paper).reproductions for name, item in import_object(path, "items").items()}
    return {name: item for name, item in _papers() if paper in (None, name.partition("/")[0])}


def _papers() -> Iterator[tuple[str, Item[Any]]]:
    if PAPERS.is_dir() and str(PAPERS.parent) not in sys.path:
        sys.path.append(str(PAPERS.parent))
    for path in sorted(PAPERS.glob("[!_]*.py")):
        yield from getattr(importlib.import_module(f"papers.{path.stem}"), "ITEMS", {}).items()


def found(item: str) -> Item[Any]:
    """Raises UserError that lists the paper's items, or all."""
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
