"""Every party as a node, over an engine in memory: models are those of one process, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
from federation import planted, rig
from nodes import nodes

from coterie.runs import registry
from coterie.runs.evaluation import models_digest

ROUNDS, SIZE = 3, 24
TARGETS = planted([0, 0, 1, 1], SIZE)
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("fedavg", "paper", {}),
    ("fedcaprivacy", "paper", {"clusters": 2, "schedule": "always"}),
]


@pytest.mark.parametrize(("name", "mode", "settings"), CASES, ids=[f"{name}-{mode}" for name, mode, _ in CASES])
def test_models_are_those_of_one_process(name: str, mode: str, settings: dict[str, Any]) -> None:
    system = registry.get(name)
    together, fresh = (rig(system, TARGETS, mode=mode, delta=0.0, **settings) for _ in range(2))
    together.rounds(ROUNDS)
    together.finish(ROUNDS)
    before, models = fresh.models(), together.models()
    apart = nodes(fresh, name, TARGETS)
    apart.run(ROUNDS)
    assert (apart.models() != before).any(axis=1).all()
    assert models_digest(dict(enumerate(apart.models()))) == models_digest(dict(enumerate(models)))
