"""Every party as a node, over an engine in memory: models are those of one process, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
from every_system import Case, own_messages
from federation import Steady, planted, rig
from nodes import nodes

from coterie.runs import registry
from coterie.runs.digests import models_digest
from tests.transport.test_processes import CASES

ROUNDS, SIZE = 3, 24
TARGETS = planted([0, 0, 1, 1], SIZE)


def quick(case: Case) -> bool:
    """All types of messages, and proofs of lengths, which go between nodes in no other quick test."""
    return own_messages(case, CASES) or "check" in case[2]


@pytest.mark.parametrize("delta", [pytest.param(0.0, marks=pytest.mark.long), 0.5])
@pytest.mark.parametrize(
    ("name", "mode", "settings"),
    [pytest.param(*case, marks=() if quick(case) else pytest.mark.long) for case in CASES],
    ids=["-".join(map(str, case[:2])) for case in CASES],
)
def test_a_rehearsal_gives_the_models_of_one_process(
    name: str, mode: str, settings: dict[str, Any], delta: float
) -> None:
    system = registry.get(name)
    slow = Steady(slow={f"client/{i}": 1.0 + 0.7 * (3 * i % 4) for i in range(4)})
    together, fresh = (
        rig(system, TARGETS, mode=mode, delta=delta, delay="uniform:1-2", links=links, **settings)
        for links in (slow, Steady(slow=slow.slow))
    )
    notes = together.rounds(ROUNDS)
    notes.append(together.finish(ROUNDS))
    before, models = fresh.models(), together.models()
    apart = nodes(fresh, name, TARGETS, rehearsed=True)
    apart.run(ROUNDS)
    assert [one.notes for one in apart.rounds[1 : ROUNDS + 1]] == notes[:ROUNDS]
    assert (apart.models() != before).any() or not (models != before).any()
    assert models_digest(dict(enumerate(apart.models()))) == models_digest(dict(enumerate(models)))
