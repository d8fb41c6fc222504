"""FedEPC's tables: cells are valid runs, the paper's numbers stand in the right row, latency is read off the clock."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from studies import curve as bare

from benchmarks.tables import MEASURES, last_rounds
from coterie.data.partition import partition as dealt
from coterie.reproductions.study import Cell, Curve, Item, study
from coterie.runs.config import RunConfig
from coterie.runs.intervals import mean_and_interval
from papers import fedepc as paper
from papers import plots, tables

ROOT = Path(__file__).parents[2]


def curve(local: Sequence[float], clock: Sequence[float]) -> Curve:
    return bare(local, virtual_seconds=tuple(clock))


def test_the_papers_alpha_is_the_concentration_of_every_class() -> None:
    """Dir(alpha, ..., alpha) over ten classes: shares of a class have the variance (K - 1) / (K^2 (K alpha + 1))."""
    y = np.repeat(np.arange(10), 3000)
    split = dealt(paper.partition("hsu", 0.5), y, y, 300, 0)
    shares = np.stack([np.bincount(y[own], minlength=10) / len(own) for own in split.train])
    assert shares.var() == pytest.approx(9 / (100 * (10 * 0.5 + 1)), rel=0.15)


def test_seconds_to_a_target_are_the_clock_at_the_end_of_its_round() -> None:
    one = curve([0.1, 0.6, 0.5, 0.95], [10, 25, 40, 60])
    assert one.seconds_to(0.5, "local_accuracy") == 25
    assert one.seconds_to(0.99, "local_accuracy") is None
    assert paper.clock([one], None, "0.9", "local") == "60"
    assert paper.clock([one, curve([0.1] * 4, [1] * 4)], None, "0.9", "local") == "60 (1 of 2 seeds)"
    assert paper.clock([curve([0.1], [1])], None, "0.9", "local") is None


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
    tiny = RunConfig("fedavg", samples=300, clients=4, rounds=2, partition="iid", settings={"max_epochs": 1})
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

    def panels(*args: Any) -> Any:
        figure = plots.accuracy_panels(*args)
        titles.extend(axis.get_title() for axis in figure.axes)
        return figure

    monkeypatch.setattr(tables, "accuracy_panels", panels)
    draw = paper.ITEMS["fedepc/fig3"].draw
    assert draw is not None
    draw({name: [curve([0.5, 0.9], [10, 20])] for name in names}, tmp_path / "fig3.svg")
    sides = ("global", "local")
    assert titles == [f"mnist-mlp, {part}, {side}" for side in sides for part in ("hsu:10", "hsu:1")]


def difference(ours: Sequence[Any], theirs: Sequence[Any], measure: str) -> tuple[float, float]:
    """Mean and half of the 95 % interval over the same seeds, in points."""
    pairs = zip(ours, theirs, strict=True)
    mean, half = mean_and_interval([last_rounds(a, measure) - last_rounds(b, measure) for a, b in pairs])
    assert half is not None
    return mean, half


def test_no_thresholds_are_shown_to_differ_from_the_papers_and_its_losses_are_excluded_below_merging_at_a_fifth() -> (
    None
):
    curves = json.loads((ROOT / "docs/reproduction/fedepc/table2.json").read_text())["curves"]
    printed = tables.load("fedepc")["printed"]["table2"]
    assert len(curves) == sum(map(len, printed.values()))
    for name, found in curves.items():
        _, merge, split = name.split("/")
        loss = printed[f"{float(merge):g}"][split]["accuracy"] - printed["0.15"]["0.18"]["accuracy"]
        for measure in MEASURES.values():
            mean, half = difference(found, curves["mnist-mlp/0.15/0.18"], measure)
            assert abs(mean) <= half
            if loss and measure != "global_accuracy" and (merge != "0.20" or measure.startswith("fine_tuned")):
                assert mean - half > loss


def test_on_fashion_mnist_fedepc_is_behind_all_on_the_whole_test_set_and_level_on_devices_own_data() -> None:
    curves = json.loads((ROOT / "docs/reproduction/fedepc/fig4.json").read_text())["curves"]
    cells = {name.rpartition("/")[2]: found for name, found in curves.items() if "/0.1/" in name}
    ours = cells.pop("fedepc")
    assert len(cells) == 4
    for theirs in cells.values():
        mean, half = difference(ours, theirs, "global_accuracy")
        assert mean < -half
        mean, half = difference(ours, theirs, "local_accuracy")
        assert abs(mean) < half
    mean, half = difference(ours, cells["flacc"], "fine_tuned_local_accuracy")
    assert mean < -half
