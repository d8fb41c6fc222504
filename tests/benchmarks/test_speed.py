"""``python -m benchmarks.speed``: its command line, with measures that take no time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import speed as bench


@pytest.fixture(autouse=True)
def _instant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "MEASURES", {"one": lambda: {"ratio": 1}, "two": lambda: {"ratio": 2}})


def test_everything_then_a_part_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    bench.main(["found/bench.json"])
    monkeypatch.setitem(bench.MEASURES, "two", lambda: {"ratio": 3})
    bench.main(["found/bench.json", "two"])
    found = json.loads(Path("found/bench.json").read_text())
    assert (found["one"], found["two"]) == ({"ratio": 1}, {"ratio": 3})


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [(["--help"], 0, "of one, two"), ([], 2, "file"), (["x.json", "three"], 2, "three: there are one, two")],
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
