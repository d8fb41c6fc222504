"""The command line, called in this process from an empty folder."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

TESTS = Path(__file__).parent
QUICK = ["--samples", "300", "--clients", "4", "--rounds", "2", "--set", "max_epochs=1", "--quiet"]


def heard() -> None:
    """For ``preexec_fn``: Ctrl-C and SIGTERM end this child, also where the tests' own parent ignores them.

    A job of a script (``make test &``) and some CI runners do.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


class Ended(NamedTuple):
    code: int
    out: str
    err: str


Command = Callable[..., Ended]


def caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs the command in an empty folder."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.syspath_prepend(str(TESTS))
    monkeypatch.delenv("COTERIE_DEBUG", raising=False)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*words: str) -> Ended:
        from coterie.cli.app import main

        monkeypatch.setattr(sys, "argv", ["coterie", *words])
        with pytest.raises(SystemExit) as caught:
            main()
        captured = capsys.readouterr()
        code = caught.value.code
        return Ended(0 if code is None else int(code), captured.out, captured.err)

    return call
