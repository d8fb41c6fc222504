"""PAFed's table: schedules, measures, and every part beside the same run without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from studies import curve as bare
from studies import rows, tiny

from coterie.reproductions import items
from coterie.reproductions.study import Curve, one
from coterie.runs.config import resolve
from papers import pafed as paper
from papers import plots, tables


def curve(accuracies: list[float], staleness: tuple[tuple[int, ...], ...] = (), diverged: str = "") -> Curve:
    return bare(accuracies, notes=tuple({"staleness": list(ages)} for ages in staleness), diverged=diverged)


CELLS = {cell.name: cell.config for item in ("table5", "parts") for cell in paper.ITEMS[f"pafed/{item}"].cells}


def test_all_methods_of_a_case_move_by_one_schedule() -> None:
    """Eq. 16 sends 2 (w+ - w) where the others send w+ - w: where its length counts, half a step is the others'."""
    for name, config in CELLS.items():
        data, setting, schedule, method = name.split("/")
        if (data, setting) not in (("mnist", "0.7"), ("fashion_mnist", "0.7")):
            continue
        s = resolve(config).settings
        if method == "fedadmm_own":
            assert (s["server_lr"], s["server_decay"], s["reference"]) == (1.0, 0.0, "own")
            continue
        assert s["server_decay"] == {"decaying": 0.05, "constant": 0.0}[schedule]
        step = s["server_lr"] * (2 if config.system == "fedadmm" or s.get("clip") else 1)
        others = {"fedasync": 0.2, "admm_drop_twice": 1.6, "admm_third": 0.27, "admm_thrice": 2.4}
        assert step == others.get(method, 0.8)


def test_compared_methods_differ_in_the_part_alone() -> None:
    moves = {
        "ADMM": {"local"},
        "late updates": {"project", "max_staleness"},
        "projection": {"project"},
        "unit length": {"clip", "server_lr"},
        "a third of the step": {"server_lr"},
        "three times the step": {"server_lr"},
    }
    for part, *pair in paper.COMPARISONS:
        a, b = (resolve(CELLS[f"fashion_mnist-mlp/0.7/decaying/{method}"]) for method in pair)
        if a.system == b.system:
            moved = {key for key in a.settings if a.settings[key] != b.settings[key]}
            assert moved
            assert moved <= moves[part] | ({"server_lr"} if "admm_drop_twice" in pair else set())


def test_average_best_accuracy_by_hand() -> None:
    """Ten last rounds of twelve: the best of all is in the second round, so it stands in every one of them."""
    accuracies = [0.2, 0.9, *[0.5] * 5, *[0.7] * 4, 1.0]
    assert paper.best_so_far(curve(accuracies)) == pytest.approx((9 * 0.9 + 1.0) / 10)
    assert paper.mean_of_last(curve(accuracies)) == pytest.approx((5 * 0.5 + 4 * 0.7 + 1.0) / 10)


def test_the_share_of_late_updates_by_hand() -> None:
    assert paper.late_share(curve([0.1] * 3, [(3, 0, 1), (), (2,)])) == pytest.approx(1 / 6)
    assert paper.late_share(curve([0.1], [()])) == 0


def test_gains_are_paired_by_seed_and_stay_within_a_case() -> None:
    def case(schedule: str, shift: float) -> dict[str, list[Curve]]:
        return {
            f"mnist/0.7/{schedule}/fedavg_drop": [curve([0.50]), curve([0.70])],
            f"mnist/0.7/{schedule}/fedavg_late": [curve([0.50 + shift]), curve([0.70 + shift])],
        }

    rows = paper.compared({**case("decaying", 0.03), **case("constant", -0.01)})
    assert [(row["server step"], row["part"], row["gain: mean, points"]) for row in rows] == [
        ("decaying", "late updates", "+3.00 ± 0.00"),
        ("constant", "late updates", "-1.00 ± 0.00"),
    ]
    assert (rows[0]["without: mean %"], rows[0]["with: mean %"]) == ("60.00 ± 14.14", "63.00 ± 14.14")


def test_what_diverged_is_said() -> None:
    wild = curve([0.1], [(1,)], diverged="round 2: the training of client/3 diverged")
    (row,) = rows("pafed/table5", {"mnist/0.7/constant/fedadmm_own": [wild]})
    assert (row["ours: mean %"], row["ours: best so far %"]) == ("diverged", "diverged")
    pair = {"mnist/0.7/constant/fedavg_drop": [wild], "mnist/0.7/constant/pafed": [curve([0.5])]}
    assert paper.compared(pair)[0]["gain: mean, points"] == "diverged"
    seeds = {name: [*found, curve([0.5])] for name, found in pair.items()}
    assert paper.compared(seeds)[0]["gain: mean, points"] == "diverged"


