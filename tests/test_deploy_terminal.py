"""What a party and the hub say on a terminal, from their start to the end of the run."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from live_deployment import Live, live
from typer.testing import CliRunner

from coterie.cli.app import app
from coterie.deploy.doctor import _holder_of_home, _holders_of_folder
from coterie.deploy.secrets import Needles
from coterie.runs.config import RunConfig

pytest.importorskip("nats")


def started(at: Path, *words: str) -> subprocess.Popen[bytes]:
    with at.open("wb") as said:
        return subprocess.Popen([sys.executable, "-m", "coterie", "deploy", *words], stdout=said, stderr=said)


def wait_for(true: Callable[[], bool], seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.05)


def lines(at: Path) -> list[str]:
    """What was said, without the time."""
    return [re.sub(r"^[0-9:]{8}  ", "", line) for line in at.read_text().splitlines()]


def status(one: Live) -> str:
    ended = CliRunner().invoke(app, ["deploy", "status", str(one.folder.path)])
    return " ".join((ended.stdout + ended.stderr).split())


def test_a_run_from_start_to_end(tmp_path: Path) -> None:
    """The hub first: it says for whom it waits. Each party says what it is at, and that the run has ended."""
    said = {name: tmp_path / f"{name}.txt" for name in ("hub", "a", "b")}
    with live(tmp_path, RunConfig("fedavg", data="digits", model="linear", rounds=2), ["a", "b"]) as one:
        processes = []
        try:
            assert "has not begun, and 3 of 3 members have joined" in status(one)
            processes.append(started(said["hub"], "hub", str(one.folder.path)))
            wait_for(lambda: "Waiting for a, b to connect" in lines(said["hub"]))
            processes.append(started(said["a"], "party", "--home", str(one.homes["a"].path)))
            wait_for(lambda: "Waiting for b to connect" in lines(said["hub"]))
            wait_for(lambda: "The hub waits for b to connect" in status(one), 15)
            processes.append(started(said["b"], "party", "--home", str(one.homes["b"].path)))
            assert [process.wait(60) for process in processes] == [0, 0, 0]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        rounds = ["Set-up", "Round 1 of 2", "Round 2 of 2"]
        for name in ("a", "b"):
            told = lines(said[name])
            assert told[0].startswith(f"{name}, client. Roster, version ")
            assert told[1].startswith("Connected. Waiting for the hub to begin.")
            assert [line for line in told if line in rounds] == rounds
            assert told[-1] == "The run has ended."
        told = lines(said["hub"])
        assert [line for line in told if line in rounds] == rounds
        assert told[-2].replace("\N{NARROW NO-BREAK SPACE}", " ") == "The run has ended: 2 rounds done."
        assert told[-1] == f"Its numbers: coterie report {one.folder.run}"
        ended = CliRunner().invoke(app, ["deploy", "party", "--home", str(one.homes["a"].path)])
        assert (ended.exit_code, "The run has ended." in ended.stdout) == (0, True)
        holders = [*map(_holder_of_home, one.homes.values()), *_holders_of_folder(one.folder)]
        secrets = {name: value for holder in holders for name, value in holder.secrets.items()}
        assert not set(Needles(secrets, {})._names(b"".join(path.read_bytes() for path in said.values())))
