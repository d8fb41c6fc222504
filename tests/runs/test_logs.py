"""Logs of every round: the numbers of metrics.jsonl, also after a run went on, and errors that name the extra."""

from __future__ import annotations

import contextlib
import csv
import sys
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command import QUICK, Command
from ended import interrupt

import coterie
from coterie.protocol.errors import RunError, UserError
from coterie.record.folder import read_lines
from coterie.runs import RunConfig, run
from coterie.runs.logs import CSV, MLFLOW, WANDB, logged, numbers, targets

TINY = RunConfig("fedavg", clients=3, rounds=3, samples=200, eval_every=2, settings={"max_epochs": 1})


def rows(out: Path) -> list[dict[str, str]]:
    with (out / CSV).open(newline="") as file:
        return list(csv.DictReader(file))


def assert_csv_has_all(out: Path) -> None:
    lines = [numbers(line) for line in read_lines(out / "metrics.jsonl")]
    found = rows(out)
    assert list(found[0]) == list(dict.fromkeys(name for line in lines for name in line))
    for line, row in zip(lines, found, strict=True):
        assert row == {name: "" if line.get(name) is None else str(line[name]) for name in row}


# -- csv --------------------------------------------------------------------------------------------------------------


def test_the_numbers_of_a_line() -> None:
    line = {
        "round": 1,
        "bytes_up": {"client": 3},
        "metrics": {"local_f1": 0.5},
        "lost": ["a"],
        "notes": {"a": {"b": 1}},
    }
    assert numbers(line) == {"round": 1, "bytes_up.client": 3, "local_f1": 0.5, "notes.a.b": 1}


def test_a_table_has_a_row_a_round_and_the_columns_of_all(tmp_path: Path) -> None:
    """Round 1 is not evaluated, so its columns are fewer than those of the second."""
    run(replace(TINY, log="csv", out=str(tmp_path / "a")))
    assert_csv_has_all(tmp_path / "a")
    assert [row["global_accuracy"] != "" for row in rows(tmp_path / "a")] == [False, True, True]


def test_rows_come_as_the_rounds_do(tmp_path: Path) -> None:
    seen: list[int] = []
    run(replace(TINY, log="csv", out=str(tmp_path / "a")), lambda line: seen.append(len(rows(tmp_path / "a"))))
    assert seen == [1, 2, 3]


def test_a_run_that_goes_on_has_every_round_once(tmp_path: Path) -> None:
    out = tmp_path / "a"
    config = replace(TINY, log="csv", out=str(out), rounds=4, checkpoint_every=1)
    interrupt(config, 2)
    run(config, resume=True)
    assert [row["round"] for row in rows(out)] == ["1", "2", "3", "4"]
    assert_csv_has_all(out)


def test_a_log_can_begin_and_end_when_a_run_goes_on_and_changes_no_number(tmp_path: Path) -> None:
    each = replace(TINY, eval_every=1)
    plain = replace(each, out=str(tmp_path / "a"))
    run(plain)
    logged = run(replace(plain, rounds=4, log="csv"), resume=True)
    assert [row["round"] for row in rows(tmp_path / "a")] == ["1", "2", "3", "4"]
    run(replace(plain, rounds=5), resume=True)
    assert len(rows(tmp_path / "a")) == 4
    other = run(replace(each, rounds=4, out=str(tmp_path / "b")))
    assert [line["models_sha256"] for line in logged.rounds] == [line["models_sha256"] for line in other.rounds]


# -- others -----------------------------------------------------------------------------------------------------------


class Mlflow(types.ModuleType):
    """Stands for mlflow: keeps what it is told."""

    def __init__(self) -> None:
        super().__init__("mlflow")
        self.params: dict[str, Any] = {}
        self.metrics: list[tuple[int, dict[str, float]]] = []
        self.started: list[str | None] = []

    @contextlib.contextmanager
    def start_run(self, run_id: str | None, run_name: str | None, nested: bool) -> Iterator[Any]:
        self.started.append(run_id)
        yield types.SimpleNamespace(info=types.SimpleNamespace(run_id=run_id or "abc123"))

    def log_params(self, params: dict[str, Any]) -> None:
        self.params = params

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.metrics.append((step, metrics))


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> Mlflow:
    made = Mlflow()
    monkeypatch.setitem(sys.modules, "mlflow", made)
    return made


def test_mlflow_is_told_options_once_and_numbers_every_round(tmp_path: Path, mlflow: Mlflow) -> None:
    config = replace(TINY, log="mlflow", out=str(tmp_path / "a"), rounds=2, checkpoint_every=1)
    result = run(config)
    run(replace(config, rounds=3), resume=True)
    assert mlflow.started == [None, "abc123"]
    assert (tmp_path / "a" / MLFLOW).read_text() == "abc123\n"
    assert mlflow.params["system"] == "fedavg"
    assert mlflow.params["settings.max_epochs"] == 1
    assert mlflow.params["rounds"] == 2
    assert [step for step, _ in mlflow.metrics] == [1, 2, 3]
    assert mlflow.metrics[1][1]["global_accuracy"] == result.rounds[1]["global_accuracy"]
    assert all(isinstance(value, int | float) for _, found in mlflow.metrics for value in found.values())


