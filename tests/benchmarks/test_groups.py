"""The study of groups that are real: its cells run, its table says what the runs say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import groups
from benchmarks.items import main
from coterie.reproductions.study import Curve
from coterie.runs.config import resolve


def curve(indices: list[float | None], accuracy: float, clusters: int = 4) -> Curve:
    rows: list[dict[str, Any] | None] = [{"ari": ari, "clusters": clusters} for ari in indices]
    same = (accuracy,) * len(rows)
    return Curve(0, same, same, (True,) * len(rows), grouping=tuple(rows))


def test_every_cell_is_a_valid_run_of_the_same_size() -> None:
    cells = groups.ITEMS["fedcaprivacy/groups"].cells
    assert len({cell.name for cell in cells}) == len(cells) == len(groups.PARTITIONS) * len(groups.METHODS)
    for cell in cells:
        resolved = resolve(cell.config)
        assert (resolved.clients, resolved.rounds, resolved.data) == (24, 10, "digits")
        assert (resolved.settings["lr"], resolved.settings["batch_size"], resolved.settings["max_epochs"]) == (
            0.1,
            10,
            5,
        )


def test_the_table_has_means_over_seeds_and_the_last_of_each() -> None:
    found = [curve([0.0, 0.5, *[1.0] * 8], 0.9), curve([0.2, 0.7, *[0.5] * 8], 0.8, clusters=5)]
    (row,) = groups._table({"permute:4+dirichlet:0.5/paper, auto": found})
    assert (row["partition"], row["method"], row["seeds"]) == ("permute:4+dirichlet:0.5", "paper, auto", 2)
    assert (row["ARI, round 1"], row["ARI, round 2"], row["ARI, round 10"]) == (0.1, 0.6, 0.75)
    assert row["by seed"] == "1.00, 0.50"
    assert row["clusters"] == "4, 5"
    assert row["local %"] == "85.00 ± 7.07"


def test_without_groups_or_clusters_there_is_no_index() -> None:
    rows = groups._table(
        {
            "iid/IFCA": [curve([None] * 10, 0.9)],
            "permute:4/FedAvg": [Curve(0, (0.5,), (0.5,), (False,), grouping=(None,))],
        }
    )
    assert all(row[f"ARI, round {r}"] is None for row in rows for r in groups.SHOWN)
    assert [row["clusters"] for row in rows] == ["4", None]


def test_it_runs_and_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    only = ["permute:4/paper, auto", "permute:4/FedAvg", "iid/IFCA"]
    picked = [word for cell in only for word in ("--only", cell)]
    main(groups.ITEMS, ["fedcaprivacy/groups", *picked, "--seeds", "1", "--rounds", "3", "--out", str(tmp_path)])
    told = json.loads((tmp_path / "groups.json").read_text())
    lines = next((tmp_path / "runs").glob("*fedcaprivacy*/metrics.jsonl")).read_text().splitlines()
    last = json.loads(lines[-1])
    assert told["rows"][0]["ARI, round 3"] == round(last["grouping"]["ari"], 2)
    assert told["rows"][0]["local %"] == f"{100 * last['local_accuracy']:.2f}"
    assert [row["ARI, round 3"] for row in told["rows"][1:]] == [None, None]
    assert "permute:4" in (page := tmp_path / "groups.md").read_text()
    assert f"Written: {page}\n" in capsys.readouterr().out
    assert told["command"].startswith("python -m benchmarks.groups fedcaprivacy/groups --seeds 1 --rounds 3 --only ")
    assert "permute:4" in (tmp_path / "groups.svg").read_text()
    assert "iid" not in (tmp_path / "groups.svg").read_text()  # no groups, no panel


def test_its_cells_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    main(groups.ITEMS, ["fedcaprivacy/groups", "--list"])
    assert capsys.readouterr().out.splitlines() == [cell.name for cell in groups.ITEMS["fedcaprivacy/groups"].cells]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["fedcaprivacy/group"], "invalid choice: 'fedcaprivacy/group'"),
        (["fedcaprivacy/groups", "--seeds", "0"], "at least 1 seed is needed"),
        (["fedcaprivacy/groups", "--only", "permute:5"], "See python -m benchmarks.groups fedcaprivacy/groups --list"),
    ],
)
def test_mistakes_are_told(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(groups.ITEMS, words)
    assert says in " ".join(capsys.readouterr().err.split())
