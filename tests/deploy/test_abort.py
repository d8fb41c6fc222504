"""A run that the operator ends before its next round, and the next one, which the same hub leads."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from forked import command
from live_deployment import live

from coterie.deploy.home import plan_of, read_home
from coterie.deploy.party_process import as_party
from coterie.operate import runs
from coterie.operate.nats_server import free_port
from coterie.operate.own_model import own_model
from coterie.operate.watching import all_statuses, has_ended, read_status
from coterie.protocol.errors import UserError
from coterie.runs.config import RunConfig
from coterie.runs.finished import load_result
from tests.deploy.test_runs import NAMES, QUICK, WAIT_S, processes, stays, until
from tests.operate.test_metrics import scraped

pytest.importorskip("nats", reason="the engine is an extra, deploy")


def test_a_run_that_is_aborted_ends_with_its_models_and_another_can_start(tmp_path: Path) -> None:
    config = RunConfig("fedavg", rounds=5000, settings=QUICK)
    port = free_port()
    with live(tmp_path, config, NAMES) as deployed, processes() as made, ExitStack() as stack:
        folder, homes = deployed.folder, [deployed.homes[name].path for name in NAMES]
        for place in homes:
            made.start(stays, place)
        words = ("deploy", "hub", str(folder.path), "--stay", "--metrics", str(port))
        hub = stack.enter_context(command(tmp_path / "hub", *words))
        until(lambda: (folder.run / "status.json").exists() and read_status(folder.run).done >= 2, "two rounds")
        with pytest.raises(UserError, match="run 1 goes on"):
            runs.start(folder.path)
        runs.abort(folder.path)
        until(lambda: has_ended(folder.run), "the run that was aborted")
        status = read_status(folder.run)
        assert (status.phase, status.aborted) == ("ended", True)
        done = status.done
        assert 2 <= done < 5000
        assert len(load_result(folder.run).rounds) == done
        for place in homes:  # the hub has handed the last models out
            until(lambda place=place: own_model(place)[1] == done + 1, "the last model")
        sums = {sum(float(one.sum()) for one in own_model(place)[0].tensors[0].values()) for place in homes}
        assert len(sums) == 1
        assert scraped(port)["coterie_rounds_done_total"] == done
        runs.start(folder.path, rounds=1)
        for place in homes:
            agrees(place)
        until(lambda: [one.phase for one in all_statuses(folder)] == ["ended"] * 2, "the second run")
        assert (read_status(folder.run).run, read_status(folder.run).done) == (2, 1)
        assert scraped(port)["coterie_rounds_done_total"] == 1
        hub.terminate()
        hub.join(30)
        assert hub.exitcode == 0
    assert (tmp_path / "hub").read_text().count("Waiting for the plan of another run.") == 2


def test_the_first_run_also_ends_while_the_hub_waits_for_parties(tmp_path: Path) -> None:
    config = RunConfig("fedavg", rounds=3, settings=QUICK)
    with live(tmp_path, config, NAMES) as deployed, processes() as made, ExitStack() as stack:
        folder, home = deployed.folder, deployed.homes[NAMES[0]].path
        here = made.start(leaves, home)
        hub = stack.enter_context(command(tmp_path / "hub", "deploy", "hub", str(folder.path)))
        until(lambda: "Waiting for" in said(tmp_path / "hub"), "the hub")
        runs.abort(folder.path)
        for one in (hub, here):
            one.join(WAIT_S)
            assert one.exitcode == 0
        status = read_status(folder.run)
        assert (status.phase, status.aborted, status.done) == ("ended", True, 0)
        assert runs.start(folder.path).run == 2
    assert said(tmp_path / "hub").splitlines()[-1].endswith("The run has ended: 0 rounds done.")


def leaves(home: Path) -> None:
    as_party(home)


def said(log: Path) -> str:
    return log.read_text() if log.exists() else ""


def agrees(home: Path) -> None:
    until(lambda: plan_of(read_home(home)).run == 2, "the plan")
    runs.agree_to(read_home(home))
