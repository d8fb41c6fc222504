"""A built run: data, model, parties and transport, and one round of it at a time. Writes nothing."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.data.dataset import Dataset
from coterie.data.partition import Split, label_counts, partition
from coterie.data.sources import load
from coterie.devices.profiles import Profile, fleet
from coterie.protocol.effects import Fit, Fitted, Vector
from coterie.protocol.errors import RunError, UserError
from coterie.protocol.randomness import Randomness, rng
from coterie.protocol.steps import NoAnswerError
from coterie.protocol.system import ClientModel, Federation, Mixture, Setting, System
from coterie.protocols.local_training import joined, local_epochs
from coterie.runs import registry
from coterie.runs.config import RunConfig, resolve, system_config
from coterie.runs.effects import ClientData, LocalEffects
from coterie.runs.evaluation import Observer, Scores, models_digest
from coterie.runs.links import FleetLinks
from coterie.runs.sealer import PartySealer
from coterie.training.engine import fit_many
from coterie.training.jobs import Job
from coterie.training.model import Model
from coterie.training.models import build as build_model
from coterie.transport.local import LocalTransport
from coterie.transport.meter import Meter
from coterie.transport.transcript import Transcript

Line = dict[str, Any]
"""What one round left, as it stands in ``metrics.jsonl``."""

_REASONS = 3  # shown where something failed for them


@dataclass(frozen=True, eq=False)
class Experiment:
    """Everything of one run, ready for its set-up. config: resolved.  settings: the system's own config object.

    label_counts: (clients, classes) training samples.  fingerprint: of data, partition and initial weights.
    """

    config: RunConfig
    system: System
    settings: Any
    model: Model
    split: Split
    label_counts: NDArray[np.int64]
    setting: Setting
    federation: Federation
    effects: LocalEffects
    sealer: PartySealer
    transport: LocalTransport
    observer: Observer
    fingerprint: str

    @property
    def crypto(self) -> str:
        """``"real"``, ``"emulated"``, or ``"none"`` for a system that encrypts nothing."""
        return self.config.crypto if self.system.encrypted else "none"

    def models(self, r: int | None = None) -> dict[str, ClientModel]:
        """The current model of every client that has joined by round r (the last), in their order."""
        models = self.system.models(self.federation)
        here = joined(self.setting.clients, self.settings, r or int(self.config.rounds or 1))
        return {name: models[name] for name in here}

    def set_up(self) -> Line:
        """Keys and greetings, before round 1; returns what they cost."""
        started = time.perf_counter()
        with _reasons(self.transport):
            self.transport.drive(self._hub().setup(), 0)
        return _costs(self.transport, time.perf_counter() - started)

    def round(self, r: int) -> Line:
        """Run round r and observe it; returns its line. Raises RunError where it cannot go on."""
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
        config = self.config
        last = r == config.rounds
        if last or r % config.eval_every == 0:
            models = self.models(r)
            scores = self.observer.scores(models)
            line |= {**scores.means(), "bands": scores.bands(), "models_sha256": models_digest(models)}
        if self.system.fine_tunes and (last or (config.fine_tune_every and r % config.fine_tune_every == 0)):
            tuned, untuned = self.fine_tuned(r)
            line |= {f"fine_tuned_{name}": value for name, value in tuned.means().items()}
            line |= {"untuned": untuned} if untuned else {}
        return {**line, "observing_seconds": time.perf_counter() - observed}

    def took(self, r: int, notes: Mapping[str, Any]) -> None:
        """Remember whose updates stood out in round r, of this process or of one that it goes on from."""
        self.effects.took(r, notes.get("outliers", {}), notes.get("participants", 0))

    def train_accuracy(self) -> float:
        """Mean accuracy of the clients' models on their own training data."""
        values = []
        for name, model in self.models().items():
            own = self.effects.data[name]
            everything = {name: np.arange(len(own.y))}
            observer = Observer(self.model, own.x, own.y, everything, self.config.accelerator)
            values.append(observer.scores({name: model}).local_accuracy[0])
        return float(np.mean(values))

    def fine_tuned(self, r: int) -> tuple[Scores, list[str]]:
        """Scores of every client's model after its own local epochs: the personalisation that needs no clustering.

        And the clients whose training diverged, which count with the model as it was.
        """
        models, parts = self.models(r), []
        untuned: list[str] = []
        names = list(models)
        for start in range(0, len(names), self.effects.chunk):
            chunk = names[start : start + self.effects.chunk]
            fits = [(name, self._fine_tune(name, models[name], r)) for name in chunk]
            fitted = self.effects.run(fits)
            tuned = {n: f.weights if isinstance(f, Fitted) else models[n] for n, f in zip(chunk, fitted, strict=True)}
            parts.append(self.observer.scores(tuned))
            untuned += [n for n, f in zip(chunk, fitted, strict=True) if not isinstance(f, Fitted)]
        return Scores(**{key: np.concatenate([vars(part)[key] for part in parts]) for key in vars(parts[0])}), untuned

    def _fine_tune(self, name: str, weights: ClientModel, r: int) -> Fit:
        if isinstance(weights, Mixture):
            raise TypeError(f"{self.system.name} says that it fine-tunes, but {name} has a mixture of models")
        seed = int(rng(self.config.seed, name, "fine-tuning", r).integers(1 << 62))
        return Fit(weights, self.settings.solver(), self.setting.epochs[name], seed)

    def _hub(self) -> Any:
        return self.federation.parties[self.federation.hub]

    def close(self) -> None:
        """Remove what the transport spilled to disk."""
        self.transport.close()


