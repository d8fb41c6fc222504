"""``coterie audit``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from coterie.cli.guard import guarded
from coterie.cli.options import HOW
from coterie.cli.progress import size
from coterie.protocol.errors import UserError


@guarded
def audit(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a finished run made with --record.")],
    data_dir: Annotated[
        str | None, typer.Option("--data-dir", help="Folder of data sets. [COTERIE_DATA]", rich_help_panel=HOW)
    ] = None,
    active: Annotated[
        bool,
        typer.Option("--active", help="Also repeat the run with one client that deviates, and show what it learns."),
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="Everything as one JSON object on stdout.")] = False,
) -> None:
    """Show what every party saw in a recorded run, and what attacks learn from it.

    The first table counts the messages of every role's view. The second table has the results of the system's attacks
    (`coterie list attacks`) on these views. The true values, which score the attacks, come from the data and the
    record. No attacker has them.

    These attacks are passive: all parties followed the protocol. With --active the run is repeated, by its config.toml,
    with one client that deviates. This takes as long as the run did, and writes nothing.

    Examples:

      coterie run mingledpie --partition labelsets:5 --record --crypto emulated --out runs/seen

      coterie audit runs/seen

      coterie audit runs/seen --json > seen.json

      coterie run pafed --model mlp --clients 12 --record --out runs/robbed

      coterie audit runs/robbed --active
    """
    content = audited(folder, data_dir, active=active)
    console = Console(highlight=False, soft_wrap=True)
    if json_:
        typer.echo(json.dumps(content, indent=1))
        return
    cipher = {"real": "real ciphers", "emulated": "emulated ciphers", "none": "no encryption"}[content["crypto"]]
    where = f"mode {content['mode']}, {cipher}, {content['rounds']} rounds of {content['clients']} clients"
    console.print(Text.assemble((content["title"], "bold"), f", {where}"))
    if content["stopped"] is not None:
        console.print(f"Recording stopped in round {content['stopped']} (record_mib): only the rounds before are here.")
    console.print(_received(content["roles"]))
    for role in content["roles"]:
        console.print(Text.assemble((role["role"], "bold"), f" learns {role['learns']}."))
    console.print()
    if content["attacks"] is None:
        console.print(f"There are no attacks for {content['system']}, so this is only what was received.")
        return
    console.print(_attacks(content["attacks"]))


def audited(folder: Path, data_dir: str | None = None, *, active: bool = False) -> dict[str, Any]:
    """The content that the command shows, as JSON. attacks: None for a system without an audit. Raises UserError.

    active: also repeat the run with a client that deviates, and add what it learns.
    """
    from coterie.audits.received import received
    from coterie.runs.recorded import read_recorded
    from coterie.runs.registry import SYSTEMS, audit_of

    run = read_recorded(folder, data_dir)
    options, system, views = run.options, run.system, list(run.views.values())
    attacks = audit_of(system)
    repeated = None if attacks is None else attacks.active
    if active and repeated is None:
        some = [name for name, one in SYSTEMS.items() if (its := audit_of(one)) and its.active]
        raise UserError(f"there are no active attacks on {system.name}, only on {', '.join(some)}")
    rows = received(views)
    learns, heard = system.views(run.mode), [row.role for row in rows]
    roles = [
        {
            "role": role,
            "parties": sum(view.role == role for view in views),
            "received": [{**asdict(row), "relayed": row.relayed} for row in rows if row.role == role],
            "learns": learns[role].learns if role in learns else "nothing",
        }
        for role in dict.fromkeys([*(role for role in learns if role in heard), *heard])
    ]
    found = None if attacks is None else attacks.passive(run) + (repeated(run) if active and repeated else [])
    return {
        "system": system.name,
        "title": system.title,
        "mode": run.mode,
        "crypto": options["crypto"] if system.encrypted else "none",
        **{key: options[key] for key in ("seed", "rounds", "clients")},
        "stopped": run.stopped,
        "roles": roles,
        "attacks": None if found is None else [finding.row() for finding in found],
    }


def _received(roles: Sequence[dict[str, Any]]) -> Table:
    numbers = (Column(head, justify="right") for head in ("messages", "size", "rounds"))
    table = Table("role", "received", "from", *numbers, box=SIMPLE, pad_edge=False)
    for role in roles:
        name = role["role"] + (f" ({role['parties']})" if role["parties"] > 1 else "")
        for row in role["received"]:
            kind = row["kind"] + (f", sealed for {row['dst']}" if row["relayed"] else "")
            table.add_row(name, kind, row["src"], str(row["count"]), size(row["bytes"]), str(row["rounds"]))
            name = ""
    return table


def _attacks(rows: Sequence[dict[str, Any]]) -> Table:
    """One row for each attack, under the measure of its numbers."""
    heads = ("found", "first", "last", "chance", "all", "theory", "clients")
    numbers = (Column(head, justify="right", no_wrap=True) for head in heads)
    table = Table("attack", *numbers, box=SIMPLE, pad_edge=False, collapse_padding=True)
    for metric in dict.fromkeys(row["metric"] for row in rows):
        table.add_row(Text(metric, "italic"))
        for row in rows:
            if row["metric"] == metric:
                measured = (row[key] for key in ("value", "first", "last", "chance", "perfect", "closed_form"))
                cells = ("–" if number is None else f"{number:.3f}" for number in measured)
                name = row["name"] + (f" (round {row['round']})" if row["round"] else "")
                table.add_row(name, *cells, str(row["clients"]))
        table.add_section()
    table.caption = (
        "found: mean over the rounds; first, last: in these rounds; chance: by guessing; all: if everything leaked; "
        "theory: closed form; clients: scored in the last round"
    )
    return table
