"""PAFed's table and figures put the right numbers beside the paper's, and every part beside the same run without it."""

import json
from dataclasses import replace

import pytest

from coterie.reproductions.study import Cell, Curve, one, study
from coterie.runs.config import resolve
from papers import pafed as paper
from papers.plots import accuracy_panels


def curve(accuracies, staleness=(), seed=0, diverged=""):
    notes = tuple({"staleness": list(ages)} for ages in staleness)
    return Curve(seed, tuple(accuracies), tuple(accuracies), (), diverged=diverged, notes=notes)


def tiny(config, rounds=3):
    """The same cell on digits, small."""
    settings = {**config.settings, "batch_size": 10, "max_epochs": 1, "participation": 0.5}
    return replace(config, data="digits", clients=10, rounds=rounds, model=None, settings=settings)


# Cells


def test_every_item_of_the_paper_is_there():
    assert set(paper.ITEMS) == {f"pafed/{name}" for name in ("table5", "parts", "fig5", "fig6", "fig7", "fig8")}


def test_every_cell_is_a_valid_run_at_the_paper_s_scale():
    for item in paper.ITEMS.values():
        assert len({cell.name for cell in item.cells}) == len(item.cells)
        for cell in item.cells:
            resolved = resolve(cell.config)
            s = resolved.settings
            assert (resolved.clients, resolved.rounds, s["max_epochs"], s["batch_size"]) == (100, 100, 10, 50)
            assert (s["participation"], s["lr"], s["momentum"], resolved.delay) == (0.1, 0.1, 0.5, "uniform:1-5")
            assert s["slowest"] == 1.0  # all clients take 10 epochs
            data, setting, _, _ = cell.name.split("/")
            assert (resolved.model, resolved.precision) == paper.MODEL[data]
            assert (resolved.partition, resolved.delta) == (
                ("iid", 0) if setting == "iid" else ("shards:2", float(setting))
            )


def test_the_whole_table_of_the_paper_is_there():
    names = {cell.name for cell in paper.ITEMS["pafed/table5"].cells}
    for data, rows in paper.TABLE_5.items():
        assert list(rows) == list(paper.SETTINGS)
        assert {f"{data}/{setting}/constant/{method}" for setting in rows for method in paper.PRINTED} <= names


def test_all_methods_of_a_case_move_by_one_schedule():
    """Eq. 16 sends 2 (w+ - w) where the others send w+ - w: where its length counts, half a step is the others'."""
    for cell in (*paper.ITEMS["pafed/table5"].cells, *paper.ITEMS["pafed/parts"].cells):
        _, _, schedule, method = cell.name.split("/")
        s = resolve(cell.config).settings
        if method == "fedadmm_own":
            assert (s["server_lr"], s["server_decay"], s["reference"]) == (1.0, 0.0, "own")
            continue
        assert s["server_decay"] == {"decaying": 0.05, "constant": 0.0}[schedule]
        step = s["server_lr"] * (2 if cell.config.system == "fedadmm" or s.get("clip") else 1)
        others = {"fedasync": 0.2, "admm_drop_twice": 1.6, "admm_third": 0.27, "admm_thrice": 2.4}
        assert step == others.get(method, 0.8)


def test_compared_methods_differ_in_the_part_alone():
    moves = {
        "ADMM": {"local"},
        "late updates": {"project", "max_staleness"},
        "projection": {"project"},
        "unit length": {"clip", "server_lr"},
        "a third of the step": {"server_lr"},
        "three times the step": {"server_lr"},
    }
    for part, *pair in paper.COMPARISONS:
        a, b = (resolve(paper.config(method, "fashion_mnist-mlp", "0.7")) for method in pair)
        if a.system == b.system:
            moved = {key for key in a.settings if a.settings[key] != b.settings[key]}
            assert moved
            assert moved <= moves[part] | ({"server_lr"} if "admm_drop_twice" in pair else set())


def test_a_run_serves_the_table_and_the_figures():
    cells = {name: {cell.name: cell.config for cell in item.cells} for name, item in paper.ITEMS.items()}
    name = "fashion_mnist-mlp/0.5/decaying/pafed"
    assert cells["pafed/table5"][name] == cells["pafed/fig6"][name] == cells["pafed/parts"][name]


# Measures


def test_average_best_accuracy_by_hand():
    """Ten last rounds of twelve: the best of all is in the second round, so it stands in every one of them."""
    accuracies = [0.2, 0.9, *[0.5] * 5, *[0.7] * 4, 1.0]
    assert paper.best_so_far(curve(accuracies)) == pytest.approx((9 * 0.9 + 1.0) / 10)
    assert paper.mean_of_last(curve(accuracies)) == pytest.approx((5 * 0.5 + 4 * 0.7 + 1.0) / 10)


def test_the_share_of_late_updates_by_hand():
    assert paper.late_share(curve([0.1] * 3, [(3, 0, 1), (), (2,)])) == pytest.approx(1 / 6)
    assert paper.late_share(curve([0.1], [()])) == 0


