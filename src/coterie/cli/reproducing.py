"""``coterie reproduce``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.guard import guarded, loading, say
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
    workers: Annotated[
        str | None,
        typer.Option("--workers", help="Where trainings run: ray, ray:COUNT or ray://HOST:PORT. [this process]"),
    ] = None,
    jobs: Annotated[
        int,
        typer.Option("--jobs", min=1, help="Runs at once where memory allows, each in a process with one thread."),
    ] = 1,
    list_: Annotated[
        bool, typer.Option("--list", help="List all items, those of a paper, or the cells of an item.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only warnings and the result.")] = False,
) -> None:
    """Reproduce a table or figure of a paper: its numbers beside ours, as JSON and Markdown.

    Says before it begins how much is left, and how long that will take as far as the runs tell that are there. After
    Ctrl-C the same command continues the whole table: finished runs are read, an unfinished one goes on. With --only,
    cells that the table in --out already has stay in it, as long as their runs are there.

    Examples:

      coterie reproduce --list

      coterie reproduce fedcaprivacy/table2 --list --only mnist

      coterie reproduce fedcaprivacy/table2 --only fashion_mnist/0.1
    """
    with loading():
        from coterie import api
        from coterie import reproductions as home
        from coterie.reproductions.study import chosen

    cells = only or []
    if list_ and (item is None or home.items(item)):
        if cells:
            raise UserError("--only picks cells of one item: name the item")
        for name, listed in home.items(item).items():
            say(f"{name}  {listed.title}")
        return
    if item is None:
        raise UserError("which item? See coterie reproduce --list")
    wanted = home.found(item)
    if list_:
        for cell in chosen(wanted, cells):
            say(cell.name)
        return
    written = api.reproduce(
        item,
        only=cells,
        seeds=seeds,
        rounds=rounds,
        out=out,
        data_dir=data_dir,
        workers=workers,
        jobs=jobs,
        progress=not quiet,
    )
    say(f"Written: {written}")
