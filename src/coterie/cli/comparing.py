"""``coterie compare``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from coterie.cli import options as opt
from coterie.cli.compared import console, lead_table, tables
from coterie.cli.guard import guarded
from coterie.cli.progress import bars
from coterie.protocol.errors import UserError

_FAIR = "What is the same for all"

Methods = Annotated[list[str] | None, typer.Argument(help="Systems, as NAME or NAME@MODE; see `coterie list systems`.")]
Seeds = Annotated[
    int, typer.Option("--seeds", help="Run each method with this many seeds. Several seeds give 95 % intervals.")
]
Budget = Annotated[
    str | None,
    typer.Option(
        "--budget", metavar="METHOD", help="The method whose budget all share. [the first]", rich_help_panel=_FAIR
    ),
]
EachOwn = Annotated[
    bool,
    typer.Option(
        "--each-own", help="Every method keeps its own defaults, so the race is not fair.", rich_help_panel=_FAIR
    ),
]
Local = Annotated[
    bool,
    typer.Option(
        "--local/--no-local", help="Add the baseline of clients that train alone. [local]", rich_help_panel=_FAIR
    ),
]
Audit = Annotated[
    bool, typer.Option("--audit", help="Record all views and attack them. Adds columns for what the servers learned.")
]


@guarded
def compare(
    methods: Methods = None,
    seeds: Seeds = 1,
    data: opt.Data = None,
    clients: opt.Clients = None,
    rounds: opt.Rounds = None,
    partition: opt.Partition = None,
    model: opt.ModelName = None,
    seed: opt.Seed = None,
    min_samples: opt.MinSamples = None,
    scaling: opt.Scaling = None,
    set_: opt.Set = None,
    budget: Budget = None,
    each_own: EachOwn = False,
    fine_tune: opt.FineTune = None,
    local: Local = True,
    audit: Audit = False,
    mode: opt.Mode = None,
    crypto: opt.Crypto = None,
    devices: opt.Devices = None,
    delta: opt.Delta = None,
    delay: opt.Delay = None,
    precision: opt.Precision = None,
    accelerator: opt.Accelerator = None,
    data_dir: opt.DataDir = None,
    config: opt.Config = None,
    eval_every: opt.EvalEvery = None,
    fine_tune_every: opt.FineTuneEvery = None,
    checkpoint_every: opt.CheckpointEvery = None,
    record: opt.Record = None,
    record_mib: opt.RecordMib = None,
    out: opt.Out = None,
    resume: opt.Resume = False,
    quiet: opt.Quiet = False,
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
    given = opt.given(locals())
    from coterie.report import race, render
    from coterie.runs.comparison import compare as compare_them
    from coterie.runs.comparison import plan
    from coterie.runs.config import check_options, read_toml, resolve
    from coterie.runs.settings import assignments

    if seeds < 1:
        raise UserError(f"--seeds must be at least 1, not {seeds}")
    file = {} if config is None else read_toml(config)
    unused = [key for key in ("system", "settings") if file.pop(key, None)]
    if unused:
        raise UserError(
            f"{config}: {' and '.join(unused)} cannot stand in a comparison's file: use arguments and --set"
        )
    options = {"fine_tune": "held_out", **file, **check_options(given)}
    where, first = options.pop("out", None), options.pop("seed", 0)
    if audit:
        options["record"] = True
    planned = plan(methods or [], options, assignments(set_ or []), budget_from=budget, each_own=each_own, local=local)
    if audit:
        from coterie.runs.learned import attackable

        for method in planned.methods:
            attackable(method.config.system)
    wanted = [first + k for k in range(seeds)]
    with bars(quiet) as shown:
        length = int(resolve(planned.methods[0].config).rounds or 0)

        def told(label: str, of_seed: int, line: Mapping[str, Any]) -> None:
            shown.advance(f"{label}, seed {of_seed}", length, line)

        learned = _learned(options.get("data_dir")) if audit else None
        done = compare_them(planned, wanted, where, told, resume=resume, learned=learned)
    report = done.folder / "report.html"
    render([done.folder], report)
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


def _learned(data_dir: str | None) -> Any:
    from coterie.runs.learned import learned

    return lambda folder: learned(folder, data_dir)
