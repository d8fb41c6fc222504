"""What a party knows before it starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np
from numpy.typing import NDArray

from coterie.protocol.effects import Vector
from coterie.protocol.model_spec import ModelSpec
from coterie.protocol.randomness import Randomness


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """verify_key: Ed25519, 32 bytes.  sealing_key: X25519, 32 bytes."""

    name: str
    role: str
    verify_key: bytes
    sealing_key: bytes


class Roster(msgspec.Struct, frozen=True, dict=True):
    """All parties of a federation in a fixed order, the hub first.  session: 16 bytes, of this federation.  operator:
    its Ed25519 key, 32 bytes.  signature: the operator's, over all the rest.
    """

    session: bytes
    entries: tuple[Entry, ...]
    operator: bytes
    signature: bytes = b""

    @cached_property
    def by_name(self) -> Mapping[str, Entry]:
        return {entry.name: entry for entry in self.entries}

    @property
    def hub(self) -> str:
        return self.entries[0].name

    @property
    def client_role(self) -> str:
        return self.entries[-1].role

    def of_role(self, role: str) -> Sequence[str]:
        return tuple(entry.name for entry in self.entries if entry.role == role)


class Identity(msgspec.Struct, frozen=True):
    """SECRET: a party's Ed25519 seed for signing and X25519 key for opening, 32 bytes each."""

    signing: bytes
    opening: bytes

    def __repr__(self) -> str:
        return "<Identity>"


@dataclass(frozen=True, eq=False)
class Common:
    """What every party of a federation knows.

    clients: those with data, in order: a tuple, or ``Names`` of very many.  starts: (k, d) float32, the initial weights
    of k models, mostly one.  mode: ``paper``, ``literal`` or ``hardened``.  emulated: the ciphers are.  public: samples
    of the hub.  deployed: parties are on separate machines. Then a client keeps the model that it is sent, and the hub
    sends the last one when the run is over.  quorum: how many clients must have their keys before round 1; 0 for all.
    warm: parties begin with their models of a former run (``Own.starts``).
    """

    roster: Roster
    clients: Sequence[str]
    spec: ModelSpec
    starts: NDArray[np.float32]
    mode: str
    emulated: bool
    public: int = 0
    deployed: bool = False
    quorum: int = 0
    warm: bool = False

    @cached_property
    def initial(self) -> Vector:
        """(d,) float32, the first model's."""
        return np.asarray(self.starts[0])


@dataclass(frozen=True)
class Own:
    """What one party alone knows.

    identity: SECRET, for its keys in the roster; None if nothing is signed or sealed.  samples: of its training data,
    for the hub of its public data.  epochs: local ones in a round that its device has time for.  starts: (k, d)
    float32, its models of a former run, instead of ``Common.starts``, or None.
    """

    name: str
    randomness: Randomness
    identity: Identity | None = None
    samples: int = 0
    epochs: int = 1
    starts: NDArray[np.float32] | None = None
