"""``coterie prepare``: one schema for all parties' tables, checked and applied."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.command import Command, CommandGroup
from coterie.cli.guard import FAILED, guarded, say
from coterie.cli.options import listed
from coterie.protocol.errors import UserError
from coterie.report.words import plural

_EPILOG = """
The operator proposes a schema, edits it, and sends it to all owners. Each checks her own file, which stays with her:

  coterie prepare propose sample.csv --label outcome --out schema.toml

  coterie prepare check schema.toml own.csv

  coterie run fedavg --data hospitals --schema schema.toml                  a simulation

  coterie deploy init study --schema schema.toml ...                        the plan has it: join --data own.csv
"""

Schema = Annotated[Path, typer.Argument(metavar="SCHEMA", help="The schema (TOML).")]
Tables = Annotated[list[Path], typer.Argument(metavar="FILE...", help="csv or parquet files.")]

app = typer.Typer(
    cls=CommandGroup,
    name="prepare",
    help="State once how all parties' tables become samples, and see what is wrong with a file.",
    epilog=_EPILOG,
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@guarded
def propose(
    files: Tables,
    out: Annotated[Path, typer.Option("--out", help="The schema to write, a new TOML file.")],
    label: Annotated[str | None, typer.Option(help="Column of labels. [label, y, target or class]")] = None,
    positive: Annotated[
        str | None, typer.Option(help="The class of which probabilities speak, such as ill. [the last of two]")
    ] = None,
    categories: Annotated[
        str, typer.Option(help="Columns of numbers that are categories, such as cp,thal. [none]")
    ] = "",
) -> None:
    """Write a schema as these files suggest it: kinds, categories, formats of dates, and what scales and fills.

    Read it before you send it. It tells all parties the values of categories, means, medians and standard deviations of
    these files: use files that may be told, or write others. Exit code 1 if a file has a fault by the schema.

    Examples:

      coterie prepare propose sample.csv --label outcome --positive ill --out schema.toml

      coterie prepare propose hospitals/*.csv --label disease --categories cp,thal --out schema.toml
    """
    from coterie.data import preparing
    from coterie.record.files import atomic_write
    from coterie.runs.models import check_new

    schema, notes = preparing.propose(files, label, positive, listed([categories]))
    atomic_write(check_new(out), preparing.to_toml(schema).encode())
    for one in notes:
        say(f"{'note':8}{one}")
    faults = _told(files, schema)
    say(f"Schema: {out}, with {plural(len(schema.columns), 'column')}. Read it, then: coterie prepare check {out} FILE")
    if faults:
        raise typer.Exit(FAILED)


@guarded
def check(schema: Schema, files: Tables) -> None:
    """Show everything that is wrong with files, or strange in them, and what helps. Exit code 1 if there is a fault.

    Examples:

      coterie prepare check schema.toml own.csv

      coterie prepare check schema.toml hospitals/*.csv
    """
    from coterie.data.preparing import read_schema

    faults = _told(files, read_schema(schema))
    say(f"{plural(len(files), 'file')}: {plural(faults, 'fault') if faults else 'ready'}")
    if faults:
        raise typer.Exit(FAILED)


@guarded
def apply(
    schema: Schema,
    table: Annotated[Path, typer.Argument(metavar="FILE", help="A csv or parquet file.")],
    out: Annotated[Path, typer.Option("--out", help="FILE.npz to write, for you alone.")],
) -> None:
    """Write a table's samples as the model takes them, with a fifth for tests, as coterie deploy join does.

    Examples:

      coterie prepare apply schema.toml own.csv --out own.npz
    """
    from coterie.data.form import SampleForm, read_data
    from coterie.data.preparing import read_schema
    from coterie.record.files import FILE_MODE, atomic_write
    from coterie.runs.models import check_new

    if check_new(out).suffix != ".npz":
        raise UserError(f"{out}: samples become an npz file: name it FILE.npz")
    found = read_data(table, SampleForm.of(read_schema(schema)))
    atomic_write(out, found.to_bytes(), FILE_MODE)
    say(f"{plural(len(found.y), 'sample')} to train on and {len(found.y_test):,} for tests: {out}")


def _told(tables: list[Path], schema: object) -> int:
    from coterie.data.preparing import checked

    found = [one for table in tables for one in checked(table, schema)[1]]  # type: ignore[arg-type]  # imported late
    for one in found:
        say(f"{'fault' if one.fault else 'note':8}{one}")
    return sum(one.fault for one in found)


for _command in (propose, check, apply):
    app.command(_command.__name__, cls=Command)(_command)
