"""``coterie compare``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from coterie.cli import options as opt
from coterie.cli.guard import guarded
from coterie.cli.progress import bars, percent, seconds, size
from coterie.protocol.errors import UserError

Systems = Annotated[list[str] | None, typer.Argument(help="Systems; see `coterie list systems`.")]
Seeds = Annotated[int, typer.Option("--seeds", help="Run each with this many seeds and give mean ± deviation.")]


@guarded
def compare(
    systems: Systems = None,
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
    mode: opt.Mode = None,
    crypto: opt.Crypto = None,
    devices: opt.Devices = None,
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
    """The same work through several systems: same data, partition, seeds and rounds; one table, one report.

    --set key=value goes to every system that has such a setting, --set system.key=value to that one; --mode counts
    where a system has it. Writes a folder with a run folder each, compare.json and report.html.

    Examples:

      coterie compare fedcaprivacy fedavg ifca

      coterie compare fedcaprivacy fedavg --data fashion_mnist --partition dirichlet:0.1 --crypto emulated --seeds 3

      coterie compare fedavg fedprox --set fedprox.mu=0.1 --set max_epochs=10
    """
    given = opt.given(locals())
    from coterie.report import render
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
    options = {**file, **check_options(given)}
    where, first = options.pop("out", None), options.pop("seed", 0)
    plans = plan(systems or [], options, assignments(set_ or []))
    wanted = [first + k for k in range(seeds)]
    with bars(quiet) as shown:
        length = int(resolve(plans[0]).rounds or 0)

        def told(name: str, of_seed: int, line: Mapping[str, Any]) -> None:
            shown.advance(f"{name}, seed {of_seed}", length, line)

        done = compare_them(plans, wanted, where, told, resume=resume)
    report = done.folder / "report.html"
    render([done.folder], report)
    console = Console(highlight=False, soft_wrap=True)
    console.print(table(done.rows))
    console.print(f"Report: {report}", markup=False)


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """One row a system."""
    names = ("system", "cipher", "global\naccuracy", "local\naccuracy", "sent", "time", "virtual\ntime")
    made = Table(*names, box=SIMPLE, collapse_padding=True, pad_edge=False)
    for column in made.columns:
        column.no_wrap = True
    for column in made.columns[2:]:
        column.justify = "right"
    for row in rows:
        cells = [_shares(row["global_accuracy"]), _shares(row["local_accuracy"])]
        cells += [_mean(row["bytes_up"], size), _mean(row["seconds"], seconds), _mean(row["virtual_seconds"], seconds)]
        name = row["title"].replace(" (emulated cipher)", "")  # the next column says so
        made.add_row(name, row["crypto"], *cells)
    return made


def _shares(spread: Mapping[str, Any] | None) -> str:
    if spread is None:
        return percent(None)
    return percent(spread["mean"]) + (f" ± {100 * spread['std']:.1f}" if spread["std"] is not None else "")


def _mean(spread: Mapping[str, Any] | None, shown: Any) -> str:
    return str(shown(None if spread is None else spread["mean"]))
