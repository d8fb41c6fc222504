"""Which configs make sense between machines, and the form of samples."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from math import inf
from pathlib import Path

import numpy as np

from coterie.data.columns import Schema
from coterie.data.form import SampleForm
from coterie.data.neighbourhoods import as_nodes
from coterie.data.own import PARTIES, is_path
from coterie.data.sources import load
from coterie.deploy.plan import GIB, MOST_GIB, Settings, common_of
from coterie.protocol.core import Entry, Roster, UserError
from coterie.record.comparison import PRIOR
from coterie.runs import Resolved, RunConfig, defaults_for, from_toml, read_toml, resolve
from coterie.runs.metrics import metrics_of, named
from coterie.training.models import build
from coterie.training.names import GRAPH_MODEL

_DATA = "every party brings its own data (coterie deploy join --data)"
_WHY: Mapping[str, str] = {
    _DATA: "partition samples test_samples min_samples target gaps categories test_share folds kind augment",
    "the plan has it (coterie deploy init --schema)": "schema",
    "samples are the model's inputs as their owners scaled them": "scaling",
    "members.toml names them": "clients",
    "the hub's public samples are a file (coterie deploy init --public)": "public",
    "parties run on their own devices, at their own speed": "devices availability",
    "clients are late when they are late": "delta delay",
    "each party says which it has (coterie deploy join --accelerator)": "accelerator",
    "a party's data are its own, and go to nobody else": "drift",
    "an attack is an experiment, and these are real parties": "attack attackers",
    "emulated ciphers keep nothing secret": "crypto",
    "nobody sees all parties' models or messages": "fine_tune fine_tune_every early_stop record record_mib",
    "parties score their models after every round": "eval_every",
    "parties score their models on all of their own test samples": "evaluate",
    "the run folder has metrics.jsonl, and coterie deploy hub has an endpoint for Prometheus (--metrics)": "log",
    "every party stores each step that it has done": "checkpoint_every",
    "the run folder is run/ of the deployment": "out",
}
SENSELESS: Mapping[str, str] = {name: why for why, names in _WHY.items() for name in names.split()}
"""Options that real parties do not have, and why."""
# also refused in a rehearsal, with its dealt data and virtual clock
_IN_REHEARSAL = frozenset(
    {
        "drift",
        "attack",
        "attackers",
        "availability",
        "record",
        "fine_tune",
        "fine_tune_every",
        "early_stop",
        "log",
        "out",
    }
)


def scores_of(config: RunConfig) -> tuple[str, ...]:
    """What a party may report: each metric, with ``label_counts`` also with its labels' prior, loss, samples. Raises
    UserError.
    """
    measures = metrics_of(named(config.metrics or defaults_for(config.data).metrics), config.task)
    found = [f"local_{metric.name}" for metric in measures]
    resolved = resolve(config)
    counted = found if resolved.definition.counts_labels(resolved.own) else ()
    return (*found, *(f"{PRIOR}{name}" for name in counted), "local_loss", "samples")


def deployable(
    config: RunConfig, *, rehearsal: bool = False, clients: int | None = None, patience_s: float = inf
) -> Resolved:
    """The resolved config of a deployment. Raises UserError that lists all senseless options.

    config: default values count as not given.  clients: their number.  patience_s: of the plan, for a real clock.
    """
    default = {field.name: field.default for field in fields(RunConfig)}
    refused = {
        name: why
        for name, why in SENSELESS.items()
        if getattr(config, name) != default[name] and (not rehearsal or name in _IN_REHEARSAL)
    }
    if refused:
        reasons = "; ".join(f"{name} ({why})" for name, why in refused.items())
        raise UserError(f"the config has options that make no sense between machines, so leave them out: {reasons}")
    if not rehearsal:
        if is_path(config.data):
            raise UserError(f"data is {config.data!r}, and {_DATA}: name a data set whose samples look like theirs")
        precision = "fp32" if config.precision == "auto" else config.precision  # of all parties, whatever they have
        config = replace(config, accelerator="cpu", clients=clients, partition="iid", precision=precision)
    found = resolve(config)
    found.definition.check_deployed(found.own, inf if rehearsal else patience_s)
    return found if rehearsal else replace(found, data_dir=None)


def check_room(config: Resolved, facts: SampleForm, clients: int, settings: Settings) -> None:
    """Raises UserError if a packet cannot hold this model, or the server those of all clients.

    A parameter has 4 bytes, in ciphers at least twice as many. A client's several models come in one packet.
    """
    model = build(str(config.model), facts.input_shape, facts.outputs, config.task, config.loss)
    models = config.own.models
    least = models * model.spec.size * (8 if config.definition.encrypts(config.mode) else 4) / GIB
    it = "it" if models == 1 else f"{models} such models"
    for what, need, allowed, option in (
        (f"a packet with {it}", least, settings.packet_gib, f"--packet-gib (at most {MOST_GIB:g})"),
        (f"what waits at the server for {clients} clients", clients * least, settings.store_gib, "--store-gib"),
    ):
        if need > allowed:
            raise UserError(
                f"the model {config.model} has {model.spec.size:,} parameters: {what} has {need:.3g} GiB or more, and "
                f"{allowed:g} GiB are allowed. Give deploy init a larger {option}, and machines with this room, or "
                "take a smaller model"
            )


def check_works(
    config: Resolved, facts: SampleForm, members: Iterable[tuple[str, str]], settings: Settings, warm: bool = False
) -> None:
    """Raises UserError for settings with which the hub would refuse to begin.  members: names and roles, in order."""
    spec = build(str(config.model), facts.input_shape, facts.outputs, config.task, config.loss).spec
    roster = Roster(b"", tuple(Entry(name, role, b"", b"") for name, role in members), b"")
    starts = np.zeros((config.own.models, spec.size), np.float32)
    config.definition.check(config.own, common_of(config, roster, spec, starts, settings.public, warm))


def read_config(
    path: Path, shape: str | None, outputs: int | None, schema: Schema | None = None
) -> tuple[RunConfig, SampleForm]:
    """The operator's config, and the form of samples, by its data set, by shape and outputs, or by a schema. Raises
    UserError.
    """
    said = read_toml(path)
    if schema is not None and ((shape, outputs) != (None, None) or {"data", "task"} & {*said}):
        raise UserError(
            "the schema says what samples look like: leave --shape and --outputs out, and data and task in the file"
        )
    if "data" in said:
        config = from_toml(path)
    elif schema is not None or (shape is not None and outputs is not None):
        config = from_toml(path, data=PARTIES)
    else:
        raise UserError(
            f"say what samples look like: with --schema; with --shape and --outputs, such as --shape 1x28x28 --outputs "
            f'10; or in {path} with a data set that looks like them, such as data = "mnist"'
        )
    return config, facts_of(config, shape, outputs, schema)


_SHAPE = re.compile(r"[1-9][0-9]{0,8}(?:x[1-9][0-9]{0,8}){0,3}")


def facts_of(
    config: RunConfig, shape: str | None = None, outputs: int | None = None, schema: Schema | None = None
) -> SampleForm:
    """shape: ``1x28x28``.  outputs: of the model.  schema: gives both.

    Raises UserError for a model that cannot take them.
    """
    if shape is not None and not _SHAPE.fullmatch(shape):
        raise UserError(f"--shape is {shape[:40]!r}; it is the shape of one sample, such as 1x28x28 or 30")
    if outputs is not None and outputs < 1:
        raise UserError(f"--outputs is {outputs}; it is the number of classes, or of a model's outputs, 1 or more")
    if schema is not None:
        facts = SampleForm.of(schema)
    else:
        if shape is None or outputs is None:
            found = _of_data(config)
            shape = shape or "x".join(map(str, found.input_shape))
            outputs = outputs or found.outputs
        facts = SampleForm(tuple(int(n) for n in shape.split("x")), outputs, config.task)
    resolved = resolve(replace(config, accelerator="cpu"))
    build(str(resolved.model), facts.input_shape, facts.outputs, config.task, config.loss)
    return facts


def _of_data(config: RunConfig) -> SampleForm:
    if is_path(config.data):
        raise UserError(
            f"data is {config.data!r}, but every party brings its own: say what samples look like with --shape and "
            "--outputs, such as --shape 1x28x28 --outputs 10, or name a data set that looks like them"
        )
    dataset = load(config.data, config.data_dir)
    dataset = as_nodes(dataset) if config.model == GRAPH_MODEL else dataset
    return SampleForm(dataset.input_shape, dataset.classes, config.task)
