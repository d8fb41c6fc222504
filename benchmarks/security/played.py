"""Whole federations without training: clients move as they are told, and all else is the real thing.

Messages, ciphers, signatures, delays and every party are those of an ordinary run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import coterie.method as fl
from coterie.protocol.interpreters import PLAIN, each, interpret
from coterie.runs.keyring import PartyKeys
from coterie.runs.parties import simulate
from coterie.transport.local import LocalTransport
from coterie.transport.transcript import Transcript, View
from coterie.transport.wire import Links


class Effects:
    """Effects of clients that send what ``trained`` says and find a model as bad as ``loss`` says.

    Both take the client and the model that it was sent, (d,), and may be set between two rounds.
    """

    chunk = 1 << 10

    def __init__(self) -> None:
        self.trained: Callable[[str, fl.Vector], fl.Vector] = lambda client, weights: weights
        self.loss: Callable[[str, fl.Vector], float] = lambda client, weights: 0.0
        self.table = {
            **PLAIN,
            fl.Fit: each(lambda party, effect: fl.Fitted(self.trained(party, effect.weights), 1, 1, 0.0)),
            fl.Evaluate: each(lambda party, effect: fl.Evaluated(self.loss(party, effect.weights), 0.0, 1)),
        }

    def run(self, wanted: Sequence[tuple[str, Any]]) -> list[Any]:
        """Results in order; what is refused stands in its place."""
        return interpret(self.table, wanted)


@dataclass(frozen=True, eq=False)
class Played:
    """A federation between two rounds. starts: (k, d).  views: of all parties."""

    clients: tuple[str, ...]
    config: Any
    mode: str
    starts: fl.Vector
    federation: fl.Federation
    transport: LocalTransport
    effects: Effects

    @property
    def views(self) -> Mapping[str, View]:
        assert self.transport.transcript is not None
        return self.transport.transcript.views

    def party(self, name: str) -> Any:
        """A party with its secrets, which score an attack. No attacker has them."""
        return self.federation.parties[name]

    def round(self, r: int) -> None:
        """One round."""
        self.transport.drive(self.party(self.federation.hub).round(r), r)


@contextmanager
def federation(
    system: fl.System,
    config: Any,
    clients: int,
    starts: fl.Vector,
    *,
    mode: str = "paper",
    seed: int = 0,
    emulated: bool = True,
    links: Callable[[Sequence[str]], Links | None] = lambda names: None,
) -> Iterator[Played]:
    """A federation after its set-up. starts: (k, d) start models. links(clients): where not the transport's own."""
    names, size = tuple(f"client/{i}" for i in range(clients)), starts.shape[1]
    one, randomness = dict.fromkeys(names, 1), fl.Randomness(seed, emulated)
    spec = fl.ModelSpec((fl.Part("bias", (size,), "float32", "parameter", "shared", 0),), 2.0 * size)
    built, owns = simulate(system, config, names, spec, starts, mode, randomness, one, one)
    identities = {name: own.identity for name, own in owns.items() if own.identity}
    keyring, effects = PartyKeys(built.common.roster, identities), Effects()
    transport = LocalTransport(
        built.parties, built.hub, effects, links=links(names), keyring=keyring, transcript=Transcript(1 << 62)
    )
    hub: Any = built.parties[built.hub]
    try:
        transport.drive(hub.setup(), 0)
        yield Played(names, config, mode, starts, built, transport, effects)
    finally:
        transport.close()
