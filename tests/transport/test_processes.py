"""Every party as a node in an operating-system process of its own, over pipes: models are those of one process, bit for
bit. What relays sees ends and sizes only.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
from federation import Rig, planted, public_target, rig
from party_process import Ended, Place, live, relay

from coterie.operate.supervision import warm
from coterie.protocol import state
from coterie.runs import registry
from coterie.runs.digests import models_digest

ROUNDS, SIZE, SIZE_OF_12_MB = 3, 24, 3_000_000
TARGETS = planted([0, 0, 1, 1], SIZE)

CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("fedavg", "paper", {}),
    ("scaffold", "paper", {}),
    ("haccs", "paper", {"participation": 1.0}),
    ("flacc", "paper", {"settle": 1}),
    ("oort", "paper", {"participation": 1.0}),
    ("clsm_fl", "paper", {"clusters": 2}),
    ("cfl", "paper", {}),
    ("rfl_ha", "paper", {"clusters": 2}),
    ("fedcaprivacy", "paper", {"clusters": 2, "schedule": "always"}),
    ("fedcaprivacy", "literal", {"clusters": 2, "schedule": "always"}),
    ("fedcaprivacy", "hardened", {"clusters": 2, "min_cluster": 2, "descriptor": "model", "sketch_dim": 8}),
    ("fedcaprivacy", "hardened", {"clusters": 2, "min_cluster": 2, "descriptor": "model", "hardening": "rotation"}),
    ("fedcaprivacy", "hardened", {"clusters": 2, "min_cluster": 2, "descriptor": "signature"}),
    ("mingledpie", "paper", {"clusters": 3}),
    ("mingledpie", "hardened", {"clusters": 2, "hardening": "uploads", "keys": "threshold"}),
    ("fedepc", "paper", {}),
    ("fedepc", "literal", {}),
    ("fedepc", "hardened", {"min_cluster": 2}),
    ("ofl", "paper", {"clusters": 2, "recluster_every": 2}),
    ("ofl", "literal", {"clusters": 2, "recluster_every": 2}),
    ("ofl", "hardened", {"clusters": 2, "recluster_every": 2}),
    ("ofl", "hardened", {"clusters": 2, "mechanism": "distributed", "noise": 0.05}),
    ("pafed", "paper", {"participation": 1.0}),
    ("pafed", "literal", {"participation": 1.0}),
    ("coterie", "paper", {"clusters": 2, "min_cluster": 2, "fewest": 1, "noise": 0.0}),
    ("coterie", "paper", {"clusters": 2, "min_cluster": 2, "fewest": 1, "noise": 0.0, "check": "norm"}),
    ("krum", "paper", {"faulty": 0.25}),
    ("flame", "paper", {}),
    ("fedrep", "paper", {}),
    ("ditto", "paper", {}),
    ("apfl", "paper", {}),
    ("ca2fl", "paper", {"participation": 1.0, "buffer": 3}),
    ("fltrust", "paper", {}),
    ("tests.privacy.test_attacks_active:SCALING", "paper", {}),  # with a client that misbehaves
    ("tests.privacy.test_attacks_active:ADAPTING", "paper", {}),  # and remembers
    ("pafed", "hardened", {"participation": 1.0}),
    ("pafed", "paper", {"participation": 1.0, "keys": "threshold"}),
    ("own_page:SYSTEM", "paper", {"keys": "threshold"}),  # with pieces of keys that go from client to client
    ("own_page:SYSTEM", "paper", {"keys": "threshold", "pads": False}),
    ("own_page:SYSTEM", "paper", {"keys": "threshold", "noise": 0.05}),
    ("own_page:SYSTEM", "paper", {"noise": 0.05}),
    (
        "tests.runs.test_finish:SYSTEM",
        "paper",
        {},
    ),  # its hub trains on data of its own, and hands models out at the end
]


QUICK = {("fedavg", "paper"), ("rfl_ha", "paper"), ("mingledpie", "paper")}
"""A plain one, one with leaders and one with keys; the others are long."""


def apart(system: str, made: Rig, targets: np.ndarray, rounds: int) -> dict[str, Ended]:
    """Run the same federation in processes, and put its parties into the states that they ended with."""
    warm()
    context = multiprocessing.get_context("forkserver")
    parties, common = made.federation.parties, made.common
    roles = {name: (party.role, *sorted(party.roles - {party.role})) for name, party in parties.items()}
    pipes: dict[str, Connection] = {}
    processes = []
    try:
        for name in parties:
            data = targets[common.clients.index(name)] if name in common.clients else None
            data = public_target(targets) if name == made.federation.hub and common.public else data
            pipes[name], end = context.Pipe()
            place = Place(made.owns[name], common, roles, system, made.config, rounds, data)
            process = context.Process(target=live, args=(place, end), daemon=True)
            process.start()
            end.close()
            processes.append(process)
        ended = relay(pipes)
        for name, party in parties.items():
            states = state.load(ended[name].states, {"state": type(party.state), "secret": type(party.secret)})
            party.state, party.secret = states["state"], states["secret"]
        return ended
    finally:
        for process in processes:
            process.kill()
            process.join()


@pytest.mark.parametrize(
    ("name", "mode", "settings"),
    [pytest.param(*case, marks=() if case[:2] in QUICK else pytest.mark.long) for case in CASES],
    ids=["-".join(map(str, case[:2])) for case in CASES],
)
def test_models_are_those_of_one_process(name: str, mode: str, settings: dict[str, Any]) -> None:
    system = registry.get(name)
    together, fresh = (rig(system, TARGETS, mode=mode, delta=0.0, **settings) for _ in range(2))
    together.rounds(ROUNDS)
    together.finish(ROUNDS)
    models = together.models()
    assert (models != fresh.models()).any(axis=1).all()
    apart(name, fresh, TARGETS, ROUNDS)
    assert models_digest(dict(enumerate(fresh.models()))) == models_digest(dict(enumerate(models)))


@pytest.mark.long
def test_a_hub_holds_no_packet_of_each_party() -> None:
    """Of 12 MB each. With twenty clients its memory is less than eight of them above that with four.

    Peaks of the same federation differ by three, with the times at which packets arrive.
    """

    def peak(clients: int) -> int:
        targets = np.zeros((clients, SIZE_OF_12_MB), np.float32)
        fresh = rig(registry.get("fedavg"), targets, delta=0.0)
        return apart("fedavg", fresh, targets, 2)["server"].peak_bytes

    assert peak(20) - peak(4) < 8 * 4 * SIZE_OF_12_MB
