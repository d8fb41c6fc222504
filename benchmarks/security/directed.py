"""Federations of PAFed whose clients send the directions that they are told. Keys are the secure ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.security.played import Played, federation
from coterie.devices.links import Delays
from coterie.protocol.effects import Vector
from coterie.systems.pafed import SYSTEM
from coterie.systems.pafed.config import PAFedConfig
from coterie.transport.wire import Links

Direction = Callable[[str, Vector], Vector]


@dataclass(frozen=True, eq=False)
class Directed(Played):
    """source: of directions that nobody tells."""

    source: np.random.Generator

    @property
    def size(self) -> int:
        """d."""
        return int(self.starts.shape[1])

    def round(self, r: int, direction: Direction | None = None) -> None:
        """One round. direction: where each client goes; by default each in a random direction of its own."""
        drawn = dict(zip(self.clients, self.source.normal(size=(len(self.clients), self.size)), strict=True))
        moved = direction or (lambda client, _: drawn[client].astype(np.float32))
        self.effects.trained = lambda client, weights: weights + moved(client, weights)
        super().round(r)


class Delayed(Links):
    """Everything is immediate but what an experiment holds back."""

    def __init__(self, delays: Delays) -> None:
        self.delays = delays

    def rounds(self, party: str, round: int) -> int:
        """By how many rounds, from the table."""
        return self.delays.of(round).get(party, 0)


@contextmanager
def played(
    early: int, late: int, *, size: int = 20, seed: int = 0, emulated: bool = True, **settings: Any
) -> Iterator[Directed]:
    """A federation after its set-up in which every round from the second on has so many in time and so many late."""
    clients, start = early + late, np.zeros((1, size), np.float32)
    config = PAFedConfig(**{"participation": 1.0, "local": "sgd", **settings})

    def links(names: Sequence[str]) -> Delayed:
        return Delayed(Delays(lambda r: names, late / clients, "uniform:1", seed))

    with federation(SYSTEM, config, clients, start, seed=seed, emulated=emulated, links=links) as run:
        yield Directed(**vars(run), source=np.random.default_rng(seed))
