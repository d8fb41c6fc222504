"""What a party is told before it starts: what everybody knows, and what it alone knows.

Neither contains anything that belongs to the experiment: which data there are, the observers, which clients are late.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from coterie.protocol.effects import Vector
from coterie.protocol.model_spec import ModelSpec
from coterie.protocol.randomness import Randomness
from coterie.protocol.roster import Identity, Roster


@dataclass(frozen=True, eq=False)
class Common:
    """What every party of a federation knows.

    roster: all parties.  clients: the names of those with data, in the order of their numbers.
    spec: the model's shape.  starts: (k, d) float32, the weights that k models start with; most systems have one.
    mode: ``paper``, ``literal`` or ``hardened``.  emulated: whether the ciphers are.
    """

    roster: Roster
    clients: tuple[str, ...]
    spec: ModelSpec
    starts: NDArray[np.float32]
    mode: str
    emulated: bool

    @cached_property
    def initial(self) -> Vector:
        """(d,) float32, the weights that the first model starts with."""
        first: Vector = self.starts[0]
        return first


@dataclass(frozen=True)
class Own:
    """What one party alone knows.

    randomness: the source of its random numbers.  identity: SECRET, the secret halves of its keys in the roster; None
    if nothing is signed or sealed.  samples: the number of its training samples.  epochs: local epochs in a round, as
    many as its device has time for.
    """

    name: str
    randomness: Randomness
    identity: Identity | None = None
    samples: int = 0
    epochs: int = 1
