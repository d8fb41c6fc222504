"""``coterie audit --active``: PAFed's run is repeated with a thief in it, and where that shows nothing it says why."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command import Ended
from pafed_parts import small_keys

from benchmarks.security.theft import thieves
from coterie.privacy.audits.pafed import asked_most
from coterie.runs.recorded import read_recorded
from tests.cli.test_audit import call

TINY = ["--clients", "4", "--rounds", "3", "--set", "max_epochs=1", "--quiet", "--record", "--seed", "1"]
ROBBED = ["pafed", "--model", "mlp", *TINY, "--delta", "0", "--set", "participation=1"]
Run = Callable[..., Path]


@pytest.fixture(autouse=True, scope="module")
def _small() -> Iterator[None]:
    with small_keys():
        yield


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The folder of a run with these words, made once."""
    home, made = tmp_path_factory.mktemp("runs"), dict[tuple[str, ...], Path]()

    def of(*words: str) -> Path:
        if words not in made:
            made[words] = home / str(len(made))
            ended = call("run", *words, "--out", str(made[words]))
            assert (ended.code, ended.err) == (0, "")
        return made[words]

    return of


def rows(ended: Ended) -> dict[str, Any]:
    assert (ended.code, ended.err) == (0, "")
    return {row["name"]: row for row in json.loads(ended.out)["attacks"]}


def written(folder: Path) -> dict[Path, int]:
    """When each file was written, but those that an audit touches to be kept and shown."""
    touched = ("result.json", ".lock", "report.html")
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.name not in touched}


def test_the_run_is_repeated_with_a_thief_in_it(recorded: Run) -> None:
    folder = recorded(*ROBBED)
    before = written(folder)
    passive, active = (rows(call("audit", str(folder), "--json", *also)) for also in ([], ["--active"]))
    assert before == written(folder)
    kept = json.loads((folder / "result.json").read_text())["audit"]["attacks"]
    assert {row["name"]: row for row in kept} == active
    name = asked_most(read_recorded(folder))
    new = {row: active[row] for row in active if row not in passive}
    key, updates = new.values()
    assert list(new) == [f"{name}, deviating: the helper's key", f"the hub with the key of {name}: the others' updates"]
    assert (key["value"], key["perfect"], key["round"]) == (1.0, 1.0, 3)
    assert 1 / 3 < key["chance"] < 0.4
    assert (updates["value"], updates["chance"], updates["perfect"], updates["clients"]) == (0.0, 1.0, 0.0, 3)
    assert all(row["round"] is None for row in passive.values())


@pytest.mark.long
def test_in_mode_hardened_the_thief_reads_nothing(recorded: Run) -> None:
    folder = recorded(*ROBBED, "--mode", "hardened")
    passive, active = (rows(call("audit", str(folder), "--json", *also)) for also in ([], ["--active"]))
    (name,) = active.keys() - passive.keys()
    assert name == f"{asked_most(read_recorded(folder))}, deviating: the helper's key"
    key = active[name]
    assert key["round"] is None
    assert abs(key["value"] - key["chance"]) < 3 * (2 * key["chance"] * (1 - key["chance"]) / 1024) ** 0.5


@pytest.mark.long
def test_the_study_says_of_each_size_how_many_clients_get_the_key() -> None:
    quick = {"max_epochs": 1, "participation": 1.0}
    (row,) = thieves(2, (4,), 1, rounds=4, delta=0.0, settings=quick)
    assert (row["clients"], row["thieves"], row["with the key"]) == (4, 2, 2)
    assert row["in round"] == [3, 3]  # in 1 it forges, in 2 its update comes, in 3 it reads
    assert row["agreement"] == [1.0, 1.0]
    assert max(row["chance"]) < 0.4
    assert row["error of the others' updates"] == 0.0
    assert (row["forged"], row["rounds skipped"]) == ([1, 1], [0, 0])
    assert [len(row[key]) for key in ("accuracy", "accuracy without")] == [2, 2]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["fedavg", *TINY], "there are no active attacks on fedavg, only on coterie, fedepc, ofl, pafed"),
        ([*ROBBED, "--crypto", "emulated"], "an emulated key has no secret to be stolen"),
        (["pafed", *ROBBED[3:], "--model", "linear"], "a model of 650 weights fills no ciphertext of 1024"),
        ([*ROBBED, "--rounds", "1"], "no client was asked in two rounds"),
    ],
    ids=["fedavg", "emulated", "small", "short"],
)
def test_where_there_is_nothing_to_steal_it_says_why(recorded: Run, words: list[str], says: str) -> None:
    ended = call("audit", str(recorded(*words)), "--active")
    assert (ended.code, ended.out) == (2, "")
    assert says in " ".join(ended.err.split())


def test_the_advice_for_an_emulated_run_names_its_own_folder(recorded: Run) -> None:
    folder = recorded(*ROBBED, "--crypto", "emulated")
    advice = f"coterie run --config {folder}/config.toml --crypto real --record --out"
    assert advice in call("audit", str(folder), "--active").err.replace("\n", "")
