"""Parties as nodes over NATS: models are those of one process, also if the server and a party are killed under way."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("nats", reason="the extra deploy is not installed")

from federation import Steady, planted, rig
from nats_rig import Rig, delete_stream
from nodes import Killed, Nodes, digest, nodes

from benchmarks.engines import kill
from coterie.deploy import nats as engine_over_nats
from coterie.deploy.hub import RoundOutcome
from coterie.deploy.nats import NatsEngine
from coterie.deploy.packet_queue import NodeLimits
from coterie.runs import registry

ROUNDS, SIZE = 3, 24
TARGETS = planted([0, 0, 1, 1], SIZE)


class OverNats:
    """Engines for ``Nodes`` in the place of those in memory."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        self.rig = Rig(folder, names)
        self.rig.start()

    def engine(self, name: str) -> NatsEngine:
        for old in [engine for engine in self.rig.engines if engine.name == name]:
            old.close()
        return self.rig.engine(name, connect_s=30)


@pytest.fixture
def over(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Nodes, OverNats, np.ndarray]]:
    system = registry.get(request.param)
    mode = getattr(system, "modes", ("",))[0]
    together, fresh = (rig(system, TARGETS, mode=mode, links=Steady()) for _ in range(2))
    together.rounds(ROUNDS)
    together.finish(ROUNDS)
    apart = nodes(fresh, request.param, TARGETS, rehearsed=True)
    made = OverNats(tmp_path, list(fresh.federation.parties))
    apart.exchange = made  # type: ignore[assignment]
    yield apart, made, together.models()
    made.rig.close()


def test_a_hub_whose_broker_has_lost_its_stream_waits_and_loses_no_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was not asking for packets when the stream went, so it hears of it only when it sends some."""
    monkeypatch.setattr(engine_over_nats, "PULL_S", 0.3)
    monkeypatch.setattr(engine_over_nats, "ANSWER_S", 2.0)
    parties = rig(registry.get("fedavg"), TARGETS, links=Steady())
    apart = nodes(parties, "fedavg", TARGETS, limits=NodeLimits(patience_s=20.0, grace_s=2.0, poll_s=0.1))
    made = OverNats(tmp_path, list(parties.federation.parties))
    apart.exchange = made  # type: ignore[assignment]
    said: list[tuple[int, str]] = []

    def closed(one: RoundOutcome) -> None:
        if one.round == 2:
            time.sleep(0.6)
            delete_stream(made.rig.urls, made.rig.operator)
            threading.Timer(1.5, made.rig.provision).start()

    def live(name: str, rounds: int) -> None:
        node = apart.node(name)
        if name == "server":
            node.observer.waits = lambda why: said.append((len(apart.rounds), why))  # type: ignore[method-assign]
        apart.drive(node, rounds)

    apart.closed = closed
    try:
        apart.run(5, live)
    finally:
        made.rig.close()
    assert [one.gone for one in apart.rounds] == [{}] * 6
    assert [one.notes.get("participants") for one in apart.rounds[1:]] == [len(TARGETS)] * 5
    assert not any(one.skipped or one.attempts for one in apart.rounds)
    assert [rounds for rounds, _ in said] == [3, 3], "it waits in round 3 alone"
    assert "coterie deploy server DIR makes it" in said[0][1]
    assert said[1][1] == ""


@pytest.mark.long
@pytest.mark.parametrize("over", ["fedavg", "fedcaprivacy"], indirect=True)
def test_models_are_those_of_one_process(over: tuple[Nodes, OverNats, np.ndarray]) -> None:
    apart, _, models = over
    apart.run(ROUNDS)
    assert digest(apart.models()) == digest(models)
    assert not any(one.attempts for one in apart.rounds), "a round was repeated"


@pytest.mark.parametrize("over", ["fedcaprivacy", pytest.param("fedavg", marks=pytest.mark.long)], indirect=True)
def test_models_are_the_same_when_the_server_is_killed_and_a_party_begins_again(
    over: tuple[Nodes, OverNats, np.ndarray],
) -> None:
    apart, made, models = over
    pulled: dict[str, int] = {}
    engine_of = made.engine

    def engine(name: str) -> NatsEngine:
        found = engine_of(name)
        pull = found.pull

        def counted(wait_s: float) -> object:
            delivery = pull(wait_s)
            if delivery is not None:
                pulled[name] = pulled.get(name, 0) + 1
                if name == "client/1" and pulled[name] == 3:
                    raise Killed("between two packets")
                if name == "client/2" and pulled[name] == 2:
                    kill(made.rig.server)
                    threading.Timer(0.2, made.rig.server.start).start()
            return delivery

        found.pull = counted  # type: ignore[assignment,method-assign]
        return found

    made.engine = engine  # type: ignore[method-assign]
    apart.run(ROUNDS)
    assert digest(apart.models()) == digest(models)
    assert pulled["client/1"] > 3
    assert pulled["client/2"] > 2
