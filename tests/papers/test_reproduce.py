"""A study runs what is missing, shares what is there, and puts the right numbers beside the paper's."""

import json
import multiprocessing
import os
import subprocess
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from studies import curve, rows

import coterie
from coterie.api import reproduce
from coterie.operate.supervision import warm
from coterie.protocol.errors import RunError, UserError
from coterie.reproductions import items, side_by_side
from coterie.reproductions.study import (
    Calculation,
    Cell,
    Curve,
    Item,
    by_cell,
    chosen,
    digest,
    one,
    percent,
    spread,
    study,
)
from coterie.runs import RunConfig, experiment
from coterie.training.jobs import DivergedError
from papers import fedcaprivacy as paper

TINY = RunConfig(
    "fedavg", "digits", samples=300, clients=4, rounds=2, partition="iid", settings={"lr": 0.1, "max_epochs": 1}
)


def table(curves):
    return [{"cell": name, "last": found[0].last("global_accuracy")} for name, found in curves.items()]


def test_rounds_to_a_target_count_from_one_and_skip_rounds_without_evaluation():
    assert curve([None, 0.5, None, 0.9, 0.95]).rounds_to(0.9, "global_accuracy") == 4
    assert curve([0.1, 0.2]).rounds_to(0.9, "global_accuracy") is None


def test_the_last_accuracy_is_a_mean_over_ten_rounds():
    assert curve([0.0, *[0.5] * 9, 1.0]).last("local_accuracy") == pytest.approx((9 * 0.5 + 1) / 10)


def test_spread_of_one_value_has_no_deviation():
    assert spread([2.0]) == (2.0, None)
    assert spread([1.0, 3.0]) == (2.0, pytest.approx(2**0.5))


def test_a_shorter_study_is_served_by_a_longer_run_and_a_longer_one_continues_it(tmp_path):
    lines = []

    def run(rounds):
        return one(replace(TINY, rounds=rounds), tmp_path, lambda _, __, line: lines.append(line["round"]), "x")

    short = run(2)
    assert lines == [1, 2]
    longer = run(4)
    assert lines == [1, 2, 3, 4]
    again = run(3)
    assert lines == [1, 2, 3, 4]
    assert longer.global_accuracy[:2] == short.global_accuracy
    assert again.global_accuracy == longer.global_accuracy[:3]
    undisturbed = one(replace(TINY, rounds=4), tmp_path / "other", None, "x")
    assert undisturbed.global_accuracy == longer.global_accuracy
    assert undisturbed.models == longer.models


def test_a_study_writes_both_files_and_only_runs_what_was_picked(tmp_path):
    cells = (Cell("a/1", TINY), Cell("b/1", replace(TINY, settings={"lr": 0.01})))
    item = Item("toy/table", "A toy", cells, table)
    with pytest.raises(UserError, match=r"no cell 'b/'; did you mean 'b/1'.* It has: a/1, b/1"):
        study(item, tmp_path, only=["b/"], seeds=(0,))
    with pytest.raises(UserError, match="no cell 'c'"):
        study(item, tmp_path, only=["b", "c"], seeds=(0,))
    page = study(item, tmp_path, only=["b"], seeds=(0,))
    rows = json.loads((tmp_path / "table.json").read_text())["rows"]
    assert [row["cell"] for row in rows] == ["b/1"]
    assert f"| b/1 | {rows[0]['last']:.4g} |" in page.read_text()
    assert len(list((tmp_path / "runs").iterdir())) == 1


def test_a_record_grows_cell_by_cell_and_keeps_what_is_still_the_item_s(tmp_path):
    b = replace(TINY, settings={"lr": 0.01})
    cells = (Cell("a/1", TINY), Cell("b/1", b), Cell("b/2", replace(b, rounds=1)), Cell("c", replace(b, clients=3)))
    item = Item("toy/table", "A toy", cells, table)

    def record(item, **options):
        study(item, tmp_path, **options)
        found = json.loads((tmp_path / "table.json").read_text())
        assert [row["cell"] for row in found["rows"]] == list(found["cells"]) == list(found["curves"])
        return list(found["cells"]), found["command"].partition("--seeds ")[2]

    assert record(item, only=["b/1"], seeds=(0,)) == (["b/1"], "1 --only b/1")
    assert record(item, only=["a"], seeds=(0,)) == (["a/1", "b/1"], "1 --only a --only b/1")
    assert record(item, only=["b/2"], seeds=(0,)) == (["a/1", "b/1", "b/2"], "1 --only a --only b")
    assert record(item, only=["c"], seeds=(0, 1)) == (["c"], "2 --only c"), "the others have no second seed"
    assert record(item, only=["a"], seeds=(0,)) == (["a/1", "c"], "1 --only a --only c")
    assert record(item, only=["b"], seeds=(0,)) == (["a/1", "b/1", "b/2", "c"], "1")
    changed = replace(item, cells=(cells[0], Cell("b/1", replace(b, settings={"lr": 0.02})), *cells[2:]))
    assert record(changed, only=["a"], seeds=(0,)) == (["a/1", "b/2", "c"], "1 --only a --only b/2 --only c")
    assert record(changed, only=["b/1"], seeds=(0,)) == (["a/1", "b/1", "b/2", "c"], "1")
    (tmp_path / "table.json").write_text("[1, 2")
    assert record(item, only=["c"], seeds=(0,))[0] == ["c"]


