"""``coterie report`` and ``coterie cite``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.guard import guarded, say


@guarded
def report(
    folders: Annotated[list[Path], typer.Argument(help="Run folders, or the folder of a comparison.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Where to write. [DIR/report.html, DIR/statement.md]")
    ] = None,
    statement: Annotated[
        bool,
        typer.Option("--statement", help="One page in plain words instead, of one run, for those who answer for data."),
    ] = False,
) -> None:
    """Draw (again) the report of a run, a comparison, or several runs, as one self-contained HTML file.

    Examples:

      coterie report runs/fedavg-digits-0-1

      coterie report runs/fedavg-digits-0-1 runs/ifca-digits-0-1 --out both.html

      coterie report runs/fedavg-digits-0-1 --statement
    """
    from coterie.protocol.errors import UserError
    from coterie.record.files import atomic_write
    from coterie.report import render
    from coterie.report.statement import statement as stated

    if statement:
        if len(folders) > 1:
            raise UserError("a statement is about one run: give one folder")
        out = out or folders[0] / "statement.md"
        atomic_write(out, stated(folders[0]).encode())
        say(f"Statement: {out}")
        return
    if out is None:
        if len(folders) > 1:
            raise UserError("a report on several folders needs a file of its own: name it with --out")
        out = folders[0] / "report.html"
    say(f"Report: {render(folders, out)}")


@guarded
def cite(
    folders: Annotated[list[Path], typer.Argument(help="Run folders, or the folder of a comparison.")],
) -> None:
    """Print BibTeX of the systems in a run or a comparison and of the run itself, and a sentence of methods.

    Examples:

      coterie cite runs/fedavg-digits-0-1 > run.bib
    """
    from coterie.report import cite as cited

    say(cited(folders))
