"""A run that the operator ends before its next round."""

from __future__ import annotations

from pathlib import Path

import pytest
from live_deployment import live

from coterie.deploy.home import plan_of, read_home
from coterie.operate import runs
from coterie.operate.own_model import own_model
from coterie.operate.watching import read_status
from coterie.protocol.errors import UserError
from coterie.runs.config import RunConfig
from coterie.runs.finished import load_result
from tests.deploy.test_runs import NAMES, QUICK, ends, leads, processes, stays, until

pytest.importorskip("nats", reason="the engine is an extra, deploy")


def test_a_run_that_is_aborted_ends_with_its_models_and_another_can_start(tmp_path: Path) -> None:
    config = RunConfig("fedavg", rounds=5000, settings=QUICK)
    with live(tmp_path, config, NAMES) as deployed, processes() as made:
        folder, homes = deployed.folder, [deployed.homes[name].path for name in NAMES]
        for place in homes:
            made.start(stays, place)
        hub = made.start(leads, folder.path)
        until(lambda: (folder.run / "status.json").exists() and read_status(folder.run).done >= 2, "two rounds")
        with pytest.raises(UserError, match="run 1 goes on"):
            runs.start(folder.path)
        runs.abort(folder.path)
        ends(hub, "the run that was aborted")
        status = read_status(folder.run)
        assert (status.phase, status.aborted) == ("ended", True)
        done = status.done
        assert 2 <= done < 5000
        assert len(load_result(folder.run).rounds) == done
        for place in homes:  # the hub has handed the last models out
            until(lambda place=place: own_model(place)[1] == done + 1, "the last model")
        sums = {sum(float(one.sum()) for one in own_model(place)[0].tensors[0].values()) for place in homes}
        assert len(sums) == 1
        runs.start(folder.path, rounds=1)
        hub = made.start(leads, folder.path)
        for place in homes:
            agrees(place)
        ends(hub, "the second run")
        assert (read_status(folder.run).run, read_status(folder.run).done) == (2, 1)


def agrees(home: Path) -> None:
    until(lambda: plan_of(read_home(home)).run == 2, "the plan")
    runs.agree_to(read_home(home))
