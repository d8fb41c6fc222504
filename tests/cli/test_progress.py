"""Progress: lines where nobody looks at a terminal, the time that is left, and how a whole table goes on."""

from __future__ import annotations

import io
import json
import re
import signal
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command import QUICK, Command
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import coterie
from coterie.record.folder import read_lines
from coterie.report import progress as shown
from coterie.report.progress import Pace, name_run, rounds_of_runs, show_progress
from coterie.reproductions.study import Calculation, Cell, Item, by_cell, standings, study
from coterie.runs import Interrupted, RunConfig

TINY = RunConfig(
    "fedavg", "digits", samples=300, clients=4, rounds=2, partition="iid", settings={"lr": 0.1, "max_epochs": 1}
)
SLOWER = replace(TINY, settings={"lr": 0.05, "max_epochs": 1})


def line(r: int, seconds: float = 1.0, **more: Any) -> dict[str, Any]:
    return {"round": r, "seconds": seconds, "observing_seconds": 0.0, **more}


# -- the time that is left --------------------------------------------------------------------------------------------


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20), st.integers(0, 20))
def test_one_run_takes_its_mean_round_as_often_as_rounds_are_left(taken: list[float], more: int) -> None:
    pace = Pace({"fedavg": len(taken) + more})
    for r, each in enumerate(taken, 1):
        pace.took("fedavg", line(r, each))
    assert pace.left() == pytest.approx(more * sum(taken) / len(taken))


def test_no_time_is_told_before_a_round_is_known() -> None:
    assert Pace({"a": 3}).left() is None


def test_each_method_has_its_own_pace_and_an_unknown_one_that_of_its_kin() -> None:
    pace = Pace(rounds_of_runs(["m/a", "m/b", "c/a"], [0, 1], 10))
    for r in range(1, 11):
        pace.took(name_run("m/a", 0), line(r, 1.0))
    assert pace.left() == 10 * 5  # all as m/a
    for r in range(1, 11):
        pace.took(name_run("m/b", 0), line(r, 3.0))
    # m/a with seed 1: 1 s a round, m/b: 3 s; c/a is like neither, so their mean
    assert pace.left() == 10 * 1 + 10 * 3 + 2 * 10 * 2
    assert Pace({"m/c": 10, "c/c": 10}, {"m/a": (1, 1.0), "c/a": (1, 5.0)}).left() == 10 * 1 + 10 * 5


def test_runs_that_were_finished_before_are_not_counted() -> None:
    """A comparison that goes on reads finished runs without a word."""
    pace = Pace(rounds_of_runs(["a", "b"], [0], 10))
    pace.took(name_run("b", 0), line(4, 2.0))
    assert pace.left() == 6 * 2


def test_rounds_that_are_there_count_and_give_the_pace() -> None:
    assert Pace({"a, seed 0": 10, "a, seed 1": 10}, {"a, seed 0": (4, 8.0)}).left() == (6 + 10) * 2
    assert Pace({"a": 3}, {"a": (9, 9.0)}).left() == 0  # a longer run serves


# -- lines and bars ---------------------------------------------------------------------------------------------------


def test_a_line_a_round_without_a_terminal(cli: Command) -> None:
    words = ["run", "fedavg", *(word for word in QUICK if word != "--quiet"), "--eval-every", "2"]
    ended = cli(*words)
    first, last = ended.err.splitlines()
    assert re.fullmatch(r"fedavg  round 1 of 2  [\d.]+ s left", first)
    assert re.fullmatch(r"fedavg  round 2 of 2  own kind [\d.]+ %  global [\d.]+ %  0 s left", last)
    assert cli(*words, "--quiet").err == ""


def test_a_skipped_round_shows_no_scores_of_earlier_models() -> None:
    scored, pace = {"local_accuracy": 0.5, "global_accuracy": 0.25}, Pace({"a": 3})
    told = [line(1, **scored), line(2, **scored, notes={"skipped": "no update came"}), line(3, **scored, notes={})]
    shown_lines = [shown._line(pace, "a", one, shown._ACCURACY).split("  ")[2] for one in told]
    assert shown_lines == ["own kind 50.0 %", "skipped", "own kind 50.0 %"]


def test_a_comparison_says_which_run_it_is_at(cli: Command) -> None:
    ended = cli("compare", "fedavg", *(word for word in QUICK if word != "--quiet"), "--seeds", "2")
    told = [text.split("  ") for text in ended.err.splitlines()]
    assert [(text[0], text[1]) for text in told] == [
        (f"{label}, seed {seed}", f"round {r} of 2") for seed in (0, 1) for label in ("fedavg", "local") for r in (1, 2)
    ]
    assert [text[-2] for text in told] == [f"run {k} of 4" for k in (1, 1, 2, 2, 3, 3, 4, 4)]


