"""The hub begins when its parties are there."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from deployments import NOW_S, Study
from memory_engine import Exchange, MemoryEngine
from msgspec.structs import replace

from coterie.crypto.signing import SigningKey
from coterie.deploy import plan as plans
from coterie.deploy.built_party import build_party
from coterie.deploy.engine import Delivery, EngineError, NotAdmittedError
from coterie.deploy.gathering import wait_for_begin, wait_for_parties
from coterie.deploy.home import Home, hub_home, keyring_of, plan_of, take_plan, write_private
from coterie.deploy.hub_process import as_hub
from coterie.deploy.packets import NewRun, unwrap, wrap
from coterie.deploy.party_process import as_party, say_why
from coterie.protocol.errors import PeerError, RunError, UserError
from coterie.record.files import locked
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
    wait_for_parties(lambda: plan, exchange.engine(HUB), threading.Event(), poll_s=0.02, **more)


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


def test_a_client_that_is_revoked_meanwhile_is_awaited_no_longer() -> None:
    *most, last = CLIENTS
    exchange, told = Exchange(NAMES), list[list[str]]()
    for name in most:
        exchange.engine(name)
    settings = replace(PLAN.settings, quorum=len(CLIENTS), patience_s=20.0)
    versions = iter([replace(PLAN, settings=settings)] * 3)
    wait_for_parties(
        lambda: next(versions, replace(PLAN, settings=settings, revoked=(last,))),
        exchange.engine(HUB),
        threading.Event(),
        lambda here, away: told.append([*away]),
        poll_s=0.02,
    )
    assert told[0] == [last]
    assert told[-1] == []


def test_a_hub_whose_run_is_over_waits_no_longer() -> None:
    states = iter([False, False])
    waiting(len(CLIENTS), [], patience_s=20, over=lambda: next(states, True))
    assert next(states, None) is None


def test_a_hub_that_is_stopped_waits_no_longer() -> None:
    stopped = threading.Event()
    stopped.set()
    wait_for_parties(
        lambda: msgspec.structs.replace(PLAN, settings=msgspec.structs.replace(PLAN.settings, quorum=9)),
        Exchange(NAMES).engine(HUB),
        stopped,
    )


def deaf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *problems: EngineError) -> tuple[Home, MemoryEngine]:
    """A party whose engine has these problems, and then a packet that is not sealed."""
    monkeypatch.setattr("coterie.deploy.gathering.POLL_S", 0.01)
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
    assert said == ["nats://a:4222 has no stream. This party waits"]


def test_a_party_that_is_not_admitted_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, engine = deaf(tmp_path, monkeypatch, NotAdmittedError("it was revoked"))
    with pytest.raises(NotAdmittedError):
        wait_for_begin(home, plan_of(home), engine, threading.Event())


@pytest.mark.parametrize("older", [True, False])
def test_a_party_that_waits_shows_its_newest_plan_to_a_hub_that_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, older: bool
) -> None:
    """Also one that it has refused to be older, so that a restored hub learns of a revocation."""
    monkeypatch.setattr("coterie.deploy.gathering.POLL_S", 0.01)
    study = Study(tmp_path)
    study.found()
    home = study.enrol()
    asked = study.folder.plan.read_bytes()
    if older:
        study.enrol("hospital-b", "b")
        take_plan(home, study.folder.plan.read_bytes())
    plan, exchange, stopped = plan_of(home), Exchange([name for name, _ in plan_of(home).members]), threading.Event()
    hub, keys = plan.roster.hub, keyring_of(hub_home(study.path), plan)
    exchange.put(hub, home.name, wrap(keys, hub, home.name, 0, NewRun(asked)), "1")
    engine = exchange.engine(home.name)
    threading.Timer(1.0, stopped.set).start()
    assert wait_for_begin(home, plan, engine, stopped) is None
    delivery = exchange.engine(hub).pull(1.0)
    assert delivery is not None
    assert unwrap(keys, home.name, hub, delivery.body) == (0, NewRun(home.plan.read_bytes()))


# -- processes that do not begin: a second one of a home, which would use the same numbers and masks, and one too l --


def test_a_second_process_of_a_home_does_not_begin(tmp_path: Path) -> None:
    study = Study(tmp_path)
    study.found()
    home = study.enrol()
    before = {path.name for path in home.path.iterdir()}
    with locked(home.path), pytest.raises(UserError, match=r"home is at work in another process already"):
        as_party(home.path)
    with locked(study.folder.hub), pytest.raises(UserError, match=r"hub is at work in another process"):
        as_hub(study.path)
    assert {path.name for path in home.path.iterdir()} == before | {".lock"}


def test_a_plan_that_has_ended_begins_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = Study(tmp_path)
    study.found(days=2.0)
    home = study.enrol()
    monkeypatch.setattr("coterie.deploy.process.time.time", lambda: NOW_S + 3 * 86400)
    with pytest.raises(UserError, match="has ended, by its plan and this clock"):
        as_party(home.path)
    with pytest.raises(UserError, match="has ended, by its plan and this clock"):
        as_hub(study.path)


def test_a_party_that_is_not_admitted_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was revoked while it was away: that is no fault of the program, which the command line would ask to report."""

    def refuses(*_: object) -> None:
        raise problem

    problem: EngineError = NotAdmittedError("nats://hub:4222 does not admit hospital-a")
    study = Study(tmp_path)
    study.found()
    home = study.enrol()
    monkeypatch.setattr("coterie.deploy.party_process.connect", refuses)
    with pytest.raises(UserError, match=r"does not admit hospital-a\. Ask the operator why"):
        as_party(home.path)
    problem = EngineError("no connection to nats://hub:4222: it does not answer")
    with pytest.raises(RunError, match=r"it does not answer\. Started again, it goes on where it was"):
        as_party(home.path)


# -- plans that the operator's key has signed, and by which a party would keep nothing secret --


def joined(study: Study) -> Home:
    """A client of a deployment that all have joined, with the newest plan."""
    study.found()
    home, *_ = [
        study.enrol(name, f"home{number}") for number, name in enumerate(("hospital-a", "hospital-b", "client/3"))
    ]
    take_plan(home, study.folder.plan.read_bytes())
    return home


def test_a_party_does_not_follow_a_plan_that_keeps_nothing_secret(tmp_path: Path) -> None:
    study = Study(tmp_path)
    home = joined(study)
    assert build_party(home).party.name == "hospital-a"
    plan, ours = plan_of(home), home.plan.read_bytes()
    operator = SigningKey((study.folder.authority / "signing").read_bytes())
    shared = replace(plan.settings, rehearsal=True)
    emulated = plan.config.replace('crypto = "real"', 'crypto = "emulated"')
    assert emulated != plan.config
    for worse, why in (({"settings": shared}, "is a rehearsal"), ({"config": emulated}, "has emulated ciphers")):
        other = plans.sign(replace(plan, version=plan.version + 1, **worse), operator)
        with pytest.raises(PeerError, match="changes the terms of run 1"):
            take_plan(home, other)
        write_private(home.plan, other)
        with pytest.raises(UserError, match=why):
            build_party(home)
        write_private(home.plan, ours)


@pytest.mark.parametrize("why", ["", "its training gave no numbers"])
def test_a_client_that_adds_nothing_says_so_at_its_own_home_alone(why: str) -> None:
    said: list[str] = []
    say_why(SimpleNamespace(kept_back=why), said.append)  # type: ignore[arg-type]
    assert said == (
        [f"In its last round this party kept its model, or added nothing to the others': {why}."] * bool(why)
    )