def test_runs_side_by_side_give_the_numbers_of_one_after_another(tmp_path, monkeypatch):
    warm()  # processes that are forked have their imports already
    context = multiprocessing.get_context("forkserver")
    monkeypatch.setattr(multiprocessing, "get_context", lambda kind: {"spawn": context}[kind])
    cells = (Cell("a", TINY), Cell("b", replace(TINY, settings={"lr": 0.01})), Cell("again", TINY))
    item, told = Item("toy/table", "A toy", (*cells,), table), []

    def record(place, **options):
        study(item, tmp_path / place, seeds=(0, 1), **options)
        found = json.loads((tmp_path / place / "table.json").read_text())
        assert all(curve.pop("seconds") > 0 for curves in found["curves"].values() for curve in curves)
        models = {path.name: (path / "result.json").exists() for path in (tmp_path / place / "runs").iterdir()}
        return found, models

    together = record("together", jobs=2, on_round=lambda cell, seed, line: told.append((seed, line["round"])))
    assert sorted(told) == [(0, 2), (0, 2), (1, 2), (1, 2)], "each of four different runs once, with its last round"
    assert together == record("apart")
    assert len(together[1]) == 4


def test_a_record_says_how_it_was_made_and_what_each_seed_gave(tmp_path):
    cells = tuple(Calculation(name, lambda seed: {"x": np.float64(seed), "y": [np.inf]}) for name in "ab")
    study(Item("toy/law", "A toy", cells, by_cell(lambda name, found: {"cell": name})), tmp_path, seeds=(0, 1))
    found = json.loads((tmp_path / "law.json").read_text())
    assert found["command"] == "coterie reproduce toy/law --seeds 2"
    assert found["version"] == coterie.__version__
    assert found["machine"].endswith(f", {os.cpu_count()} cores")
    assert found["values"] == {name: [{"x": 0.0, "y": [None]}, {"x": 1.0, "y": [None]}] for name in "ab"}
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True)
    assert (head.stdout.startswith(found["commit"].rstrip("+"))) if head.returncode == 0 else found["commit"] is None


def test_more_runs_begin_only_where_memory_is_free(monkeypatch):
    monkeypatch.setattr(side_by_side, "free_memory", lambda: 0.0)
    running, most, told = [0], [0], []

    class Pool:
        """Runs what it is given at once, and counts what is not yet collected."""

        def __init__(self, *_):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def submit(self, work, task):
            running[0] += 1
            most[0] = max(most[0], running[0])
            done = Future()
            done.set_result(work(task))
            return done

    monkeypatch.setattr(side_by_side, "ProcessPoolExecutor", Pool)

    def tell(name, result):
        running[0] -= 1
        told.append((name, result))

    side_by_side.side_by_side({name: lambda name=name: name * 2 for name in "abc"}, 3, tell)
    assert told == [("a", "aa"), ("b", "bb"), ("c", "cc")]
    assert most == [1]