def test_a_panel_for_every_case_and_one_colour_a_method() -> None:
    panels = {"one": {"a": [curve([0.1, 0.2])], "b": [curve([0.3, 0.4]), curve([0.5])]}, "two": {"b": [curve([0.2])]}}
    drawn = plots.accuracy_panels(panels, {"ends": {"b": {0.5: 0.4, 0.7: 0.2}}}, "x")
    assert [axis.get_title() for axis in drawn.axes] == ["one", "two", "ends"]
    colours = [{line.get_label(): line.get_color() for line in axis.get_lines()} for axis in drawn.axes]
    assert colours[0]["b"] == colours[1]["b"] == colours[2]["b"] != colours[0]["a"]
    assert list(drawn.axes[2].get_lines()[0].get_ydata()) == [0.4, 0.2]


def test_a_figure_shows_the_end_over_delta_where_there_are_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(tables, "accuracy_panels", lambda *args: drawn.append(args) or plots.accuracy_panels(*args))
    figures, found = items("pafed"), [curve([0.5, 0.7])]
    for number, settings in ((6, ("0.5", "0.7")), (5, ("iid", "0"))):
        draw = figures[f"pafed/fig{number}"].draw
        assert draw is not None
        draw({f"fashion_mnist/{one}/decaying/pafed": found for one in settings}, tmp_path / f"{number}.svg")
    assert drawn[0][1] == {"fashion_mnist, last ten rounds, decaying step": {"pafed": {0.5: 0.6, 0.7: 0.6}}}
    assert drawn[1][1] == {}
    assert (tmp_path / "6.svg").stat().st_size > 1000


def test_late_updates_are_seen_to_be_used_and_dropped(tmp_path: Path) -> None:
    small = {"batch_size": 10, "max_epochs": 1, "participation": 0.5}
    found = {}
    for method in ("fedavg_drop", "fedavg_stale", "fedadmm_drop", "fedadmm_late"):
        name = f"fashion_mnist/0.5/decaying/{method}"
        found[name] = [one(tiny(CELLS[name], 10, 4, **small), tmp_path, None, name)]
    late = [row["late of all used %"] for row in rows("pafed/table5", found)]
    assert late[0] == late[2] == 0
    assert late[1] == late[3] > 0


def test_who_is_ahead_is_decided_under_each_schedule_and_each_seeds_step_by_the_others() -> None:
    def case(schedule: str, ours: list[float], theirs: dict[str, list[float]], ema: str = "") -> dict[str, list[Curve]]:
        found = {f"digits-small/0.5/{schedule}/pafed{ema}/0.8": [curve([v]) for v in ours]}
        for step, values in theirs.items():
            found[f"digits-small/0.5/{schedule}/fedavg_drop{ema}/{step}"] = [curve([v]) for v in values]
        return found

    rows = paper.decided(
        {
            **case("constant", [0.5, 0.51, 0.52], {"0.8": [0.7, 0.71, 0.72], "0.4": [0.1, 0.1, 0.1]}),
            **case("linear", [0.9, 0.91, 0.92], {"0.8": [0.8, 0.81, 0.82]}),
            **case("decaying", [0.9, 0.8, 0.7], {"0.8": [0.79, 0.79, 0.79]}, ema="_ema"),
        }
    )
    assert [(row["server step"], row["clients predict with"], row["pafed is"]) for row in rows] == [
        ("constant", "the last model", "behind"),
        ("linear", "the last model", "ahead"),
        ("decaying", "their average", "no difference shown"),
    ]
    assert [row["lead, points"] for row in rows] == ["-20.0 ± 0.0", "+10.0 ± 0.0", "+1.0 ± 24.8"]


def test_no_seed_chooses_its_own_step() -> None:
    steps = {"0.4": [curve([0.9]), curve([0.1]), curve([0.1])], "0.8": [curve([0.3])] * 3}
    assert paper.at_best_steps(steps) == [0.3, 0.1, 0.1]
    wild = curve([0.1], diverged="round 2: the training of client/3 diverged")
    assert paper.at_best_steps({"0.4": [curve([0.3])] * 2, "1.6": [wild, wild]}) == [0.3, 0.3]
    assert paper.judged([0.1]) == ("+10.0", "undecided")
    assert paper.judged([float("nan"), 0.1]) == ("diverged", "undecided")


def test_a_linear_step_ends_with_the_run() -> None:
    for cell in paper.ITEMS["pafed/schedules"].cells:
        schedule = cell.name.split("/")[2]
        resolved = resolve(cell.config)
        assert resolved.settings["server_rounds"] == (resolved.rounds if schedule == "linear" else 0)
