"""The order in which messages of different senders arrive changes no model, unless it is the method's own rule.

On machines of their own nobody knows who answers first. Here devices differ by a nanosecond, so only the order does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from every_system import CASES, Case, made, own_messages, parameters
from federation import Rig, Steady

from coterie.protocol.system import Mixture
from coterie.runs.registry import SYSTEMS
from coterie.transport.wire import Links

ROUNDS = 3
BY_THE_METHOD = {
    ("fedasync", "paper"): "the server mixes in each model as it comes",
    ("rfl_ha", "paper"): "the server mixes in each cluster as it comes",
    ("ofl", "paper"): "a leader mixes in each upload as it comes (algorithm 2, l. 20), and the last counts most",
}


def ordered(*clients: int) -> Steady:
    return Steady(slow={f"client/{i}": 1.0 + 1e-9 * at for at, i in enumerate(clients)})


def after(case: Case, links: Links) -> np.ndarray:
    run: Rig = made(case, links=links)
    run.rounds(ROUNDS)
    run.finish(ROUNDS)
    models: Any = run.system.models(run.federation)
    return np.stack(
        [m.weights @ m.models if isinstance(m, Mixture) else m for m in map(models.get, run.common.clients)]
    )


@pytest.mark.parametrize("case", parameters(CASES, lambda case: own_messages(case) or case[:2] in BY_THE_METHOD))
def test_no_order_of_arrival_moves_a_model(case: Case) -> None:
    """The order is no mirror of the first, which would leave a symmetric tree of sums as it is."""
    one, other = after(case, ordered(0, 1, 2, 3, 4, 5)), after(case, ordered(5, 2, 4, 1, 3, 0))
    assert np.array_equal(one, other) != (case[:2] in BY_THE_METHOD)


@pytest.mark.parametrize(
    "case",
    parameters(
        [("fedcaprivacy", mode, {"clusters": 2}) for mode in SYSTEMS["fedcaprivacy"].modes],
        lambda case: case[1] == "paper",
    ),
)
def test_links_that_take_no_time_give_the_same_models(case: Case) -> None:
    """The virtual clock stands still then: uploads of all rounds carry the same time."""
    name, mode, settings = case
    hardened = {"min_cluster": 2, "descriptor": "model", "sketch_dim": 8} if mode == "hardened" else {}
    case = name, mode, {**settings, **hardened}
    np.testing.assert_array_equal(after(case, Steady()), after(case, Steady(leg_s=0.0, job_s=0.0)))


def test_leaders_that_answer_in_another_order_need_no_new_key() -> None:
    """OFL makes a key when its leaders change, and not when they answer in another order."""
    case: Case = ("ofl", "hardened", {"clusters": 2, "smallest": 1, "recluster_every": 5})
    run = made(case)
    run.round(1)
    numbers = dict(run.hub.secret.joint.numbers)
    leaders = [name for _, name in sorted(run.hub.state.leaders.items())]
    run.links.slow = {name: 5.0 - i for i, name in enumerate(leaders)}
    run.round(2)
    run.links.slow = {name: 1.0 + i for i, name in enumerate(leaders)}
    run.round(3)
    assert dict(run.hub.secret.joint.numbers) == numbers != {}
