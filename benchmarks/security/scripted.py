"""Federations of MingledPie whose clients are told their clusters.

What the server sees in the clear follows from the true clusters alone. So a script of them (unequal sizes, changes in
chosen rounds) gives any setting in a fraction of a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.security.played import Played, federation
from coterie.devices.links import FleetLinks
from coterie.devices.profiles import fleet
from coterie.systems.mingledpie import SYSTEM
from coterie.systems.mingledpie.config import MingledPieConfig

CLASSES = 3
"""A model of three numbers: big enough to be told from others."""


def play(
    script: Sequence[Sequence[int]] | Sequence[NDArray[np.int64]],
    *,
    mode: str = "paper",
    seed: int = 0,
    emulated: bool = True,
    **settings: Any,
) -> Played:
    """Play a script (rounds, clients) of true clusters. settings: of ``MingledPieConfig``.

    Clients find the start model of their cluster the best, and send it as it is.
    """
    config, rows = MingledPieConfig(**settings), np.asarray(script)
    order = np.random.default_rng(seed).permutation(config.clusters)
    starts = np.repeat(order[:, None], CLASSES, axis=1).astype(np.float32)

    def links(names: Sequence[str]) -> FleetLinks:
        return FleetLinks(dict(zip(names, fleet("uniform", len(names), seed), strict=True)), seed)

    how: dict[str, Any] = {"mode": mode, "seed": seed, "emulated": emulated, "links": links}
    with federation(SYSTEM, config, rows.shape[1], starts, **how) as run:
        for r, row in enumerate(rows, 1):
            clusters = dict(zip(run.clients, row.tolist(), strict=True))

            def loss(client: str, weights: Any, clusters: dict[str, int] = clusters) -> float:
                return float(np.square(starts - weights).sum(axis=1).argmin() != clusters[client])

            run.effects.loss = loss
            run.round(r)
    return run