def _why_refused(transport: LocalTransport) -> str:
    """What was refused in this round and why, for the observer: coordinators are told of no reason."""
    refused = transport.meter.refused.most_common()
    more = f"; and {len(refused) - _REASONS} other reasons" if len(refused) > _REASONS else ""
    return f" ({'; '.join(reason for reason, _ in refused[:_REASONS])}{more})" if refused else ""


@contextlib.contextmanager
def _reasons(transport: LocalTransport) -> Iterator[None]:
    """Adds the reasons where a step failed because others refused."""
    try:
        yield
    except NoAnswerError as error:
        raise RunError(f"{error}{_why_refused(transport)}") from error


def _costs(transport: LocalTransport, seconds: float) -> Line:
    meter: Meter = transport.meter
    return {
        "bytes_up": dict(meter.bytes_up),
        "bytes_down": dict(meter.bytes_down),
        "message_bytes": dict(meter.message_bytes),
        "seconds": seconds,
        "phase_seconds": dict(meter.seconds),
        "phase_virtual_seconds": dict(meter.virtual_seconds),
        "virtual_seconds": transport.clock_s,
        "refused": dict(meter.refused),
        "lost": dict(meter.lost),
        "late": list(meter.late),
    }


def build(config: RunConfig) -> Experiment:
    """Load, partition and build everything; touches no run folder. Raises UserError for whatever is wrong."""
    config = resolve(config)
    assert config.clients is not None
    assert config.partition is not None
    system, settings = registry.get(config.system), system_config(config)
    dataset = replace(load(config.data, config.data_dir), scaling=config.scaling)
    split = partition(
        config.partition, dataset.y_train, dataset.y_test, config.clients, config.seed, config.min_samples
    )
    model = build_model(str(config.model), dataset.input_shape, dataset.classes)
    names = tuple(f"client/{i}" for i in range(config.clients))
    devices = dict(zip(names, fleet(config.devices, config.clients, config.seed), strict=True))
    randomness = Randomness(config.seed, emulated=config.crypto == "emulated" or not system.encrypted)

    def initials(k: int) -> tuple[Vector, ...]:
        seeds = [int(rng(config.seed, "hub", "initial weights", 0, i).integers(1 << 62)) for i in range(k)]
        return tuple(model.initial(seed) for seed in seeds)

    samples = _client_data(dataset, split, names)

    def pretrained(k: int, solver: Any, epochs: int) -> tuple[Vector, ...]:
        groups = split.groups
        if groups is None or int(groups.max()) + 1 != k:
            raise UserError(
                f"start=pretrained wants the data of {k} known groups, and partition {config.partition} has "
                f"{'none' if groups is None else int(groups.max()) + 1}: choose labelsets:{k}, or start=random"
            )
        jobs = []
        for group, start in enumerate(initials(k)):
            own = [samples[name] for name, of in zip(names, groups, strict=True) if of == group]
            x, y = torch.cat([one.x for one in own]), torch.cat([one.y for one in own])
            seed = int(rng(config.seed, "hub", "pre-training", 0, group).integers(1 << 62))
            jobs.append(Job(start, solver, epochs, seed, x, y))
        fits = fit_many(model, jobs, precision=config.precision, device=config.accelerator)
        return tuple(fitted.weights for fitted in fits)

    setting = Setting(
        clients=names,
        samples={name: len(own) for name, own in zip(names, split.train, strict=True)},
        epochs=epochs_of(devices, settings, config.seed),
        spec=model.spec,
        initial=initials(1)[0],
        initials=initials,
        mode=config.mode,
        randomness=randomness,
        pretrained=pretrained,
    )
    federation = system.build(settings, setting)
    x_test, y_test = torch.from_numpy(dataset.inputs(split="test")), torch.from_numpy(dataset.y_test.copy())
    effects = LocalEffects(
        model,
        samples,
        x_test,
        y_test,
        precision=config.precision,
        accelerator=config.accelerator,
        emulated=randomness.emulated,
    )
    sealer = PartySealer(federation.parties, randomness)
    transport = LocalTransport(
        federation.parties,
        federation.hub,
        effects,
        links=FleetLinks(devices, config.seed),
        sealer=sealer,
        transcript=Transcript(config.record_mib << 20) if config.record else None,
    )
    own_tests = dict(zip(names, split.test, strict=True))
    return Experiment(
        config=config,
        system=system,
        settings=settings,
        model=model,
        split=split,
        label_counts=label_counts(split, dataset.y_train, dataset.classes),
        setting=setting,
        federation=federation,
        effects=effects,
        sealer=sealer,
        transport=transport,
        observer=Observer(model, x_test, y_test, own_tests, config.accelerator),
        fingerprint=_fingerprint(dataset, split, setting),
    )


