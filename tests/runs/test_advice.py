"""Warnings: about options without effect, surplus clusters, and training that taught nothing."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import QUICK, Command

import coterie
from coterie.protocol.errors import CoterieWarning
from coterie.runs import RunConfig, advice, resolve

FAST = [*QUICK, "--samples", "200", "--model", "linear"]
FEDAVG = resolve(RunConfig("fedavg", clients=10))
EVEN = np.full((10, 10), 5)


@pytest.mark.parametrize(
    ("system", "options", "effects"),
    [
        ("fedavg", {"crypto": "real"}, 0),
        ("fedcaprivacy", {"crypto": "real"}, 1),
        ("fedem", {"fine_tune": "held_out"}, 0),
        ("fedem", {"fine_tune": "no"}, 1),
        ("fedavg", {"fine_tune": "held_out"}, 1),
        ("fedavg", {"record_mib": 5}, 0),
        ("fedavg", {"record_mib": 5, "record": True}, 1),
        ("fedavg", {"data_dir": "/tmp"}, 0),
        ("fedavg", {"data_dir": "/tmp", "data": "mnist"}, 1),
        ("fedavg", {"clients": 5, "seed": 1}, 1),
    ],
)
def test_an_option_without_effect_is_named(system: str, options: dict[str, Any], effects: int) -> None:
    found = advice.without_effect(options, [resolve(RunConfig(system, **options))])
    assert len(found) == 1 - effects
    assert all(f"option {next(iter(options))} has no effect on {system}: " in text for text in found)


def test_an_option_has_an_effect_if_one_method_of_several_has_it() -> None:
    runs = [resolve(RunConfig(system, crypto="emulated")) for system in ("fedavg", "pafed")]
    assert advice.without_effect({"crypto"}, runs) == []
    assert advice.without_effect({"crypto"}, runs[:1]) == [
        "option crypto has no effect on fedavg: nothing is encrypted"
    ]


@pytest.mark.parametrize(("clusters", "clients", "told"), [(4, 4, False), (5, 4, True), ("auto", 4, False)])
def test_more_clusters_than_clients(clusters: Any, clients: int, told: bool) -> None:
    config = resolve(RunConfig("fedcaprivacy", clients=clients, settings={"clusters": clusters}))
    assert (advice.surplus_clusters(config) is not None) == told
    assert advice.surplus_clusters(FEDAVG) is None


def test_clients_that_add_nothing_are_counted_with_a_way_out() -> None:
    config = resolve(RunConfig("coterie", settings={"lr": 0.3}))
    assert advice.nothing_added(config, 0, ()) is None
    assert advice.nothing_added(config, 1, ["too far"]) == (
        "1 client has kept its model or added nothing in the last round that it took part in: too far. Where training "
        "goes too far, try a smaller lr (here 0.3)"
    )
    assert (advice.nothing_added(config, 6, ["a", "b"]) or "").startswith(
        "6 clients have kept their model or added nothing in the last round that each took part in: a; b. "
    )


@pytest.mark.parametrize(("rounds", "told"), [(10, "5 of 10 clients"), (11, None), (1, "5 of 10 clients")])
def test_clients_that_never_join(rounds: int, told: str | None) -> None:
    config = resolve(RunConfig("fedavg", clients=10, rounds=rounds, settings={"founders": 5}))
    found = advice.absent_to_the_end(config)
    assert (found or "").startswith(f"{told} never join: 5 take part") if told else found is None
    assert advice.absent_to_the_end(FEDAVG) is None


def test_features_that_number_patients() -> None:
    found = advice.numbers_of_patients(("age", "ID", "visit_id", "patient_no", "idle", "covid", "sex_id=1", "unpaid"))
    assert (found or "").startswith("'ID', 'visit_id', 'patient_no' are features of the model")
    assert advice.numbers_of_patients(("age", "covid")) is None
    assert (advice.numbers_of_patients(("id",)) or "").endswith('drop it, or state kind = "id" for it in a schema')


@pytest.mark.parametrize(
    ("names", "counts", "options", "told"),
    [
        (("ill", "well"), [[3, 47], [3, 47]], {}, "'well', the last of both classes by the alphabet, and 94%"),
        (("heart disease", "none"), [[3, 47]], {}, "--positive 'heart disease'"),
        (("ill", "well"), [[25, 25]], {}, None),
        (("healthy", "ill"), [[47, 3]], {}, None),
        (("0", "1"), [[3, 47]], {}, None),
        (("a", "b", "c"), [[1, 2, 47]], {}, None),
        (None, [[3, 47]], {}, None),
        (("ill", "well"), [[3, 47]], {"metrics": "auroc"}, None),
        (("ill", "well"), [[3, 47]], {"schema": "schema.toml"}, None),
        (("cough", "fever"), [[3, 47]], {"task": "multilabel"}, None),
    ],
)
def test_an_average_precision_of_the_frequent_class(names: Any, counts: Any, options: Any, told: str | None) -> None:
    """The fourth and fifth: the rare class is last, and labels are numbers, whose order says which is meant."""
    config = replace(FEDAVG, **{"metrics": "auroc,average_precision", **options})
    found = advice.of_the_frequent_class(config, names, np.array(counts))
    assert found is None if told is None else told in (found or "")
    assert found is None or "--positive " in found


def test_a_run_on_rare_words_says_of_which_class_its_average_precision_is(tmp_path: Path) -> None:
    x, sick = np.linspace(0, 1, 40).reshape(20, 2), np.arange(20) % 5 == 0
    data = {name: (x, np.where(sick, "ill", "well")) for name in ("north", "south")}
    with pytest.warns(CoterieWarning, match="average precision is of 'well'"):
        coterie.run("fedavg", data=data, model="linear", rounds=1, metrics=["average_precision"], out=tmp_path / "a")


def chance(global_accuracy: float | None, local_accuracy: float | None, counts: Any = EVEN, **more: Any) -> str | None:
    summary = {"task": "classes", "global_accuracy": global_accuracy, "local_accuracy": local_accuracy, **more}
    return advice.no_better_than_chance(FEDAVG, summary, counts)


@pytest.mark.parametrize(("accuracy", "told"), [(0.05, True), (0.10, True), (0.119, True), (0.121, False), (1, False)])
def test_ten_classes_and_one_in_ten(accuracy: float, told: bool) -> None:
    assert (chance(accuracy, accuracy) is not None) == told


def test_what_chance_is_depends_on_the_classes() -> None:
    hundred, two, rare = np.ones((5, 100)), np.full((5, 2), 50), np.array([[95, 5]] * 5)
    assert chance(0.011, 0.011, hundred) is not None
    assert chance(0.03, 0.03, hundred) is None
    assert chance(0.51, 0.51, two) is not None
    assert chance(0.55, 0.55, two) is None
    assert chance(0.95, 0.95, rare) is not None
    assert chance(0.98, 0.98, rare) is None


def test_a_model_for_ones_own_labels_has_learnt() -> None:
    """Ten clients with one class each: alone they are right in all of their own data and a tenth of all."""
    assert chance(0.1, 1.0, 5 * np.eye(10)) is None
    assert chance(0.1, 0.1, 5 * np.eye(10)) is not None


def test_what_to_try_is_said_with_what_it_was() -> None:
    said = chance(0.1, 0.1) or ""
    assert "accuracy is 10.0 % on all test data, and a model that gives every sample the same answer has 10.0 %" in said
    assert said.endswith("Try more rounds (here 10), another lr (here 0.1)")
    settings = {**FEDAVG.settings, "participation": 0.5, "lr": 1e-6}
    summary = {"task": "classes", "global_accuracy": 0.1, "local_accuracy": 0.1}
    less = advice.no_better_than_chance(replace(FEDAVG, settings=settings), summary, EVEN) or ""
    assert less.endswith("another lr (here 1e-06), a larger participation (here 0.5)")
    assert chance(None, None) is None
    assert chance(0.1, 0.1, task="multilabel") is None


@pytest.mark.parametrize(
    ("values", "options", "told"),
    [
        ([0.8, 0.931, 0.842], {}, "is best in round 2: 93.1 %, last 84.2 %. Try --early-stop 3, or a smaller model"),
        ([0.8, 0.931, 0.842], {"fine_tune": "held_out"}, "Try --early-stop 3 --no-fine-tune, or a smaller"),
        ([0.8, 0.931, 0.842], {"early_stop": 3}, None),
        ([0.8, 0.931, 0.842], {"data": "digits"}, None),
        ([0.8, 0.931, 0.9], {}, None),
        ([0.8, 0.842, 0.931], {}, None),
        ([None, None], {}, None),
    ],
)
def test_a_last_round_clearly_below_the_best_is_named(
    tmp_path: Path, values: list[float | None], options: dict[str, Any], told: str | None
) -> None:
    config = replace(FEDAVG, **{"data": f"{tmp_path}/own", "metrics": "auroc", **options})
    rounds = [{"round": r, "metrics": {"local_auroc": value}} for r, value in enumerate(values, 1)]
    found = advice.past_its_best(config, rounds)
    assert (found is None) if told is None else told in str(found)


def test_lower_may_be_better() -> None:
    config = replace(FEDAVG, data="./own", metrics="log_loss", model="linear")
    rounds = [{"round": r, "metrics": {"local_log_loss": value}} for r, value in enumerate((0.9, 0.4, 0.6), 1)]
    assert "best in round 2: 0.4, last 0.6. Try --early-stop 3" in str(advice.past_its_best(config, rounds))
    assert "smaller" not in str(advice.past_its_best(config, rounds))
    assert advice.past_its_best(config, rounds[:2]) is None


def test_a_run_and_a_comparison_past_their_best_warn_once(cli: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("own").mkdir()
    for name in ("north", "south"):
        rows = "".join(f"{i},{i % 2}\n" for i in range(20))
        Path(f"own/{name}.csv").write_text(f"dose,label\n{rows}")
    monkeypatch.setattr(advice, "CLEARLY", -1.0)  # every last round is clearly worse
    words = ["--data", "own", "--rounds", "2", "--quiet"]
    assert cli("run", "fedavg", *words, "--out", "a").err.count("is past its best") == 1
    ended = cli("compare", "fedavg", *words, "--seeds", "2", "--out", "c")
    assert ended.err.count("is past its best") == 1
    assert "(and 3 more of 4 runs)" in ended.err


def test_the_command_line_warns_on_stderr_also_when_quiet(cli: Command) -> None:
    ended = cli("run", "ifca", *FAST, "--crypto", "emulated", "--set", "clusters=9")
    assert ended.code == 0
    first, second = ended.err.splitlines()
    assert first == "Warning: option crypto has no effect on ifca: nothing is encrypted"
    assert second.startswith("Warning: ifca has more clusters (9) than clients (4)")
    (only,) = cli("run", "fedavg", *FAST, "--set", "lr=1e-9").err.splitlines()
    assert only.startswith("Warning: fedavg has learnt nothing: ")


@pytest.mark.long
def test_a_comparison_warns_once_for_all_seeds(cli: Command) -> None:
    asked = ["--crypto", "real", "--set", "clusters=9", "--seeds", "2", "--no-fine-tune"]
    ended = cli("compare", "fedavg", "ifca", *FAST, *asked)
    assert [line.split(" (")[0] for line in ended.err.splitlines()] == [
        "Warning: option crypto has no effect on fedavg, ifca, local: nothing is encrypted",
        "Warning: ifca has more clusters",
    ]


def test_a_repetition_from_a_config_file_gives_no_option(cli: Command) -> None:
    assert cli("run", "fedavg", *FAST, "--out", "a").err == ""
    assert cli("run", "--config", "a/config.toml", "--out", "b", "--quiet").err == ""


def test_python_warns(tmp_path: Path) -> None:
    options: dict[str, Any] = {"clients": 3, "rounds": 1, "progress": False, "max_epochs": 1, "model": "linear"}
    with pytest.warns(CoterieWarning, match="option crypto has no effect on fedavg"):
        coterie.run("fedavg", crypto="real", out=str(tmp_path / "a"), **options)
    with pytest.warns(CoterieWarning, match="option crypto has no effect on fedavg, local"):
        coterie.compare(["fedavg"], crypto="real", out=str(tmp_path / "b"), seeds=1, fine_tune="no", **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CoterieWarning)
        coterie.run("fedavg", out=str(tmp_path / "c"), **options)
