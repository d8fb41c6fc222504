"""``coterie reproduce``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from coterie.cli.guard import guarded
from coterie.cli.progress import Pace, named, progress, seconds
from coterie.protocol.errors import UserError

if TYPE_CHECKING:
    from coterie.reproductions.study import OnRound, Standing


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
    from coterie import reproductions as home
    from coterie.reproductions.study import chosen

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
    options: dict[str, Any] = {"only": cells, "seeds": seeds, "rounds": rounds, "data_dir": data_dir}
    written = reproduced(item, **options, workers=workers, out=out, quiet=quiet)
    console.print(f"Written: {written}", markup=False)


def reproduced(
    item: str,
    *,
    only: Sequence[str] = (),
    seeds: int = 3,
    rounds: int | None = None,
    out: Path | None = None,
    data_dir: str | None = None,
    workers: str | None = None,
    on_round: OnRound | None = None,
    quiet: bool = False,
) -> Path:
    """``reproductions.reproduce`` that says on stderr how long it will take, and shows its progress."""
    from coterie import reproductions as home
    from coterie.reproductions.study import standings

    folder = home.folder_of(item, out)
    begun = standings(home.found(item), folder, only=only, seeds=range(seeds), rounds=rounds)
    work = {named(run.cell, run.seed): run.rounds for run in begun}
    spent = {named(run.cell, run.seed): (run.done, run.seconds) for run in begun if run.done}
    if not quiet and work:
        Console(stderr=True, highlight=False, soft_wrap=True).print(_outlook(begun, Pace(work, spent)), markup=False)
    with progress(quiet, work, spent) as tell:

        def told(cell: str, seed: int, line: Mapping[str, Any]) -> None:
            tell(named(cell, seed), line)
            if on_round is not None:
                on_round(cell, seed, line)

        options: Any = {"only": only, "seeds": seeds, "rounds": rounds, "data_dir": data_dir}
        options["workers"] = workers
        return home.reproduce(item, out=folder, on_round=told, **options)


def _outlook(begun: Sequence[Standing], pace: Pace) -> str:
    """How much there is to do, how long it will take as far as the runs tell that are there, and how to stop."""
    finished = sum(run.done >= run.rounds for run in begun)
    started = sum(0 < run.done < run.rounds for run in begun)
    missing = sum(max(run.rounds - run.done, 0) for run in begun)
    there = f", of which {finished} are finished and {started} begun" if finished + started else ""
    runs = f"{len(begun)} run" + "s" * (len(begun) != 1)
    if not missing:
        return f"{runs}{there}: nothing is left to train."
    left = pace.left()
    how = (
        f", about {seconds(round(left))} (an estimate from the runs that are there)."
        if left is not None
        else (". Their first rounds will show how long they take.")
    )
    return (
        f"{runs}{there}: {missing:,} rounds left{how} Ctrl-C keeps the rounds that are done, and "
        "the same command goes on."
    )
