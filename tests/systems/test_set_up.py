"""A set-up in which parties are missing: with a quorum of clients the run begins, and else the error names them."""

from __future__ import annotations

from typing import Any

import pytest
from every_system import CASES, Case, first, made, one_mode, parameters
from federation import Steady

from coterie.protocol.errors import RunError
from coterie.runs import registry

GONE = "client/5"
DEALS_NONE = ("ofl", "secagg")
KEYED = [case for case in CASES if registry.get(case[0]).encrypts(case[1]) and case[0] not in DEALS_NONE]


def without(name: str, case: Case, **options: Any) -> Any:
    return made(case, links=Steady(away={(name, 0): "offline"}), **options)


@pytest.mark.parametrize("case", parameters(CASES, one_mode))
def test_a_quorum_of_clients_begins(case: Case) -> None:
    """The client that was away is refused or passed over, and all others train."""
    run = without(GONE, case, quorum=4)
    start = run.system.models(run.federation)
    notes = [run.round(r) for r in (1, 2)]
    assert not [one["skipped"] for one in notes if "skipped" in one]
    ended = run.system.models(run.federation)
    assert any(ended[name] is not start[name] for name in run.common.clients[:-1])


@pytest.mark.parametrize("case", parameters([case for case in KEYED if case[2].get("keys") != "threshold"], first))
def test_without_a_quorum_the_set_up_names_who_is_missing(case: Case) -> None:
    with pytest.raises(RunError, match=f"all clients and all servers must have keys; {GONE} have none"):
        without(GONE, case)
    with pytest.raises(RunError, match=f"6 clients and all servers must have keys; {GONE} have none"):
        without(GONE, case, quorum=6)


@pytest.mark.parametrize("name", ["csp", "key_centre"])
def test_every_server_must_be_there(name: str) -> None:
    with pytest.raises(RunError, match=r"csp have none|waits for 1 Granted"):
        without(name, ("fedcaprivacy", "paper", {"clusters": 2}), quorum=4)
