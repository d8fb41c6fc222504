"""The hub begins when its parties are there."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import pytest
from memory_engine import Exchange
from test_deploy_plan import PLAN

from coterie.deploy.beginning import gathered
from coterie.protocol.errors import RunError

NAMES = [one.name for one in PLAN.roster.entries]
HUB, *CLIENTS = NAMES


def waiting(quorum: int, here: list[str], late: str = "", patience_s: float = 0.2, **more: Any) -> None:
    exchange = Exchange(NAMES)
    for name in here:
        exchange.engine(name)
    plan = msgspec.structs.replace(
        PLAN, settings=msgspec.structs.replace(PLAN.settings, quorum=quorum, patience_s=patience_s)
    )
    if late:
        threading.Timer(0.1, exchange.engine, [late]).start()
    gathered(plan, exchange.engine(HUB), threading.Event(), poll_s=0.02, **more)


def test_the_hub_waits_for_the_quorum_and_names_the_absent() -> None:
    *most, last = CLIENTS
    waiting(len(CLIENTS), CLIENTS)
    waiting(len(most), most)
    waiting(len(CLIENTS), most, late=last, patience_s=20)
    with pytest.raises(RunError, match=f"{last} did not connect within 0.2 seconds"):
        waiting(len(CLIENTS), most)


def test_it_tells_meanwhile_who_is_there() -> None:
    told = list[tuple[set[str], list[str]]]()
    *most, last = CLIENTS
    waiting(len(CLIENTS), most, late=last, patience_s=20, tell=lambda here, away: told.append((set(here), list(away))))
    assert told[0] == ({HUB, *most}, [last])
    assert told[-1] == (set(NAMES), [])


def test_a_hub_that_is_stopped_waits_no_longer() -> None:
    stopped = threading.Event()
    stopped.set()
    gathered(
        msgspec.structs.replace(PLAN, settings=msgspec.structs.replace(PLAN.settings, quorum=9)),
        Exchange(NAMES).engine(HUB),
        stopped,
    )
