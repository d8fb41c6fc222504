"""What a party and the hub say on a terminal, from their start to the end of the run."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

pytest.importorskip("nats", reason="the extra deploy is not installed")

from live_deployment import Live, Supervised, live
from nats_rig import delete_stream
from typer.testing import CliRunner

from coterie.cli.app import app
from coterie.deploy.engine import Tls
from coterie.deploy.hub_process import as_hub
from coterie.deploy.kills import Kill
from coterie.deploy.party_process import as_party
from coterie.operate.doctor import _holder_of_home, _holders_of_folder
from coterie.operate.supervision import OUTPUT
from coterie.operate.watching import read_status
from coterie.record.leaks import Patterns
from coterie.runs.config import RunConfig


def _hub(home: Path, kill: Kill | None) -> None:
    as_hub(home.parent, kill, say=typer.echo)


def _party(home: Path, kill: Kill | None) -> None:
    as_party(home, kill, say=typer.echo)


def wait_for(true: Callable[[], bool], seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.05)


def deploy(*words: str) -> str:
    ended = CliRunner().invoke(app, ["deploy", *words])
    return " ".join((ended.stdout + ended.stderr).split())


def said(one: Live, name: str) -> list[str]:
    path = one.homes[name].path / OUTPUT
    return path.read_text().splitlines() if path.exists() else []


def test_a_run_from_start_to_end(tmp_path: Path) -> None:
    """The hub first: it says for whom it waits. Each party says what it is at, and that the run has ended."""
    with live(tmp_path, RunConfig("fedavg", data="digits", model="linear", rounds=2), ["a", "b"]) as one:
        folder, hub = str(one.folder.path), one.hub
        assert "has not begun, and 3 of 3 members have joined" in deploy("status", folder)
        folders = {name: home.path for name, home in one.homes.items()}
        with Supervised(hub, folders, {hub: _hub, "a": _party, "b": _party}) as processes:
            processes.failing = {}
            processes._start(hub)
            wait_for(lambda: said(one, hub) == ["Waiting for a, b to connect"])
            processes._start("a")
            wait_for(lambda: said(one, hub)[1:] == ["Waiting for b to connect"])
            wait_for(lambda: "The hub waits for b to connect" in deploy("status", folder))
            processes._start("b")
            processes.watch(lambda: None)
        rounds = ["Set-up", "Round 1 of 2", "Round 2 of 2", "After the last round"]
        for name in ("a", "b"):
            assert said(one, name)[0].startswith("Connected. Waiting for the hub to begin.")
            *before, released, ended, last = said(one, name)[1:]
            assert (before, ended) == (rounds, "The run has ended.")
            assert last == "A further run reaches only a party that was started with --stay."
            assert released.startswith("Released of its data so far: no proof for: score local_accuracy; ")
        assert said(one, hub)[2:] == [*rounds, "The run has ended: 2 rounds done."]
        assert "Epsilon is not reported: each party's own log and coterie export state" in deploy("status", folder)
        assert deploy("party", "--home", str(folders["a"])).endswith("started with --stay.")
        numbers = (one.folder.run / "metrics.jsonl").read_bytes()
        told = deploy("hub", folder)
        assert told.endswith(f"The run has ended: 2 rounds done. Its numbers: coterie report {one.folder.run}")
        assert (one.folder.run / "metrics.jsonl").read_bytes() == numbers
        assert "Ended: " in deploy("status", folder)
        assert "Run 1: FedAvg, 2 of 2 rounds, ended." in deploy("runs", folder)
        holders = [*map(_holder_of_home, one.homes.values()), *_holders_of_folder(one.folder)]
        secrets = {name: value for holder in holders for name, value in holder.secrets.items()}
        lines = [line for name in one.homes for line in said(one, name)]
        assert not set(Patterns(secrets, {})._names("\n".join([told, *lines]).encode()))


@pytest.mark.long
def test_a_hub_that_can_store_nothing_says_what_it_waits_for_and_which_command_helps(tmp_path: Path) -> None:
    """The broker's stream is lost under way, and made again by the operator."""
    config = RunConfig("fedavg", data="digits", model="linear", rounds=40)
    with live(tmp_path, config, ["a", "b"], patience_s=4.0) as one:
        place, steps = one.folder, list[str]()

        def tell() -> None:
            status = read_status(place.path) if (place.run / "status.json").exists() else None
            if status is None or (steps and not (status.waits and len(steps) == 1)):
                return
            if not steps and status.round >= 3:
                steps.append("deleted")
                delete_stream([one.server.url], Tls(place.tls / "operator.pem", place.authority / "tls.pem", place.ca))
            elif steps:
                steps.append(deploy("status", str(place.path)))
                assert said(one, one.hub)[-1].startswith("Waiting: nats://127.0.0.1")
                done = status.done
                time.sleep(2.5)
                assert read_status(place.path).done == done, "it burns its rounds"
                deploy("server", str(place.path))

        folders = {name: home.path for name, home in one.homes.items()}
        with Supervised(one.hub, folders, {one.hub: _hub, "a": _party, "b": _party}, absence_s=4.0) as processes:
            processes.failing = {}
            processes.start()
            processes.watch(tell)
        assert "The hub waits: nats://127.0.0.1" in steps[1]
        assert "coterie deploy server DIR makes it" in steps[1]
        assert "It goes on" in said(one, one.hub)
        ended = read_status(place.path)
        assert (ended.phase, ended.done, ended.waits) == ("ended", 40, "")
        assert ended.skipped <= 1, "more than the round whose packets were lost"
