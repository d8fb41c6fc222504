"""``coterie audit``, and the tables that it prints."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from coterie.cli.guard import console, fits, guarded, loading, new_table, say
from coterie.protocol.errors import UserError
from coterie.report.words import CIPHERS, MISSING, leak_half, leak_halves, plural, size
from coterie.runs.options import HOW

Row = Mapping[str, Any]
Fewest = Annotated[
    int, typer.Option("--fewest", min=0, help="Of files: the fewest senders of a sum. [what holders state]")
]
Share = Annotated[
    float | None,
    typer.Option("--share", min=0, max=1, help="Of files: most of a sum's weights that one sender has. [0.9]"),
]


@guarded
def audit(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR...",
            help="Folders of finished runs made with --record, or of a comparison; or files of statements of openings.",
        ),
    ],
    data_dir: Annotated[
        str | None, typer.Option("--data-dir", help="Folder of data sets. [COTERIE_DATA]", rich_help_panel=HOW)
    ] = None,
    fewest: Fewest = 0,
    share: Share = None,
    active: Annotated[
        bool,
        typer.Option("--active", help="Also repeat the run with one client that deviates, and show what it learns."),
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="Everything as one JSON object on stdout.")] = False,
) -> None:
    """Show what every party saw in a recorded run, and what attacks learn from it.

    The first table counts the messages of every role's view. The second table has the results of the attacks
    (`coterie list attacks`) on these views, the worst first: the system's own, and those on models or updates that a
    party receives in the clear. Every result is a leak from 0 (chance) to 1 (everything), with a verdict in words. The
    true values, which score the attacks, come from the data and the record. No attacker has them.

    Several runs, or a comparison's folder, give one table for each method. Its numbers are means over the seeds.

    The results are kept in the run's result.json and drawn in its report.html.

    Files (openings.json of a run, and what coterie export has written of a home) hold what the holders of key shares
    state that they have opened. They are verified together: signatures, the number and the weights of senders of each
    sum, and whether sums of one round together show fewer. The more holders' files are there, the more that shows. Exit
    code 1 if something is wrong.

    These attacks are passive: all parties followed the protocol. With --active the run is repeated, by its config.toml,
    with one client that deviates. This takes as long as the run did.

    Examples:

      coterie run mingledpie --partition labelsets:5 --record --crypto emulated --out runs/seen

      coterie audit runs/seen

      coterie audit runs/seen --json > seen.json

      coterie compare fedavg fedcaprivacy --seeds 3 --record --crypto emulated --out runs/race

      coterie audit runs/race

      coterie run pafed --model mlp --clients 12 --record --out runs/robbed

      coterie audit runs/robbed --active

      coterie audit hospital-a.openings.json hospital-b.openings.json
    """
    with loading():
        from coterie.api import audit as attacked

    if folders and all(path.is_file() for path in folders):
        _statements(folders, fewest, share, json_)
        return
    if fewest or share is not None:
        raise UserError("--fewest and --share are for files of statements: leave them out for folders")
    content = attacked(*folders, active=active, data_dir=data_dir)
    runs = content.get("runs", {"": content})
    for where, run in runs.items():
        if run["not_kept"]:
            say(f"{where or folders[0]}: this audit could not be kept: {run['not_kept']}", err=True)
    if json_:
        say(json.dumps(content, indent=1))
        return
    shell = console(180)
    for line in _shown(content, shell):
        shell.print(line)
    if not any(run["not_kept"] for run in runs.values()):
        shell.print(f"Report: {', '.join(str(folder / 'report.html') for folder in folders)}", markup=False)


def _statements(files: Sequence[Path], fewest: int, share: float | None, json_: bool) -> None:
    from coterie.protocols.openings import MOST_SHARE
    from coterie.runs.opened import audited_openings

    found = audited_openings(files, fewest, MOST_SHARE if share is None else share)
    if json_:
        say(json.dumps(found, indent=1))
    else:
        for line in _opened(found):
            console(120).print(line)
    if found["faults"]:
        raise typer.Exit(1)


def _opened(found: Row) -> Iterator[Text]:
    holders, lacking = found["openings"], found["unstated"]
    by = ", ".join(f"{name} ({count}, the last in round {found['last'][name]})" for name, count in holders.items())
    yield Text(f"{sum(holders.values())} openings, stated and signed by {by or 'nobody'}.")
    if found["operator"]:
        yield Text(f"Operator's key: {found['operator']}. Compare it with operator.pub of your deployment.")
    else:
        yield Text("The roster is not signed, as in a simulation: this proves nothing of who made these statements.")
    if found["sums"]:
        many = f"{found['senders']} vectors or more (by weights, no fewer than {found['effective']:.3g})"
        yield Text(f"{found['sums']} sums, which holders have added up themselves, of {many}.")
    if found["vectors"] or found["scalars"]:
        yield Text(f"On the hub's word alone: {found['vectors']} vectors and {found['scalars']} scalars.")
    for name, count in lacking.items():
        yield Text(f"{name} does not state {count} openings that others say it was to help with: get its statements.")
    for fault in found["faults"]:
        yield Text(f"Wrong: {fault}", "bold red")
    if not found["faults"]:
        yield Text(
            "Nothing in these statements is wrong. They cannot show later openings, nor those of other holders alone."
        )


def _shown(content: Row, shell: Console) -> Iterator[Any]:
    from coterie.runs.findings import in_lines

    if "methods" in content:
        yield from tables(content["methods"], shell)
    else:
        yield head(content)
        yield from _cut_short(content, "")
        yield _received(content["roles"])
        for role in content["roles"]:
            yield Text.assemble((role["role"], "bold"), f" learns {role['learns']}.")
        yield ""
        yield from _found(content, shell)
        if content.get("openings"):
            yield from _opened(content["openings"])
    for folder, run in content.get("runs", {}).items():
        yield from _cut_short(run, f"{folder}: ")
    for line in in_lines(content.get("left_out", {})):
        yield Text(f"Left out: {line}")


def tables(methods: Sequence[Row], shell: Console) -> Iterator[Any]:
    for method in methods:
        yield head(method)
        yield from _found(method, shell)
        yield ""


def head(content: Row) -> Text:
    seeds = content.get("seeds", ())
    many = f", {len(seeds)} runs (seeds {', '.join(map(str, seeds))})" if len(seeds) > 1 else ""
    cipher = CIPHERS[content["crypto"]]
    work = f"{plural(content['rounds'], 'round')} of {plural(content['clients'], 'client')}"
    where = f"mode {content['mode']}, {cipher}, {work}{many}"
    return Text.assemble((content["title"], "bold"), f", {where}")


def _cut_short(content: Row, where: str) -> Iterator[str]:
    if content.get("drifted") is not None:
        yield f"{where}The data drifted before round {content['drifted']}: only the rounds before are here."
    if content["stopped"] is not None:
        yield f"{where}Recording stopped in round {content['stopped']} (record_mib): only the rounds before are here."


def _found(content: Row, shell: Console) -> Iterator[Any]:
    from coterie.report.tables import by_reason, by_role

    if content["attacks"]:
        whole = _attacks(content["attacks"])
        yield whole if fits(whole, shell) else _leaks(content["attacks"])
    for names, why in by_reason(content["not_applicable"]):
        yield Text(f"Not applicable: {names}: {why}.")
    for role, fields in by_role(content["not_judged"]):
        yield Text(f"Not judged, since no attack reads it, at {role}: {fields}.")


def _received(roles: Sequence[dict[str, Any]]) -> Table:
    numbers = (Column(head, justify="right") for head in ("messages", "size", "rounds"))
    table = new_table("role", "received", "from", *numbers)
    for role in roles:
        name = role["role"] + (f" ({role['parties']})" if role["parties"] > 1 else "")
        for row in role["received"]:
            kind = row["kind"] + (f", sealed for {row['dst']}" if row["relayed"] else "")
            table.add_row(name, kind, row["src"], str(row["count"]), size(row["bytes"]), str(row["rounds"]))
            name = ""
        if not role["received"]:
            table.add_row(name, "sealed packets, between machines alone", "all", MISSING, MISSING, MISSING)
    return table


def _attacks(rows: Sequence[Row]) -> Table:
    theory = any(row["closed_form"] is not None for row in rows)
    heads = ("leak", "±", "found", "chance", "all", *["theory"] * theory, "clients")
    numbers = (Column(head, justify="right", no_wrap=True) for head in heads)
    table = new_table("attack", "verdict", "measure", *numbers, collapse_padding=True)
    keys = ("value", "chance", "perfect", *["closed_form"] * theory)
    several = any("leaks" in row for row in rows)
    for row in rows:
        cells = (MISSING if row[key] is None else f"{row[key]:.3f}" for key in keys)
        verdict = Text(row["verdict"], _STYLES.get(row["verdict"], ""))
        table.add_row(_name(row), verdict, row["metric"], *_leak(row), *cells, str(row["clients"]))
    table.caption = (
        f"{_leak_words(rows)}; found: mean over the rounds{' and seeds' if several else ''}; chance: by guessing; "
        f"all: if everything leaked; {'theory: closed form; ' * theory}clients: scored in the last round"
    )
    return table


def _leaks(rows: Sequence[Row]) -> Table:
    numbers = (Column(head, justify="right", no_wrap=True) for head in ("leak", "±"))
    table = new_table("attack", Column("verdict", no_wrap=True), *numbers)
    for row in rows:
        table.add_row(_name(row), Text(row["verdict"], _STYLES.get(row["verdict"], "")), *_leak(row))
    table.caption = f"{_leak_words(rows)}. A wider terminal, --json and the report show the measures"
    return table


def _name(row: Row) -> str:
    return str(row["name"]) + (f" (round {row['round']})" if row["round"] else "")


def _leak(row: Row) -> tuple[str, str]:
    from coterie.runs.findings import noise

    return f"{row['leak']:.3f}", leak_half(noise(row), 3)


def _leak_words(rows: Sequence[Row]) -> str:
    from coterie.runs.findings import noise

    return f"leak: 0 is chance, 1 is everything; {leak_halves([noise(row) for row in rows])}"


_STYLES = {"everything": "bold red", "much": "red", "a little": "yellow"}
