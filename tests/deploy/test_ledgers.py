"""Ledgers agree: what clients have released is the same in one process, and by each party's own account.

Between machines two kinds more are counted, which these runs have not: scores, and attempts that were given up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from every_system import CASES, TARGETS, Case, made, own_messages, parameters
from nodes import nodes

from coterie.deploy.account import account_of
from coterie.dp.entries import ledger_of
from coterie.dp.ledger import DELTA, Ledger, Release
from coterie.runs.outcome import releases

ROUNDS = 2
NOISY: list[Case] = [
    ("ofl", "hardened", {"clusters": 2, "mechanism": "standard", "epsilon": 8.0, "private_rounds": 3}),
    ("ofl", "paper", {"clusters": 2, "mechanism": "distributed", "epsilon": 8.0, "missing": 0}),
    ("ofl", "paper", {"clusters": 2, "mechanism": "distributed", "noise_by": "members", "epsilon": 8.0}),
    ("own_page:SYSTEM", "paper", {"keys": "threshold", "epsilon": 8.0}),
    ("dp_fedavg", "paper", {"epsilon": 8.0}),
    ("fedavg", "paper", {"sample_noise": 1.0, "batch_size": 5}),
    ("coterie", "paper", {"clusters": 1, "epsilon": 8.0}),
]
"""With proofs, which must agree by observer."""


def alone(case: Case) -> dict[str, Sequence[Release]]:
    """By client, its own account of a deployment."""
    apart = nodes(made(case), case[0], TARGETS)
    nodes_of: dict[str, Any] = {}

    def live(name: str, rounds: int) -> None:
        node = nodes_of[name] = apart.node(name)
        node.account = account_of(apart.system, apart.parties[name], apart.made.config)
        apart.drive(node, rounds)

    apart.run(ROUNDS, live)
    return {name: ledger_of(nodes_of[name].kept.released).releases for name in apart.made.common.clients}


def together(case: Case) -> dict[str, Sequence[Release]]:
    """The same of a run in one process, as ``result.json`` counts it."""
    run = made(case)
    sent: list[tuple[int, Mapping[str, Sequence[str]]]] = [(0, run.transport.meter.released)]
    for r in range(1, ROUNDS + 1):
        run.round(r)
        sent.append((r, run.transport.meter.released))
    if run.hub.finishes:
        run.finish(ROUNDS)
        sent.append((ROUNDS, run.transport.meter.released))
    owns = {name: run.owns[name] for name in run.common.clients}
    found = releases(run.system, run.config, run.common.mode, run.federation, owns, sent)
    return {name: found.get(name, ()) for name in owns}


@pytest.mark.parametrize("case", parameters(CASES + NOISY, lambda case: case in NOISY or own_messages(case)))
def test_each_party_s_account_is_the_ledger_of_the_run_in_one_process(case: Case) -> None:
    accounts, ledgers = alone(case), together(case)
    assert any(accounts.values()) == (case[0] != "local")
    for client, own in ledgers.items():
        assert sorted(map(str, accounts[client])) == sorted(map(str, own)), client
        said = [Ledger(tuple(found)).statement(DELTA) for found in (accounts[client], own)]
        assert [(one["epsilon"], one["against"]) for one in said[:1]] == [(said[1]["epsilon"], said[1]["against"])]
