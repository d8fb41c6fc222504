"""One writer at a time in a folder, between real processes: refused meanwhile, free as soon as the holder is dead."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ended import count_rounds
from forked import command, wait_until
from outcomes import alike, numbers

from coterie.cli.app import main
from coterie.protocol.errors import RunError, UserError
from coterie.record.files import LOCK, locked
from coterie.report import render
from coterie.runs import RunConfig, run
from coterie.runs.audited import audited
from coterie.runs.budget import plan
from coterie.runs.comparison import compare

TOY = RunConfig("toy_federation:SYSTEM", samples=300, clients=4, rounds=8, checkpoint_every=1, record=True)
SLOW_S = "0.2"


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")


@contextlib.contextmanager
def running(log: Path, *words: str) -> Iterator[Any]:
    """A command in a process of its own, slower than usual; killed in the end if the test has not done so."""
    options = ["--samples", "300", "--clients", "4", "--rounds", "8", "--checkpoint-every", "1", "--record", "--quiet"]
    with command(log, *words, *options, COTERIE_TOY_SLEEP_S=SLOW_S) as process:
        yield process


def killed(process: Any) -> None:
    """As by ``kill -9``."""
    process.kill()
    process.join()


def test_a_second_run_is_refused_and_harms_nothing_and_a_killed_one_frees_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    with running(tmp_path / "log", "run", TOY.system, "--out", str(out)) as process:
        wait_until(lambda: count_rounds(out) >= 2, process)
        with pytest.raises(UserError, match=f"another run is at work in {out}: wait"):
            run(replace(TOY, out=str(out)), resume=True)
        monkeypatch.setattr(sys, "argv", ["coterie", "run", "--resume", "--out", str(out)])
        with pytest.raises(SystemExit) as caught:
            main()
        assert caught.value.code == 2
        assert "another run is at work" in capsys.readouterr().err
        at = count_rounds(out)
        wait_until(lambda: count_rounds(out) > at, process)  # the first goes on
        killed(process)
    assert count_rounds(out) < 8
    run(replace(TOY, out=str(out)), resume=True)
    run(replace(TOY, out=str(tmp_path / "undisturbed")))
    assert numbers(out) == alike(numbers(tmp_path / "undisturbed"))


@pytest.mark.long
def test_a_second_comparison_is_refused_and_so_is_a_run_in_one_of_its_folders(tmp_path: Path) -> None:
    out = tmp_path / "both"
    place = out / "toy_federation_SYSTEM-0"
    both = plan(
        [TOY.system, "fedavg"], {"samples": 300, "clients": 4, "rounds": 8, "checkpoint_every": 1, "record": True}, {}
    )
    words = ["compare", TOY.system, "fedavg", "--no-local", "--no-fine-tune", "--out", str(out)]
    with running(tmp_path / "log", *words) as process:
        wait_until(lambda: count_rounds(place) >= 1, process)
        with pytest.raises(UserError, match=f"another run is at work in {out}:"):
            compare(both, [0], out, resume=True)
        with pytest.raises(UserError, match=f"another run is at work in {place}:"):
            run(replace(TOY, out=str(place), evaluate="all"), resume=True)  # as a comparison does
        assert process.exitcode is None
        killed(process)
    assert count_rounds(place) < 8
    done = compare(both, [0], out, resume=True)
    assert {row["system"] for row in done.content["rows"]} == {"toy", "fedavg"}
    run(replace(TOY, out=str(tmp_path / "undisturbed")))
    assert numbers(place) == alike(numbers(tmp_path / "undisturbed"))


def test_a_report_and_an_audit_read_what_is_locked_and_nothing_else_runs_there(tmp_path: Path) -> None:
    out = tmp_path / "run"
    config = RunConfig("fedavg", clients=3, rounds=1, samples=200, record=True, out=str(out))
    run(config)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with locked(out):
        render([out], out / "report.html")
        assert audited(out)["rounds"] == 1
        for refused in (
            lambda: run(config, resume=True),
            lambda: compare(plan(["fedavg"], {}, {}), [0], out, resume=True),
        ):
            with pytest.raises(UserError, match="another run is at work"):
                refused()
    assert (out / "report.html").exists()
    assert {path: path.read_bytes() for path in before} == before


def test_the_lock_holds_between_threads_and_ends_with_its_block(tmp_path: Path) -> None:
    found: list[str] = []

    def second() -> None:
        try:
            with locked(tmp_path):
                found.append("entered")
        except UserError as error:
            found.append(str(error))

    with locked(tmp_path):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
    second()
    assert found == [
        f"another run is at work in {tmp_path}: wait until it has ended, or choose another --out",
        "entered",
    ]
    with pytest.raises(KeyboardInterrupt), locked(tmp_path):
        raise KeyboardInterrupt
    with locked(tmp_path):
        assert [path.name for path in tmp_path.iterdir()] == [LOCK]


def test_where_no_lock_can_be_made_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunError, match=r"cannot write .*\.lock"), locked(tmp_path / "none"):
        pass

    def lacking(descriptor: int, wait: bool) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr("coterie.record.files._lock", lacking)
    with pytest.warns(UserWarning, match="without locks.*no second run"), locked(tmp_path):
        pass


def test_no_other_user_can_open_the_lock_even_of_an_older_version(tmp_path: Path) -> None:
    """Whoever can open it, for reading too, can hold it."""
    before = os.umask(0)
    try:
        for older in (None, 0o666, 0o644):
            if older is not None:
                (tmp_path / LOCK).chmod(older)
            with locked(tmp_path):
                assert stat.S_IMODE((tmp_path / LOCK).stat().st_mode) == 0o600
    finally:
        os.umask(before)


def test_a_lock_that_is_a_symbolic_link_is_refused(tmp_path: Path) -> None:
    victim = tmp_path / "letters.txt"
    victim.write_text("mine")
    victim.chmod(0o644)
    (tmp_path / LOCK).symlink_to(victim)
    with pytest.raises(UserError, match=r"\.lock is a symbolic link"), locked(tmp_path):
        pass
    assert stat.S_IMODE(victim.stat().st_mode) == 0o644
