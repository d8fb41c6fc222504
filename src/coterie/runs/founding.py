"""A run before its first message: parties, their data, and what each is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import coterie.method as fl
from coterie.runs.attackers import Attackers
from coterie.runs.config import Resolved
from coterie.runs.digests import fingerprint, inputs_digest
from coterie.runs.inputs import Inputs, inputs_of
from coterie.runs.own_code import own_code
from coterie.runs.parties import Parties, simulate
from coterie.runs.starts import start_weights
from coterie.runs.surroundings import Surroundings, epochs_of, surroundings_of

Founded = tuple[fl.Roster, Mapping[str, fl.Identity]]
"""Of a run that goes on: roster and identities."""


@dataclass(eq=False)
class FoundedRun:
    """system: with attackers.  dealt: inputs at the start.  inputs: of now, after a drift.  shown: evaluated clients.
    seen: the federation as their observer sees it.  owns: what each party alone is told.  starts: (k, d) float32.
    emulated: its keys are.  inputs_digest: of data, own model and own loss, the same for every seed and system.
    fingerprint: of data, partition, traces, initial weights and own code.
    """

    config: Resolved
    system: fl.System
    settings: Any
    inputs: Inputs
    dealt: Inputs
    around: Surroundings
    attackers: Attackers
    shown: tuple[str, ...]
    federation: fl.Federation
    seen: fl.Federation
    owns: fl.LazyMapping[fl.Own]
    starts: NDArray[np.float32]
    emulated: bool
    inputs_digest: str
    own_code: dict[str, str]
    fingerprint: str

    @property
    def parties(self) -> Parties:
        parties = self.federation.parties
        assert isinstance(parties, Parties)
        return parties

    def identity(self, name: str) -> fl.Identity:
        """SECRET: the keys of a party."""
        found = self.owns[name].identity
        assert found is not None
        return found


def found(config: Resolved, founded: Founded | None = None) -> FoundedRun:
    """Raises UserError for any mistake in the config.  founded: if it goes on."""
    system, settings = config.definition, config.own
    if system.needs_classes and config.task != "classes":
        raise fl.UserError(f"{system.name} needs classes as labels, and the task is {config.task}: take another system")
    inputs = inputs_of(config, next(iter(system.roles(settings, ()))))
    config, names = replace(config, clients=inputs.split.clients), inputs.data.clients
    shown = shown_of(config, names)
    around = surroundings_of(config, names, inputs.split.names)
    attackers = Attackers.of(config, names)
    system = attackers.among(system)
    if inputs.drift is not None and getattr(settings, "sample_noise", None) is not None:
        raise fl.UserError(
            "the ledger of sample_noise is of one data set for each client, and a drift exchanges these: leave one of "
            "the two out"
        )
    digest = inputs_digest(config, inputs.tasks, inputs.model)
    code = own_code(config)
    epochs = epochs_of(around.devices, settings, config.seed)
    starts = start_weights(config, settings, inputs.model, inputs.split, inputs.data)
    known = digest + ("" if around.traces is None else around.traces.digest)
    randomness = fl.Randomness(config.seed, emulated=config.emulated)
    samples = inputs.data.samples
    federation, owns = simulate(
        system, settings, names, inputs.model.spec, starts, config.mode, randomness, samples, epochs, founded
    )
    made = FoundedRun(
        config=config,
        system=system,
        settings=settings,
        inputs=inputs,
        dealt=replace(inputs, data=inputs.data.as_dealt()),
        around=around,
        attackers=attackers,
        shown=shown,
        federation=federation,
        seen=federation.among(shown) if config.evaluated else federation,
        owns=owns,
        starts=starts,
        emulated=randomness.emulated,
        inputs_digest=digest,
        own_code=code,
        fingerprint=fingerprint(known, inputs.split, inputs.tasks, starts, epochs),
    )
    _check_mixtures(made)
    return made


def shown_of(config: Resolved, clients: Sequence[str]) -> tuple[str, ...]:
    """The evaluated clients, in order. Raises UserError."""
    many = config.evaluated
    if many is None:
        return tuple(clients)
    if many > len(clients):
        raise fl.UserError(f"evaluated={many:,} of {len(clients):,} clients: take at most as many as there are")
    if config.record:
        raise fl.UserError("audits compare what is recorded with all clients' data: leave evaluated or record out")
    chosen = fl.rng(config.seed, "observer", "evaluated").choice(len(clients), many, replace=False)
    return tuple(clients[i] for i in sorted(chosen))


def _check_mixtures(run: FoundedRun) -> None:
    config = run.config
    plain = config.task == "classes" and config.loss is None and config.class_weights is None
    everybodys = () if plain else run.system.models(run.seen).values()
    if any(isinstance(one, fl.Mixture) for one in everybodys):
        raise fl.UserError(
            f"{run.system.name} weighs models by their likelihood, so it takes classes and cross entropy without "
            "class_weights: leave task, loss and class_weights out"
        )
