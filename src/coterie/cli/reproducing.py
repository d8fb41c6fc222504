"""``coterie reproduce``."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from coterie.cli.guard import guarded
from coterie.cli.progress import bars
from coterie.protocol.errors import UserError


@guarded
def reproduce(
    item: Annotated[str | None, typer.Argument(help="A table or figure; see `coterie list reproductions`.")] = None,
    only: Annotated[list[str] | None, typer.Option("--only", help="Only this cell. Repeat it.")] = None,
    seeds: Annotated[int, typer.Option("--seeds", help="How many seeds, from 0 on.")] = 3,
    rounds: Annotated[
        int | None, typer.Option("--rounds", help="Rounds of every run, instead of the item's own.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder to write to. [reproduction/PAPER]")] = None,
    data_dir: Annotated[str | None, typer.Option("--data-dir", help="Folder of data sets (else COTERIE_DATA).")] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the items, or the cells of one.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the result only.")] = False,
) -> None:
    """A table or figure of a paper: its number beside ours, as JSON and Markdown.

    Examples:

      coterie reproduce --list

      coterie reproduce fedcaprivacy/table2 --only fashion_mnist/0.1
    """
    from coterie.runs.settings import unknown

    home = importlib.import_module("coterie.reproduce")
    console = Console(highlight=False, soft_wrap=True)
    if item is None:
        if not list_:
            raise UserError("which item? See coterie reproduce --list")
        for name, found in home.ITEMS.items():
            console.print(f"{name}  {getattr(found, 'title', '')}", markup=False)
        return
    if item not in home.ITEMS:
        raise unknown("item", item, home.ITEMS)
    if list_:
        for cell in home.ITEMS[item].cells:
            console.print(str(cell), markup=False)
        return
    lengths = {cell.name: rounds or cell.rounds for cell in home.ITEMS[item].cells}
    with bars(quiet) as shown:

        def told(cell: str, seed: int, line: Mapping[str, Any]) -> None:
            shown.advance(f"{cell}, seed {seed}", lengths[cell], line)

        cells = tuple(only or ())
        written = home.reproduce(
            item, only=cells, seeds=seeds, rounds=rounds, out=out, data_dir=data_dir, on_round=told
        )
    console.print(f"Written: {written}", markup=False)
