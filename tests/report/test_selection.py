"""The report's part on selections, clusters' events and latency: counted by hand, and shown on the page."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_folders import edit_rounds, write_run

from coterie.protocol.errors import UserError
from coterie.record.load import load
from coterie.report import clusters
from coterie.report.comparison import group
from coterie.report.html import render

CLIENTS, ROUNDS = 6, 4
CHOSEN = [[0, 1], [0, 3], [0, 4], [0, 1]]  # client/2 and client/5 never


def folder(tmp_path: Path, change: Callable[[int, dict[str, Any]], None] = lambda r, line: None, **kwargs: Any) -> Path:
    """A run of 6 clients and 4 rounds with these selections."""
    out = write_run(tmp_path / "run", system="fedepc", title="FedEPC", clients=CLIENTS, rounds=ROUNDS, **kwargs)

    def select(r: int, line: dict[str, Any]) -> None:
        line["notes"]["selected"] = {f"client/{i}": i % 2 for i in CHOSEN[r]}
        line["notes"]["choices"] = {
            "0": {"chosen": ["client/0"], "mean": 0.5 - 0.1 * r, "deviation": 0.25, "ucb": 1.0, "candidates": 3},
            "1": {"chosen": [], "skipped": "no device fits the time budget of 3"},
        }
        if r == 1:
            merge = {"kind": "merge", "clusters": [0, 2], "names": [], "value": 0.1234}
            line["notes"]["events"] = [
                merge,
                {"kind": "split", "clusters": [1, 2], "names": ["client/3"], "value": 0.2},
            ]
        change(r, line)

    edit_rounds(out, select)
    return out


def test_selections_are_counted_by_client_and_jains_index_is_that_of_the_counts(tmp_path: Path) -> None:
    found = clusters.selected(load(folder(tmp_path)))
    assert found is not None
    assert found.times.tolist() == [4, 2, 0, 1, 1, 0]
    assert found.fairness == pytest.approx(8**2 / (6 * (16 + 4 + 1 + 1)))


def test_equal_turns_are_fair_and_one_client_alone_is_one_nth() -> None:
    assert clusters.Selected((1, 2), np.eye(2, dtype=bool)).fairness == pytest.approx(1)
    alone = np.zeros((3, 4), dtype=bool)
    alone[:, 2] = True
    assert clusters.Selected((1, 2, 3), alone).fairness == pytest.approx(1 / 4)
    assert clusters.Selected((1,), np.zeros((1, 4), dtype=bool)).fairness is None


@pytest.mark.usefixtures("no_figures")
def test_a_run_that_asks_everybody_has_no_part_on_selection(tmp_path: Path) -> None:
    everybody = {f"client/{i}": 0 for i in range(CLIENTS)}
    out = folder(tmp_path, lambda r, line: line["notes"].update(selected=everybody))
    assert clusters.selected(load(out)) is None
    assert "Who was selected" not in render([out]).read_text()


def test_what_a_cluster_chose_and_why_it_was_skipped(tmp_path: Path) -> None:
    run = load(folder(tmp_path))
    found = clusters.selected(run)
    assert found is not None
    first, second = clusters.choices(run)
    assert (first["rounds"], first["size"], first["mean"]) == (4, 1.0, (0.5, pytest.approx(0.2)))
    assert second["rounds"] == 0
    assert second["skipped"] == [("no device fits the time budget of 3", 4)]
    assert found.never == [2, 5]


def test_the_latency_to_a_target_is_the_clock_at_the_end_of_the_first_round_that_reached_it(tmp_path: Path) -> None:
    reached = [0.3, 0.55, 0.52, 0.91]

    def change(r: int, line: dict[str, Any]) -> None:
        line |= {"global_accuracy": reached[r], "local_accuracy": None, "virtual_seconds": 100.0 * (r + 1)}

    rows = clusters.latencies(load(folder(tmp_path, change)))
    assert {row["target"]: row["cells"] for row in rows} == {
        0.5: [(2, 200.0), None],
        **{target: [(4, 400.0), None] for target in (0.75, 0.8, 0.85, 0.9)},
    }


def test_a_comparison_tells_the_virtual_time_to_a_common_target(tmp_path: Path) -> None:
    def change(r: int, line: dict[str, Any]) -> None:
        line |= {"global_accuracy": 0.2 * (r + 1), "virtual_seconds": 10.0 * (r + 1)}

    (found,) = group([load(folder(tmp_path, change))])
    assert (found.rounds_to("global_accuracy", 0.5), found.seconds_to("global_accuracy", 0.5)) == (3, 30.0)
    assert found.seconds_to("global_accuracy", 0.99) is None


def test_the_page_shows_selection_events_and_features(tmp_path: Path) -> None:
    out = folder(tmp_path)
    observed = {"features": [[0.1, 0.2, 0.3], [0.1, 0.25, 0.3], [0.9, 0.2, 0.1], [], [0.8, 0.2, 0.1], [0.5, 0.5, 0.5]]}
    (out / "observed.json").write_text(json.dumps(observed))
    page = render([out]).read_text()
    for words in (
        "Who was selected",
        "never selected (2, 5)",
        "no device fits the time budget of 3",
        "1 merged, 1 split",
    ):
        assert words in page
    assert "Devices in feature space" in page
    assert "5 devices" in page  # one told nothing
    assert "How long it took to reach each accuracy" in page


def test_a_caption_tells_of_clusters_only_where_some_are_drawn(tmp_path: Path) -> None:
    out = folder(tmp_path, clustered=False)
    observed = {"features": [[0.1 * i, 0.2] for i in range(CLIENTS)], "affinity": np.eye(CLIENTS).tolist()}
    words = ("in the colour of its cluster at the end", "Colours are clusters", "Lines separate the clusters")
    for groups in (None, [[i % 2] for i in range(CLIENTS)]):
        (out / "observed.json").write_text(json.dumps({**observed, "membership": groups}))
        page = render([out]).read_text()
        assert [one in page for one in words] == [groups is not None] * 3


def test_devices_that_are_all_alike_can_be_drawn(tmp_path: Path) -> None:
    out = folder(tmp_path)
    (out / "observed.json").write_text(json.dumps({"features": [[0.5, 0.5]] * CLIENTS}))
    assert "0 % of the variance" in render([out]).read_text()


@pytest.mark.parametrize(
    ("features", "words"), [([[0.1]] * 3, "3 entries for 6 clients"), ([[0.1], [0.1, 0.2]] * 3, "differ in length")]
)
def test_features_of_a_wrong_shape_are_refused(tmp_path: Path, features: Any, words: str) -> None:
    out = folder(tmp_path)
    (out / "observed.json").write_text(json.dumps({"features": features}))
    with pytest.raises(UserError, match=words):
        render([out])


def test_names_of_no_client_are_left_out(tmp_path: Path) -> None:
    out = folder(tmp_path, lambda r, line: line["notes"].update(selected={"client/99": 0, "<b>": 0, "client/1": 1}))
    found = clusters.selected(load(out))
    assert found is not None
    assert found.times.tolist() == [0, 4, 0, 0, 0, 0]