def test_the_table_stands_beside_the_right_numbers_of_the_paper():
    found = [curve([0.8] * 9 + [0.9], [(1, 1)] * 10)]
    names = ["cifar10/0.7/decaying/pafed", "fashion_mnist-mlp/iid/constant/fedprox_drop"]
    names += ["mnist/0/decaying/fedadmm_drop", "cifar100/0.3/decaying/fedavg_drop", "mnist/0.1/decaying/fedavg_late"]
    rows = paper._table_5(dict.fromkeys(names, found))
    assert [row["paper %"] for row in rows] == [52.6318, 89.8036, 98.4509, 37.8, None]
    assert (rows[0]["ours: mean %"], rows[0]["ours: best so far %"]) == ("81.00", "81.00")
    assert (rows[0]["last 10 rounds"], rows[0]["late of all used %"], rows[0]["seeds"]) == ("80.0 to 90.0", 50.0, 1)


def test_gains_are_paired_by_seed_and_stay_within_a_case():
    def case(schedule, shift):
        return {
            f"mnist/0.7/{schedule}/fedavg_drop": [curve([0.50]), curve([0.70])],
            f"mnist/0.7/{schedule}/fedavg_late": [curve([0.50 + shift]), curve([0.70 + shift])],
        }

    rows = paper._parts({**case("decaying", 0.03), **case("constant", -0.01)})
    assert [(row["server step"], row["part"], row["gain: mean, points"]) for row in rows] == [
        ("decaying", "late updates", "+3.00 ± 0.00"),
        ("constant", "late updates", "-1.00 ± 0.00"),
    ]
    assert (rows[0]["without: mean %"], rows[0]["with: mean %"]) == ("60.00 ± 14.14", "63.00 ± 14.14")


def test_what_diverged_is_said():
    wild = curve([0.1], [(1,)], diverged="round 2: the training of client/3 diverged")
    (row,) = paper._table_5({"mnist/0.7/constant/fedadmm_own": [wild]})
    assert (row["ours: mean %"], row["ours: best so far %"]) == ("diverged", "diverged")
    pair = {"mnist/0.7/constant/fedavg_drop": [wild], "mnist/0.7/constant/pafed": [curve([0.5])]}
    assert paper._parts(pair)[0]["gain: mean, points"] == "diverged"
    seeds = {name: [*found, curve([0.5])] for name, found in pair.items()}
    assert paper._parts(seeds)[0]["gain: mean, points"] == "diverged"


# Pictures


def test_a_panel_for_every_case_and_one_colour_a_method(tmp_path):
    panels = {"one": {"a": [curve([0.1, 0.2])], "b": [curve([0.3, 0.4]), curve([0.5])]}, "two": {"b": [curve([0.2])]}}
    drawn = accuracy_panels(panels, {"ends": {"b": {0.5: 0.4, 0.7: 0.2}}}, "x")
    assert [axis.get_title() for axis in drawn.axes] == ["one", "two", "ends"]
    colours = [{line.get_label(): line.get_color() for line in axis.get_lines()} for axis in drawn.axes]
    assert colours[0]["b"] == colours[1]["b"] == colours[2]["b"] != colours[0]["a"]
    assert list(drawn.axes[2].get_lines()[0].get_ydata()) == [0.4, 0.2]


def test_a_figure_shows_the_end_over_delta_where_there_are_several(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(paper, "accuracy_panels", lambda *args: drawn.append(args) or accuracy_panels(*args))
    found = [curve([0.5, 0.7])]
    paper._draw("x", {f"mnist/{delta}/decaying/pafed": found for delta in ("0.5", "0.7")}, tmp_path / "a.svg")
    paper._draw("x", {"mnist/iid/decaying/pafed": found, "mnist/0/decaying/pafed": found}, tmp_path / "b.svg")
    assert drawn[0][1] == {"mnist, last ten rounds, decaying step": {"pafed": {0.5: 0.6, 0.7: 0.6}}}
    assert drawn[1][1] == {}
    assert (tmp_path / "a.svg").stat().st_size > 1000


@pytest.mark.parametrize(
    ("item", "picked"),
    [
        ("table5", ["mnist/0.7/decaying/fedavg_drop", "mnist/0.7/decaying/fedadmm_own", "mnist/0.7/constant/fedasync"]),
        ("parts", ["fashion_mnist/0.5/decaying/admm_average", "fashion_mnist/0.5/decaying/pafed"]),
        ("fig6", ["fashion_mnist/0.7/decaying/fedavg_drop", "fashion_mnist/0.5/decaying/fedprox_drop"]),
    ],
)
def test_an_item_runs_on_digits_and_writes_its_files(item, picked, tmp_path):
    whole = paper.ITEMS[f"pafed/{item}"]
    cells = tuple(Cell(cell.name, tiny(cell.config)) for cell in whole.cells if cell.name in picked)
    study(replace(whole, cells=cells), tmp_path)
    content = json.loads((tmp_path / f"{item}.json").read_text())
    assert content["command"].startswith(f"coterie reproduce pafed/{item} --seeds 1")
    assert len(content["cells"]) == len(picked)
    assert len(content["rows"]) == (1 if item == "parts" else len(picked))
    assert (whole.draw is None) or (tmp_path / f"{item}.svg").stat().st_size > 1000


def test_late_updates_are_seen_to_be_used_and_dropped(tmp_path):
    cells = [
        Cell(f"fashion_mnist/0.5/decaying/{method}", tiny(paper.config(method, "fashion_mnist", "0.5"), rounds=6))
        for method in ("fedavg_drop", "fedavg_stale", "fedadmm_drop", "fedadmm_late")
    ]
    rows = paper._table_5({cell.name: [one(cell.config, tmp_path, None, cell.name)] for cell in cells})
    late = [row["late of all used %"] for row in rows]
    assert late[0] == late[2] == 0
    assert late[1] == late[3] > 0
