"""``coterie report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.guard import guarded, say


@guarded
def report(
    folders: Annotated[list[Path], typer.Argument(help="Run folders, or the folder of a comparison.")],
    out: Annotated[Path | None, typer.Option("--out", help="Where to write. [DIR/report.html]")] = None,
) -> None:
    """Draw (again) the report of a run, a comparison, or several runs, as one self-contained HTML file.

    Examples:

      coterie report runs/fedavg-digits-0-1

      coterie report runs/fedavg-digits-0-1 runs/ifca-digits-0-1 --out both.html
    """
    from coterie.protocol.errors import UserError
    from coterie.report import render

    if out is None:
        if len(folders) > 1:
            raise UserError("a report on several folders needs a file of its own: name it with --out")
        out = folders[0] / "report.html"
    say(f"Report: {render(folders, out)}")
