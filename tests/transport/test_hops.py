"""Rounds take as many hops, there and back, whatever the number of clients and clusters.

So do set-ups, but for one that makes groups by comparing clients: its steps are bounded by the number of clients.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from every_system import CASES, SIZE, Case, first, parameters
from federation import Rig, planted, rig
from hops import Hops

from coterie.baselines.fedavg import SYSTEM
from coterie.protocol.steps import ask
from coterie.protocols.averaging import Server, Train, Update
from coterie.runs import registry

ROUNDS = 4

MOST: dict[tuple[str, str], tuple[int, int]] = {
    ("fedcaprivacy", "paper"): (2, 5),
    ("fedcaprivacy", "literal"): (2, 5),
    ("fedcaprivacy", "hardened"): (11, 5),  # with descriptor=signature; else 2
    ("mingledpie", "paper"): (3, 2),
    ("mingledpie", "literal"): (3, 2),
    ("mingledpie", "hardened"): (3, 2),
    ("fedepc", "paper"): (1, 3),
    ("fedepc", "literal"): (1, 1),
    ("fedepc", "hardened"): (4, 3),
    ("ofl", "paper"): (0, 20),
    ("ofl", "literal"): (0, 20),
    ("ofl", "hardened"): (0, 22),
    ("pafed", "paper"): (2, 4),
    ("pafed", "literal"): (2, 3),
    ("pafed", "hardened"): (2, 5),
    ("rfl_ha", "paper"): (2, 2),
    ("coterie", "paper"): (11, 6),  # with check=norm; else a round has 4
    ("secagg", "paper"): (0, 4),
    ("oort", "paper"): (1, 1),
    ("haccs", "paper"): (1, 1),
}
"""Hops of the set-up, and of the longest round. Of all others: 0 and 1."""

A_CLIENT = 20  # hops at most for each client, of a set-up that compares clients one after the other

WITH_JOINT_KEYS: dict[tuple[str, str], tuple[int, int]] = {
    ("mingledpie", "paper"): (9, 4),
    ("mingledpie", "hardened"): (9, 4),
    ("pafed", "paper"): (2, 10),
}
"""The same with keys=threshold."""


def run_of(case: Case, clients: int, groups: int) -> list[int]:
    """Hops of the set-up and of each round."""
    name, mode, settings = case
    if isinstance(settings.get("clusters"), int) and settings["clusters"] > 1:
        settings = {**settings, "clusters": max(groups, settings["clusters"])}
    delta = 0.5 if registry.get(name).delta else 0.0  # so that PAFed has late updates to correct
    counters: list[Hops] = []
    targets = planted([i % groups for i in range(clients)], SIZE, seed=3)
    run: Rig = rig(
        registry.get(name),
        targets,
        mode=mode,
        delta=delta,
        wire=lambda transport: counters.append(Hops(transport)),
        **settings,
    )
    (hops,) = counters
    return [hops.last(), *(hops.counted(lambda r=r: run.round(r)) for r in range(1, ROUNDS + 1))]


QUICK = {"fedavg", "rfl_ha", "fedcaprivacy", "mingledpie", "fedepc", "pafed"}
"""In mode paper; all others are long."""


@pytest.mark.parametrize(
    "case", parameters(CASES, lambda case: case[1] == "paper" and case[0] in QUICK and first(case))
)
def test_hops_do_not_grow_with_clients_and_clusters(case: Case) -> None:
    few, many = run_of(case, 6, 2), run_of(case, 13, 4)
    table = WITH_JOINT_KEYS if case[2].get("keys") == "threshold" else MOST
    set_up, longest = table.get(case[:2], (0, 1))
    assert few[1:] == many[1:]
    assert max(few[1:]) <= longest
    if case[0] == "coterie" and case[2]["clusters"] > 1:
        assert few[0] <= 6 * A_CLIENT
        assert many[0] <= 13 * A_CLIENT
    else:
        assert few[0] == many[0] <= set_up


def test_one_after_the_other_is_found() -> None:
    """A hub that asks its clients one by one."""

    class Slow(Server, role="server"):
        def round(self, r: int) -> Any:
            for name in self.clients:
                yield from ask(name, Train(r, self.spec.digest, self.state.weights), Update)
            return {}

    slow = replace(SYSTEM, parties=lambda config: {**SYSTEM.parties(config), "server": Slow})
    counters: list[Hops] = []
    run = rig(slow, planted([0] * 5, SIZE), wire=lambda transport: counters.append(Hops(transport)))
    assert counters[0].counted(lambda: run.round(1)) == 5