def epochs_of(devices: Mapping[str, Profile], settings: Any, seed: int) -> dict[str, int]:
    """Local epochs E_i of every client: d_i E_m, with the fleet's d_i where its devices differ in them, else drawn."""
    if len({profile.budget for profile in devices.values()}) > 1:
        return {name: max(1, round(profile.budget * settings.max_epochs)) for name, profile in devices.items()}
    return local_epochs(list(devices), settings, seed)


def _client_data(dataset: Dataset, split: Split, names: Sequence[str]) -> dict[str, ClientData]:
    return {
        name: ClientData(torch.from_numpy(dataset.inputs(train)), torch.from_numpy(dataset.labels(train)), test)
        for name, train, test in zip(names, split.train, split.test, strict=True)
    }


def _fingerprint(dataset: Dataset, split: Split, setting: Setting) -> str:
    """Says whether two builds do the same work: the labels, who holds which, and where training starts."""
    hashed = hashlib.blake2b(digest_size=16)
    for array in (dataset.y_train, dataset.y_test, *split.train, *split.test, setting.initial):
        hashed.update(np.ascontiguousarray(array).tobytes())
    hashed.update(repr((dataset.x_train.shape, dataset.x_test.shape, sorted(setting.epochs.items()))).encode())
    hashed.update(dataset.x_train[:: max(1, len(dataset.x_train) // 256)].tobytes())
    return hashed.hexdigest()
