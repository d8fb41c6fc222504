"""Each party with a seed of its own, as between machines. No two parties rely on drawing the same numbers."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from every_system import CASES, TARGETS, Case, made, own_messages, parameters
from federation import Repeatable, Rig

from coterie.protocol.system import Mixture

ROUNDS = 3


def seed_of(name: str) -> int:
    return zlib.crc32(name.encode())


@dataclass(frozen=True)
class OnlyMine(Repeatable):
    """Randomness of one party, which draws for no other."""

    def rng(self, party: str, *rest: Any) -> np.random.Generator:
        assert self.seed in (0, seed_of(party)), f"a number of {party} is drawn with another party's seed"
        return super().rng(party, *rest)


def away(run: Rig) -> float:
    """The mean square distance of the clients' models from what they are pulled towards."""
    models = run.system.models(run.federation)
    found = []
    for name, target in zip(run.common.clients, TARGETS, strict=True):
        model: Any = models[name]
        mean = model.weights @ model.models if isinstance(model, Mixture) else model
        found.append(np.square(mean - target).mean())
    return float(np.mean(found))


@pytest.mark.parametrize("case", parameters(CASES, own_messages))
def test_no_party_needs_the_seed_of_another(case: Case) -> None:
    with patch("federation.Repeatable", OnlyMine):
        shared, own = made(case), made(case, seeds=seed_of)
        for r in range(1, ROUNDS + 1):
            notes = [run.round(r) for run in (shared, own)]
            assert ("skipped" in notes[0]) == ("skipped" in notes[1]), notes
            assert own.refused == shared.refused
    start = float(np.square(own.common.initial - TARGETS).mean())
    if case[1] != "literal":
        assert away(own) < 0.95 * start
    assert away(own) < 1.5 * away(shared)


def test_parties_that_need_the_same_numbers_are_found() -> None:
    """Participants that rotate their models by their own seeds, in the place of the one that they are granted."""

    def alone(federation: Any) -> None:
        for name in federation.common.clients:
            party = federation.alter(name)
            keys, seed = party.keys, party.rng("group").bytes(32)
            granted = keys.own_bytes
            keys.own_bytes = lambda grant, granted=granted, seed=seed: seed if grant == "group" else granted(grant)
            party.keys = keys

    settings = {"clusters": 2, "min_cluster": 2, "descriptor": "model", "hardening": "rotation"}
    run = made(("fedcaprivacy", "hardened", settings), seeds=seed_of, wrap=alone)
    honest = made(("fedcaprivacy", "hardened", settings), seeds=seed_of)
    for one in (run, honest):
        for r in range(1, ROUNDS + 1):
            one.round(r)
    assert away(run) > 1.5 * away(honest)
