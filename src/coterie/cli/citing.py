"""``coterie cite``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.guard import guarded, say


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
