"""Run folders: whole files or none, refused when they hold something, and honest about a full disk."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path

import numpy as np
import pytest

from coterie.protocol.errors import RunError, UserError
from coterie.record.files import Log, atomic_write
from coterie.record.folder import jsonable, read_lines, write_json
from coterie.runs import RunConfig, resolve
from coterie.runs.folder import check_free, claim, resumed


def no_space(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_file_is_replaced_whole_and_gets_its_mode(tmp_path: Path) -> None:
    file = tmp_path / "a.bin"
    atomic_write(file, b"one")
    atomic_write(file, b"two", 0o600)
    assert file.read_bytes() == b"two"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert names(tmp_path) == {"a.bin"}


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.bin"
    atomic_write(file, b"one")
    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(RunError, match=r"cannot write .*a\.bin.*No space left.*make room"):
        atomic_write(file, b"two")
    assert file.read_bytes() == b"one"
    assert names(tmp_path) == {"a.bin"}


def test_a_log_takes_off_what_it_could_not_write_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(tmp_path / "log")
    log.append(b"one\n")
    real, calls = os.write, []

    def half(descriptor: int, data: bytes) -> int:
        calls.append(len(data))
        return real(descriptor, data[:2]) if len(calls) == 1 else no_space()

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(RunError, match="No space left"):
        log.append(b"two\n")
    monkeypatch.undo()
    assert (tmp_path / "log").read_bytes() == b"one\n"
    assert log.length() == 4
    log.append(b"three\n")
    log.truncate(4)
    log.append(b"four\n")
    assert (tmp_path / "log").read_bytes() == b"one\nfour\n"
    with pytest.raises(UserError, match="shorter than its checkpoint"):
        log.truncate(100)
    log.close()


def test_json_of_arrays_and_what_is_not_finite(tmp_path: Path) -> None:
    value = {"a": np.arange(3), 1: (np.float32(0.5), float("nan"), None, True), "b": {"c": np.inf}}
    write_json(tmp_path / "x.json", value)
    assert json.loads((tmp_path / "x.json").read_text()) == {
        "a": [0, 1, 2],
        "1": [0.5, None, None, True],
        "b": {"c": None},
    }
    with pytest.raises(TypeError, match="object"):
        jsonable({"a": object()})


def test_a_new_folder_appears_with_its_config_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = resolve(RunConfig("fedavg", seed=7))
    first, second = claim(config), claim(config)
    assert (first, second) == (Path("runs/fedavg-digits-7-1"), Path("runs/fedavg-digits-7-2"))
    assert names(first) == {"config.toml"}
    assert names(tmp_path / "runs") == {first.name, second.name}
    assert resolve(resumed(first)) == resolve(RunConfig("fedavg", seed=7, out=str(first)))
    empty = tmp_path / "deep" / "empty"
    empty.mkdir(parents=True)
    assert claim(resolve(RunConfig("fedavg", out=str(empty)))) == empty
    assert names(empty) == {"config.toml"}


def test_a_full_disk_makes_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = resolve(RunConfig("fedavg", out=str(tmp_path / "run")))
    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(RunError, match="No space left"):
        claim(config)
    assert names(tmp_path) == set()


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (["config.toml", "result.json"], "finished run"),
        (["config.toml"], "unfinished run.*--resume"),
        (["thesis.tex"], "not empty"),
    ],
)
def test_a_folder_that_holds_something_is_refused(tmp_path: Path, files: list[str], words: str) -> None:
    out = tmp_path / "run"
    out.mkdir()
    for name in files:
        (out / name).write_text("")
    with pytest.raises(UserError, match=words):
        claim(resolve(RunConfig("fedavg", out=str(out))))
    assert names(out) == set(files)


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(UserError, match="is a file"):
        check_free(tmp_path / "run")
    with pytest.raises(UserError, match="cannot write to"):
        check_free(tmp_path / "run" / "below")


def test_no_run_to_resume(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no run to resume"):
        resumed(tmp_path)


def test_lines_that_are_none(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"round": 1}\n{"round": 2}\n')
    assert [line["round"] for line in read_lines(file)] == [1, 2]
    for bad in ("{", "3"):
        file.write_text('{"round": 1}\n' + bad)
        with pytest.raises(UserError, match="line 2"):
            read_lines(file)
    with pytest.raises(UserError, match="cannot read"):
        read_lines(tmp_path / "none")
