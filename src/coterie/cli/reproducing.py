"""``coterie reproduce``."""

from __future__ import annotations

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
    only: Annotated[list[str] | None, typer.Option("--only", help="Only this cell. Can be repeated.")] = None,
    seeds: Annotated[int, typer.Option("--seeds", help="Number of seeds, beginning with 0.")] = 3,
    rounds: Annotated[
        int | None, typer.Option("--rounds", help="Rounds of every run, instead of the item's own.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder to write to. [reproduction/PAPER]")] = None,
    data_dir: Annotated[str | None, typer.Option("--data-dir", help="Folder of data sets (else COTERIE_DATA).")] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="List all items, those of a paper, or the cells of an item.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only warnings and the result.")] = False,
) -> None:
    """Reproduce a table or figure of a paper: its numbers beside ours, as JSON and Markdown.

    Examples:

      coterie reproduce --list

      coterie reproduce fedcaprivacy/table2 --list --only mnist

      coterie reproduce fedcaprivacy/table2 --only fashion_mnist/0.1
    """
    from coterie import reproductions as home
    from coterie.reproductions.study import Cell, chosen

    console = Console(highlight=False, soft_wrap=True)
    cells = only or []
    if list_ and (item is None or home.items(item)):
        if cells:
            raise UserError("--only picks cells of one item: name the item")
        for name, listed in home.items(item).items():
            console.print(f"{name}  {listed.title}", markup=False)
        return
    if item is None:
        raise UserError("which item? See coterie reproduce --list")
    wanted = home.found(item)
    if list_:
        for cell in chosen(wanted, cells):
            console.print(cell.name, markup=False)
        return
    lengths = {cell.name: rounds or cell.config.rounds for cell in wanted.cells if isinstance(cell, Cell)}
    with bars(quiet) as shown:

        def told(cell: str, seed: int, line: Mapping[str, Any]) -> None:
            shown.advance(f"{cell}, seed {seed}", lengths[cell] or 0, line)

        written = home.reproduce(
            item, only=cells, seeds=seeds, rounds=rounds, out=out, data_dir=data_dir, on_round=told
        )
    console.print(f"Written: {written}", markup=False)
