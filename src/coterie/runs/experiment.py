"""A built run: data, model, parties and transport. It runs one round at a time, and writes nothing."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.clustering.agreement import grouping
from coterie.data.dataset import Dataset, Part
from coterie.data.hold_out import hold_out
from coterie.data.partition import Split
from coterie.data.sources import load
from coterie.data.tasks import Task, deal, of_clients
from coterie.devices.delays import Delays
from coterie.devices.profiles import Profile, fleet
from coterie.protocol.errors import RunError, UserError
from coterie.protocol.randomness import Randomness, rng
from coterie.protocol.roster import Identity, Roster
from coterie.protocol.steps import NoAnswerError
from coterie.protocol.system import ClientModel, Federation, Mixture, System
from coterie.protocol.told import Common, Own
from coterie.protocols.local_training import joined, local_epochs, sample_clients
from coterie.runs import registry
from coterie.runs.config import RunConfig, resolve, system_config
from coterie.runs.evaluation import Observer, Scores, models_digest
from coterie.runs.fine_tuning import Tuned, tune_by_held_out, tune_by_own_epochs
from coterie.runs.fleet_links import FleetLinks
from coterie.runs.interpreter import ClientData, LocalEffects, Samples
from coterie.runs.keyring import PartyKeys
from coterie.runs.parties import Parties
from coterie.runs.simulation import simulate
from coterie.runs.skipped import Watch, why_still
from coterie.training.engine import fit_many
from coterie.training.jobs import Job
from coterie.training.model import Model
from coterie.training.models import build as build_model
from coterie.training.solvers import Sgd
from coterie.transport.local import LocalTransport
from coterie.transport.meter import Meter
from coterie.transport.transcript import Transcript

Line = dict[str, Any]
"""What one round left, as it stands in ``metrics.jsonl``."""

_REASONS = 3  # shown where something failed for them


@dataclass(frozen=True, eq=False)
class Experiment:
    """Everything of one run, ready for its set-up. config: resolved.  settings: the system's own config object.

    tasks: of the split's groups, or the one task of all.  label_counts: (clients, classes) training samples, with the
    labels of the client's task.  held_out: by client, kept out of training; empty without ``fine_tune=held_out``.
    fingerprint: of data, partition and initial weights.
    """

    config: RunConfig
    system: System
    settings: Any
    model: Model
    split: Split
    tasks: tuple[Task, ...]
    label_counts: NDArray[np.int64]
    owns: Mapping[str, Own]
    federation: Federation
    effects: LocalEffects
    keyring: PartyKeys
    transport: LocalTransport
    delays: Delays
    observer: Observer
    held_out: Mapping[str, Samples]
    fingerprint: str
    watch: Watch = field(default_factory=Watch)

    @property
    def common(self) -> Common:
        """The facts that every party knows."""
        return self.federation.common

    @property
    def fine_tunes(self) -> bool:
        """Whether this run's models are fine-tuned.

        They are if it was asked for, clients have one model each, and the system has settings of local training.
        """
        known = all(hasattr(self.settings, name) for name in ("lr", "batch_size", "momentum", "weight_decay"))
        return self.config.fine_tune != "no" and self.system.fine_tunes and known

    @property
    def crypto(self) -> str:
        """``"real"``, ``"emulated"``, or ``"none"`` for a system that encrypts nothing."""
        return self.config.crypto if self.system.encrypted else "none"

    def models(self, r: int | None = None) -> dict[str, ClientModel]:
        """The current model of every client that has joined by round r (the last), in their order."""
        models = self.system.models(self.federation)
        here = joined(self.common.clients, self.settings, r or int(self.config.rounds or 1))
        return {name: models[name] for name in here}

    def set_up(self) -> Line:
        """The set-up before round 1. Returns its costs."""
        started = time.perf_counter()
        with _reasons(self.transport):
            self.transport.drive(self._hub().setup(), 0)
        costs = _costs(self.transport, time.perf_counter() - started)
        self.parties.rest()
        return costs

    def round(self, r: int) -> Line:
        """Run round r and observe it. Returns its line. Raises RunError if the run cannot go on."""
        self.watch.start(self.system, self.federation)
        started = time.perf_counter()
        try:
            with self.effects.watched(), _reasons(self.transport):
                notes = dict(self.transport.drive(self._hub().round(r), r) or {})
        except RunError as error:
            raise RunError(f"round {r}: {error}") from error
        if "skipped" in notes:
            notes["skipped"] = f"{notes['skipped']}{_why_refused(self.transport)}"
        self.took(r, notes)
        line: Line = {"round": r, **_costs(self.transport, time.perf_counter() - started), "notes": notes}
        observed = time.perf_counter()
        moved = self.watch.moved(self.system, self.federation)
        if not moved and "skipped" not in line["notes"]:
            line["notes"]["skipped"] = why_still(line, self.system.observe(self.federation).get("why_kept", ()))
        config = self.config
        last = r == config.rounds
        if last or r % config.eval_every == 0:
            models = self.models(r)
            scores = self.observer.scores(models)
            line |= {**scores.means(), "bands": scores.bands(), "models_sha256": models_digest(models)}
            line |= self.grouping()
        if self.fine_tunes and (last or (config.fine_tune_every and r % config.fine_tune_every == 0)):
            scores, tuned = self.fine_tuned(r)
            line |= {f"fine_tuned_{name}": value for name, value in scores.means().items()}
            line["fine_tuned_epochs"] = [one.epochs for one in tuned]
            untuned = [name for name, one in zip(self.models(r), tuned, strict=True) if one.diverged]
            line |= {"untuned": untuned} if untuned else {}
        self.parties.rest()
        return {**line, "observing_seconds": time.perf_counter() - observed}

    def grouping(self) -> Line:
        """``{"grouping": ...}`` for a system with clusters: their agreement with the data's own groups."""
        membership = self.system.observe(self.federation).get("membership")
        groups = None if self.split.groups is None else self.split.groups.tolist()
        return {} if membership is None else {"grouping": asdict(grouping(membership, groups))}

    def took(self, r: int, notes: Mapping[str, Any]) -> None:
        """Remember the clients whose updates stood out in round r, in this process or before a resumption."""
        self.effects.took(r, notes.get("outliers", {}), notes.get("participants", 0))

    def train_accuracy(self) -> float:
        """Mean accuracy of the clients' models on their own training data."""
        return float(self.observer.train_accuracies(self.models()).mean())

    def fine_tuned(self, r: int) -> tuple[Scores, list[Tuned]]:
        """Scores of every client's model after fine-tuning (``runs/fine_tuning.py``), and the tuned models."""
        models, parts = self.models(r), []
        tuned: list[Tuned] = []
        names = list(models)
        for start in range(0, len(names), self.effects.chunk):
            found = self._tune({name: models[name] for name in names[start : start + self.effects.chunk]}, r)
            parts.append(self.observer.scores({name: one.weights for name, one in found.items()}))
            tuned += found.values()
        return Scores(**{key: np.concatenate([vars(part)[key] for part in parts]) for key in vars(parts[0])}), tuned

    def _tune(self, models: Mapping[str, ClientModel], r: int) -> dict[str, Tuned]:
        of = self.settings
        solver = Sgd(of.lr, of.batch_size, of.momentum, of.weight_decay)  # the same for every method

        def seed(name: str, epoch: int) -> int:
            return int(rng(self.config.seed, name, "fine-tuning", r, epoch).integers(1 << 62))

        vectors = {name: model for name, model in models.items() if not isinstance(model, Mixture)}
        if len(vectors) < len(models):
            raise TypeError(f"{self.system.name} says that it fine-tunes, but leaves clients mixtures of models")
        if self.config.fine_tune == "held_out":
            return tune_by_held_out(self.effects, vectors, self.held_out, solver, seed)
        return tune_by_own_epochs(
            self.effects, vectors, {name: own.epochs for name, own in self.owns.items()}, solver, seed
        )

    def _hub(self) -> Any:
        return self.federation.parties[self.federation.hub]

    def close(self) -> None:
        """Remove the files of the transport and of parties on disk."""
        self.transport.close()
        self.parties.close()

    @property
    def parties(self) -> Parties:
        """All parties, in memory and on disk."""
        assert isinstance(self.federation.parties, Parties)
        return self.federation.parties


