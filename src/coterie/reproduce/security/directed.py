"""Federations of PAFed whose clients send the directions that they are told: whole federations without training.

Everything but the training is the real thing: messages, ciphers, delays, both servers. Keys are the secure ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.devices.delays import Delays
from coterie.protocol.effects import Fit, Fitted, Vector
from coterie.protocol.interpreters import PLAIN, each, interpret
from coterie.protocol.model_spec import ModelSpec, Part
from coterie.protocol.party import Party
from coterie.protocol.randomness import Randomness
from coterie.protocol.system import Federation, Setting
from coterie.runs.keyring import PartyKeys
from coterie.systems.pafed import SYSTEM, PAFedConfig
from coterie.transport.links import Ideal
from coterie.transport.local import LocalTransport
from coterie.transport.transcript import Transcript, View

Direction = Callable[[str, Vector], Vector]


class Directed:
    """Effects of clients that move by what ``direction(client, weights)`` says, set before each round."""

    chunk = 1 << 10

    def __init__(self) -> None:
        self.direction: Direction = lambda client, weights: np.zeros_like(weights)
        self.table = {**PLAIN, Fit: each(self._fit)}

    def run(self, wanted: Sequence[tuple[str, Any]]) -> list[Any]:
        """Results in order; what is refused stands in its place."""
        return interpret(self.table, wanted)

    def _fit(self, party: str, effect: Fit) -> Fitted:
        return Fitted(effect.weights + self.direction(party, effect.weights), 1, 1, 0.0)


class Delayed(Ideal):
    """Everything is immediate but what an experiment holds back."""

    def __init__(self, delays: Delays) -> None:
        self.delays = delays

    def rounds(self, party: str, round: int) -> int:
        """By how many rounds, from the table."""
        return self.delays.rounds(party, round)


@dataclass(frozen=True, eq=False)
class Played:
    """A federation between two rounds. ``round(r)`` plays one; views: of all parties."""

    clients: tuple[str, ...]
    size: int
    federation: Federation
    transport: LocalTransport
    effects: Directed
    source: np.random.Generator

    @property
    def views(self) -> Mapping[str, View]:
        assert self.transport.transcript is not None
        return self.transport.transcript.views

    def party(self, name: str) -> Any:
        """A party, for who reads what no attacker has."""
        party: Party = self.federation.parties[name]
        return party

    def round(self, r: int, direction: Direction | None = None) -> None:
        """One round. direction: where each client goes; by default each in a random direction of its own."""
        drawn = dict(zip(self.clients, self.source.normal(size=(len(self.clients), self.size)), strict=True))
        self.effects.direction = direction or (lambda client, _: drawn[client].astype(np.float32))
        hub: Any = self.federation.parties[self.federation.hub]
        self.transport.drive(hub.round(r), r)


@contextmanager
def played(
    early: int, late: int, *, size: int = 20, seed: int = 0, emulated: bool = True, **settings: Any
) -> Iterator[Played]:
    """A federation after its set-up in which every round from the second on has so many in time and so many late."""
    names = tuple(f"client/{i}" for i in range(early + late))
    given = {"participation": 1.0, "local": "sgd", **settings}
    spec = ModelSpec((Part("bias", (size,), "float32", "parameter", "shared", 0),), 2.0 * size)
    setting = Setting(
        clients=names,
        samples=dict.fromkeys(names, 1),
        epochs=dict.fromkeys(names, 1),
        spec=spec,
        initial=np.zeros(size, np.float32),
        initials=lambda k: tuple(np.zeros((k, size), np.float32)),
        mode="paper",
        randomness=Randomness(seed, emulated),
    )
    federation = SYSTEM.build(PAFedConfig(**given), setting)
    effects = Directed()
    keyring = PartyKeys(federation.parties, setting.randomness)
    links = Delayed(Delays(lambda r: names, late / len(names), "uniform:1", seed))
    transport = LocalTransport(
        federation.parties, federation.hub, effects, links=links, keyring=keyring, transcript=Transcript(1 << 62)
    )
    hub: Any = federation.parties[federation.hub]
    try:
        transport.drive(hub.setup(), 0)
        yield Played(names, size, federation, transport, effects, np.random.default_rng(seed))
    finally:
        transport.close()
