"""The engine over Flower, with a SuperLink and SuperNodes on this machine: minutes, since a hop takes many seconds."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra flower is not installed")

from deployments import Study, members

from benchmarks.flower_rig import Flower, descendants
from coterie.deploy.engine import Delivery
from coterie.deploy.engines import connect
from coterie.deploy.flower import FlowerEngine
from coterie.deploy.home import hub_home, plan_of, read_home
from coterie.deploy.process import as_hub, as_party
from coterie.operate import authority, joining
from coterie.operate.allowed import deployable
from coterie.operate.nats_server import free_port
from coterie.operate.supervision import Life, Supervision, warm
from coterie.operate.trial import collected, found
from coterie.runs.config import RunConfig
from coterie.runs.evaluation import models_digest
from coterie.runs.experiment import build

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]
GRACE_S = 120.0


def _hub(home: Path, kill: object) -> None:
    as_hub(home.parent)


def _simulated(config: RunConfig) -> str:
    """The digest of the models of the same run in one process."""
    experiment = build(config)
    experiment.set_up()
    for r in (1, 2):
        experiment.round(r)
    experiment.finish(2)
    digest = models_digest(experiment.models(2))
    experiment.close()
    return digest


@pytest.mark.parametrize("system", ["fedavg", "fedcaprivacy"])
def test_the_models_are_those_of_one_process(system: str, tmp_path: Path) -> None:
    config = deployable(RunConfig(system, clients=3, rounds=2, seed=7), rehearsal=True)
    expected = _simulated(config)
    warm()
    experiment = build(config)
    port = free_port()
    ready = found(tmp_path / "d", experiment, f"flower://127.0.0.1:{port}", GRACE_S)
    lives: dict[str, Life] = {name: _hub if name == ready.hub else as_party for name in ready.homes}
    with Flower(tmp_path / "flwr", port, ready.folder.nats, ready.folder.flower) as flower:
        flower.link()
        for name, home in ready.homes.items():
            if name != ready.hub:
                flower.node(name.replace("/", "-"), home)
        flower.run()
        with Supervision(ready.hub, ready.homes, lives) as processes:
            processes.start()
            processes.watch(lambda: None)
        assert _eventually(lambda: flower.runs()[0]["status"] == "finished:completed")
    result = collected(ready)
    experiment.close()
    assert result.summary["models_sha256"] == expected
    assert result.summary["deployment"]["engine"] == "flower"


@pytest.fixture
def parties(tmp_path: Path) -> Iterator[tuple[Flower, dict[str, FlowerEngine]]]:
    """A hub and two sites, whose SuperNodes run; a run has begun."""
    port, study, now_s = free_port(), Study(tmp_path), time.time()
    study.found(named=members(("a", "b")), server=f"flower://127.0.0.1:{port}", now_s=now_s)
    homes = {}
    for name in ("a", "b"):
        homes[name], request = study.join(study.invite(name, now_s=now_s), name, now_s=now_s)
        joining.accept(homes[name], authority.approve(study.path, request).certificate.read_text())
    homes["server"] = hub_home(study.folder.path)  # with the newest plan
    plan = plan_of(homes["b"])
    engines = {name: connect(home, plan) for name, home in homes.items()}
    with Flower(tmp_path / "flwr", port, study.folder.nats, study.folder.flower) as flower:
        flower.link()
        flower.node("a", homes["a"].path)
        flower.node("b", homes["b"].path)
        flower.run()
        yield flower, engines  # type: ignore[misc]
        for name in list(flower.running):
            flower.stop(name)
    for engine in engines.values():
        engine._called_s = float("-inf")  # nobody is there to fetch the rest
        engine.close()


def test_large_packets_pass_between_two_sites(parties: tuple[Flower, dict[str, FlowerEngine]]) -> None:
    _, engines = parties
    body = os.urandom(20 << 20)
    idle = threading.Thread(target=_pull, args=(engines["b"], engines), daemon=True)
    idle.start()  # so that b answers its calls at once
    engines["server"].push("a", body, "large")
    engines["b"].push("a", body[::-1], "large")
    came = {(one.src, one.body) for one in (_pull(engines["a"], engines), _pull(engines["a"], engines))}
    assert came == {("server", body), ("b", body[::-1])}
    engines["server"].push("b", b"enough", "1")
    idle.join(120)


def test_a_site_whose_process_starts_late_is_reached_by_the_call_that_waits_for_it(
    parties: tuple[Flower, dict[str, FlowerEngine]], caplog: pytest.LogCaptureFixture
) -> None:
    flower, engines = parties
    assert _eventually(lambda: set(engines["server"].nodes()) == set(engines))
    home, plan = read_home(engines["a"].home), plan_of(read_home(engines["a"].home))
    engines["a"]._called_s = float("-inf")
    engines["a"].close()
    engines["server"].push("a", b"late", "1")
    assert _eventually(lambda: _apps(flower, "a") != [], 0.05)
    time.sleep(6)
    engines["a"] = connect(home, plan)  # type: ignore[assignment]
    assert _pull(engines["a"], engines, 20).body == b"late"
    assert "gave no answer" not in caplog.text
    assert set(engines["server"].nodes()) == set(engines)


def test_a_killed_client_app_and_a_killed_super_link_lose_nothing(
    parties: tuple[Flower, dict[str, FlowerEngine]],
) -> None:
    flower, engines = parties
    engines["server"].push("a", b"first", "1")
    _pull(engines["a"], engines).done()
    engines["server"].push("a", b"second", "2")  # and a is at work, so that its app waits for it
    assert _eventually(lambda: _apps(flower, "a") != [], 0.05)
    for pid in _apps(flower, "a"):
        os.kill(pid, signal.SIGKILL)
    assert _pull(engines["a"], engines).body == b"second"
    flower.stop("link", kill=True)
    engines["server"].push("a", b"third", "3")
    flower.stop("a")  # SuperNodes end when their SuperLink has forgotten them
    flower.link()
    flower.node("a", engines["a"].home)
    flower.run()
    assert _pull(engines["a"], engines).body == b"third"


def _apps(flower: Flower, node: str) -> list[int]:
    """The processes of a node's ClientApp."""
    found = []
    for pid in descendants(flower.running[node].pid):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"flwr-clientapp" in words:
            found.append(pid)
    return found


def _pull(engine: FlowerEngine, engines: dict[str, FlowerEngine], wait_s: float = 400) -> Delivery:
    """The next packet, which comes in time."""
    until = time.monotonic() + wait_s
    while time.monotonic() < until:
        if (delivery := engine.pull(1.0)) is not None:
            return delivery
    raise AssertionError(f"no packet for {engine.name}: {engines['server'].switch}")


def _eventually(holds: Callable[[], bool], every_s: float = 1.0, wait_s: float = 120) -> bool:
    until = time.monotonic() + wait_s
    while time.monotonic() < until:
        if holds():
            return True
        time.sleep(every_s)
    return False
