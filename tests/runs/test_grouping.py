"""How clusters agree with the data's own groups: in a run's lines, its result, on the screen, in its report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matrix import few
from sklearn.metrics import adjusted_rand_score

from coterie.report import render
from coterie.report.summary import results
from coterie.runs import RunConfig, build, run

SETTINGS: dict[str, dict[str, Any]] = {
    "fedcaprivacy": {"clusters": 2, "max_epochs": 2},
    "ifca": {"clusters": 2, "max_epochs": 1},
    "fedem": {"components": 2, "max_epochs": 1},
    "haccs": {"max_epochs": 1},
    "flacc": {"max_epochs": 1},
    "clsm_fl": {"clusters": 2, "max_epochs": 2},
    "mingledpie": {"clusters": 3, "max_epochs": 1, "max_condition": 1e9},
}


def config(system: str, **options: Any) -> RunConfig:
    small = {"clients": 8, "rounds": 3, "samples": 480, "model": "linear"}
    given = {**small, "partition": "labelsets:2", "crypto": "emulated", **options}
    return RunConfig(system, settings=SETTINGS.get(system, {}), **given)


@pytest.mark.parametrize("system", few(SETTINGS, {"fedcaprivacy"}))
def test_every_clustered_method_says_it_everywhere(system: str, tmp_path: Path) -> None:
    done = run(config(system, eval_every=2, out=str(tmp_path / "run")))
    lines = [line.get("grouping") for line in done.rounds]
    assert [line is not None for line in lines] == [False, True, True]
    observed = json.loads((done.folder / "observed.json").read_text())["membership"]
    groups = json.loads((done.folder / "partition.json").read_text())["groups"]
    last = done.summary["grouping"]
    assert last == lines[-1]
    assert last["ari"] == pytest.approx(adjusted_rand_score(groups, [str(sorted(own)) for own in observed]))
    assert sum(last["sizes"]) == sum(map(len, observed))
    assert last["clusters"] == len({number for own in observed for number in own})
    shown = dict(results(done.summary))
    assert shown["the data's own groups found"] == f"adjusted Rand index {last['ari']:.2f}"
    assert ", ".join(map(str, last["sizes"])) in shown["clusters"]
    page = render([done.folder]).read_text()
    assert f'<data value="{last["ari"]}">{last["ari"]:.2f}</data>' in page
    assert "Clusters and the data&#39;s own groups" in page or "Clusters and the data's own groups" in page
    assert "Adjusted Rand index from" in page


def test_data_without_groups_have_clusters_but_no_index(tmp_path: Path) -> None:
    done = run(config("ifca", partition="iid", out=str(tmp_path / "run")))
    assert done.summary["grouping"]["ari"] is None
    assert "the data's own groups found" not in dict(results(done.summary))
    page = render([done.folder]).read_text()
    assert "Rand index" not in page
    assert "How many clusters" in page


def test_a_method_without_clusters_says_nothing(tmp_path: Path) -> None:
    done = run(config("fedavg", out=str(tmp_path / "run")))
    assert "grouping" not in done.summary
    assert not any("grouping" in line for line in done.rounds)
    assert "clusters" not in dict(results(done.summary))
    assert "Rand index" not in render([done.folder]).read_text()


def test_clients_of_no_cluster_yet_are_counted_and_left_out(tmp_path: Path) -> None:
    settings = {**SETTINGS["ifca"], "founders": 5, "join_every": 2, "newcomers": 3}
    done = run(RunConfig(**{**vars(config("ifca", out=str(tmp_path / "run"))), "settings": settings}))
    assert [line["grouping"]["without"] for line in done.rounds] == [3, 3, 0]
    assert all(-0.5 <= line["grouping"]["ari"] <= 1 for line in done.rounds)
    assert sum(done.rounds[0]["grouping"]["sizes"]) == 5


def test_fedem_s_cluster_is_the_largest_weight_and_equal_weights_have_none() -> None:
    experiment = build(config("fedem"))
    clients = [experiment.federation.alter(name) for name in experiment.common.clients]
    assert experiment.system.observe(experiment.federation)["membership"] == [[]] * 8
    clients[1].state.mixture = np.array([0.3, 0.7])
    clients[2].state.mixture = np.array([0.9, 0.1])
    assert experiment.system.observe(experiment.federation)["membership"][:4] == [[], [1], [0], []]
    assert experiment.observer.grouping()["grouping"]["without"] == 6
    experiment.close()
