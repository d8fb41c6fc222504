"""``coterie run``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import typer
from rich.table import Table

from coterie.cli import completing
from coterie.cli import options as opt
from coterie.cli.guard import console, guarded, loading

System = Annotated[
    str | None,
    typer.Argument(
        metavar="SYSTEM",
        autocompletion=completing.systems,
        help="A system; see `coterie list systems`. Or yours, as module:ATTRIBUTE.",
    ),
]


@guarded
@opt.shared()
def run(system: System = None, **options: Any) -> None:
    """Train one system once. Without options: handwritten digits, 20 unequal clients, 10 rounds.

    Writes a folder with config.toml (repeats the run), metrics.jsonl (one line for each round), result.json,
    report.html, the trained models (coterie export, coterie predict) and a checkpoint. Options can also be given in a
    TOML file (--config), with the system's settings in its table [settings]. The command line wins.

    Examples:

      coterie run fedcaprivacy

      coterie run fedavg --data mnist --clients 50 --partition shards:2 --set lr=0.05 --set max_epochs=3

      coterie run pafed --delta 0.5 --delay geometric:0.3 --devices mobile

      coterie run fedcaprivacy --mode hardened --crypto emulated --rounds 100 --out runs/hardened

      coterie run --resume --out runs/hardened
    """
    with loading():
        from coterie.api import train
        from coterie.report.summary import results

    given, resume = opt.given({"system": system, **options}), options["resume"]
    config = opt.configured(given, options["set"] or [], options["config"], resume)
    result = train(config, given, progress=not options["quiet"], resume=resume)
    conclude(result, results(result.summary))


def conclude(result: Any, found: Iterable[tuple[str, str]], how: str = "", below: str = "") -> None:
    """Print the most important results. how: after the title.  below: the table."""
    from coterie.report.summary import lasted

    shell, summary = console(), result.summary
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for label, value in found:
        table.add_row(label, value)
    shell.print(f"[bold]{summary['title']}[/bold], {lasted(summary)} of {summary['clients']} clients{how}")
    shell.print(table)
    if below:
        shell.print(below)
    shell.print(f"Report: {result.folder / 'report.html'}", markup=False)
