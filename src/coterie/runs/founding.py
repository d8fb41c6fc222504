"""A run before its first message: parties, their data, and what each is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import coterie.method as fl
from coterie.runs.attackers import Attackers
from coterie.runs.config import Resolved
from coterie.runs.digests import fingerprint, inputs_digest
from coterie.runs.inputs import inputs_of
from coterie.runs.own_code import own_code
from coterie.runs.parties import Parties, simulate
from coterie.runs.starts import start_weights
from coterie.runs.surroundings import Surroundings, epochs_of

Founded = tuple[fl.Roster, Mapping[str, fl.Identity]]
"""Of a run that goes on: roster and identities."""


class FoundedRun:
    """Raises UserError for any mistake in the config.  founded: if it goes on.

    system: with attackers.  dealt: inputs at the start.  inputs: of now, after a drift.  shown: evaluated clients.
    seen: the federation as their observer sees it.  owns: what each party alone is told.  starts: (k, d) float32.
    emulated: its keys are.  inputs_digest: the same for every seed and system.
    """

    def __init__(self, config: Resolved, founded: Founded | None = None) -> None:
        system, settings = config.definition, config.own
        if system.needs_classes and config.task != "classes":
            raise fl.UserError(
                f"{system.name} needs classes as labels, and the task is {config.task}: take another system"
            )
        self.inputs = inputs = inputs_of(config, next(iter(system.roles(settings, ()))))
        self.dealt = replace(inputs, data=inputs.data.as_dealt())
        self.config = config = replace(config, clients=inputs.split.clients)
        names, model = inputs.data.clients, inputs.model
        self.shown = shown_of(config, names)
        self.around = Surroundings(config, names, inputs.split.names)
        self.attackers = Attackers.of(config, names)
        self.system = system = self.attackers.among(system)
        self.settings = settings
        if inputs.drift is not None and getattr(settings, "sample_noise", None) is not None:
            raise fl.UserError(
                "the ledger of sample_noise is of one data set for each client, and a drift exchanges these: leave one "
                "of the two out"
            )
        self.inputs_digest, self.own_code = inputs_digest(config, inputs.tasks, model), own_code(config)
        epochs = epochs_of(self.around.devices, settings, config.seed)
        self.starts = starts = start_weights(config, settings, model, inputs.split, inputs.data)
        randomness = fl.Randomness(config.seed, emulated=config.emulated)
        samples = inputs.data.samples
        self.federation, self.owns = simulate(
            system, settings, names, model.spec, starts, config.mode, randomness, samples, epochs, founded
        )
        self.seen = self.federation.among(self.shown) if config.evaluated else self.federation
        self.emulated = randomness.emulated
        known = self.inputs_digest + ("" if self.around.traces is None else self.around.traces.digest)
        self.fingerprint = fingerprint(known, inputs.split, inputs.tasks, starts, epochs)
        self._check_mixtures()

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

    def _check_mixtures(self) -> None:
        config = self.config
        plain = config.task == "classes" and config.loss is None and config.class_weights is None
        everybodys = () if plain else self.system.models(self.seen).values()
        if any(isinstance(one, fl.Mixture) for one in everybodys):
            raise fl.UserError(
                f"{self.system.name} weighs models by their likelihood, so it takes classes and cross entropy without "
                "class_weights: leave task, loss and class_weights out"
            )


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
