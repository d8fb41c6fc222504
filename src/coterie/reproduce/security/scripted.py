"""A federation of MingledPie whose clients are told their clusters: nothing is trained, all else is the real thing.

What the server sees in the clear follows from the true clusters alone. So a script of them (unequal sizes, changes in
chosen rounds) gives any setting in a fraction of a second, through the parties, messages, signatures and
group operations of an ordinary run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.devices.profiles import fleet
from coterie.protocol.effects import Evaluate, Evaluated, Fit, Fitted, Vector
from coterie.protocol.interpreters import PLAIN, each, interpret
from coterie.protocol.model_spec import ModelSpec, Part
from coterie.protocol.randomness import Randomness
from coterie.protocol.system import Federation, Setting
from coterie.runs.keyring import PartyKeys
from coterie.runs.links import FleetLinks
from coterie.systems.mingledpie import SYSTEM, MingledPieConfig
from coterie.transport.local import LocalTransport
from coterie.transport.transcript import Transcript, View

CLASSES = 3
SPEC = ModelSpec((Part("bias", (CLASSES,), "float32", "parameter", "shared", 0),), 2.0 * CLASSES)
"""A model of three numbers: big enough to be told from others."""


class Told:
    """Effects of clients that find the model of the cluster that they are told the best, and do not change it.

    starts: (k, d), far from each other; models are told by the nearest of them.  clusters: by client, set before each
    round.
    """

    chunk = 1 << 10

    def __init__(self, starts: Vector) -> None:
        self.starts = starts
        self.clusters: Mapping[str, int] = {}
        self.table = {
            **PLAIN,
            Evaluate: each(self._evaluate),
            Fit: each(lambda party, effect: Fitted(effect.weights, 1, 0, 0.0)),
        }

    def run(self, wanted: Sequence[tuple[str, Any]]) -> list[Any]:
        """Results in order; what is refused stands in its place."""
        return interpret(self.table, wanted)

    def _evaluate(self, party: str, effect: Evaluate) -> Evaluated:
        nearest = int(np.square(self.starts - effect.weights).sum(axis=1).argmin())
        return Evaluated(float(nearest != self.clusters[party]), 0.0, 1)


@dataclass(frozen=True, eq=False)
class Played:
    """A script that was played. starts: (k, d) models, which every client sends as they are.  views: of all parties.

    federation: after the last round.
    """

    config: MingledPieConfig
    mode: str
    clients: tuple[str, ...]
    starts: Vector
    views: Mapping[str, View]
    federation: Federation


def play(
    script: Sequence[Sequence[int]] | Sequence[NDArray[np.int64]],
    *,
    mode: str = "paper",
    seed: int = 0,
    emulated: bool = True,
    **settings: Any,
) -> Played:
    """Play a script (rounds, clients) of true clusters. settings: of ``MingledPieConfig``."""
    config = MingledPieConfig(**settings)
    rows = np.asarray(script)
    names = tuple(f"client/{i}" for i in range(rows.shape[1]))
    order = np.random.default_rng(seed).permutation(config.clusters)
    starts = np.repeat(order[:, None], SPEC.size, axis=1).astype(np.float32)
    setting = Setting(
        clients=names,
        samples=dict.fromkeys(names, 1),
        epochs=dict.fromkeys(names, 1),
        spec=SPEC,
        initial=starts[0],
        initials=lambda k: tuple(starts[:k]),
        mode=mode,
        randomness=Randomness(seed, emulated),
    )
    federation: Federation = SYSTEM.build(config, setting)
    effects = Told(starts)
    transport = LocalTransport(
        federation.parties,
        federation.hub,
        effects,
        links=FleetLinks(dict(zip(names, fleet("uniform", len(names), seed), strict=True)), seed),
        keyring=PartyKeys(federation.parties, setting.randomness),
        transcript=Transcript(1 << 62),
    )
    hub: Any = federation.parties[federation.hub]
    try:
        transport.drive(hub.setup(), 0)
        for r, row in enumerate(rows, 1):
            effects.clusters = dict(zip(names, row.tolist(), strict=True))
            transport.drive(hub.round(r), r)
    finally:
        transport.close()
    assert transport.transcript is not None
    return Played(config, mode, names, starts, transport.transcript.views, federation)