def test_attacks_after_the_last_round_are_work_that_is_told() -> None:
    """``0 s left`` is said only when nothing is left."""
    runs = rounds_of_runs(["a", "b"], [0], 2, attacked=True)
    pace, told = Pace(runs), []
    for name in ("a", "b"):
        told += [shown._line(pace, name_run(name, 0), line(r, 10.0), shown._ACCURACY) for r in (1, 2)]
    assert [text.split("  ", 2)[2:] for text in told] == [
        ["run 1 of 2  30 s left, then the attacks"],
        ["run 1 of 2  20 s left, then the attacks"],
        ["run 2 of 2  10 s left, then the attacks"],
        ["run 2 of 2"],
    ]
    lines = [line(k, seconds) for k, seconds in ((0, 0.0), (1, 60.0), (2, 30.0))]
    attacked = [shown._line(pace, shown.ATTACKS, one, shown._ACCURACY) for one in lines]
    assert attacked == ["attacks  0 of 2 runs", "attacks  1 of 2 runs  60 s left", "attacks  2 of 2 runs  0 s left"]


@pytest.mark.long
@pytest.mark.parametrize("where", ["command", pytest.param("python", marks=pytest.mark.long)])
def test_a_comparison_with_attacks_tells_them(cli: Command, capsys: pytest.CaptureFixture[str], where: str) -> None:
    if where == "command":
        err = cli("compare", "fedavg", "--audit", *(word for word in QUICK if word != "--quiet")).err
    else:
        coterie.compare(["fedavg"], seeds=1, audit=True, clients=4, rounds=2, max_epochs=1, out="c")
        err = capsys.readouterr().err
    told = [text for text in err.splitlines() if text.startswith("attacks  ")]
    assert [" ".join(text.split("  ")[:2]) for text in told] == [f"attacks {k} of 2 runs" for k in (0, 1, 2)]
    assert told[-1].endswith("  0 s left")
    assert not [text for text in err.splitlines() if "  0 s left" in text and text not in told]


def test_python_shows_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options: dict[str, Any] = {"clients": 3, "rounds": 1, "max_epochs": 1}
    coterie.run("fedavg", out=str(tmp_path / "a"), **options)
    assert capsys.readouterr().err.startswith("fedavg  round 1 of 1  own kind ")
    coterie.run("fedavg", out=str(tmp_path / "b"), progress=False, **options)
    assert capsys.readouterr().err == ""


def test_bars_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr(shown, "Console", lambda **_: Console(file=file, force_terminal=True, width=150))
    runs = rounds_of_runs([f"m{k}" for k in range(20)], [0], 1)
    with show_progress(False, runs) as tell:
        for name in runs:
            tell(name, line(1, local_accuracy=0.5, global_accuracy=0.25))
    last = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", file.getvalue()).split("\r")[-1]
    assert "20/20" in last
    assert "own kind 50.0 %  global 25.0 %" in last
    assert "m19, seed 0" in last
    assert "m3, seed 0" not in last  # only the latest are shown
    file.truncate(0)
    with show_progress(True, runs) as tell:
        tell(next(iter(runs)), line(1))
    assert file.getvalue().strip("\0") == ""


@given(st.integers(1, 30))
def test_of_several_runs_a_log_has_three_or_four_rounds_each_and_the_last(rounds: int) -> None:
    file = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shown, "Console", lambda **_: Console(file=file, width=150))
        runs = rounds_of_runs(["a", "b"], [0], rounds)
        with show_progress(False, runs) as tell:
            for name in runs:
                for r in range(1, rounds + 1):
                    tell(name, line(r, local_accuracy=0.5))
    told = re.findall(r"^(\w), seed 0 +round (\d+) of", file.getvalue(), re.MULTILINE)
    for method in "ab":
        own = [int(r) for name, r in told if name == method]
        assert own[-1] == rounds
        assert min(rounds, 3) <= len(own) <= 4
        assert own == sorted(set(own))


def test_of_several_runs_a_log_says_where_one_stops_early(capsys: pytest.CaptureFixture[str]) -> None:
    with show_progress(False, rounds_of_runs(["a", "b"], [0], 12)) as tell:
        for r in range(1, 8):
            tell("a, seed 0", line(r, local_accuracy=0.5, notes={"stopped": "no lower loss"} if r == 7 else {}))
    assert re.findall(r"round (\d+) of 12", capsys.readouterr().err) == ["3", "6", "7"]


# -- whole tables -----------------------------------------------------------------------------------------------------


def first(outcomes: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"cell": name, "last": found[0].last("global_accuracy")} for name, found in outcomes.items()]


TABLE = Item("toy/table", "A toy", (Cell("a/1", TINY), Cell("b/1", SLOWER)), first)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.reproductions.items", lambda paper=None: {"toy/table": TABLE})


