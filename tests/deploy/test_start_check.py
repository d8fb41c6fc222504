"""The hub begins when its parties are there."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from deployments import Study
from memory_engine import Exchange, MemoryEngine

from coterie.deploy.engine import Delivery, EngineError, NotAdmittedError
from coterie.deploy.home import Home, plan_of
from coterie.deploy.start_check import wait_for_begin, wait_for_parties
from coterie.protocol.errors import RunError
from tests.deploy.test_plan import PLAN

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
    wait_for_parties(plan, exchange.engine(HUB), threading.Event(), poll_s=0.02, **more)


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
    wait_for_parties(
        msgspec.structs.replace(PLAN, settings=msgspec.structs.replace(PLAN.settings, quorum=9)),
        Exchange(NAMES).engine(HUB),
        stopped,
    )


def deaf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *problems: EngineError) -> tuple[Home, MemoryEngine]:
    """A party whose engine has these problems, and then a packet that is not sealed."""
    monkeypatch.setattr("coterie.deploy.start_check._POLL_S", 0.01)
    study = Study(tmp_path)
    study.found()
    home = study.enrol()
    plan, left = plan_of(home), list(problems)
    exchange = Exchange([name for name, _ in plan.members])
    exchange.put(plan.roster.hub, home.name, b"not sealed", "1")
    engine = exchange.engine(home.name)
    pull = engine.pull

    def hindered(wait_s: float) -> Delivery | None:
        if left:
            raise left.pop(0)
        return pull(wait_s)

    monkeypatch.setattr(engine, "pull", hindered)
    return home, engine


def test_a_party_waits_for_a_broker_that_has_no_stream_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when it is started after the approvals. The party says so once, and hears the hub when there is one."""
    home, engine = deaf(tmp_path, monkeypatch, *[EngineError("nats://a:4222 has no stream")] * 3)
    hub, stopped, refused, said = plan_of(home).roster.hub, threading.Event(), list[tuple[str, str]](), list[str]()

    def refusal(kind: str, src: str, reason: str) -> None:
        refused.append((kind, src))
        if kind == "packet":
            stopped.set()

    monkeypatch.setattr("coterie.deploy.logs.refusal", refusal)
    assert wait_for_begin(home, plan_of(home), engine, stopped, said.append) is None
    assert refused == [("engine", home.name)] * 3 + [("packet", hub)]
    assert said == [
        "nats://a:4222 has no stream. This party waits until the operator has run coterie deploy server DIR"
    ]


def test_a_party_that_is_not_admitted_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, engine = deaf(tmp_path, monkeypatch, NotAdmittedError("it was revoked"))
    with pytest.raises(NotAdmittedError):
        wait_for_begin(home, plan_of(home), engine, threading.Event())
