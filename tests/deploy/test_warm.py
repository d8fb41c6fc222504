"""Runs that begin with the models of the last one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from deployments import NOW_S, Study
from every_system import model_for
from live_deployment import another_run

from coterie.deploy.built_party import stored_party
from coterie.deploy.home import Home, plan_of, read_home
from coterie.operate import runs
from coterie.operate.folder import Folder
from coterie.operate.rehearsal import rehearse
from coterie.protocol.errors import UserError
from coterie.runs import registry
from coterie.runs.config import RunConfig, resolve
from coterie.runs.experiment import Experiment, build

pytest.importorskip("nats", reason="the engine is an extra, deploy")

FEDAVG = RunConfig("fedavg", clients=3, rounds=2, seed=7, samples=300, settings={"max_epochs": 1, "lr": 0.1})


def weights_of(home: Home) -> np.ndarray:
    found = stored_party(home)[0].party.last_starts()
    assert found is not None
    return found


def simulated(starts: np.ndarray | None) -> Experiment:
    """The same run in one process, whose hub begins with these models."""
    made = build(resolve(FEDAVG))
    hub = made.parties[made.federation.hub]
    if starts is not None:
        hub.state.weights = starts[0]
    for r in (1, 2):
        made.round(r)
    return made


def test_a_second_run_from_models_is_two_runs_of_a_simulation(tmp_path: Path) -> None:
    """Bit for bit, for FedAvg; and without them it is the first run again, since all follow one seed."""
    at = tmp_path / "d"
    rehearse(at, FEDAVG)
    one = simulated(None)
    first = one.parties[one.federation.hub].last_starts()
    assert (weights_of(read_home(Folder(at).hub)) == first).all()
    warm = another_run(at, warm=True)
    two = simulated(first)
    second = two.parties[two.federation.hub].last_starts()
    assert not (first == second).all()
    for home in warm.homes.values():
        assert plan_of(home).warm
        assert (weights_of(home) == second).all()
    cold = another_run(at)
    assert (weights_of(cold.homes[cold.hub]) == first).all()
    one.close()
    two.close()


# -- which systems can --

COLD = {"cfl", "clsm_fl", "flacc", "fedcaprivacy", "fedepc", "mingledpie", "ofl", "pafed", "coterie"}


@pytest.mark.parametrize("name", sorted(registry.SYSTEMS))
def test_a_system_begins_with_models_or_says_why_not(name: str) -> None:
    """Each system's party that hands out the first models holds them in the end, in that form."""
    system = registry.get(name)
    for mode in system.modes:
        config = system.config(**system.defaults(mode))
        if name in COLD:
            with pytest.raises(UserError, match=f"{name} cannot begin with the models of a former run: .{{20}}"):
                system.check_warm(config, mode)
        else:
            system.check_warm(config, mode)


def test_the_page_has_the_reasons() -> None:
    page = (Path(__file__).parents[2] / "docs" / "deploy_runs.md").read_text()
    for name in COLD:
        system = registry.get(name)
        with pytest.raises(UserError) as refused:
            system.check_warm(system.config(), system.modes[0])
        why = str(refused.value).partition(": ")[2]
        (row,) = [line for line in page.splitlines() if line.endswith(f"| {why} |")]
        assert system.title in row


@pytest.mark.parametrize("name", sorted(set(registry.SYSTEMS) - COLD - {"local"}))
def test_a_server_begins_with_the_models_that_it_is_given(name: str) -> None:
    options = {"model": model_for(name, None), "samples": 200, "settings": {"max_epochs": 1}}
    made = build(resolve(RunConfig(name, clients=4, rounds=1, **options)))
    hub = made.parties[made.federation.hub]
    assert (hub.last_starts() == made.common.starts).all()
    starts = made.common.starts + np.float32(0.25)
    hub = made.system.make(replace(made.owns[hub.name], starts=starts), made.common, made.settings)
    assert (hub.last_starts() == starts).all()
    client = made.owns[made.common.clients[0]]
    party = made.system.make(replace(client, starts=starts), made.common, made.settings)
    assert (party.last_starts() == starts).all()
    made.close()


def test_another_system_or_model_cannot_begin_with_them(tmp_path: Path) -> None:
    study = Study(tmp_path)
    study.found()
    study.enrol()
    with pytest.raises(UserError, match="no run has begun yet"):
        runs.start(study.path, warm=True, now_s=NOW_S)
    (tmp_path / "run.toml").write_text('system = "fedprox"\n')
    with pytest.raises(UserError, match="system was fedavg and is fedprox"):
        runs.start(study.path, tmp_path / "run.toml", warm=True, now_s=NOW_S)
