"""Everything may die, at any point, and goes on from its last commit: the models are those of an undisturbed run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from federation import Rig, Steady, planted, rig
from nodes import Doom, Nodes, nodes

from coterie.runs import registry
from coterie.runs.evaluation import models_digest

ROUNDS, SIZE = 2, 16
TARGETS = planted([0, 0, 1], SIZE)
PAFED = {"participation": 1.0}


def made(name: str, delta: float = 0.0, **settings: Any) -> Rig:
    return rig(registry.get(name), TARGETS, delta=delta, delay="uniform:1-1", links=Steady(), **settings)


def digest(models: np.ndarray) -> str:
    return models_digest(dict(enumerate(models)))


def killed(name: str, party: str, at: int, delta: float = 0.0, **settings: Any) -> tuple[Nodes, Doom]:
    """A run in which one party is killed at its n-th point."""
    apart = nodes(made(name, delta, **settings), name, TARGETS, rehearsed=True)
    doom = apart.dooms[party] = Doom({at})
    apart.run(ROUNDS)
    return apart, doom


@pytest.mark.parametrize("party", ["server", "client/1"])
def test_a_party_is_killed_at_every_point_of_a_run(party: str) -> None:
    """Before and after every commit, push and acknowledgement."""
    together = made("fedavg")
    together.rounds(ROUNDS)
    at = 0
    while True:
        apart, doom = killed("fedavg", party, at)
        assert digest(apart.models()) == digest(together.models()), (at, doom.said)
        assert not any(one.skipped for one in apart.rounds)
        if not doom.died:
            break
        at += 1
    assert at > 20
