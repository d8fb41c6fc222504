"""MingledPie's tables and figures put the right numbers beside the paper's, and the attack beside its closed form."""

import json
from dataclasses import replace

import numpy as np
import pytest
from studies import curve as bare
from studies import rows, tiny

from benchmarks import forms
from coterie.clustering.identity_law import IdentityLaw
from coterie.protocol.errors import UserError
from coterie.reproductions.study import Calculation, Item, one, study
from coterie.runs.config import RunConfig, resolve
from coterie.training.models import build
from papers import mingledpie as paper
from papers import mingledpie_costs as costs
from papers import mingledpie_law as figure
from papers import tables
from papers.plots import Panel, heat_maps

DIGITS = {"lr": 0.1, "batch_size": 10, "max_epochs": 2, "slowest": 1.0}


def curve(local, membership=None, groups=(), **summary):
    notes = tuple({"membership": sets} for sets in (membership or [[]] * len(local)))
    return bare(local, summary=summary, notes=notes, groups=tuple(groups))


# Items and cells


def test_all_clients_take_as_many_full_steps_as_there_are_local_iterations():
    """The number of local iterations is one of gradient steps: no client has more samples than a batch."""
    largest = 197_324 // 120  # Purchase100, the largest data set
    assert largest < paper.ITEMS["mingledpie/table3"].cells[0].config.settings["batch_size"]


def test_steps_of_the_ablation_are_what_they_are_called():
    settings = {cell.name: cell.config for cell in paper.ITEMS["mingledpie/table5"].cells}
    assert settings["mnist/epoch/1"].system == "ifca"
    rebuild = [resolve(settings[f"mnist/random/{step}"]).settings["rebuild"] for step in ("1+2", "1+2+3", "1+2+4")]
    assert rebuild == ["none", "ideal", "counts"]
    assert resolve(settings["mnist/random/1+2"]).settings["start"] == "random"


def test_the_founders_of_table_8_stand_beside_the_newcomers(tmp_path, monkeypatch):
    monkeypatch.setattr(paper, "CLIENTS", 10)
    config = {cell.name: cell.config for cell in paper.ITEMS["mingledpie/table8"].cells}["iid=0.6"]
    assert config.partition == "labelsets:5,iid=0.6@120"
    config = tiny(config, 15, 3, lr=0.1, founders=10, newcomers=5, join_every=2)
    found = one(replace(config, partition="labelsets:5,iid=0.6@10"), tmp_path, None, "x")
    (row,) = rows("mingledpie/table8", {"iid=0.6": [found]})
    assert row["clients"] == 15
    apart = found.scores["local_accuracy"]
    assert row["ours: test of the first 120 %"] == f"{100 * sum(apart[:10]) / 10:.2f}"
    assert sum(apart[10:]) / 5 < sum(apart[:10]) / 10  # their test data mix, too


# Table 2


def test_the_attack_by_hand():
    """Clients 0 to 3 of groups 0, 0, 1, 1: in {0}, {0, 1}, {0}, {0, 1}."""
    found = curve([0.5], [[[0], [0, 1], [0], [0, 1]]], (0, 0, 1, 1))
    assert paper.attack(found, 1, matched=False) == pytest.approx((1 + 1 / 2 + 0 + 1 / 2) / 4)


def test_matching_gives_the_attacker_the_best_names_of_the_clusters():
    swapped = curve([0.5], [[[1], [1], [0], [0]]], (0, 0, 1, 1))
    assert paper.attack(swapped, 1, matched=False) == 0
    assert paper.attack(swapped, 1, matched=True) == 1


def test_table_2_stands_beside_its_closed_form():
    rng = np.random.default_rng(0)
    groups = np.arange(120) % 5
    rounds = []
    for _ in range(5):
        sets = []
        for group in groups:
            own = {int(group)}
            while len(own) < 2:
                own = {int(group), *(int(j) for j in range(5) if rng.random() < 0.5)}
            sets.append(sorted(own))
        rounds.append(sets)
    (row,) = rows("mingledpie/table2", {"mnist/mingledpie/identities": [curve([0.5] * 5, rounds, groups)]})
    assert row["paper: rounds 1, 3, 5 %"] == "27.8"
    assert row["ours: round 5 %"] == row["within its set %"]  # the true cluster is the group
    assert row["closed form %"].startswith("34.67 ± ")
    assert abs(float(row["off, standard errors"])) < 4
    (row,) = rows("mingledpie/table2", {"mnist/mingledpie/false_positives": [curve([0.5] * 5, rounds, groups)]})
    assert row["closed form %"].startswith("29.09 ± ")
    assert float(row["off, standard errors"]) > 4  # sets of the other law


# The other tables


def test_what_never_settles_is_said():
    (row,) = rows("mingledpie/table5", {"mnist/epoch/1+2+3": [curve([0.1, *[0.2, 0.8] * 5])]})
    assert row["local, last 10 rounds"] == "20.00 to 80.00"


def test_a_part_of_a_run_has_no_accuracies_of_its_end(tmp_path):
    config = RunConfig("fedavg", "digits", clients=4, rounds=3, partition="iid", settings=DIGITS)
    whole = one(config, tmp_path, None, "x")
    assert len(whole.scores["local_accuracy"]) == 4
    assert 0.5 < whole.summary["train_accuracy"] <= 1
    part = one(replace(config, rounds=2), tmp_path, None, "x")
    assert "train_accuracy" not in part.summary
    assert part.scores == {}


