"""Workers: effects on parties' data are spread over them, and the models stay the same, bit for bit."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from matrix import few

import coterie.method as fl
from coterie.api import reproduce
from coterie.runs import RunConfig, experiment, in_process
from coterie.runs.config import resolve
from coterie.runs.config_file import differences, from_text, to_toml
from coterie.runs.workers import Worker, WorkerPool, check_workers, workers_of
from coterie.training.jobs import DivergedError

RAY = find_spec("ray") is not None
needs_ray = pytest.mark.skipif(not RAY, reason="Ray is not installed")
TINY = RunConfig(
    "fedavg", clients=7, rounds=2, samples=350, model="linear", partition="dirichlet:0.3", settings={"max_epochs": 2}
)


class InProcess:
    """A worker as it would be elsewhere: made from the config's text alone. asked: the parties of each request."""

    def __init__(self, text: str, inputs: str) -> None:
        self.worker = Worker(text, inputs)
        self.asked: list[list[str]] = []

    def ask(self, wanted: Any, drifted: bool) -> Callable[[], list[Any]]:
        self.asked.append([party for party, _ in wanted])
        return lambda: self.worker.run(wanted, drifted)


def models_of(config: RunConfig) -> list[str]:
    """The digest of all models after each round."""
    made = experiment.build(config)
    try:
        made.set_up()
        return [made.round(r)["models_sha256"] for r in range(1, int(made.config.rounds or 0) + 1)]
    finally:
        made.close()


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> list[InProcess]:
    """Three workers in this process, for every run that asks for workers."""
    found: list[InProcess] = []

    def of(config: RunConfig, inputs: str, samples: Callable[[str], int]) -> WorkerPool | None:
        if config.workers is None:
            return None
        found.extend(InProcess(to_toml(config), inputs) for _ in range(3))
        return WorkerPool(found, samples)

    monkeypatch.setattr(in_process, "workers_of", of)
    return found


RUNS = {
    "trainings": TINY,
    "evaluations": replace(TINY, system="ifca", partition="permute:2", settings={"clusters": 2}),
    "losses": replace(TINY, system="fedem", settings={}),
    "drift": replace(TINY, drift="0.6@2", class_weights="balanced"),
    "fine-tuning": replace(TINY, rounds=1, fine_tune="held_out"),
    "synthetic": replace(TINY, data="synthetic:12x4", clients=40, evaluated=5, settings={"participation": 0.3}),
    "encrypted": replace(TINY, system="fedcaprivacy", crypto="emulated", settings={}),
}


@pytest.mark.parametrize("what", few(RUNS, {"losses", "drift", "fine-tuning", "encrypted"}))
def test_the_models_are_those_of_one_process(what: str, pool: list[InProcess]) -> None:
    alone = models_of(RUNS[what])
    assert not pool
    spread = models_of(replace(RUNS[what], workers="ray"))
    assert spread == alone
    assert all(one.asked for one in pool)


def test_work_is_spread_evenly_and_results_keep_their_order() -> None:
    class Echo:
        def __init__(self) -> None:
            self.costs = 0

        def ask(self, wanted: Any, drifted: bool) -> Callable[[], list[Any]]:
            self.costs += sum(int(party) * effect.epochs for party, effect in wanted)
            return lambda: [party for party, _ in wanted]

    wanted = [
        (str(samples), fl.Fit(np.zeros(1, np.float32), fl.Sgd(0.1), 2, 0)) for samples in (90, 10, 50, 40, 60, 30, 20)
    ]
    echoes = [Echo(), Echo()]
    assert WorkerPool(echoes, int).run(wanted) == [party for party, _ in wanted]
    assert max(one.costs for one in echoes) <= 320  # of 600
    assert WorkerPool([Echo(), Echo(), Echo()], int).run(wanted[:1]) == ["90"]
    assert WorkerPool(echoes, int).run([]) == []


def test_a_training_that_diverges_at_a_worker_is_one_client_s(pool: list[InProcess]) -> None:
    made = experiment.build(replace(TINY, workers="ray"))
    made.set_up()
    for one in pool:
        own = one.worker._data["client/2"]
        one.worker._data["client/2"] = replace(own, inputs=own.x * 1e30)
    line = made.round(1)
    assert line["refused"] == {"client/Train: its training diverged: its loss or weights are no longer finite": 1}
    assert line["notes"]["participants"] == 6
    made.close()


def test_what_a_worker_refuses_or_finds_diverged_can_travel() -> None:
    error = DivergedError(3, "a loss")
    kind, arguments = error.__reduce__()
    again = kind(*arguments)
    assert str(again) == str(error)
    assert again.job == 3


@pytest.mark.parametrize("text", ["dask", "ray:0", "ray:", "ray:two", "ray://", "ray://host", "ray://a/b:1", "rays"])
def test_other_workers_are_refused(text: str) -> None:
    with pytest.raises(fl.UserError, match=r"write ray, ray:COUNT .* or ray://HOST:PORT"):
        check_workers(text)


