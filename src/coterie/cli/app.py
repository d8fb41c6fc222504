"""The ``coterie`` command."""
# commands import at their run, so that help is immediate

from __future__ import annotations

from typing import Annotated

import typer

import coterie
from coterie.protocol.import_path import uncollected

with uncollected():
    from coterie.cli import (
        auditing,
        comparing,
        deploying,
        listing,
        predicting,
        preparing,
        reporting,
        reproducing,
        running,
    )
    from coterie.cli.command import Command, CommandGroup
    from coterie.cli.guard import say

_EPILOG = """
Examples:

  coterie run fedcaprivacy                                   one minute: built-in handwritten digits, real Paillier

  coterie run fedavg --data mnist --rounds 50 --set lr=0.05

  coterie run --resume --out runs/fedavg-mnist-0-1           go on after Ctrl-C, a crash or a full disk

  coterie run --config runs/fedavg-mnist-0-1/config.toml     repeat a run

  coterie compare fedcaprivacy fedavg --partition dirichlet:0.1 --crypto emulated --seeds 3

  coterie audit runs/fedcaprivacy-digits-0-1                 what every party saw; needs a run made with --record

  coterie predict runs/fedavg-digits-0-1 new.npz --client client/3

  coterie list systems
"""

app = typer.Typer(
    cls=CommandGroup,
    name="coterie",
    help="Federated learning among unequal, privacy-aware clients: run, compare and reproduce published systems.",
    epilog=_EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        say(f"coterie {coterie.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Federated learning among unequal, privacy-aware clients."""


app.command("run", cls=Command)(running.run)
app.command("compare", cls=Command)(comparing.compare)
app.command("reproduce", cls=Command)(reproducing.reproduce)
app.command("audit", cls=Command)(auditing.audit)
app.command("report", cls=Command)(reporting.report)
app.command("cite", cls=Command)(reporting.cite)
app.command("export", cls=Command)(predicting.export)
app.command("predict", cls=Command)(predicting.predict)
app.command("list", cls=Command)(listing.show)
app.add_typer(preparing.app)
app.add_typer(deploying.app)


def main() -> None:
    """Of the console script and ``python -m coterie``."""
    app(prog_name="coterie")
