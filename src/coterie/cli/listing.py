"""``coterie list``."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from coterie.cli import completing
from coterie.cli.guard import console, guarded, loading
from coterie.cli.lists import LISTS
from coterie.protocol.errors import UserError, suggest

if TYPE_CHECKING:
    from coterie.protocol.system import System


def _lists(incomplete: str) -> list[str]:
    return [name for name in LISTS if name.startswith(incomplete)]


@guarded
def show(
    what: Annotated[
        str | None, typer.Argument(autocompletion=_lists, help="What to list. Without it, which lists there are.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Argument(
            autocompletion=completing.systems, help="After `systems`: the name of one, to show all its settings."
        ),
    ] = None,
) -> None:
    """List systems, datasets, partitions, metrics, models, devices, attacks, poisoning and reproductions.

    Examples:

      coterie list datasets

      coterie list systems mingledpie
    """
    shell = console(soft_wrap=False)
    if what is not None and what not in LISTS:
        raise UserError(f"there is no list {what!r}{suggest(what, LISTS)} There are: {', '.join(LISTS)}")
    if name is not None:
        if what != "systems":
            raise UserError(f"only systems are shown by name: coterie list {what}, or coterie list systems {name}")
        _show_system(shell, name)
        return
    with loading():
        rows = [(list_, words) for list_, (words, _) in LISTS.items()] if what is None else [*LISTS[what][1]()]
    title = "coterie list ..." if what is None else what
    table = Table(title=title, title_justify="left", title_style="bold", box=None, show_header=False)
    table.add_column(no_wrap=True)
    if what == "systems":  # a line each, of which only the middle is cut
        table.expand = True
        table.add_column(no_wrap=True, ratio=1)
        table.add_column(no_wrap=True)
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    shell.print(table)


_DIGITS = 12  # more are those of a fraction, such as 2 / 3
_OVER = "A data set's own settings (coterie list datasets), such as lr and batch_size, win over these defaults."


def _show_system(shell: Console, name: str) -> None:
    from coterie.runs.registry import get
    from coterie.runs.settings import described

    system = get(name)
    shell.print(f"[bold]{escape(system.title)}[/bold]: {escape(_about(system))}")
    shell.print(f"{_OVER} Change one with --set NAME=VALUE.")
    table = Table("setting", "default", "what it does", box=None, padding=(0, 2, 0, 0))
    table.columns[0].no_wrap = True
    texts = described(system.config)
    for setting, default in ((one.name, _shown(one.default)) for one in dataclasses.fields(system.config)):
        others = {mode: _shown(system.defaults(mode).get(setting, default)) for mode in system.modes}
        shown = ", ".join([default, *(f"{mode}: {value}" for mode, value in others.items() if value != default)])
        table.add_row(escape(setting), escape(shown), escape(texts[setting]))
    shell.print(table)
    shell.print(_sees(system))


def _sees(system: System) -> Table:
    table = Table("who", "mode", "what it sees", box=None, padding=(0, 2, 0, 0))
    for column in table.columns[:2]:
        column.no_wrap = True
    told: dict[str, dict[str, str]] = {}
    for mode in system.modes:
        settings = system.config(**system.defaults(mode))
        seen = {**system.seen_by(mode, settings), "only if": system.assumed(mode, settings)}
        for role, words in seen.items():
            known = told.setdefault(role, {})
            if words not in known.values():
                known[mode] = words
    for role, by_mode in told.items():
        for mode, words in by_mode.items():
            table.add_row(escape(role), mode if len(by_mode) > 1 or mode != system.modes[0] else "", escape(words))
    return table


def _about(system: System) -> str:
    cipher = "encrypted" if system.encrypted else "no encryption"
    late = f"; {system.delta:g} of its clients delayed (--delta)" if system.delta else ""
    public = f"; {system.public:g} of the training data are its server's (--public)" if system.public else ""
    return f"{system.citation}. Modes: {', '.join(system.modes)}; {cipher}{late}{public}."


def _shown(default: Any) -> str:
    if isinstance(default, float) and len(str(default)) > _DIGITS:
        return f"{default:.4g}"
    return "none" if default is None else str(default)