def _why_refused(transport: LocalTransport) -> str:
    """The refusals of this round with their reasons, for the observer. Coordinators are told no reasons."""
    refused = transport.meter.refused.most_common()
    more = f"; and {len(refused) - _REASONS} other reasons" if len(refused) > _REASONS else ""
    return f" ({'; '.join(reason for reason, _ in refused[:_REASONS])}{more})" if refused else ""


@contextlib.contextmanager
def _reasons(transport: LocalTransport) -> Iterator[None]:
    """Adds the reasons of refusals to the error of a step that failed."""
    try:
        yield
    except NoAnswerError as error:
        raise RunError(f"{error}{_why_refused(transport)}") from error


def _costs(transport: LocalTransport, seconds: float) -> Line:
    meter: Meter = transport.meter
    return {
        "bytes_up": dict(meter.bytes_up),
        "bytes_down": dict(meter.bytes_down),
        "envelope_bytes": dict(meter.envelope_bytes),
        "message_bytes": dict(meter.message_bytes),
        "seconds": seconds,
        "phase_seconds": dict(meter.seconds),
        "phase_virtual_seconds": dict(meter.virtual_seconds),
        "virtual_seconds": transport.clock_s,
        "refused": dict(meter.refused),
        "lost": dict(meter.lost),
        "late": list(meter.late),
    }


