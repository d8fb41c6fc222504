"""OFL's table and figures: valid runs on one budget, the paper's numbers in the right row, costs that add up."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from studies import curve

from coterie.devices.profiles import fleet
from coterie.reproductions.study import Cell
from coterie.runs.config import resolve
from papers import ofl as paper
from papers import ofl_costs as costs
from papers import tables
from papers.plots import accuracy_panels

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("clients", "k"), [(8, 3), (12, 4), (16, 4), (100, 7), (300, 8), (500, 9), (1000, 10)])
def test_there_are_log2_n_leaders(clients: int, k: int) -> None:
    assert paper.leaders(clients) == k


def test_shares_of_figures_9_and_10_are_bounds_on_eq_4() -> None:
    for number, varied, other in ((9, "most_up", "most_down"), (10, "most_down", "most_up")):
        for cell in paper.ITEMS[f"ofl/fig{number}"].cells:
            settings = resolve(cell.config).settings
            assert settings[other] == 0.1
            assert f"{varied}={settings[varied]:g}" in cell.name
            assert settings["gamma_min"] <= min(settings[varied], 0.1)


def test_clients_of_figure_7_share_no_more_than_there_is() -> None:
    cells = [cell for cell in paper.ITEMS["ofl/fig7"].cells if isinstance(cell, Cell)]
    assert {resolve(cell.config).clients for cell in cells} == {100, 300, 500, 800, 1000}
    for cell in cells:
        assert resolve(cell.config).data in ("mnist", "fashion_mnist"), cell.name
        assert cell.config.samples is not None
        assert 2 * cell.config.clients <= cell.config.samples <= 60_000


def test_rounds_in_office_by_type_of_device() -> None:
    types = [profile.name for profile in fleet("jetson", 8, 0)]
    first = types[0]
    notes = tuple({"leaders": {"0": "client/0", "1": "client/1"}} for _ in range(10))
    found = curve([0.5], notes=notes, scores={"global_accuracy": [0.5] * 7 + [0.6]})
    (row,) = paper.ITEMS["ofl/fig8"].summarise({"cora/N=8": [found]})
    total = sum(row[f"rounds in office, {kind}"] * types.count(kind) for kind in set(types))
    assert total == 20
    assert row[f"rounds in office, {first}"] >= 10 / types.count(first)
    assert row["spread of accuracy, points"].startswith("10.00")


def test_what_a_device_spends_is_per_device() -> None:
    used = {
        "jetson A": {
            "clients": 4,
            "compute_s": 8.0,
            "joules": {"compute": 6.0, "idle": 2.0},
            "peak_memory_bytes": 2**21,
        }
    }
    (row,) = paper.ITEMS["ofl/fig11"].summarise({"mnist-mlp": [curve([0.5], summary={"devices_used": used})]})
    assert row["jetson A: computing, s"] == 2
    assert row["jetson A: joules"] == 2
    assert row["jetson A: peak MiB"] == 2


def test_what_an_upload_costs_is_measured_for_both_mechanisms() -> None:
    row = costs.upload_costs(2_000, 0.1, 0)
    assert set(row) == {"density", "select", "laplace", "standard"}
    assert all(value >= 0 for value in row.values())


def test_a_round_of_the_leaders_opens_the_sum() -> None:
    """Real threshold CKKS: the opened sum is right, and a holder's answer does not grow with the leaders."""
    two, four = (costs.round_costs(k, 0, parameters=300) for k in (2, 4))
    assert max(two["error"], four["error"]) < 1e-4
    assert two["answer_mb"] == four["answer_mb"] > 0
    assert np.isfinite(list(four.values())).all()


@pytest.mark.parametrize("tasks", [["mnist-mlp"], ["mnist-mlp", "fashion_mnist-mlp", "cora"]])
@pytest.mark.parametrize("number", [6, 9])
def test_names_and_title_of_a_picture_lie_inside_it(
    number: int, tasks: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    monkeypatch.setattr(tables, "accuracy_panels", lambda *given: made.append(accuracy_panels(*given)) or made[-1])
    item = paper.ITEMS[f"ofl/fig{number}"]
    cells = [cell for cell in item.cells if cell.name.partition("/")[0] in tasks]
    assert item.draw is not None
    item.draw({cell.name: [curve([0.5, 0.9])] for cell in cells}, tmp_path / "one.svg")
    (figure,) = made
    for part in (*figure.legends, figure.texts[0]):
        box, inside = part.get_window_extent(), figure.bbox
        assert box.x0 >= inside.x0 - 1
        assert box.x1 <= inside.x1 + 1


@pytest.mark.parametrize("record", ["fig11", "graphs/fig11"])
def test_in_figure_11_energy_follows_power_memory_is_alike_and_type_b_computes_longest(record: str) -> None:
    for row in json.loads((ROOT / f"docs/reproduction/ofl/{record}.json").read_text())["rows"]:
        joules, memory, seconds = (
            [row[f"{board}: {what}"] for board in "ABCD"] for what in ("joules", "peak MiB", "computing, s")
        )
        assert joules == sorted(joules)
        assert max(memory) < 1.01 * min(memory)
        assert max(seconds) == seconds[1]


@pytest.mark.parametrize("record", ["fig8", "graphs/fig8"])
def test_in_figure_8_lower_types_lead_more_with_eight_clients_and_all_are_equally_accurate(record: str) -> None:
    rows = json.loads((ROOT / f"docs/reproduction/ofl/{record}.json").read_text())["rows"]
    assert {row["spread of accuracy, points"] for row in rows} == {"0.00 ± 0.00"}
    (eight,) = (row for row in rows if row["case"].endswith("/N=8"))
    lower, higher = ([eight[f"rounds in office, {board}"] for board in boards] for boards in ("AB", "CD"))
    assert min(lower) > max(higher)