class Wandb(types.ModuleType):
    """Stands for wandb: keeps what it is told."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.begun: list[dict[str, Any]] = []
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.open = 0

    @contextlib.contextmanager
    def init(self, **options: Any) -> Iterator[Any]:
        self.begun.append(options)
        self.open += 1
        yield types.SimpleNamespace(id=options["id"] or "abc123", log=self.log)
        self.open -= 1

    def log(self, found: dict[str, float], step: int) -> None:
        self.logged.append((step, found))


def test_wandb_goes_on_with_a_run_that_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    config = replace(TINY, log="wandb", out=str(tmp_path / "a"), rounds=2, checkpoint_every=1)
    result = run(config)
    run(replace(config, rounds=3), resume=True)
    first, second = wandb.begun
    assert (first["id"], first["resume"], second["id"], second["resume"]) == (None, None, "abc123", "allow")
    assert (first["name"], first["dir"]) == ("a", str(tmp_path / "a"))
    assert (first["config"]["system"], first["config"]["settings.max_epochs"]) == ("fedavg", 1)
    assert (tmp_path / "a" / WANDB).read_text() == "abc123\n"
    assert [step for step, _ in wandb.logged] == [1, 2, 3]
    assert wandb.logged[1][1]["global_accuracy"] == result.rounds[1]["global_accuracy"]
    assert wandb.open == 0


@pytest.mark.long
def test_wandb_itself_takes_a_run_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run(replace(TINY, log="wandb", out=str(tmp_path / "a")))
    assert list((tmp_path / "a" / "wandb").glob("offline-run-*/run-*.wandb"))


def test_names_that_no_tool_takes_are_made_plain(tmp_path: Path, mlflow: Mlflow) -> None:
    with logged(tmp_path, replace(TINY, log="mlflow"), []) as tell:
        tell({"round": 1, "refused": {"a bad value: 'x' (y)": 2}, "why": "text"})
    assert mlflow.metrics == [(1, {"refused.a bad value_ _x_ _y_": 2})]


def test_a_log_that_fails_ends_the_run_and_keeps_its_rounds(tmp_path: Path, mlflow: Mlflow) -> None:
    def broken(metrics: dict[str, float], step: int) -> None:
        if step == 2:
            raise ConnectionError("no server")

    mlflow.log_metrics = broken  # type: ignore[method-assign]
    config = replace(TINY, log="mlflow", out=str(tmp_path / "a"), checkpoint_every=1)
    with pytest.raises(RunError, match=r"the log to mlflow fails: no server .*Rounds 1 to 2 are kept"):
        run(config)
    assert len(run(replace(config, log="none"), resume=True).rounds) == 3


def test_tensorboard_has_every_number(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = run(replace(TINY, log="tensorboard", out=str(tmp_path / "a")))
    read = EventAccumulator(str(tmp_path / "a" / "tensorboard"))
    read.Reload()
    for name in ("global_accuracy", "bytes_up.client"):
        want = [(line["round"], numbers(line)[name]) for line in result.rounds if name in numbers(line)]
        found = [(event.step, event.value) for event in read.Scalars(name.replace(".", "/"))]
        assert found == [(step, pytest.approx(value)) for step, value in want]


class Writer:
    """Stands for torch's SummaryWriter."""

    def __init__(self, folder: str, purge_step: int | None) -> None:
        self.folder, self.purge_step = Path(folder), purge_step
        self.scalars: list[tuple[str, float, int]] = []
        self.open = True

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.scalars.append((name, value, step))

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.open = False


def test_a_summary_writer_is_told_and_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writers: list[Writer] = []
    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = lambda *given, **named: writers.append(Writer(*given, **named)) or writers[-1]  # type: ignore[attr-defined,func-returns-value]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    config = replace(TINY, log="csv,tensorboard", out=str(tmp_path / "a"), rounds=2, checkpoint_every=1)
    result = run(config)
    run(replace(config, rounds=3), resume=True)
    assert [writer.purge_step for writer in writers] == [None, 3]
    assert not any(writer.open for writer in writers)
    assert writers[0].folder == tmp_path / "a" / "tensorboard"
    assert ("bytes_up/client", result.rounds[0]["bytes_up"]["client"], 1) in writers[0].scalars
    assert {step for _, _, step in writers[1].scalars} == {3}
    assert_csv_has_all(tmp_path / "a")


# -- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_missing_package_is_named_before_anything_is_written(
    cli: Command, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard" if name == "tensorboard" else name, None)
    ended = cli("run", "fedavg", *QUICK, "--log", name, "--out", "a")
    assert ended.code == 2
    assert f"pip install '{name}" in ended.err
    assert not Path("a").exists()


def test_an_unknown_log_is_told_of_the_nearest(cli: Command) -> None:
    ended = cli("run", "fedavg", *QUICK, "--log", "tensorbord", "--out", "a")
    assert (ended.code, Path("a").exists()) == (2, False)
    assert "unknown log 'tensorbord'; did you mean 'tensorboard'?" in ended.err
    with pytest.raises(UserError, match="Known: csv, mlflow, tensorboard, wandb"):
        targets("csv,excel")


def test_several_logs(cli: Command, mlflow: Mlflow, tmp_path: Path) -> None:
    assert targets(" csv, mlflow,csv") == ["csv", "mlflow"]
    assert cli("run", "fedavg", *QUICK, "--log", "csv", "--log", "mlflow", "--out", "a").code == 0
    assert 'log = "csv,mlflow"' in Path("a/config.toml").read_text().splitlines()
    assert [len(rows(Path("a"))), len(mlflow.metrics)] == [2, 2]
    coterie.run("fedavg", clients=3, rounds=1, log=["csv", "mlflow"], out=str(tmp_path / "b"), progress=False)
    assert [len(rows(tmp_path / "b")), len(mlflow.metrics)] == [1, 3]


@pytest.mark.long
def test_a_comparison_logs_every_run(cli: Command) -> None:
    assert cli("compare", "fedavg", *QUICK, "--no-fine-tune", "--seeds", "1", "--log", "csv", "--out", "c").code == 0
    assert [len(rows(Path("c") / name)) for name in ("fedavg-0", "local-0")] == [2, 2]
