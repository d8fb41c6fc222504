"""``coterie compare``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

import typer

from coterie.cli import options as opt
from coterie.cli.compared import console, lead_table, tables
from coterie.cli.guard import guarded
from coterie.cli.progress import bars
from coterie.protocol.errors import UserError

Methods = Annotated[list[str] | None, typer.Argument(help="Systems, as NAME or NAME@MODE; see `coterie list systems`.")]
Seeds = Annotated[
    int, typer.Option("--seeds", help="Run each method with this many seeds. Several seeds give 95 % intervals.")
]
Audit = Annotated[
    bool, typer.Option("--audit", help="Record all views and attack them. Adds columns for what the servers learned.")
]
_fair = partial(typer.Option, rich_help_panel=opt.FAIR)
Budget = Annotated[
    str | None, _fair("--budget", metavar="METHOD", help="The method whose budget all share. [the first]")
]
EachOwn = Annotated[bool, _fair("--each-own", help="Every method keeps its own defaults, so the race is not fair.")]
Local = Annotated[bool, _fair("--local/--no-local", help="Add the baseline of clients that train alone. [local]")]


@guarded
@opt.shared("fine_tune")
def compare(
    methods: Methods = None,
    seeds: Seeds = 1,
    audit: Audit = False,
    budget: Budget = None,
    each_own: EachOwn = False,
    local: Local = True,
    **options: Any,
) -> None:
    """Compare several methods on the same data, partition, seeds and budget, in one table and one report.

    The budget (participation, epochs, batches, optimiser, learning rate, server step, delays) is that of the first
    method. What a method cannot share is listed. --set key=value applies to every method that has this setting, --set
    method.key=value to that method. Clients that train alone are added as `local`. Every model is also scored after
    fine-tuning. A method is really better if it is ahead of `local`, also after fine-tuning. Writes a folder with a run
    folder for each method, compare.json and report.html.

    Examples:

      coterie compare fedcaprivacy fedcaprivacy@hardened fedavg

      coterie compare fedcaprivacy@hardened ifca fedavg --data fashion_mnist --partition permute:4 --crypto emulated
      --seeds 3

      coterie compare fedavg fedprox --set fedprox.mu=0.1 --set max_epochs=10
    """
    from coterie.report import race, render
    from coterie.runs.comparison import compare as compare_them
    from coterie.runs.comparison import plan
    from coterie.runs.config import check_options, read_toml, resolve
    from coterie.runs.learned import attackable, learned
    from coterie.runs.settings import assignments

    if seeds < 1:
        raise UserError(f"--seeds must be at least 1, not {seeds}")
    config = options["config"]
    file = {} if config is None else read_toml(config)
    unused = [key for key in ("system", "settings") if file.pop(key, None)]
    if unused:
        raise UserError(
            f"{config}: {' and '.join(unused)} cannot stand in a comparison's file: use arguments and --set"
        )
    given = {"fine_tune": "held_out", **file, **check_options(opt.given(options))}
    where, first = given.pop("out", None), given.pop("seed", 0)
    if audit:
        given["record"] = True
    settings = assignments(options["set"] or [])
    planned = plan(methods or [], given, settings, budget_from=budget, each_own=each_own, local=local)
    if audit:
        for method in planned.methods:
            attackable(method.config.system)
    attacked = partial(learned, data_dir=given.get("data_dir")) if audit else None
    wanted = [first + k for k in range(seeds)]
    length = int(resolve(planned.methods[0].config).rounds or 0)
    with bars(options["quiet"]) as shown:

        def told(label: str, of_seed: int, line: Mapping[str, Any]) -> None:
            shown.advance(f"{label}, seed {of_seed}", length, line)

        done = compare_them(planned, wanted, where, told, resume=options["resume"], learned=attacked)
    report = render([done.folder], done.folder / "report.html")
    content, shell = done.content, console()
    shell.print(race.budget(content), markup=False)
    for line in race.not_shared(content):
        shell.print(line, markup=False)
    for table in tables(content["rows"], shell):
        shell.print(table)
    if seeds > 1:
        shell.print(lead_table(content["rows"][0]["method"], content["leads"]))
    for line in race.sentences(content["rows"]):
        shell.print(line, markup=False)
    shell.print(f"\nReport: {report}", markup=False)
