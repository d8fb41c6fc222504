"""``python -m benchmarks.speed``: its command line, with measures that take no time, and the stamps of parts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import pages
from benchmarks import speed as bench


@pytest.fixture(autouse=True)
def _instant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "MEASURES", {"one": lambda: {"ratio": 1}, "two": lambda: {"ratio": 2}})
    monkeypatch.setattr(bench, "stamp", lambda command: {"command": command, "version": "7"})


def read() -> Any:
    return json.loads(Path("found/bench.json").read_text())


def test_everything_then_a_part_anew_with_a_stamp_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    bench.main(["found/bench.json"])
    monkeypatch.setitem(bench.MEASURES, "two", lambda: {"ratio": 3})
    monkeypatch.setattr(bench, "stamp", lambda command: {"command": command, "version": "8"})
    bench.main(["found/bench.json", "two"])
    found = read()
    assert [found[part]["ratio"] for part in ("one", "two")] == [1, 3]
    assert [found[part]["made"]["version"] for part in ("one", "two")] == ["7", "8"]
    assert found["two"]["made"]["command"] == "python -m benchmarks.speed found/bench.json two"
    assert "version" not in found  # of the whole file there is none


def test_a_part_that_fails_leaves_those_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bench.MEASURES, "two", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        bench.main(["found/bench.json"])
    assert read()["one"]["ratio"] == 1


def test_only_some_frameworks_are_measured_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bench.MEASURES, "jobs", bench.jobs.run)
    monkeypatch.setattr(bench.jobs, "run", lambda made, only, before: {"jobs": [only, before]})
    bench.main(["found/bench.json", "jobs"])
    bench.main(["found/bench.json", "jobs", "--only", "coterie", "--only", "cnn-some"])
    assert read()["jobs"] == {"jobs": [["coterie", "cnn-some"], {"jobs": [[], None]}]}


def test_a_page_says_when_and_on_what_each_part_was_measured() -> None:
    made = {"version": "7", "commit": "0123456789abcdef", "date": "2026-11-30"}
    one = {**made, "machine": {"cpu": "A", "cores": 2, "load": [0.25, 1, 1]}}
    row = {"made": {"coterie": one, "flower": made, "fedjax": made}}
    text = pages.TABLES["stamps"]({"jobs": {"jobs": [row, row]}, "old": {}, "new": {"made": one}}, "jobs", "old", "new")
    assert text.splitlines()[2:] == [
        "| jobs: coterie | 2026-11-30 | 7 012345678 | A, 2 cores | 0.2 |",
        "| jobs: flower, fedjax | 2026-11-30 | 7 012345678 | – | – |",
        "| new | 2026-11-30 | 7 012345678 | A, 2 cores | 0.2 |",
    ]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--help"], 0, "of one, two"),
        ([], 2, "file"),
        (["x.json", "three"], 2, "three: there are one, two"),
        (["x.json", "one", "--only", "coterie"], 2, "--only narrows jobs"),
    ],
)
def test_help_and_mistakes_measure_nothing(
    words: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        bench.main(words)
    assert caught.value.code == code
    said = capsys.readouterr()
    assert says in said.out + said.err
    assert list(Path().iterdir()) == []