@pytest.fixture
def heard() -> Iterator[None]:
    """Ctrl-C is heard here, also where the tests' own parent ignores it: a job of a script, a CI runner."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_a_table_that_was_interrupted_goes_on_by_the_same_command(
    cli: Command, toy: None, heard: None, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """Ctrl-C in round 1 of the third of four runs: two are read, the third goes on, nothing is trained twice."""
    studies = sys.modules[study.__module__]
    original, runs = studies.__dict__["run"], []

    def interrupting(config: RunConfig, on_round: Any, **options: Any) -> Any:
        def told(of_round: Mapping[str, Any]) -> None:
            on_round(of_round)
            if len(runs) == 3:
                signal.raise_signal(number)

        runs.append(config)
        return original(replace(config, checkpoint_every=1), told, **options)

    monkeypatch.setattr(studies, "run", interrupting)
    words = ["reproduce", "toy/table", "--seeds", "2", "--out", "table"]
    ended = cli(*words)
    assert ended.code == 130
    assert "4 runs: 8 rounds left. Their first rounds will show how long they take." in ended.err
    assert (
        "interrupted, 2 of 4 runs finished and 1 round kept of the next: continue with  the same command" in ended.err
    )
    assert not Path("table/table.md").exists()
    monkeypatch.setattr(studies, "run", original)
    again = cli(*words)
    assert again.code == 0
    outlook, *told = again.err.splitlines()
    assert outlook.startswith("4 runs, of which 2 are finished and 1 begun: 3 rounds left, about ")
    assert "(an estimate from the runs that are there)" in outlook
    assert [text.split("  ")[:2] for text in told] == [
        ["a/1, seed 1", "round 2 of 2"],
        ["b/1, seed 1", "round 1 of 2"],
        ["b/1, seed 1", "round 2 of 2"],
    ]
    assert cli("reproduce", "toy/table", "--seeds", "2", "--out", "undisturbed", "-q").err == ""
    assert Path("table/table.md").read_text() == Path("undisturbed/table.md").read_text()
    records = [json.loads(Path(f"{folder}/table.json").read_text()) for folder in ("table", "undisturbed")]
    assert all(curve.pop("seconds") > 0 for record in records for found in record["curves"].values() for curve in found)
    assert records[0] == records[1]
    assert cli(*words).err == "4 runs, of which 4 are finished and 0 begun: nothing is left to train.\n"


def test_the_standings_are_those_of_the_runs_that_are_there(tmp_path: Path) -> None:
    options: dict[str, Any] = {"only": (), "seeds": (0, 1), "rounds": None}
    assert [run.done for run in standings(TABLE, tmp_path, **options)] == [0] * 4
    study(TABLE, tmp_path, only=["b"], seeds=(0,), rounds=1)
    found = standings(TABLE, tmp_path, **options)
    assert [(run.cell, run.seed, run.rounds, run.done) for run in found] == [
        ("a/1", 0, 2, 0),
        ("b/1", 0, 2, 1),
        ("a/1", 1, 2, 0),
        ("b/1", 1, 2, 0),
    ]
    (kept,) = (tmp_path / "runs").iterdir()
    (made,) = read_lines(kept / "metrics.jsonl")
    assert found[1].seconds == made["seconds"] + made["observing_seconds"]
    pace = Pace({name_run(run.cell, run.seed): run.rounds for run in found}, {"b/1, seed 0": (1, 40.0)})
    assert "1 begun: 7 rounds left, about 4 min 40 s (an estimate" in pace.outlook()


def test_an_interrupted_calculation_says_that_the_runs_are_kept(tmp_path: Path) -> None:
    def compute(seed: int) -> float:
        raise KeyboardInterrupt

    item: Item[Any] = Item("toy/law", "A toy", (Calculation("a", compute),), by_cell(lambda name, found: {"x": 1}))
    with pytest.raises(Interrupted) as caught:
        study(item, tmp_path)
    assert (caught.value.kept, caught.value.advice) == ("0 of 1 runs finished", "the same command")


def test_python_reproduces_with_the_same_words(toy: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines: list[Any] = []
    page = coterie.reproduce(
        "toy/table", only=["a"], seeds=1, out=tmp_path, on_round=lambda *told: lines.append(told[:2])
    )
    assert page == tmp_path / "table.md"
    assert lines == [("a/1", 0), ("a/1", 0)]
    assert capsys.readouterr().err.startswith("1 run: 2 rounds left")
    coterie.reproduce("toy/table", only=["a"], seeds=1, out=tmp_path, progress=False)
    assert capsys.readouterr().err == ""


def test_a_notebook_shows_one_line_that_every_round_writes_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ipywidgets, which rich's bars would need."""
    said: list[str] = []

    class Shown:
        def update(self, data: dict[str, str], raw: bool) -> None:
            said.append(data["text/plain"])

    def display(data: dict[str, str], raw: bool, display_id: bool) -> Shown:
        said.append(data["text/plain"])
        return Shown()

    module = types.ModuleType("IPython.display")
    module.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    with show_progress(False, {"fedavg": 2}) as tell:
        tell("fedavg", line(1, local_accuracy=0.5))
        tell("fedavg", line(2, local_accuracy=0.75))
    assert said[0] == "setting up"
    assert said[1].startswith("fedavg  round 1 of 2  own kind 50.0 %")
    assert said[2].startswith("fedavg  round 2 of 2  own kind 75.0 %")
