"""Runs that end early: stopped after a round, or killed as by ``kill -9`` in a process of their own."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from forked import fork_code, wait_until

from coterie.runs import Interrupted, RunConfig, run

KILL = "COTERIE_TEST_KILL"
"""Of the environment: where a test's own system kills its process (``die_at``)."""


def stop_at(at: int, error: BaseException | None = None) -> Callable[[dict[str, Any]], None]:
    """Called with each round's line: Ctrl-C, or another error, after round ``at``."""

    def on_round(line: dict[str, Any]) -> None:
        if line["round"] == at:
            raise error or KeyboardInterrupt

    return on_round


def interrupt(config: RunConfig, at: int) -> None:
    """Run this config until Ctrl-C after round ``at``."""
    with pytest.raises(Interrupted):
        run(config, stop_at(at))


class DeathError(BaseException):
    """Ends a run in this process where it stands: nothing of the run answers it."""


def die_at(here: object) -> None:
    """Ends a run where the environment says so, by a kill of its process or in this one."""
    if os.environ.get(KILL) == str(here):
        os.kill(os.getpid(), signal.SIGKILL)
    if os.environ.get(KILL) == f"{here} in this process":
        raise DeathError


def kill_at(here: object, config: RunConfig, *, really: bool) -> None:
    """Run this until its system ends it there (``die_at``). really: by a kill of a process of its own."""
    if not really:
        with patch.dict(os.environ, {KILL: f"{here} in this process"}), pytest.raises(DeathError):
            run(config)
        return
    process = fork_code(
        f"from coterie.runs import RunConfig, run; run({config})", Path(os.devnull), **{KILL: str(here)}
    )
    process.join()
    assert process.exitcode == -signal.SIGKILL


def count_rounds(out: Path) -> int:
    """How many rounds a run has written."""
    return (out / "metrics.jsonl").read_bytes().count(b"\n") if (out / "metrics.jsonl").exists() else 0


def kill_after(rounds: int, out: Path, code: str, **more: str) -> None:
    """Run this code, and kill it a moment after so many rounds were written."""
    process = fork_code(code, out.with_suffix(".err"), **more)
    try:
        wait_until(lambda: count_rounds(out) >= rounds, process)
        time.sleep(0.05)
    finally:
        process.kill()
        process.join()