def build(config: RunConfig, founded: tuple[Roster, Mapping[str, Identity]] | None = None) -> Experiment:
    """Load, partition and build everything. Touches no run folder. Raises UserError for any mistake in the config.

    founded: the roster and identities of a run that goes on.
    """
    config = resolve(config)
    assert config.clients is not None
    assert config.partition is not None
    system, settings = registry.get(config.system), system_config(config)

    def data_set(name: str) -> Dataset:
        return replace(load(name, config.data_dir), scaling=config.scaling)

    dataset = data_set(config.data)
    split, tasks = deal(config.partition, dataset, config.clients, config.seed, config.min_samples, load=data_set)
    if config.fine_tune == "held_out":
        split = hold_out(split)
    model = build_model(str(config.model), dataset.input_shape, dataset.classes)
    names = tuple(f"client/{i}" for i in range(config.clients))
    devices = dict(zip(names, fleet(config.devices, config.clients, config.seed), strict=True))
    randomness = Randomness(config.seed, emulated=config.crypto == "emulated" or not system.encrypted)

    samples = _client_data(split, tasks, names)
    epochs = epochs_of(devices, settings, config.seed)
    starts = _starts(config, settings, model, split, [samples[name] for name in names])
    sizes = {name: len(own.y) for name, own in samples.items()}
    federation, owns = simulate(
        system, settings, names, model.spec, starts, config.mode, randomness, sizes, epochs, founded=founded
    )
    effects = LocalEffects(
        model,
        samples,
        precision=config.precision,
        accelerator=config.accelerator,
        emulated=randomness.emulated,
        devices=devices,
    )
    keyring = PartyKeys(federation.common.roster, {name: own.identity for name, own in owns.items() if own.identity})
    delays = delays_of(config, names, settings)
    transport = LocalTransport(
        federation.parties,
        federation.hub,
        effects,
        links=FleetLinks(devices, config.seed, delays),
        keyring=keyring,
        transcript=Transcript(config.record_mib << 20) if config.record else None,
    )
    return Experiment(
        config=config,
        system=system,
        settings=settings,
        model=model,
        split=split,
        tasks=tasks,
        label_counts=np.stack([np.bincount(own.y, minlength=dataset.classes) for own in samples.values()]),
        owns=owns,
        federation=federation,
        effects=effects,
        keyring=keyring,
        transport=transport,
        delays=delays,
        observer=Observer(model, samples, precision=config.precision, accelerator=config.accelerator),
        held_out=_held_out(split, tasks, names),
        fingerprint=_fingerprint(dataset, split, tasks, starts, epochs),
    )