def test_without_ray_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.runs.workers.find_spec", lambda name: None)
    for text in ("ray", "ray:2", "ray://head:10001"):
        with pytest.raises(fl.UserError, match=r"pip install 'ray.*2\.40.*'"):
            check_workers(text)
    check_workers(None)


@pytest.mark.parametrize("set_before", [True, False])
def test_ray_does_not_take_sigterm_from_a_command(monkeypatch: pytest.MonkeyPatch, set_before: bool) -> None:
    """A stand-in for Ray sets its own handler when it starts, as Ray does. A handler of the command's stays."""

    def ours(*_: object) -> None: ...

    def theirs(*_: object) -> None: ...

    class Cluster:
        workers = ()

        def __init__(self, **_: object) -> None:
            signal.signal(signal.SIGTERM, theirs)

        def close(self) -> None: ...

    ray_workers = ModuleType("coterie.runs.ray_workers")
    monkeypatch.setattr(ray_workers, "RayCluster", Cluster, raising=False)
    monkeypatch.setitem(sys.modules, ray_workers.__name__, ray_workers)
    monkeypatch.setattr("coterie.runs.workers.find_spec", lambda name: True)
    before = signal.signal(signal.SIGTERM, ours if set_before else signal.SIG_DFL)
    try:
        workers_of(resolve(replace(TINY, workers="ray:2")), "digest", lambda party: 1)
        assert signal.getsignal(signal.SIGTERM) is (ours if set_before else theirs)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_workers_move_no_number_and_are_in_no_file() -> None:
    config = resolve(replace(TINY, workers="ray:2"))
    assert "workers" not in to_toml(config)
    assert from_text(to_toml(config)).workers is None
    assert differences(resolve(TINY), config) == []


def test_a_table_of_a_paper_is_made_with_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class BegunError(Exception):
        """The run would begin."""

    def one(config: RunConfig, *rest: Any) -> None:
        raise BegunError(config.workers)

    monkeypatch.setattr(sys.modules["coterie.reproductions.study"], "one", one)
    with pytest.raises(BegunError, match="ray:3"):
        reproduce("fedcaprivacy/table2", only=["mnist/0.1"], seeds=1, out=tmp_path, workers="ray:3")


def test_a_worker_with_other_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(fl.UserError, match="other data"):
        Worker(to_toml(resolve(TINY)), "of another run")


def test_objects_of_this_process_do_not_go_to_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.runs.workers.find_spec", lambda name: object())
    config = replace(resolve(TINY), model="given:net@1", workers="ray")
    with pytest.raises(fl.UserError, match="given:net@1 is an object of this process"):
        workers_of(config, "", int)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A Ray cluster of two workers on this machine, which all tests of this file share."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    quiet: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False, "include_dashboard": False}
    ray.init(num_cpus=2, _node_ip_address="127.0.0.1", **quiet)
    yield ray
    ray.shutdown()


@needs_ray
def test_on_ray_the_models_are_the_same_and_a_dead_worker_is_replaced(cluster: Any) -> None:
    alone = models_of(TINY)
    made = experiment.build(replace(TINY, workers="ray:2"))
    try:
        made.set_up()
        assert made.round(1)["models_sha256"] == alone[0]
        spread: Any = made.effects.workers
        first = spread._workers[0].actor
        os.kill(cluster.get(first.process.remote()), signal.SIGKILL)
        assert made.round(2)["models_sha256"] == alone[1]  # it was asked again, at once or when it was back
        wanted = [("client/1", fl.Losses(np.zeros((2, made.model.spec.size), np.float32)))]
        wanted += [("client/0", fl.Fit(made.common.initial, fl.Sgd(0.1), 1, 0))]
        losses, fitted = spread.run(wanted)
        assert losses.shape == (2, made.owns["client/1"].samples)
        assert isinstance(fitted, fl.Fitted)
        spread._samples = lambda party: 1
        with pytest.raises(TypeError, match="client/99 has no data"):
            spread.run([("client/99", wanted[1][1])])
    finally:
        made.close()


@needs_ray
def test_what_a_worker_cannot_be_made_for_is_told(cluster: Any) -> None:
    from coterie.runs.ray_workers import RayCluster

    with pytest.raises(fl.UserError, match="a worker has other data"):
        RayCluster(None, 1, False, partial(Worker, to_toml(resolve(TINY)), "of another run"))
    assert cluster.is_initialized()  # it was not ours to end


@needs_ray
def test_a_cluster_that_is_not_there_is_a_clear_error() -> None:
    import subprocess

    words = "-m coterie run fedavg --clients 3 --workers ray://127.0.0.1:9 -q"
    command = [sys.executable, *words.split()]
    env = {**os.environ, "RAY_CLIENT_CONNECT_TIMEOUT": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == 2
    assert "there is no Ray cluster to be had at ray://127.0.0.1:9" in done.stderr
    assert "Traceback" not in done.stderr
