"""Runs that end early: stopped after a round, or killed as by ``kill -9`` in a process of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coterie.runs import Interrupted, RunConfig, run

ROOT = Path(__file__).parents[2]
KILL = "COTERIE_TEST_KILL"
"""Of the environment: where a test's own system kills its process (``dies``)."""


def stopping(at: int, error: BaseException | None = None) -> Callable[[dict[str, Any]], None]:
    """Called with each round's line: Ctrl-C, or another error, after round ``at``."""

    def on_round(line: dict[str, Any]) -> None:
        if line["round"] == at:
            raise error or KeyboardInterrupt

    return on_round


def interrupted(config: RunConfig, at: int, *, resume: bool = False) -> None:
    """Run this config until Ctrl-C after round ``at``."""
    with pytest.raises(Interrupted):
        run(config, stopping(at), resume=resume)


def outside(**more: str) -> dict[str, str]:
    """The environment of a process that imports what tests import."""
    paths = os.pathsep.join(map(str, (ROOT / "tests" / "rigs", ROOT, ROOT / "src")))
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **more}


def dies(here: object) -> None:
    """Kills this process where the environment says so."""
    if os.environ.get(KILL) == str(here):
        os.kill(os.getpid(), signal.SIGKILL)


def killed_at(here: object, code: str) -> None:
    """Run this code until it kills itself there (``dies``)."""
    done = subprocess.run([sys.executable, "-c", code], env=outside(**{KILL: str(here)}), capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


def lines_of(out: Path) -> int:
    """How many rounds a run has written."""
    return (out / "metrics.jsonl").read_bytes().count(b"\n") if (out / "metrics.jsonl").exists() else 0


def until(done: Callable[[], bool], process: subprocess.Popen[Any]) -> None:
    """Wait for what a process does."""
    deadline = time.monotonic() + 200
    while not done():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def killed_after(rounds: int, out: Path, code: str, **more: str) -> None:
    """Run this code, and kill it a moment after so many rounds were written."""
    process = subprocess.Popen([sys.executable, "-c", code], env=outside(**more))
    try:
        until(lambda: lines_of(out) >= rounds, process)
        time.sleep(0.05)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