def _starts(
    config: RunConfig, settings: Any, model: Model, split: Split, samples: Sequence[ClientData]
) -> NDArray[np.float32]:
    """The weights that the system's models start with, (k, d): random, or trained on the data's own k groups.

    No real server has the data for the latter. Raises UserError if there are not k groups.
    """
    k, pretraining = settings.models, settings.pretraining()
    seeds = [int(rng(config.seed, "hub", "initial weights", 0, i).integers(1 << 62)) for i in range(k)]
    random = np.stack([model.initial(seed) for seed in seeds])
    if pretraining is None:
        return random
    groups = split.groups
    if groups is None or int(groups.max()) + 1 != k:
        known = "none" if groups is None else int(groups.max()) + 1
        raise UserError(
            f"start=pretrained wants the data of {k} known groups, and partition {config.partition} has {known}: "
            f"choose labelsets:{k} or permute:{k}, for example, or start=random"
        )
    solver, epochs = pretraining
    jobs = []
    for group, start in enumerate(random):
        own = [one for one, of in zip(samples, groups, strict=True) if of == group]
        x, y = torch.cat([one.x for one in own]), torch.cat([one.y for one in own])
        seed = int(rng(config.seed, "hub", "pre-training", 0, group).integers(1 << 62))
        jobs.append(Job(start, solver, epochs, seed, x, y))
    fits = fit_many(model, jobs, precision=config.precision, device=config.accelerator)
    return np.stack([fitted.weights for fitted in fits])


def delays_of(config: RunConfig, clients: Sequence[str], settings: Any) -> Delays:
    """The delays of a resolved run, for a share of the clients that each round asks.

    A user's own system without settings of participation asks all clients.
    """

    def asked(r: int) -> Sequence[str]:
        here = joined(clients, settings, r) if hasattr(settings, "founders") else clients
        return sample_clients(here, getattr(settings, "participation", 1.0), config.seed, r)

    assert config.delta is not None
    return Delays(asked, config.delta, config.delay, config.seed)


def epochs_of(devices: Mapping[str, Profile], settings: Any, seed: int) -> dict[str, int]:
    """Local epochs E_i of every client: d_i E_m. d_i is the fleet's if its devices differ in it, and else is drawn."""
    if len({profile.budget for profile in devices.values()}) > 1:
        return {name: max(1, round(profile.budget * settings.max_epochs)) for name, profile in devices.items()}
    return local_epochs(list(devices), settings, seed)


def _client_data(split: Split, tasks: Sequence[Task], names: Sequence[str]) -> dict[str, ClientData]:
    """The data of every client, as its task changes them. The test set of a task is made once."""
    tests = {task: _samples(task, None, "test") for task in tasks}
    of = of_clients(split, tasks)
    return {
        name: ClientData(**vars(_samples(task, train, "train")), test=test, test_set=tests[task])
        for name, task, train, test in zip(names, of, split.train, split.test, strict=True)
    }


def _held_out(split: Split, tasks: Sequence[Task], names: Sequence[str]) -> dict[str, Samples]:
    """The samples that every client keeps out of its training, as its task changes them."""
    of = of_clients(split, tasks)
    return (
        {name: _samples(task, part, "train") for name, task, part in zip(names, of, split.held_out, strict=True)}
        if split.held_out
        else {}
    )


def _samples(task: Task, indices: NDArray[np.int64] | None, split: Part) -> Samples:
    labels = task.labels(indices, split).copy()  # all of them are a read-only view, which torch cannot mark
    return Samples(torch.from_numpy(task.inputs(indices, split)), torch.from_numpy(labels))


def _fingerprint(
    dataset: Dataset, split: Split, tasks: Sequence[Task], starts: NDArray[np.float32], epochs: Mapping[str, int]
) -> str:
    """A digest that two builds of the same work share: of labels, partition, tasks and initial weights."""
    hashed = hashlib.blake2b(digest_size=16)
    for array in (dataset.y_train, dataset.y_test, *split.train, *split.held_out, *split.test, starts):
        hashed.update(np.ascontiguousarray(array).tobytes())
    hashed.update(repr((dataset.x_train.shape, dataset.x_test.shape, sorted(epochs.items()))).encode())
    hashed.update(dataset.x_train[:: max(1, len(dataset.x_train) // 256)].tobytes())
    if split.groups is not None and split.group_labels is None:  # groups of tasks
        hashed.update(split.groups.tobytes())
        for task in tasks:
            some = np.arange(0, len(task.dataset.y_train), max(1, len(task.dataset.y_train) // 256))
            for made in (task.labels(), task.labels(split="test"), task.inputs(some)):
                hashed.update(np.ascontiguousarray(made).tobytes())
    return hashed.hexdigest()
