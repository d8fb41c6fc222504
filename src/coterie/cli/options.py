"""The options that ``run`` and ``compare`` share, and how they become a run's config."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from coterie.cli import completing
from coterie.cli.completing import choices

WORK, FAIR, HOW, KEEP = _PANELS = ("The work", "What is the same for all", "How it runs", "What is kept")

F = TypeVar("F", bound=Callable[..., None])


def _option(
    panel: str,
    name: str,
    kind: Any,
    words: str,
    *,
    flags: tuple[str, ...] = (),
    metavar: str | None = None,
    default: bool | None = None,
    words_of: Callable[..., completing.Words] | None = None,
) -> inspect.Parameter:
    """flags: where the name alone does not give them.  words_of: what the shell completes."""
    flags = flags or (f"--{name.replace('_', '-')}",)
    told = typer.Option(*flags, help=words, metavar=metavar, rich_help_panel=panel, autocompletion=words_of)
    annotation = Annotated[kind | None, told]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


_work, _how, _keep = partial(_option, WORK), partial(_option, HOW), partial(_option, KEEP)
_OPTIONS = (
    _work(
        "data",
        str,
        "Data set; see `coterie list datasets`. Or the path of your own: a folder of one csv, npz or parquet file a "
        "client, or such a file. [digits]",
        metavar="NAME",
        words_of=completing.datasets,
    ),
    _work("target", str, "Column of labels in your own tables. [label, y, target or class]"),
    _work("test_share", float, "Share of each client's samples that tests, for your own data without a split. [0.2]"),
    _work(
        "kind", str, "What your own arrays hold: image, tabular, series, volume. [by shape]", words_of=choices("kind")
    ),
    _work("clients", int, "Number of clients. [by data set]"),
    _work("rounds", int, "Number of rounds. [by data set]"),
    _work(
        "partition",
        str,
        "Which client holds which samples, for example dirichlet:0.3, and groups with different tasks, for "
        "example permute:4 or rotate:4+dirichlet:0.3; see `coterie list partitions`. [by data set]",
        words_of=completing.partitions,
    ),
    _work("samples", int, "Use only so many training samples of the data set, drawn by the seed. [all]"),
    _work(
        "public",
        float,
        "Share of the training data, 0 to 0.5, that the server holds as public data. It is taken away before the "
        "partition, for every method alike. [0; by the system where its server needs some]",
        metavar="SHARE",
    ),
    _work(
        "task",
        str,
        "What is learnt from your own data: classes, multilabel or regression. [classes]",
        words_of=choices("task"),
    ),
    _work(
        "metrics",
        str,
        "Metrics beside the loss, such as auroc,f1; see `coterie list metrics`. [by task]",
        metavar="NAMES",
    ),
    _work("loss", str, "Loss of the training, or your own as module:FUNCTION. [by task]"),
    _work("class_weights", str, "Weights of the classes in training: balanced, or numbers such as 1,5. [none]"),
    _work(
        "model",
        str,
        "Model; see `coterie list models`. Or yours, as module:FACTORY of input shape and outputs. [by data set]",
        metavar="NAME",
        words_of=completing.models,
    ),
    _work("seed", int, "Seed of the experiment: partition, start weights, sampling. [0]"),
    _work("min_samples", int, "Fewest training samples of a client."),
    _work(
        "augment",
        int,
        "Augmented views of each client's subgraph that are added to its training nodes (graphs, model gcn). [0]",
        metavar="VIEWS",
    ),
    _work(
        "scaling",
        str,
        "Scaling of the samples: standard (mean 0, deviation 1) or unit (0 to 1). [standard]",
        words_of=choices("scaling"),
    ),
    _work(
        "set",
        list[str],
        "A setting of the system, e.g. lr=0.1; see `coterie list systems NAME`. Can be repeated.",
        metavar="KEY=VALUE",
        words_of=completing.settings,
    ),
    _how(
        "mode",
        str,
        "paper (its intent), literal (as printed) or hardened (better protected). [paper]",
        words_of=completing.modes,
    ),
    _how(
        "crypto",
        str,
        "real, or emulated: the same training without encryption, which is faster. [real]",
        words_of=choices("crypto"),
    ),
    _how(
        "devices",
        str,
        "Fleet of the clients: uniform, paper, mobile, slow_tail, mixed, jetson, FILE.toml. [uniform]",
        metavar="NAME",
        words_of=completing.devices,
    ),
    _how(
        "availability",
        str,
        "When clients are there: diurnal (a week of phones), or FILE.csv with rows client,start_s,end_s. A round "
        "begins an hour of virtual time after the last one, or @SECONDS: diurnal@600. [always]",
        metavar="TRACE",
        words_of=completing.traces,
    ),
    _how(
        "delta",
        float,
        "Share of the clients asked in a round, 0 to 1, whose answers come rounds late, whatever their devices. "
        "It applies to every system. [0; 0.3 for pafed and the baselines with late updates]",
        metavar="SHARE",
    ),
    _how(
        "delay",
        str,
        "By how many rounds these answers are late: uniform:A-B (A to B, all equally often) or geometric:P (one "
        "more with probability 1 - P). [uniform:1-5]",
        metavar="LAW",
    ),
    _how(
        "drift",
        str,
        "Before that round this share of the clients exchange their data in a cycle, for example 0.2@10. [none]",
        metavar="SHARE@ROUND",
    ),
    _how(
        "attack",
        str,
        "Some clients misbehave, for example scale:10 or backdoor; see `coterie list poisoning`. All scores are then "
        "means over the honest clients. It applies to every system. [none]",
        metavar="KIND[:STRENGTH]",
        words_of=completing.poisonings,
    ),
    _how("attackers", float, "Share of the clients that misbehave, drawn by the seed. [0.2]", metavar="SHARE"),
    _how("precision", str, "fp32, bf16, auto. [fp32]", words_of=choices("precision")),
    _how("accelerator", str, "cpu, cuda, auto. [auto]", words_of=choices("accelerator")),
    _how(
        "workers",
        str,
        "Where trainings run: ray (a Ray cluster on this machine, one worker a core), ray:COUNT, or the address of a "
        "cluster, ray://HOST:PORT. The models are the same. Needs the extra ray. [this process]",
        metavar="WORKERS",
    ),
    _how("data_dir", str, "Folder of data sets. [COTERIE_DATA]", metavar="PATH"),
    _how("config", Path, "TOML file with any of these options."),
    _how(
        "fine_tune",
        bool,
        "Also score every model after each client's own fine-tuning. A fifth of each client's training data is "
        "held out to choose the epochs.",
        flags=("--fine-tune/--no-fine-tune",),
    ),
    _keep("eval_every", int, "Rounds between evaluations. [1]"),
    _keep("evaluated", int, "Score only so many clients, drawn by the seed. [all]", metavar="CLIENTS"),
    _keep("fine_tune_every", int, "Rounds between evaluations of fine-tuned models; 0: only after the last round. [0]"),
    _keep("checkpoint_every", int, "Rounds between checkpoints; 0: as often as costs at most a tenth of the time. [0]"),
    _keep("record", bool, "Keep what every party received (views.bin).", flags=("--record/--no-record",)),
    _keep("record_mib", int, "Stop recording at this size, in MiB. [1024]"),
    _keep(
        "log",
        list[str],
        "Also tell this tool every round's numbers: csv (rounds.csv), tensorboard or mlflow. Can be repeated.",
        metavar="NAME",
        words_of=completing.logs,
    ),
    _keep("out", Path, "Run folder. [runs/...]"),
    _keep("resume", bool, "Continue the run in --out.", default=False),
    _keep("quiet", bool, "No progress, only warnings and the result.", flags=("--quiet", "-q"), default=False),
)


def shared(*first: str, without: Collection[str] = ()) -> Callable[[F], F]:
    """Give a command all of these options in the place of its ``**options``, by panels, below its own.

    first: those that lead their panel.  without: those that the command does not have.
    """
    shown = [p for p in _OPTIONS if p.name not in without]

    def with_options(command: F) -> F:
        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "options"]
        found = [p.replace(kind=p.KEYWORD_ONLY) for p in (*own, *sorted(shown, key=lambda p: p.name not in first))]
        found.sort(key=lambda p: (None, *_PANELS).index(p.annotation.__metadata__[0].rich_help_panel))
        command.__dict__["__signature__"] = inspect.Signature(found)
        return command

    return with_options


def listed(values: Sequence[str]) -> tuple[str, ...]:
    """The names in the values of an option that may be repeated, and each of which may hold several with commas."""
    return tuple(one.strip() for one in ",".join(values).split(",") if one.strip())


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """The given options of a run among a command's parameters, in the form of a config."""
    from coterie.runs.config import OPTIONS

    found = {name: options[name] for name in OPTIONS if options.get(name) is not None}
    if "fine_tune" in found:
        found["fine_tune"] = "held_out" if found["fine_tune"] else "no"
    words = {name: ",".join(value) for name, value in found.items() if isinstance(value, list)}
    return {**{name: str(v) if isinstance(v, Path) else v for name, v in found.items()}, **words}