def test_founders_have_their_own_mean():
    found = replace(curve([0.5]), scores={"local_accuracy": [1.0] * 120 + [0.0] * 90})
    assert paper.founders_accuracy(found) == 1.0
    assert paper.founders_accuracy(curve([0.5])) is None


# What takes no training


def test_a_calculation_is_a_cell_like_any_other(tmp_path):
    cells = (Calculation("double", lambda seed: 2 * seed), Calculation("triple", lambda seed: 3 * seed, {"by": 3}))
    item = Item("toy/sum", "A toy", cells, lambda found: [{"cell": n, "sum": sum(v)} for n, v in found.items()])
    study(item, tmp_path, seeds=(1, 2), only=["triple"])
    content = json.loads((tmp_path / "sum.json").read_text())
    assert content["rows"] == [{"cell": "triple", "sum": 9}]
    assert content["cells"] == {"triple": {"by": 3}}
    with pytest.raises(UserError, match="double, triple"):
        study(item, tmp_path, only=["quadruple"])


def test_figure_3_in_the_small(tmp_path, monkeypatch):
    """A point by coins and in the group lies within four standard errors of E[1/|CI|], by hand .3467 for the text."""
    monkeypatch.setattr(figure, "CLIENTS", 2000)
    monkeypatch.setattr(figure, "IN_GROUP", 60)
    rows = figure._table({"p by k": [figure.measured([(5, 0.5, 2), (5, 0.25, 2)], 3)]})
    of_text = [row for row in rows if row["T counts"] == "identities"]
    assert of_text[0]["closed form %"] == pytest.approx(100 * (4 / 2 + 6 / 3 + 4 / 4 + 1 / 5) / 15, abs=0.005)
    for row in rows:
        assert abs(row["coins: off, standard errors"]) < 4
        assert abs(row["group: off, standard errors"]) < 4
    assert of_text[0]["paper %"] is not None


def test_what_cannot_be_is_left_open():
    (text, false) = figure.measured([(5, 0.5, 5)], 0)
    assert text["closed"] == pytest.approx(1 / 5)
    assert false["closed"] is None
    (rare, _) = figure.measured([(5, 0.0625, 5)], 0)  # 65,536 tries a set
    assert rare["closed"] == pytest.approx(1 / 5)
    assert rare["coins"] is None


def test_heat_maps_write_every_value_and_grey_out_the_rest():
    panel = Panel("t", "k", "T", [5, 6], [2, 3], np.array([[10.0, 20.0], [np.nan, 40.0]]))
    drawn = heat_maps([panel, panel], columns=2, title="x")
    assert len(drawn.axes) == 2
    assert sorted(text.get_text() for text in drawn.axes[0].texts) == ["10.0", "20.0", "40.0"]


def test_costs_are_of_what_they_say():
    """Additions counted one by one; a vector of 5,000 takes two ciphertexts."""
    row = costs.round_costs(0.5, 2, 5, 12, seed=0, parameters=300)
    assert 2 * 12 <= row["additions"] <= 5 * 12
    assert row["expected"] == pytest.approx(12 * IdentityLaw(5, 0.5, 2).expected_size)
    assert all(row[key] > 0 for key in ("identity", "encrypt", "read", "add", "decrypt"))
    vector = costs.vector_costs(5000, "ckks-4096-add", seed=0)
    assert 0 < vector["error"] < 1e-6
    assert vector["MB"] == pytest.approx(2 * costs.vector_costs(4096, "ckks-4096-add", seed=0)["MB"], rel=0.01)


@pytest.mark.parametrize("kind", ["mingled", "uploads", "products"])
def test_every_form_gives_the_models_back(kind):
    """All clients of a cluster have the same model, so that the rebuild is exact."""
    row = forms.form_costs(kind, seed=0, model="linear")
    assert row["error"] < 1e-4
    assert all(row[key] > 0 for key in ("encrypt", "up", "add", "down", "open", "solve"))


def test_the_hardened_table_shares_out_what_a_longer_run_sent():
    sent = {"bytes_up_by_role": {"client": 240e6, "server": 1.0}, "bytes_down_by_role": {"client": 120e6}}
    found = curve([0.9], seconds=4.0, virtual_seconds=8.0, rounds=2, **sent)
    (row,) = rows("mingledpie/hardened", {"real/uploads": [found]})
    assert (row["MB up, a client, a round"], row["MB down, a client, a round"]) == (1.0, 0.5)
    assert (row["seconds, a round"], row["nominal seconds, a round"]) == (2.0, 4.0)


def test_the_models_of_tables_4_and_9_have_the_sizes_that_they_are_said_to_have():
    sizes = tables.load("mingledpie_costs")["axis"]["model"]
    assert build("fcnn", (1, 28, 28), 10).spec.size == costs.FCNN == sizes["FCNN"]["parameters"]
    assert build("lenet", (3, 32, 32), 10).spec.size == sizes["CNN"]["parameters"]
    with pytest.raises(UserError, match="16x16"):
        build("lenet", (1, 8, 8), 10)
