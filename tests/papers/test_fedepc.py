"""FedEPC's tables: cells are valid runs, the paper's numbers stand in the right row, latency is read off the clock."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.data.partition import partition as dealt
from coterie.reproductions.study import Cell, Curve, Item, study
from coterie.runs.config import RunConfig, resolve
from papers import fedepc as paper


def curve(local: Sequence[float], clock: Sequence[float], seed: int = 0, **more: Any) -> Curve:
    return Curve(seed, tuple(local), tuple(local), (False,) * len(local), virtual_seconds=tuple(clock), **more)


def test_every_cell_resolves_and_all_methods_share_the_work() -> None:
    shared = ("clients", "rounds", "partition", "model", "samples", "public", "devices", "seed")
    for item in paper.ITEMS.values():
        for cell in item.cells:
            assert isinstance(cell, Cell)
            resolved = resolve(cell.config)
            assert resolved.clients == paper.CLIENTS
    cells = {cell.name: resolve(cell.config) for cell in paper.ITEMS["fedepc/table4"].cells if isinstance(cell, Cell)}
    for name, config in cells.items():
        first = cells[f"{name.rpartition('/')[0]}/fedavg"]
        assert [getattr(config, key) for key in shared] == [getattr(first, key) for key in shared]
        for setting in ("lr", "batch_size", "momentum", "max_epochs", "slowest"):
            assert config.settings[setting] == first.settings[setting]


def test_the_papers_alpha_is_the_concentration_of_every_class() -> None:
    """Dir(alpha, ..., alpha) over ten classes: shares of a class have the variance (K - 1) / (K^2 (K alpha + 1))."""
    y = np.repeat(np.arange(10), 3000)
    split = dealt(paper.partition("hsu", 0.5), y, y, 300, 0)
    shares = np.stack([np.bincount(y[own], minlength=10) / len(own) for own in split.train])
    assert shares.var() == pytest.approx(9 / (100 * (10 * 0.5 + 1)), rel=0.15)


def test_the_arithmetic_of_table_3_holds() -> None:
    """As its text says: 82.77 % less than FedAvg at 90 %, on average 5.09 % less than HACCS and 3.37 % than FLACC."""
    at = paper.TABLE_3[0.9]
    assert 1 - at[4] / at[0] == pytest.approx(0.8277, abs=1e-4)
    for column, mean in ((1, 0.0509), (2, 0.0337)):
        less = [1 - row[4] / row[column] for row in paper.TABLE_3.values()]
        assert sum(less) / len(less) == pytest.approx(mean, abs=1e-4)


def test_seconds_to_a_target_are_the_clock_at_the_end_of_its_round() -> None:
    one = curve([0.1, 0.6, 0.5, 0.95], [10, 25, 40, 60])
    assert one.seconds_to(0.5, "local_accuracy") == 25
    assert one.seconds_to(0.99, "local_accuracy") is None
    assert paper.clock([one], 0.9, "local_accuracy") == "60"
    assert paper.clock([one, curve([0.1] * 4, [1] * 4)], 0.9, "local_accuracy") == "60 (1 of 2 seeds)"
    assert paper.clock([curve([0.1], [1])], 0.9, "local_accuracy") is None


def test_rows_stand_beside_their_numbers_of_the_paper() -> None:
    curves = [curve([0.5, 0.9], [10, 20], seed) for seed in (0, 1)]
    items = paper.ITEMS
    (row,) = items["fedepc/table2"].summarise({"mnist-mlp/0.15/0.18": curves})
    assert (row["paper %"], row["paper, s to 90 %"], row["virtual s to 90 % local"]) == (92.59, 112.74, "20 ± 0")
    (row,) = items["fedepc/table3"].summarise({"mnist/hsu/fedepc": curves})
    assert (row["paper, 90%"], row["90% local"], row["partition"]) == (112.74, "20 ± 0", "hsu:1")
    (row,) = items["fedepc/table4"].summarise({"fashion_mnist-mlp/dirichlet/0.1/haccs": curves})
    assert (row["paper %"], row["partition"], row["local %"]) == (80.14, "dirichlet:0.1", "70.00 ± 0.00")
    (row,) = items["fedepc/table4"].summarise({"cifar10/hsu/1/oort": curves})
    assert row["paper %"] is None


def test_thresholds_of_table_2_that_split_below_merging_are_forced() -> None:
    forced = {
        cell.name: cell.config.settings.get("force_thresholds", False)
        for cell in paper.ITEMS["fedepc/table2"].cells
        if isinstance(cell, Cell)
    }
    assert {name for name, one in forced.items() if one} == {
        f"{data}/{row}" for data in ("mnist", "mnist-mlp") for row in ("0.15/0.12", "0.20/0.18")
    }


def test_a_record_holds_every_seeds_curves(tmp_path: Path) -> None:
    tiny = RunConfig("fedavg", clients=4, rounds=2, partition="iid", settings={"max_epochs": 1})
    item = Item("toy/table", "A toy", (Cell("a", tiny),), lambda outcomes: [])
    study(item, tmp_path, seeds=(0, 1))
    curves = json.loads((tmp_path / "table.json").read_text())["curves"]["a"]
    assert [one["seed"] for one in curves] == [0, 1]
    assert [len(one[key]) for one in curves for key in ("global_accuracy", "local_accuracy", "virtual_seconds")] == [
        2
    ] * 6


def test_a_figure_has_a_panel_for_each_partition_and_accuracy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"mnist-mlp/hsu/{alpha}/{method}" for alpha in ("1", "0.1") for method in ("fedavg", "fedepc")]
    titles: list[str] = []
    drawn = paper.accuracy_panels

    def panels(*args: Any) -> Any:
        figure = drawn(*args)
        titles.extend(axis.get_title() for axis in figure.axes)
        return figure

    monkeypatch.setattr(paper, "accuracy_panels", panels)
    draw = paper.ITEMS["fedepc/fig3"].draw
    assert draw is not None
    draw({name: [curve([0.5, 0.9], [10, 20])] for name in names}, tmp_path / "fig3.svg")
    sides = ("global", "local")
    assert titles == [f"mnist-mlp, {part}, {side}" for side in sides for part in ("hsu:10", "hsu:1")]
