"""OFL's page of reproductions: its tables are those of the records, with the command of each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import movement, rates
from coterie.runs.intervals import mean_and_interval
from papers.ofl import GRAPHS, ITEMS, RATES, TASKS, WINDOW, config

FOLDER = Path(__file__).parents[2] / "docs" / "reproduction"
PAGE = (FOLDER / "ofl.md").read_text()
OTHERS = {name: json.loads((FOLDER.parent / "ofl" / f"{name}.json").read_text()) for name in ("rates", "movement")}
RECORDS = {path.stem: json.loads(path.read_text()) for path in sorted((FOLDER / "ofl").glob("*.json"))}
MEASURES = {
    "global %": "global_accuracy",
    "local %": "local_accuracy",
    "local %, tuned": "fine_tuned_local_accuracy",
}


def text(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def lines(rows: Sequence[Sequence[str]]) -> str:
    head, *rest = rows
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *rest))


def table(record: Mapping[str, Any]) -> str:
    """A record's table as it stands on the page."""
    rows: Sequence[Mapping[str, Any]] = record["rows"]
    return lines([list(rows[0]), *([text(value) for value in row.values()] for row in rows)])


def last_rounds(curve: Mapping[str, Any], measure: str) -> float:
    """In percent: the mean of the last rounds, or the number after the last one."""
    value = curve[measure]
    return 100 * (sum(value[-WINDOW:]) / WINDOW if isinstance(value, list) else value)


def paired_table() -> str:
    """OFL in both modes less every other method, over the same seeds, by task."""
    rows = [["task", "OFL's mode", "less", *MEASURES]]
    curves = RECORDS["table3"]["curves"]
    for ours in (cell for cell in curves if cell.partition("/")[2].startswith("ofl")):
        task, _, mode = ours.partition("/")
        for other in (cell for cell in curves if cell.startswith(f"{task}/") and "/ofl" not in cell):
            row = [task, "hardened" if "@" in mode else "paper", other.partition("/")[2]]
            for measure in MEASURES.values():
                pairs = zip(curves[ours], curves[other], strict=True)
                mean, half = mean_and_interval([last_rounds(a, measure) - last_rounds(b, measure) for a, b in pairs])
                row.append(f"{mean:+.1f} ± {half:.1f}".replace("-", "−"))
            rows.append(row)
    return lines(rows)


@pytest.mark.parametrize("name", RECORDS)
def test_the_page_has_the_record_and_its_command(name: str) -> None:
    assert table(RECORDS[name]) in PAGE
    assert f"`{RECORDS[name]['command']}`" in PAGE
    assert f"(ofl/{name}.json)" in PAGE
    assert f"ofl/{name}" in ITEMS


def test_the_page_has_the_paired_differences() -> None:
    assert paired_table() in PAGE


def test_the_record_keeps_every_seed() -> None:
    record = RECORDS["table3"]
    assert record["seeds"] == [0, 1, 2]
    for cell, curves in record["curves"].items():
        assert [one["seed"] for one in curves] == record["seeds"], cell
        assert {len(one["global_accuracy"]) for one in curves} == {TASKS[cell.partition("/")[0]][3]}


def test_rates_on_graphs_are_the_best_of_the_grid_on_a_seed_of_no_table() -> None:
    found = OTHERS["rates"]
    assert rates.chosen(found) == {method: RATES[method] for method in found["found"]}
    assert set(found["found"]) == {cell.name.partition("/")[2] for cell in ITEMS["ofl/table3"].cells} - {"local"}
    assert not set(found["seeds"]) & set(RECORDS["table3"]["seeds"])
    assert {len(row) for row in found["found"].values()} == {len(rates.RATES)}  # every method has the same grid
    assert rates.table(found) in PAGE
    assert f"`{found['command']}`" in PAGE
    assert config("ofl", "cora").settings["lr"] == RATES["ofl"]
    assert config("ofl", "mnist-mlp").settings["lr"] == 0.1
    for cell in ITEMS["ofl/table3"].cells:
        task, _, method = cell.name.partition("/")
        if task in GRAPHS:
            assert cell.config.settings["lr"] == RATES[method]
    for settings in RECORDS["table3"]["cells"].values():
        assert settings["settings"]["lr"] == 0.1


def test_the_noise_of_hardened_is_many_times_what_a_round_moves_on_cora() -> None:
    found = OTHERS["movement"]
    assert table(found) in PAGE
    assert f"`{found['command']}`" in PAGE
    assert {(row["task"], float(row["rate"])) for row in found["rows"]} == set(movement.CASES)
    for row in found["rows"]:
        assert row["noise on a whole upload"] == pytest.approx(0.02 * row["parameters"] ** 0.5, rel=0.01)
        assert row["noise on a whole upload"] > 4 * row["a client's change"]
    assert found["rows"][0]["noise on a whole upload"] > 50 * found["rows"][0]["a client's change"]