def test_mistakes_are_named(tmp_path):
    with pytest.raises(UserError, match="at least 1 job is needed, not 0"):
        reproduce("fedcaprivacy/table1", jobs=0, out=tmp_path)
    with pytest.raises(UserError, match="give one of the two"):
        reproduce("fedcaprivacy/table1", jobs=2, workers="ray", out=tmp_path)
    with pytest.raises(UserError, match="table9"):
        reproduce("fedcaprivacy/table9", out=tmp_path)
    with pytest.raises(UserError, match="no cell 'nothing'"):
        reproduce("fedcaprivacy/table1", only=["nothing"], out=tmp_path)
    with pytest.raises(UserError, match="at least 1 seed"):
        reproduce("fedcaprivacy/table1", seeds=0, out=tmp_path)
    for rounds in (0, -1):
        with pytest.raises(UserError, match=f"at least 1 round is needed, not {rounds}"):
            reproduce("fedcaprivacy/table1", rounds=rounds, out=tmp_path)
    with pytest.raises(UserError, match=r"which item of mingledpie.*mingledpie/table2"):
        reproduce("mingledpie", out=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_mistyped_cell_names_the_nearest_and_not_hundreds():
    with pytest.raises(UserError) as caught:
        chosen(items()["pafed/table5"], ["mnist/0.3/constant/pafd"])
    assert "did you mean 'mnist/0.3/constant/pafed'?" in str(caught.value)
    assert "See coterie reproduce pafed/table5 --list" in str(caught.value)
    assert len(str(caught.value)) < 200


def test_a_folder_that_cannot_be_written_to_is_named_before_anything_is_computed(tmp_path, monkeypatch):
    def compute(seed):
        raise AssertionError("too early")

    item = Item("toy/table", "A toy", (Calculation("a", compute),), table)
    (tmp_path / "file").touch()
    for place in ("file", "file/under"):
        with pytest.raises(UserError, match="cannot write to"):
            study(item, tmp_path / place)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    with pytest.raises(UserError, match="cannot write to"):
        study(item, tmp_path)


def test_a_page_that_cannot_be_replaced_is_named(tmp_path):
    """A folder of that name stands for the file that the system does not let go."""
    (tmp_path / "table.md").mkdir()
    item = Item("toy/table", "A toy", (Calculation("a", float),), lambda outcomes: [{"x": 1}])
    with pytest.raises(RunError, match=r"cannot write .*table\.md"):
        study(item, tmp_path)


def test_runs_that_were_made_before_an_option_came_are_found_again():
    """The digest of these options, without scaling, by hand: keys sorted, BLAKE2b of 8 bytes."""
    options = {
        "system": "fedavg",
        "data": "digits",
        "clients": 4,
        "partition": "iid",
        "model": "mlp",
        "mode": "paper",
        "crypto": "real",
        "seed": 0,
        "devices": "uniform",
        "precision": "fp32",
        "min_samples": None,
        "settings": {"lr": 0.1},
    }
    config = RunConfig(**options)
    assert digest(config) == "475bc5cd915b9cd7"
    assert digest(replace(config, rounds=9, eval_every=3, out="elsewhere")) == digest(config)
    assert digest(replace(config, scaling="unit")) != digest(config)
    assert digest(replace(config, precision="bf16")) != digest(config)
    assert digest(replace(config, delta=0.0)) == digest(config) != digest(replace(config, delta=0.3))


def test_a_target_that_some_seeds_miss_is_said():
    found = [curve([0.99]), curve([0.5])]
    assert rows("fedcaprivacy/table1", {"mnist/0.8/fedavg": found})[0]["ours: rounds (local)"] == "1 (1 of 2 seeds)"


def test_clustering_events_stand_beside_the_closed_form():
    (row,) = rows("fedcaprivacy/fig3", {"alpha=0.1": [curve([0.5] * 100, clustered=[True] * 20 + [False] * 80)]})
    assert row["clusterings"] == 20
    expected = 1 + sum(1 / (1 + r / 10) for r in range(2, 101))
    assert row["closed form, 100 rounds"].startswith(f"{expected:.1f} ")
    assert row["fewer than always"] == "5.00x"
    assert row["paper"] == "7.14x"


def test_real_and_emulated_models_are_compared_by_their_digest():
    same = Curve(0, (0.5,), (0.5,), (True,), ("ab",), {"seconds": 1.0, "bytes_up": 10})
    other = replace(same, models=("cd",))
    compared = paper.real({"emulated": [same], "real": [same]})
    assert [row["equal to the first"] for row in compared] == [True, True]
    assert not paper.real({"emulated": [same], "real": [other]})[1]["equal to the first"]


def test_a_training_that_diverges_after_a_while_is_a_result_and_not_run_again(tmp_path, monkeypatch):
    original, lines = experiment.Experiment.round, []

    def round(self, r):
        if r == 3:
            raise RunError("round 3: the training of client/1 diverged") from DivergedError(1, "loss")
        return original(self, r)

    monkeypatch.setattr(experiment.Experiment, "round", round)
    for _ in range(2):
        wild = one(replace(TINY, rounds=5), tmp_path, lambda _, __, line: lines.append(line["round"]), "wild")
        assert wild.diverged == "round 3: the training of client/1 diverged"  # and not where its rounds are
        assert len(wild.global_accuracy) == 2
    assert lines == [1, 2]


def test_a_diverged_curve_has_no_last_accuracy():
    assert percent([curve([0.9]).last("local_accuracy")]) == "90.00"
    wild = replace(curve([0.9]), diverged="round 2: diverged")
    assert percent([0.9, wild.last("local_accuracy")]) == "diverged"
