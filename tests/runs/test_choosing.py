"""Settings chosen for each method by held-out training samples: the lowest loss wins, and test data decide nothing."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coterie
from coterie.data.sources import load as load_data
from coterie.protocol.errors import CoterieWarning, UserError
from coterie.record.comparison import NO_SETTING
from coterie.record.folder import jsonable
from coterie.report.comparison import budget, chosen, not_shared
from coterie.runs import RunConfig, build

DATA = load_data("digits")
SMALL = {"clients": 4, "rounds": 2, "model": "linear", "partition": "dirichlet:0.5", "progress": False}
TUNE = {"lr": [0.001, 0.1], "clusters": [2, 3]}


def race(out: Path, y_test: np.ndarray = DATA.y_test, **options: object) -> coterie.api.Comparison:
    data = DATA.x_train[:400], DATA.y_train[:400], DATA.x_test, y_test
    return coterie.compare(["fedavg", "ifca"], data, seeds=1, out=out / "c", **{**SMALL, **options})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> coterie.api.Comparison:
    return race(tmp_path_factory.mktemp("tuned"), tune=TUNE)


def test_the_choice_cannot_see_test_labels(tuned: coterie.api.Comparison, tmp_path: Path) -> None:
    wrong = (DATA.y_test + 1) % 10
    one, other = tuned.content, race(tmp_path, wrong, tune=TUNE).content
    assert one["chosen"] == other["chosen"]
    scores = [[row["local_accuracy"]["mean"] for row in of["rows"]] for of in (one, other)]
    assert min(scores[0]) > max(scores[1]) + 0.2


def test_a_value_at_the_edge_is_told_and_words_have_no_edge() -> None:
    def told(value: str, *tried: str) -> str:
        candidates = [{"settings": {"x": text}, "held_out_loss": 1.0} for text in tried]
        one = {"method": "m", "candidates": candidates, "settings": {"x": value}, "lacks": {}}
        return [*chosen({"chosen": {"methods": [one], "tune": {"x": tried}, "seed": 0}})][-1]

    assert "Chosen for m: x=0.1, x at the edge of the values tried (" in told("0.1", "0.1", "1", "0.3")
    assert "Chosen for m: x=1, x at the edge" in told("1", "0.1", "1", "0.3")
    assert "edge" not in told("0.3", "0.1", "1", "0.3")
    assert "edge" not in told("adam", "adam", "sgd")
    assert "edge" not in told("0.1", "0.1", "1")  # of two values each is at an edge


def test_a_tie_is_told_and_a_method_without_the_setting() -> None:
    def told(**more: Any) -> str:
        one = {"method": "m", "candidates": [], "settings": {}, "lacks": {}, **more}
        return [*chosen({"chosen": {"methods": [one], "tune": {}, "seed": 0}})][-1]

    tried = [{"settings": {"x": text}, "held_out_loss": loss} for text, loss in (("2", 0.5), ("3", 0.50001), ("4", 1))]
    level = told(candidates=tried, settings={"x": "2"})
    assert level.startswith("Chosen for m: x=2, x at the edge of the values tried (")
    assert level.endswith("(x=2: 0.5, x=3: 0.5, x=4: 1; x=2 and x=3 are level).")
    assert "level" not in told(candidates=tried[1:], settings={"x": "3"})
    assert told(lacks={"clusters": NO_SETTING}) == "m was not tuned: it has no setting clusters."
    both = {"clusters": NO_SETTING, "lr": "set for it alone, or refused"}
    assert told(lacks=both) == "m was not tuned: it has no setting clusters and lr is set for it alone, or refused."


def test_warnings_of_candidates_are_not_of_the_method(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        race(tmp_path, tune={"lr": [1e-9, 0.1]}, local=False)
    words = [str(one.message) for one in heard if issubclass(one.category, CoterieWarning)]
    assert any(word.startswith("trying lr=1e-09: ") and "has learnt nothing" in word for word in words)
    assert not any("has learnt nothing" in word for word in words if not word.startswith("trying "))


def test_each_method_gets_its_best_candidate_and_the_budget_says_so(tuned: coterie.api.Comparison) -> None:
    done, content = tuned, tuned.content
    found = {one["method"]: one for one in content["chosen"]["methods"]}
    assert {label: len(one["candidates"]) for label, one in found.items()} == {"fedavg": 2, "ifca": 4, "local": 2}
    assert found["fedavg"]["lacks"] == {"clusters": "it has no such setting"}
    for label, one in found.items():
        best = min(one["candidates"], key=lambda of: of["held_out_loss"])
        assert one["settings"] == best["settings"]
        settings = done.results[label][0].folder.joinpath("config.toml").read_text()
        assert all(f"{key} = {text}" in settings for key, text in best["settings"].items())
    assert content["budget"]["lr"] == float(found["fedavg"]["settings"]["lr"])
    told = [budget(content), *chosen(content)]
    assert "8 runs beside the budget" in told[1]
    cited = done.cite().partition("\n")[0]
    assert all(line in cited for line in [*told, *not_shared(content)])
    assert "FedAvg (mode paper)" in cited
    assert "not tuned: clusters, it has no such setting" in next(
        line for line in told if line.startswith("Chosen for fedavg")
    )
    assert not list(not_shared(content)) or "chosen by --tune" in " ".join(not_shared(content))
    assert coterie.load(done.folder).content["chosen"] == jsonable(content["chosen"])
    before = {path: path.stat().st_mtime_ns for path in done.folder.rglob("metrics.jsonl")}
    assert len(before) == 3 + 8
    again = race(done.folder.parent, tune=TUNE, resume=True)
    assert again.content["chosen"] == content["chosen"]
    assert before == {path: path.stat().st_mtime_ns for path in done.folder.rglob("metrics.jsonl")}


def test_a_candidates_loss_is_that_of_its_models_on_what_the_clients_hold_out(tmp_path: Path) -> None:
    content = race(tmp_path, tune={"lr": [0.01, 0.1]}, local=False).content
    path = next((tmp_path / "data").iterdir())
    config = RunConfig("fedavg", data=str(path), clients=4, rounds=2, model="linear", partition="dirichlet:0.5")
    for candidate in content["chosen"]["methods"][0]["candidates"]:
        one = build(replace(config, early_stop=9, settings={"lr": float(candidate["settings"]["lr"])}))
        one.set_up()
        one.round(1)
        line = one.round(2)
        assert candidate["held_out_loss"] == pytest.approx(line["held_out_loss"], rel=1e-6)
        one.close()


def test_a_diverged_candidate_is_not_taken(tmp_path: Path) -> None:
    content = race(tmp_path, tune={"lr": [1e30, 0.1]}).content
    for one in content["chosen"]["methods"]:
        losses = {of["settings"]["lr"]: of["held_out_loss"] for of in one["candidates"]}
        assert losses["1e+30"] is None
        assert one["settings"]["lr"] == "0.1"


def test_a_choice_for_several_seeds_is_refused_with_folds(tmp_path: Path) -> None:
    """Seed 1 tests samples that seed 0 has trained on, and heart has folds if nothing is said."""
    tune = {"lr": [0.01, 0.1]}
    with pytest.raises(UserError, match="in folds \\(5\\) the next ones test what it has trained on"):
        coterie.compare(["fedavg"], "heart", seeds=2, tune=tune, out=tmp_path / "c", rounds=1, progress=False)
    assert not (tmp_path / "c").exists()


@pytest.mark.long
def test_a_choice_for_one_seed_or_without_folds_is_made_with_the_first(tmp_path: Path) -> None:
    tune = {"lr": [0.01, 0.1]}
    for k, how in enumerate(({"seeds": 1, "seed": 1}, {"seeds": 2, "test_share": 0.2})):
        done = coterie.compare(["fedavg"], "heart", tune=tune, out=tmp_path / str(k), rounds=1, progress=False, **how)  # type: ignore[arg-type]
        assert done.content["chosen"]["seed"] == (1, 0)[k]


@pytest.mark.parametrize(
    ("tune", "says"),
    [
        ({"lr": [0.1]}, "two different values or more"),
        ({"lr": [0.1, 0.1]}, "two different values or more"),
        ({"nothing": [1, 2]}, "nothing"),
        ({"lr": ["fast", "slow"]}, "must be a number"),
        ({"momentum": [0.0, 0.9]}, "both set and tuned"),
    ],
)
def test_what_cannot_be_tuned(tmp_path: Path, tune: dict[str, list[object]], says: str) -> None:
    with pytest.raises(UserError, match=says):
        race(tmp_path, tune=tune, momentum=0.5)
    assert not (tmp_path / "c").exists()
