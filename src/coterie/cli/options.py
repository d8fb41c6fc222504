"""The options that ``run`` and ``compare`` share, and how they become a run's config."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

_WORK, _HOW, _KEEP = "The work", "How it runs", "What is kept"

Data = Annotated[
    str | None, typer.Option("--data", help="Data set; see `coterie list datasets`. [digits]", rich_help_panel=_WORK)
]
Clients = Annotated[
    int | None, typer.Option("--clients", help="Number of clients. [by data set]", rich_help_panel=_WORK)
]
Rounds = Annotated[int | None, typer.Option("--rounds", help="Number of rounds. [by data set]", rich_help_panel=_WORK)]
Partition = Annotated[
    str | None,
    typer.Option(
        "--partition",
        help="Which client holds which samples, for example dirichlet:0.3, and groups with different tasks, for "
        "example permute:4 or rotate:4+dirichlet:0.3; see `coterie list partitions`. [by data set]",
        rich_help_panel=_WORK,
    ),
]
ModelName = Annotated[
    str | None, typer.Option("--model", help="Model; see `coterie list models`. [by data set]", rich_help_panel=_WORK)
]
Seed = Annotated[
    int | None,
    typer.Option(
        "--seed", help="Seed of the experiment: partition, start weights, sampling. [0]", rich_help_panel=_WORK
    ),
]
MinSamples = Annotated[
    int | None, typer.Option("--min-samples", help="Fewest training samples of a client.", rich_help_panel=_WORK)
]
Scaling = Annotated[
    str | None,
    typer.Option(
        "--scaling",
        help="Scaling of the samples: standard (mean 0, deviation 1) or unit (0 to 1). [standard]",
        rich_help_panel=_WORK,
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A setting of the system, e.g. lr=0.1; see `coterie list systems NAME`. Can be repeated.",
        rich_help_panel=_WORK,
    ),
]
Mode = Annotated[
    str | None,
    typer.Option(
        "--mode",
        help="paper (its intent), literal (as printed) or hardened (better protected). [paper]",
        rich_help_panel=_HOW,
    ),
]
Crypto = Annotated[
    str | None,
    typer.Option(
        "--crypto",
        help="real, or emulated: the same training without encryption, which is faster. [real]",
        rich_help_panel=_HOW,
    ),
]
Devices = Annotated[
    str | None,
    typer.Option(
        "--devices", help="Fleet of the clients: uniform, paper, mobile, slow_tail, FILE.toml.", rich_help_panel=_HOW
    ),
]
Delta = Annotated[
    float | None,
    typer.Option(
        "--delta",
        metavar="SHARE",
        help="Share of the clients asked in a round, 0 to 1, whose answers come rounds late, whatever their devices. "
        "It applies to every system. [0; 0.3 for pafed and the baselines with late updates]",
        rich_help_panel=_HOW,
    ),
]
Delay = Annotated[
    str | None,
    typer.Option(
        "--delay",
        metavar="LAW",
        help="By how many rounds these answers are late: uniform:A-B (A to B, all equally often) or geometric:P (one "
        "more with probability 1 - P). [uniform:1-5]",
        rich_help_panel=_HOW,
    ),
]
Precision = Annotated[str | None, typer.Option("--precision", help="fp32, bf16, auto. [fp32]", rich_help_panel=_HOW)]
Accelerator = Annotated[str | None, typer.Option("--accelerator", help="cpu, cuda, auto. [auto]", rich_help_panel=_HOW)]
DataDir = Annotated[
    str | None, typer.Option("--data-dir", help="Folder of data sets. [COTERIE_DATA]", rich_help_panel=_HOW)
]
EvalEvery = Annotated[
    int | None, typer.Option("--eval-every", help="Rounds between evaluations. [1]", rich_help_panel=_KEEP)
]
FineTune = Annotated[
    bool | None,
    typer.Option(
        "--fine-tune/--no-fine-tune",
        help="Also score every model after each client's own fine-tuning. A fifth of each client's training data is "
        "held out to choose the epochs.",
        rich_help_panel=_HOW,
    ),
]
FineTuneEvery = Annotated[
    int | None,
    typer.Option(
        "--fine-tune-every",
        help="Rounds between evaluations of fine-tuned models; 0: only after the last round. [0]",
        rich_help_panel=_KEEP,
    ),
]
CheckpointEvery = Annotated[
    int | None,
    typer.Option(
        "--checkpoint-every",
        help="Rounds between checkpoints; 0: as often as costs at most a tenth of the time. [0]",
        rich_help_panel=_KEEP,
    ),
]
Record = Annotated[
    bool | None,
    typer.Option("--record/--no-record", help="Keep what every party received (views.bin).", rich_help_panel=_KEEP),
]
RecordMib = Annotated[
    int | None, typer.Option("--record-mib", help="Stop recording at this size, in MiB. [1024]", rich_help_panel=_KEEP)
]
Out = Annotated[Path | None, typer.Option("--out", help="Run folder. [runs/...]", rich_help_panel=_KEEP)]
Config = Annotated[
    Path | None, typer.Option("--config", help="TOML file with any of these options.", rich_help_panel=_HOW)
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run in --out.", rich_help_panel=_KEEP)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the result only.", rich_help_panel=_KEEP)]


NAMES = (
    "system",
    "data",
    "clients",
    "rounds",
    "partition",
    "model",
    "mode",
    "crypto",
    "seed",
    "devices",
    "delta",
    "delay",
    "eval_every",
    "fine_tune",
    "fine_tune_every",
    "checkpoint_every",
    "precision",
    "accelerator",
    "min_samples",
    "scaling",
    "record",
    "record_mib",
    "data_dir",
    "out",
)


def given(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The given options of a run among a command's parameters, in the form of a config."""
    found = {name: parameters[name] for name in NAMES if parameters.get(name) is not None}
    if "fine_tune" in found:
        found["fine_tune"] = "held_out" if found["fine_tune"] else "no"
    return {name: str(value) if isinstance(value, Path) else value for name, value in found.items()}
