"""A built run: data, model, parties and transport. It runs one round at a time and writes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

import coterie.method as fl
from coterie.clustering.agreement import grouping
from coterie.data.drift import drifted
from coterie.data.partition import Split
from coterie.devices.links import Delays, FleetLinks
from coterie.devices.profiles import Profile, fleet
from coterie.devices.traces import Traces, parse, traces
from coterie.protocol.names import each
from coterie.protocols.local_training import local_epochs, sample_clients
from coterie.record.summary import Line
from coterie.runs import evaluation, tuning
from coterie.runs.attackers import Attackers
from coterie.runs.config import Resolved, RunConfig, resolve
from coterie.runs.digests import federation_digest, fingerprint, inputs_digest, models_digest
from coterie.runs.forms import scored_forms
from coterie.runs.inputs import inputs_of
from coterie.runs.interpreter import LocalEffects
from coterie.runs.keyring import PartyKeys
from coterie.runs.metrics import class_weights, metrics_of, named
from coterie.runs.own_code import own_code, with_code
from coterie.runs.parties import Parties, simulate
from coterie.runs.starts import start_weights, try_loss
from coterie.runs.workers import workers_of
from coterie.transport.local import LocalTransport
from coterie.transport.transcript import Transcript

Founded = tuple[fl.Roster, Mapping[str, fl.Identity]]
"""The roster and identities of a run that goes on."""


class Experiment:
    """Everything of one run, loaded, partitioned and built from its config. Raises UserError for any mistake in it.

    config: with the number of clients.  settings: the system's config object.  split, tasks: of its groups, or the one
    task of all.  shown: the clients that are evaluated.  seen: the federation as an observer of these sees it.
    label_counts: (evaluated clients, classes) training samples, with the labels of their tasks.  dealt, dealt_counts:
    data and counts at the start, before a drift.  attackers: misbehaving clients; scores are of the others.
    owns: what each party alone is told.  devices: the clients' profiles.  sample_numbers: of one sample.
    features: names of these, of a table.
    fingerprint: of data, partition, traces, initial weights and own code.  inputs_digest: of the data, own model and
    own loss, the same for every seed and system.  own_code: digests of one's own modules.
    founded: roster and identities of a resumed run.  scored: the honest clients, when they were last scored here.
    tuned_outputs: by client, ``Evaluator.own_outputs`` of the models that were last fine-tuned here.
    """

    scored: evaluation.Scores | None = None
    tuned_outputs: Mapping[str, NDArray[Any]] | None = None

    def __init__(self, config: Resolved, founded: Founded | None = None) -> None:
        self.system, self.settings, self.config = config.definition, config.own, config
        if self.system.needs_classes and config.task != "classes":
            raise fl.UserError(
                f"{self.system.name} needs classes as labels, and the task is {config.task}: take another system"
            )
        self._deal()
        self._found_parties(founded)
        self._observe()
        self._connect()
        self._models_digest = ""  # after the last round

    def _deal(self) -> None:
        config, seed = self.config, self.config.seed
        inputs = inputs_of(config, next(iter(self.system.roles(self.settings, ()))))
        self.tasks, self.split, self.model, self.data = inputs.tasks, inputs.split, inputs.model, inputs.data
        self.config = config = replace(config, clients=self.split.clients)
        self.names = names = self.data.clients
        self.shown = shown_of(config, names)
        self.devices = fl.listed(names, fleet(config.devices, self.split.clients, seed))
        self.sample_numbers = prod(inputs.dataset.input_shape)
        self.features = inputs.dataset.features
        self.traces, self.pace_s = traces_of(config, names, self.split.names)
        self.attackers = Attackers.of(config, names)
        self.system = self.attackers.among(self.system)
        self._targets, self._outputs = inputs.dataset.targets, inputs.dataset.classes
        if inputs.drift is not None and getattr(self.settings, "sample_noise", None) is not None:
            raise fl.UserError(
                "the ledger of sample_noise is of one data set for each client, and a drift exchanges these: leave "
                "one of the two out"
            )
        self.dealt = replace(inputs, data=self.data.as_dealt())
        self.label_counts = self.dealt_counts = self._counted()
        self._drifted = False

    def _found_parties(self, founded: Founded | None) -> None:
        config, system = self.config, self.system
        self.inputs_digest = inputs_digest(config, self.tasks, self.model)
        self.own_code = own_code(config)
        epochs = epochs_of(self.devices, self.settings, config.seed)
        self._starts = start_weights(config, self.settings, self.model, self.split, self.data)
        known = self.inputs_digest + ("" if self.traces is None else self.traces.digest)
        self.fingerprint = fingerprint(known, self.split, self.tasks, self._starts, epochs)
        self._randomness = fl.Randomness(config.seed, emulated=config.crypto == "emulated" or not system.encrypted)
        self.federation, self.owns = simulate(
            system,
            self.settings,
            self.names,
            self.model.spec,
            self._starts,
            config.mode,
            self._randomness,
            self.data.samples,
            epochs,
            founded,
        )
        self.common, parties = self.federation.common, self.federation.parties
        assert isinstance(parties, Parties)
        self.parties = parties
        self.seen = self.federation.among(self.shown) if config.evaluated else self.federation
        self._check_mixtures()

    def _observe(self) -> None:
        config, names = self.config, self.names
        weights = class_weights(config.class_weights, self._targets, self._outputs)
        self.effects = LocalEffects(
            self.model,
            self.data,
            config.how,
            emulated=self._randomness.emulated,
            devices=self.devices,
            traces=self.traces,
            class_weights=weights,
            workers=workers_of(config, with_code(self.inputs_digest, self.own_code), self.data.samples),
        )
        self.observer = evaluation.Evaluator(
            self.model,
            self.data,
            config.accelerator,
            targets=self._targets,
            metrics=metrics_of(named(config.metrics), config.task),
            seed=config.seed if config.evaluate == "sample" else None,
        )
        if ":" in f"{config.loss}{config.metrics}":
            try_loss(self.model, self._starts[0], self.data[names[0]])
            self.observer.scores({names[0]: self._starts[0]})

    def _connect(self) -> None:
        config = self.config
        self.keyring = PartyKeys(self.common.roster, each(self.parties.everybody, self._identity))
        self.delays = delays_of(config, self.names, self.settings)
        counted = self.system.counted(self.settings, config.mode)
        servers = self.system.roles(self.settings, (), config.mode)
        openings = {name: self._identity(name).opening for name in servers} if config.record else {}
        self.transport = LocalTransport(
            self.parties,
            self.federation.hub,
            self.effects,
            links=FleetLinks(self.devices, config.seed, self.delays, self.traces),
            keyring=self.keyring,
            transcript=Transcript(config.record_mib << 20, openings) if config.record else None,
            counted=frozenset(kind.__name__ for kind in counted),
        )

    def _check_mixtures(self) -> None:
        config = self.config
        plain = config.task == "classes" and config.loss is None and config.class_weights is None
        everybodys = () if plain else self.system.models(self.seen).values()
        if any(isinstance(one, fl.Mixture) for one in everybodys):
            raise fl.UserError(
                f"{self.system.name} weighs models by their likelihood, so it takes classes and cross entropy without "
                "class_weights: leave task, loss and class_weights out"
            )

    def _identity(self, name: str) -> fl.Identity:
        """SECRET: the keys of a party."""
        found = self.owns[name].identity
        assert found is not None
        return found

    @property
    def fine_tunes(self) -> bool:
        """Whether this run's models are fine-tuned: on request, with one model a client and local training."""
        known = all(hasattr(self.settings, name) for name in ("lr", "batch_size", "momentum", "weight_decay"))
        return self.config.fine_tune != "no" and self.system.fine_tunes and known

    @property
    def crypto(self) -> str:
        """``"real"``, ``"emulated"``, or ``"none"`` for a system that encrypts nothing."""
        return self.config.crypto if self.system.encrypts(self.config.mode) else "none"

    def models(self, r: int | None = None) -> dict[str, fl.ClientModel]:
        """The current model of every evaluated client that has joined by round r (the last), in their order."""
        models = self.system.models(self.seen)
        here = fl.joined(self.common.clients, self.settings, r or self.config.rounds)
        there: Collection[str] = here if isinstance(here, fl.Names) else frozenset(here)
        return {name: models[name] for name in self.shown if name in there}

    def told_counts(self) -> dict[str, NDArray[np.int64] | None] | None:
        """By client, the label counts of its model as messages have told it; None without the setting."""
        counts = self.system.counts
        if counts is None or not self.system.counts_labels(self.settings):
            return None
        return {one.name: counts(one) for one in self.seen.of_role(self.common.roster.client_role)}

    def set_up(self) -> Line:
        _, costs = self._driven(0, self._hub.setup())
        self.parties.rest()
        return costs

    def reach(self, r: int) -> None:
        """Let clients exchange their data if round r is the round of the drift."""
        drift, givers, names = self.dealt.drift, self.dealt.givers, self.common.clients
        if drift is None or self._drifted or r < drift.round:
            return
        self._drifted = True
        self.split = drifted(self.split, givers)
        self.data.exchange(givers)
        self.effects.workers.drift()
        self.label_counts = self._counted()
        changed = [names[i] for i, giver in enumerate(givers) if giver != i]
        self.owns.forget()
        for name in changed:
            if self.parties.touched(name):
                self.parties.renew(name)

    def _counted(self) -> NDArray[np.int64]:
        owns = (self.data[name] for name in self.shown)
        return np.stack([self._targets.counts(own.y.numpy(), self._outputs) for own in owns])

    @property
    def _hub(self) -> Any:
        return self.parties[self.federation.hub]

    def _driven(self, r: int, steps: fl.Steps[Any], *, settle: bool = False) -> tuple[dict[str, Any], Line]:
        started = time.perf_counter()
        try:
            notes = dict(self.transport.drive(steps, r, settle=settle) or {})
        except fl.NoAnswerError as error:
            raise fl.RunError(f"{error}{self._why_refused()}") from error
        counted = vars(self.transport.meter)
        costs = {**counted, **{f"phase_{key}": counted[key] for key in ("seconds", "virtual_seconds")}}
        costs |= {"seconds": time.perf_counter() - started, "virtual_seconds": self.transport.clock_s}
        costs |= self.attackers.costs()
        return notes, costs

    def _begins_s(self, r: int) -> float:
        clock_s = self.transport.clock_s
        return clock_s if self.traces is None else self.traces.opens_s(clock_s + (self.pace_s if r > 1 else 0.0))

    def _begun(self, r: int, began_s: float) -> fl.Steps[Any]:
        if began_s > self.transport.clock_s:
            yield from fl.wake(began_s)
        return (yield from self._hub.round(r))

    def _why_refused(self) -> str:
        refused = [reason for reason, _ in self.transport.meter.refused.most_common()]
        return f" ({evaluation.shown(refused)})" if refused else ""

    def round(self, r: int) -> Line:
        """Run round r and observe it. Returns its line. Raises RunError if the run cannot go on.

        The run ends after the last round, or if the hub notes that it has ``stopped``.
        """
        self.reach(r)
        moved = self._watching()
        try:
            began_s = self._begins_s(r)
            with self.effects.watched():
                notes, costs = self._driven(r, self._begun(r, began_s))
        except fl.RunError as error:
            raise fl.RunError(f"round {r}: {error}") from error
        if "skipped" in notes:
            notes["skipped"] = f"{notes['skipped']}{self._why_refused()}"
        self.effects.took(r, notes)
        line: Line = {"round": r, **costs, "began_virtual_seconds": began_s, "notes": notes}
        observed = time.perf_counter()
        if not moved() and "skipped" not in notes:
            notes["skipped"] = evaluation.why_still(line, self.system.observe(self.seen).get("why_kept", ()))
        config = self.config
        last = r == config.rounds or "stopped" in notes
        tunes = last or bool(config.fine_tune_every and r % config.fine_tune_every == 0)
        line |= self._observed(r, scores=last or r % config.eval_every == 0, tunes=tunes)
        self.parties.rest()
        return {**line, "observing_seconds": time.perf_counter() - observed}

    def _watching(self) -> Callable[[], bool]:
        if not self.config.evaluated:
            before = self._models_digest or federation_digest(self.system, self.federation)

            def moved() -> bool:
                self._models_digest = federation_digest(self.system, self.federation)
                return self._models_digest != before

            return moved
        parties = self.parties
        parties.mark()

        def moved_of_some() -> bool:
            asked = [name for name in parties.asked if name in self.data.clients]
            now = self.federation.among(tuple(dict.fromkeys([*asked, *self.shown])))
            then = now.among(now.common.clients, parties.look_back)
            found = federation_digest(self.system, then) != federation_digest(self.system, now)
            parties.forget_mark()
            return found

        return moved_of_some

    def finish(self, r: int) -> Line | None:
        """The hub's steps after the last round r, as messages of round r + 1. None for a hub that has none.

        Returns the costs and notes, and scores if a model has changed. Raises RunError on failure.
        """
        if not self._hub.finishes:
            return None
        before, began = models_digest(self.models(r)), self.transport.clock_s
        try:
            with self.effects.watched():
                notes, costs = self._driven(r + 1, self._hub.finish(), settle=True)
        except fl.RunError as error:
            raise fl.RunError(f"after round {r}: {error}") from error
        observed = time.perf_counter()
        moved = models_digest(self.models(r)) != before or self.system.counts_labels(self.settings)
        line = {**costs, "began_virtual_seconds": began, "notes": notes, **self._observed(r, scores=moved, tunes=moved)}
        self.parties.rest()
        return {**line, "observing_seconds": time.perf_counter() - observed}

    def _observed(self, r: int, *, scores: bool, tunes: bool) -> Line:
        line: Line = {}
        if scores:
            models = self.models(r)
            honest = self.attackers.left_out(models)
            found = self.scored = self.observer.scores(honest)
            line |= {**found.line(), "bands": found.bands(), "models_sha256": models_digest(models)}
            if (trigger := self.attackers.trigger) is not None:
                line["backdoor_success"] = self.observer.backdoor_success(honest, trigger)
            line |= self.grouping()
            if self.config.early_stop is not None:
                line["held_out_loss"] = self.observer.held_out_loss(honest)
        if tunes and self.config.fine_tune != "no":
            line = merged(line, self._forms(r))
        return line

    def _forms(self, r: int) -> Line:
        """What each honest client can do alone with its model of round r: fine-tune it, and adjust it."""
        models, line = self.attackers.left_out(self.models(r)), Line()
        kept: dict[str, fl.Vector] | None = None
        likeliest: dict[str, fl.Vector] | None = None
        if self.fine_tunes:
            kept, tuned = self.fine_tuned(r)
            of_all = self.observer.scores(kept)
            if self.config.fine_tune == "held_out":
                likeliest = {name: one.weights for name, one in tuned.items()}
            if self.model.outputs is not None:
                self.tuned_outputs = dict(zip(kept, self.observer.own_outputs(kept), strict=True))
            line = of_all.line("fine_tuned_")
            line["fine_tuned_epochs"] = [one.epochs if one.gains else 0 for one in tuned.values()]
            untuned = [name for name, one in tuned.items() if one.diverged]
            line |= {"untuned": untuned} if untuned else {}
            self.scored = self.scored and self.scored.beside(fine_tuned_=of_all)
        plain = self.config.class_weights is None  # else the mixture that a model bets on is not that of its samples
        told = self.told_counts()
        forms = scored_forms(self.observer, models, self.config.seed, kept, likeliest, told) if plain else {}
        for form, scores_of in forms.items():
            line = merged(line, scores_of.line(form))
        self.scored = self.scored and self.scored.beside(**forms)
        return line

    def score_again(self, r: int) -> evaluation.Scores:
        """The scores of the honest clients' models after round r, as in its line, which had all of them."""
        self._observed(r, scores=True, tunes=True)
        assert self.scored is not None
        return self.scored

    def observed(self) -> dict[str, Any]:
        found, clients = dict(self.system.observe(self.seen)), self.data.clients
        membership = found.get("membership")
        if self.config.evaluated and membership is not None and len(membership) == len(clients):  # a hub's own list
            found["membership"] = [membership[clients.index(name)] for name in self.shown]
        return found

    def groups(self, split: Split) -> list[int] | None:
        found, clients = split.groups, self.data.clients
        return None if found is None else [int(found[clients.index(name)]) for name in self.shown]

    def grouping(self) -> Line:
        """``{"grouping": ...}`` for a system with clusters: their agreement with the data's own groups."""
        membership, groups = self.observed().get("membership"), self.groups(self.split)
        return {} if membership is None else {"grouping": asdict(grouping(membership, groups))}

    def fine_tuned(self, r: int) -> tuple[dict[str, fl.Vector], dict[str, tuning.Tuned]]:
        """The model (d,) that every honest client predicts with after fine-tuning, and the tuned ones."""
        of, models = self.settings, self.attackers.left_out(self.models(r))
        if any(isinstance(model, fl.Mixture) for model in models.values()):
            raise TypeError(f"{self.system.name} says that it fine-tunes, but leaves clients mixtures of models")
        solver = fl.Sgd(of.lr, of.batch_size, of.momentum, of.weight_decay)  # the same for every method

        def seed(name: str, epoch: int) -> int:
            return int(fl.rng(self.config.seed, name, "fine-tuning", r, epoch).integers(1 << 62))

        starts: dict[str, Any] = dict(models)
        names, tuned = list(models), {}  # type: list[str], dict[str, tuning.Tuned]
        for first in range(0, len(names), self.effects.chunk):
            some = {name: starts[name] for name in names[first : first + self.effects.chunk]}
            if self.config.fine_tune == "held_out":
                tuned |= tuning.tune_by_held_out(self.effects, some, solver, seed)
            else:
                epochs = {name: self.owns[name].epochs for name in some}
                tuned |= tuning.tune_by_own_epochs(self.effects, some, epochs, solver, seed)
        return {name: one.of(starts[name]) for name, one in tuned.items()}, tuned

    def close(self) -> None:
        self.effects.workers.close()
        self.transport.close()
        self.parties.close()


