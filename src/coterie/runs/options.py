"""A run's options, for command line and API."""
# the command line reads this file first, so it imports little

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from msgspec import Meta

from coterie.protocol.options import Option, TaskKind
from coterie.runs.settings import field_types

WORK, HOW, KEEP = "The work", "How it runs", "What is kept"
"""Panels of options in the help of a command."""


@dataclass(frozen=True)
class RunConfig:
    """One training run. ``resolve`` fills in options that are None or missing.

    system: a name that ``coterie list systems`` shows, or ``module:ATTRIBUTE`` of your own.  settings: of the system,
    by the names of its config's fields. The options, as on the command line, and their defaults:

    >>> coterie.runs.run(RunConfig("fedavg", data="digits", rounds=5, settings={"lr": 0.1}))

    data: Data set; see `coterie list datasets`. Or the path of your own: a folder of one csv, npz or parquet file a
    client, or such a file. [digits]
    target: Column of labels in your own tables. [label, y, target or class]
    gaps: What gaps in features of your own tables become: the mean over all clients' training samples. [refused]
    categories: Columns of your own tables, such as sex,stage, whose values become one input each. [none]
    schema: Schema of your own tables (TOML), which `coterie prepare` proposes. [none]
    test_share: Share of each client's samples that tests, for your own data without a split. [0.2]
    folds: Cross-validation of your own data, or of heart: each client's samples are cut into so many parts, and each
    seed tests another one. [5 for heart; else --test-share]
    kind: What your own arrays hold: image, tabular, series, volume. [by shape]
    clients: Number of clients. [by data set]
    rounds: Number of rounds. [by data set]
    partition: Which client holds which samples, for example dirichlet:0.3, and groups with different tasks, for example
    permute:4 or rotate:4+dirichlet:0.3; see `coterie list partitions`. [by data set]
    samples: Use only so many training samples of the data set, drawn by the seed. [all]
    test_samples: Use only so many test samples of the data set, drawn by the seed. [all]
    public: Share of the training data, 0 to 0.5, that the server holds as public data. It is taken away before the
    partition, for every method alike. [0; by the system where its server needs some]
    task: What is learnt from your own data: classes, multilabel or regression. [classes]
    metrics: Metrics beside the loss, such as auroc,f1; see `coterie list metrics`. [by task]
    loss: Loss of the training, or your own as module:FUNCTION. [by task]
    class_weights: Weights of the classes in training: balanced, or numbers such as 1,5. [none]
    model: Model; see `coterie list models`. Or yours, as module:FACTORY of input shape and outputs. [by data set]
    seed: Seed of the experiment: partition, start weights, sampling. [0]
    min_samples: Fewest training samples of a client.
    augment: Augmented views of each client's subgraph that are added to its training nodes (graphs, model gcn). [0]
    scaling: Scaling of the samples: standard (mean 0, deviation 1) or unit (0 to 1). [standard]
    mode: paper (its intent), literal (as printed) or hardened (better protected). [paper]
    crypto: real, or emulated: the same training without encryption, which is faster. [real]
    devices: Fleet of the clients: uniform, paper, mobile, slow_tail, mixed, jetson, FILE.toml. [uniform]
    availability: When clients are there: diurnal (a week of phones), or FILE.csv with rows client,start_s,end_s. A
    round begins an hour of virtual time after the last one, or @SECONDS: diurnal@600. [always]
    delta: Share of the clients asked in a round, 0 to 1, whose answers come rounds late, whatever their devices. It
    applies to every system. [0; 0.3 for pafed and the baselines with late updates]
    delay: By how many rounds these answers are late: uniform:A-B (A to B, all equally often) or geometric:P (one more
    with probability 1 - P). [uniform:1-5]
    drift: Before that round this share of the clients exchange their data in a cycle, for example 0.2@10. [none]
    attack: Some clients misbehave, for example scale:10 or backdoor; see `coterie list poisoning`. All scores are then
    means over the honest clients. It applies to every system. [none]
    attackers: Share of the clients that misbehave, drawn by the seed. [0.2]
    precision: Products that train a classifier with convolutions: fp32; bf16, about twice as fast where a GPU or the
    processor (AMX; of AMD AVX512-BF16) has them; auto, the faster. All else is fp32. [auto]
    accelerator: cpu, cuda, auto. [auto]
    workers: Where trainings run: ray (a Ray cluster on this machine, one worker a core), ray:COUNT, or the address of a
    cluster, ray://HOST:PORT. The models are the same. Needs the extra ray. [this process]
    data_dir: Folder of data sets. [COTERIE_DATA]
    fine_tune: Also score every model after each client's own fine-tuning. A fifth of each client's training data is
    held out to choose the epochs.
    early_stop: Stop after so many evaluations without a lower loss on a fifth of each client's training data, which is
    held out, and keep the best round's models. In simulations alone. [never]
    eval_every: Rounds between evaluations. [1]
    evaluate: What is scored. sample: 1,000 clients where there are more; and where a task has more than 10 distinct
    models, each on the same sample of the test set, some 2,000 of 10,000, which moves a client's accuracy by a standard
    error of at most 1 percentage point. all: every client and sample. [sample; in a comparison: all]
    evaluated: Score only so many clients, drawn by the seed. [by --evaluate]
    fine_tune_every: Rounds between evaluations of fine-tuned models; 0: only after the last round. [0]
    checkpoint_every: Rounds between checkpoints; 0: as often as costs at most a twentieth of the time. [0]
    record: Keep what every party received (views.bin).
    record_mib: Stop recording at this size, in MiB. [1024]
    log: Also tell this tool every round's numbers: csv (rounds.csv), tensorboard, mlflow, wandb. Can be repeated.
    out: Run folder. [runs/...]
    """

    system: str
    data: Annotated[str, Option(metavar="NAME", known="datasets")] = "digits"
    target: str | None = None
    gaps: Literal["mean"] | None = None
    categories: str | None = None
    schema: Annotated[str | None, Option(metavar="FILE", path=True)] = None
    test_share: Annotated[float | None, Meta(gt=0, lt=1)] = None
    folds: Annotated[int | None, Meta(ge=2)] = None
    kind: Literal["image", "tabular", "series", "volume"] | None = None
    clients: Annotated[int | None, Meta(ge=1)] = None
    rounds: Annotated[int | None, Meta(ge=1)] = None
    partition: Annotated[str | None, Option(known="partitions")] = None
    samples: Annotated[int | None, Meta(ge=1)] = None
    test_samples: Annotated[int | None, Meta(ge=1)] = None
    public: Annotated[float | None, Meta(ge=0, le=0.5), Option(metavar="SHARE")] = None
    task: TaskKind = "classes"
    metrics: Annotated[str | None, Option(metavar="NAMES")] = None
    loss: str | None = None
    class_weights: str | None = None
    model: Annotated[str | None, Option(metavar="NAME", known="models")] = None
    seed: Annotated[int, Meta(ge=0)] = 0
    min_samples: Annotated[int | None, Meta(ge=0)] = None
    augment: Annotated[int, Meta(ge=0), Option(metavar="VIEWS")] = 0
    scaling: Literal["standard", "unit"] = "standard"
    mode: Annotated[str, Option(HOW, known="modes")] = "paper"
    crypto: Annotated[Literal["real", "emulated"], Option(HOW)] = "real"
    devices: Annotated[str, Option(HOW, metavar="NAME", known="devices")] = "uniform"
    availability: Annotated[str | None, Option(HOW, metavar="TRACE", known="traces")] = None
    delta: Annotated[float | None, Meta(ge=0, le=1), Option(HOW, metavar="SHARE")] = None
    delay: Annotated[str, Option(HOW, metavar="LAW")] = "uniform:1-5"
    drift: Annotated[str | None, Option(HOW, metavar="SHARE@ROUND")] = None
    attack: Annotated[str | None, Option(HOW, metavar="KIND[:STRENGTH]", known="poisonings")] = None
    attackers: Annotated[float | None, Meta(gt=0, lt=1), Option(HOW, metavar="SHARE")] = None
    precision: Annotated[Literal["fp32", "bf16", "auto"], Option(HOW)] = "auto"
    accelerator: Annotated[Literal["cpu", "cuda", "auto"], Option(HOW)] = "auto"
    workers: Annotated[str | None, Option(HOW, metavar="WORKERS")] = None
    data_dir: Annotated[str | None, Option(HOW, metavar="PATH")] = None
    fine_tune: Annotated[Literal["no", "held_out", "own_epochs"], Option(HOW, flags="--fine-tune/--no-fine-tune")] = (
        "no"
    )
    early_stop: Annotated[int | None, Meta(ge=1), Option(HOW, metavar="EVALUATIONS")] = None
    eval_every: Annotated[int, Meta(ge=1), Option(KEEP)] = 1
    evaluate: Annotated[Literal["sample", "all"], Option(KEEP)] = "sample"
    evaluated: Annotated[int | None, Meta(ge=1), Option(KEEP, metavar="CLIENTS")] = None
    fine_tune_every: Annotated[int, Meta(ge=0), Option(KEEP)] = 0
    checkpoint_every: Annotated[int, Meta(ge=0), Option(KEEP)] = 0
    record: Annotated[bool, Option(KEEP, flags="--record/--no-record")] = False
    record_mib: Annotated[int, Meta(ge=1), Option(KEEP)] = 1024
    log: Annotated[str | None, Option(KEEP, metavar="NAME", known="logs", many=True)] = None
    out: Annotated[str | None, Option(KEEP, path=True)] = None
    settings: Mapping[str, Any] = field(default_factory=dict)


OPTIONS = {name: options for name, options in field_types(RunConfig).items() if name != "settings"}
