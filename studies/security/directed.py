"""Federations of PAFed whose clients send the directions that they are told. Keys are the secure ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.protocol.effects import Vector
from coterie.systems.pafed import SYSTEM
from coterie.systems.pafed.config import PAFedConfig
from studies.security.played import Played, federation

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


@contextmanager
def played(
    early: int, late: int, *, size: int = 20, seed: int = 0, emulated: bool = True, **settings: Any
) -> Iterator[Directed]:
    """A federation after its set-up in which every round from the second on has so many in time and so many late."""
    clients, start = early + late, np.zeros((1, size), np.float32)
    given = {"participation": 1.0, "delta": late / clients, "delay": "uniform:1", "local": "sgd", **settings}
    with federation(SYSTEM, PAFedConfig(**given), clients, start, seed=seed, emulated=emulated) as run:
        yield Directed(**vars(run), source=np.random.default_rng(seed))