def merged(one: Line, other: Line) -> Line:
    """Two parts of a round's line, with the metrics of both."""
    metrics = {**one.get("metrics", {}), **other.get("metrics", {})}
    return {**one, **other, **({"metrics": metrics} if metrics else {})}


def build(config: RunConfig, founded: Founded | None = None) -> Experiment:
    """The run of this config, ready for its set-up; raises UserError."""
    return Experiment(resolve(config), founded)


def delays_of(config: Resolved, clients: Sequence[str], settings: Any) -> Delays:
    """The delays of a resolved run, for the share of clients that a round may ask."""

    def asked(r: int) -> Sequence[str]:
        here = fl.joined(clients, settings, r) if hasattr(settings, "founders") else clients
        share = 1.0 if getattr(settings, "selects", False) else getattr(settings, "participation", 1.0)
        return sample_clients(here, share, config.seed, r)

    return Delays(asked, config.delta, config.delay, config.seed)


def traces_of(config: Resolved, names: Sequence[str], known_as: Sequence[str] | None) -> tuple[Traces | None, float]:
    """The traces of a resolved run, None if all are always there, and the pace of its rounds in seconds."""
    if config.availability is None:
        return None, 0.0
    availability = parse(config.availability)
    return traces(availability, names, config.seed, known_as), availability.pace_s


def shown_of(config: Resolved, clients: Sequence[str]) -> tuple[str, ...]:
    """The evaluated clients, in order: all, or this many drawn by the seed. Raises UserError."""
    many = config.evaluated
    if many is None:
        return tuple(clients)
    if many > len(clients):
        raise fl.UserError(f"evaluated={many:,} of {len(clients):,} clients: take at most as many as there are")
    if config.record:
        raise fl.UserError("audits compare what is recorded with all clients' data: leave evaluated or record out")
    chosen = fl.rng(config.seed, "observer", "evaluated").choice(len(clients), many, replace=False)
    return tuple(clients[i] for i in sorted(chosen))


def epochs_of(devices: Mapping[str, Profile], settings: Any, seed: int) -> Mapping[str, int]:
    """Local epochs E_i of every client: d_i E_m. d_i is the fleet's if its devices differ in it, else drawn."""
    names = devices.names if isinstance(devices, fl.LazyMapping) else tuple(devices)
    if len({profile.budget for profile in devices.values()}) > 1:
        return each(names, lambda name: max(1, round(devices[name].budget * settings.max_epochs)))
    return local_epochs(names, settings, seed)
