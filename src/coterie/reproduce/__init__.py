"""Tables and figures of the papers, run again: the paper's number beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.protocol.errors import UserError
from coterie.reproduce import fedcaprivacy, mingledpie, mingledpie_costs, mingledpie_law, pafed
from coterie.reproduce.study import Item, OnRound, study

ITEMS: Mapping[str, Item[Any]] = {
    **fedcaprivacy.ITEMS,
    mingledpie_law.ITEM.name: mingledpie_law.ITEM,
    **mingledpie.ITEMS,
    **mingledpie_costs.ITEMS,
    **pafed.ITEMS,
}


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
    Raises UserError for an unknown item or cell.
    """
    if item not in ITEMS:
        raise UserError(f"unknown item {item!r}; there are: {', '.join(ITEMS)}")
    if seeds < 1:
        raise UserError(f"at least 1 seed is needed, not {seeds}")
    folder = out or Path("reproduction") / item.partition("/")[0]
    options: dict[str, Any] = {"only": only, "rounds": rounds, "data_dir": data_dir, "on_round": on_round}
    return study(ITEMS[item], folder, seeds=range(seeds), **options)
