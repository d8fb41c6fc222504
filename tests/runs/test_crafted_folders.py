"""Files of a run or comparison folder that were made up: an error that names the file, whatever they hold."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ended import interrupt

from coterie.protocol.errors import UserError
from coterie.record.load import compared
from coterie.report import comparison
from coterie.runs import RunConfig, load_result, run

LINEAR = RunConfig("fedavg", clients=3, rounds=3, samples=200, model="linear", checkpoint_every=1)
BUDGET: dict[str, Any] = {"server_lr": 1.0, "server_decay": 0.0, "delta": 0.0}
SPREAD = {"mean": 0.5, "values": [0.4, 0.6], "interval": None}


def compare_json(folder: Path, **fields: Any) -> Path:
    (folder / "compare.json").write_text(json.dumps({"budget_from": "fedavg", "rows": [], **fields}))
    return folder


@pytest.mark.parametrize(
    "budget",
    [
        {},
        {**BUDGET, "server_lr": "much"},
        {**BUDGET, "participation": None},
        {**BUDGET, "max_epochs": 5},
        {**BUDGET, "delta": 0.5},
        {**BUDGET, "founders": 3, "newcomers": 1},
    ],
)
def test_a_budget_without_its_keys_is_refused_with_the_file(tmp_path: Path, budget: Any) -> None:
    with pytest.raises(UserError, match=r"compare\.json"):
        comparison.budget(compared(compare_json(tmp_path, budget=budget)) or {})


def test_a_budget_says_what_it_holds_and_no_more(tmp_path: Path) -> None:
    told = compared(compare_json(tmp_path, budget=BUDGET, rounds=3, clients=4, devices="uniform"))
    assert told is not None
    assert told["budget"] == {**BUDGET, "server_rounds": 0}  # as before there was any
    assert "server step 1; no drawn delays" in comparison.budget(told)


@pytest.mark.parametrize("values", [[0.4], []])
def test_rows_of_unequal_length_are_refused_with_the_file(tmp_path: Path, values: list[float]) -> None:
    rows = [
        {"method": "local", "local_accuracy": SPREAD},
        {"method": "b", "local_accuracy": {**SPREAD, "values": values}},
    ]
    with pytest.raises(UserError, match=r"compare\.json"):
        list(comparison.sentences(compared(compare_json(tmp_path, rows=rows)) or {}))
    of_metric = [{"method": one["method"], "metrics": {"local_auroc": one["local_accuracy"]}} for one in rows]
    with pytest.raises(UserError, match=r"compare\.json"):
        list(comparison.sentences(compared(compare_json(tmp_path, rows=of_metric)) or {}))


def test_a_row_of_training_alone_without_an_accuracy_is_none_to_compare_with(tmp_path: Path) -> None:
    rows = [{"method": "local", "local_accuracy": None}, {"method": "b", "local_accuracy": SPREAD}]
    told = compared(compare_json(tmp_path, rows=rows))
    assert told is not None
    (said,) = comparison.sentences(told)
    assert "training alone" not in said


@pytest.mark.parametrize("content", ["[]", "null", "1"])
def test_a_result_that_is_no_object_is_refused_with_the_file(tmp_path: Path, content: str) -> None:
    (tmp_path / "result.json").write_text(content)
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(UserError, match=r"result\.json"):
        load_result(tmp_path)


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was interrupted after two of three rounds."""
    out = tmp_path_factory.mktemp("half") / "run"
    interrupt(replace(LINEAR, out=str(out)), 2)
    return out


@pytest.mark.parametrize("change", [{"notes": None}, {"notes": []}, {"refused": 3}, {"seconds": "x"}])
def test_a_line_that_a_run_cannot_go_on_from_is_refused_with_the_file(half: Path, tmp_path: Path, change: Any) -> None:
    out = shutil.copytree(half, tmp_path / "run")
    path = out / "metrics.jsonl"
    size, lines = path.stat().st_size, path.read_text().splitlines()
    made = json.dumps({**json.loads(lines[0]), "bands": 0, **change}).ljust(len(lines[0]))
    path.write_text("\n".join([made, *lines[1:]]) + "\n")
    assert path.stat().st_size == size
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 1"):
        run(replace(LINEAR, out=str(out)), resume=True)


def test_a_folder_of_a_later_form_is_refused_and_one_without_a_form_is_read(tmp_path: Path) -> None:
    run(RunConfig("local", clients=2, rounds=1, samples=100, out=str(tmp_path / "a")))
    result = tmp_path / "a" / "result.json"
    content = json.loads(result.read_text())
    assert content.pop("format") == 1
    result.write_text(json.dumps(content))
    assert load_result(tmp_path / "a").summary == content
    for number in (2, 0, "1", None):
        result.write_text(json.dumps({**content, "format": number}))
        with pytest.raises(UserError, match=r"result\.json has format"):
            load_result(tmp_path / "a")
