"""Tables and figures of the papers, run again: the paper's number beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.protocol.errors import UserError
from coterie.reproduce import (
    fedcaprivacy,
    groups,
    mingledpie,
    mingledpie_costs,
    mingledpie_law,
    mingledpie_ridge,
    pafed,
)
from coterie.reproduce.study import Item, OnRound, study
from coterie.runs.settings import unknown

ITEMS: Mapping[str, Item[Any]] = {
    **fedcaprivacy.ITEMS,
    groups.ITEM.name: groups.ITEM,
    mingledpie_law.ITEM.name: mingledpie_law.ITEM,
    **mingledpie.ITEMS,
    **mingledpie_costs.ITEMS,
    **mingledpie_ridge.ITEMS,
    **pafed.ITEMS,
}


def found(item: str) -> Item[Any]:
    """The item of this name; UserError that says which there are, for the name of a paper which that one has."""
    if item in ITEMS:
        return ITEMS[item]
    if own := of_paper(item):
        raise UserError(f"which item of {item}? It has: {', '.join(own)}")
    raise unknown("item", item, ITEMS)


def of_paper(paper: str) -> Mapping[str, Item[Any]]:
    """The items of a paper, by name; none for what is no paper."""
    return {name: item for name, item in ITEMS.items() if name.partition("/")[0] == paper}


def reproduce(
    item: str,
    *,
    only: Sequence[str] = (),
    seeds: int = 3,
    rounds: int | None = None,
    out: Path | None = None,
    data_dir: str | None = None,
    on_round: OnRound | None = None,
) -> Path:
    """Run an item and write its JSON, Markdown and picture under ``out`` (default ``reproduction/<paper>``).

    seeds: how many, from 0 on.  rounds: of every run instead of the item's own.
    only: names of cells, or of all up to a slash (``mnist/0.3``).
    Raises UserError for an unknown item or cell, no seeds, no rounds and a folder that cannot be written to.
    """
    wanted = found(item)
    if seeds < 1:
        raise UserError(f"at least 1 seed is needed, not {seeds}")
    folder = out or Path("reproduction") / item.partition("/")[0]
    options: dict[str, Any] = {"only": only, "rounds": rounds, "data_dir": data_dir, "on_round": on_round}
    return study(wanted, folder, seeds=range(seeds), **options)
