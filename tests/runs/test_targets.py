"""Tasks, losses, class weights and metrics in whole runs: classes, several labels, numbers; series and volumes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matrix import few
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

import coterie
from coterie.data.targets import Targets
from coterie.protocol.errors import UserError
from coterie.runs.metrics import class_weights
from coterie.training.evaluate import evaluate_many, judge_many
from coterie.training.model import LOSSES, Model

Clients = dict[str, tuple[NDArray[Any], NDArray[Any]]]


def clients(labels: Callable[[NDArray[Any]], NDArray[Any]], shape: tuple[int, ...] = (4,), n: int = 60) -> Clients:
    draw = np.random.default_rng(0)
    return {name: (x := draw.normal(size=(n, *shape)), labels(x)) for name in ("north", "east", "west")}


def ill(x: NDArray[Any]) -> NDArray[Any]:
    return np.where(x.reshape(len(x), -1)[:, 0] > 0.6, "ill", "well")


def run(tmp_path: Path, data: Any, **options: Any) -> coterie.Result:
    known = {"rounds": 4, "lr": 0.1, "progress": False, "out": str(tmp_path / "run"), "model": "mlp_small"}
    return coterie.run(options.pop("system", "fedavg"), data=data, **{**known, **options})


def test_metrics_are_those_of_the_saved_models(tmp_path: Path) -> None:
    """AUROC of the run is scikit-learn's on the probabilities that the saved models give for the test data."""
    data = clients(ill)
    result = run(tmp_path, data, metrics=["auroc", "f1"])
    kept = np.load(next((tmp_path / "data").iterdir()))
    x, y, of = kept["x_test"], kept["y_test"], kept["client_test"]
    assert [one["name"] for one in result.summary["measures"]] == ["auroc", "f1", "accuracy"]
    p = {name: result.predict(name, x, proba=True)[:, 0] for name in data}  # of "ill", the first name
    whole = np.mean([1 - roc_auc_score(y == "well", p[name]) for name in data])
    own = np.mean([1 - roc_auc_score(y[of == name] == "well", p[name][of == name]) for name in data])
    assert result.summary["metrics"]["global_auroc"] == pytest.approx(whole)
    assert result.summary["metrics"]["local_auroc"] == pytest.approx(own)
    right = np.mean([np.mean(result.predict(name, x) == y) for name in data])
    assert result.summary["global_accuracy"] == pytest.approx(right)
    assert result.rounds[-1]["metrics"] == result.summary["metrics"]


def test_accuracy_by_outputs_is_accuracy_by_hits(tmp_path: Path) -> None:
    """A further metric moves no number of the others, and no model."""
    data = clients(ill)
    plain = run(tmp_path, data, out=str(tmp_path / "plain"), fine_tune="held_out")
    more = run(tmp_path, data, out=str(tmp_path / "more"), fine_tune="held_out", metrics="mcc")
    for a, b in zip(plain.rounds, more.rounds, strict=True):
        assert a["models_sha256"] == b["models_sha256"]
        assert a["global_accuracy"] == b["global_accuracy"]
        assert a["local_loss"] == pytest.approx(b["local_loss"], rel=1e-5)
    assert plain.rounds[-1]["fine_tuned_local_accuracy"] == more.rounds[-1]["fine_tuned_local_accuracy"]
    parts = "global", "local", "fine_tuned_global", "fine_tuned_local", "prior_local", "mixed_local"
    added = {f"{part}_mcc" for part in parts}
    assert set(more.rounds[-1]["metrics"]) == {*plain.rounds[-1]["metrics"], *added}


@pytest.mark.parametrize("system", few(["fedavg", "ifca", "scaffold", "fedcaprivacy", "local"], {"fedcaprivacy"}))
def test_numbers_are_learnt_by_any_system(tmp_path: Path, system: str) -> None:
    data = clients(lambda x: 100 + 20 * x[:, 0] - 10 * x[:, 1])
    settings: dict[str, Any] = {"clusters": 2} if system in ("ifca", "fedcaprivacy") else {}
    result = run(
        tmp_path, data, system=system, task="regression", metrics=["r2", "mae"], crypto="emulated", rounds=6, **settings
    )
    assert result.summary["global_accuracy"] is None
    assert result.summary["train_accuracy"] is None
    assert result.summary["metrics"]["local_r2"] > 0.8
    kept = np.load(next((tmp_path / "data").iterdir()))
    far = [np.abs(result.predict(name, kept["x_test"])[:, 0] - kept["y_test"]).mean() for name in data]
    assert result.summary["metrics"]["global_mae"] == pytest.approx(np.mean(far), rel=1e-5)
    html = result.report().read_text()
    assert "Local R²" in html
    assert "Local accuracy" not in html
    assert "R²" in result._repr_html_()


def test_several_labels_at_once(tmp_path: Path) -> None:
    result = run(
        tmp_path, clients(lambda x: (x[:, :3] > 0).astype(int)), task="multilabel", rounds=8, metrics=["f1", "auroc"]
    )
    assert result.summary["metrics"]["global_auroc"] > 0.8
    counts = json.loads((result.folder / "partition.json").read_text())["label_counts"]
    assert np.shape(counts) == (3, 3)


@pytest.mark.parametrize(("shape", "kind"), [((6, 3), "series"), ((2, 4, 4, 4), "volume")])
def test_series_and_volumes(tmp_path: Path, shape: tuple[int, ...], kind: str) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.GRU(3, 8, batch_first=True) if kind == "series" else nn.Conv3d(2, 4, 3, padding=1)
            self.last = nn.Linear(8 if kind == "series" else 4 * 64, 2)

        def forward(self, x: Tensor) -> Tensor:
            found = self.first(x)
            return self.last(found[0][:, -1] if kind == "series" else found.flatten(1))

    result = run(tmp_path, clients(ill, shape), kind=kind, model=lambda shape, classes: Net(), rounds=2)
    assert 0 <= result.summary["global_accuracy"] <= 1
    x = np.random.default_rng(1).normal(size=(5, *shape))
    assert set(result.predict("north", x)) <= {"ill", "well"}


def test_balanced_classes_weigh_the_same() -> None:
    labels = np.array([0, 0, 0, 2, 2, 0])
    weigh = class_weights("balanced", Targets(), 3)
    assert weigh is not None
    weights = weigh(labels)
    assert weights.mean() == pytest.approx(1)
    assert weights[labels == 0].sum() == pytest.approx(weights[labels == 2].sum())
    numbers = class_weights("1, 9, 2", Targets(), 3)
    assert numbers is not None
    np.testing.assert_allclose(numbers(labels), np.array([1, 9, 2])[labels] / 4)
    assert class_weights(None, Targets(), 3) is None


def test_balanced_is_the_same_as_the_inverse_counts(tmp_path: Path) -> None:
    """Every client trains on 8 of one class and 40 of the other, so balanced is 5 to 1."""
    draw = np.random.default_rng(0)
    data = {name: (draw.normal(size=(60, 4)), np.repeat(["ill", "well"], [10, 50])) for name in ("a", "b")}
    weights = {}
    for words in ("balanced", [5, 1], None):
        balanced = 48 / 16, 48 / 80  # n / (classes n_k); numbers are these over their mean, 1.8
        lr = 0.1 * (sum(balanced) / 2) if words == [5, 1] else 0.1
        result = run(tmp_path, data, out=str(tmp_path / str(words)), class_weights=words, lr=lr)
        weights[str(words)] = result.model("a").state_dict()["1.weight"]
    torch.testing.assert_close(weights["balanced"], weights["[5, 1]"], rtol=1e-4, atol=1e-6)
    assert not torch.allclose(weights["balanced"], weights["None"], rtol=1e-2)


def focal(outputs: Tensor, labels: Tensor) -> Tensor:
    nll = nn.functional.cross_entropy(outputs, labels, reduction="none")
    return (1 - torch.exp(-nll)) ** 2 * nll


def focal_of_a_batch(outputs: Tensor, labels: Tensor) -> Tensor:
    return focal(outputs, labels).mean()


def test_a_loss_of_ones_own_for_each_sample_or_for_a_batch(tmp_path: Path) -> None:
    data = clients(ill)
    each = run(tmp_path, data, out=str(tmp_path / "each"), loss=focal)
    batch = run(tmp_path, data, out=str(tmp_path / "batch"), loss=focal_of_a_batch)
    usual = run(tmp_path, data, out=str(tmp_path / "usual"))
    assert each.summary["local_loss"] == pytest.approx(batch.summary["local_loss"], rel=1e-6)
    assert each.rounds[-1]["models_sha256"] == batch.rounds[-1]["models_sha256"] != usual.rounds[-1]["models_sha256"]
    assert each.summary["global_accuracy"] > 0.7
    run(tmp_path, data, system="ifca", out=str(tmp_path / "i"), loss=focal, clusters=2)
    with pytest.raises(UserError, match="fedem weighs models by their likelihood"):
        run(tmp_path, data, system="fedem", out=str(tmp_path / "em"), loss=focal)
    with pytest.raises(UserError, match="gives one number for a whole batch"):
        run(tmp_path, data, out=str(tmp_path / "w"), loss=focal_of_a_batch, class_weights="balanced")
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "cross_entropy"])
def test_losses_of_many_models_are_torchs(name: str) -> None:
    model = Model(nn.Linear(3, 2), (3,), loss=name)
    x, y = torch.randn(7, 3), torch.rand(7, 2).round()
    weights = np.stack([model.initial(seed) for seed in (1, 2)])
    of_torch = {
        "binary_cross_entropy": nn.functional.binary_cross_entropy_with_logits,
        "mse": nn.functional.mse_loss,
        "mae": nn.functional.l1_loss,
        "huber": nn.functional.huber_loss,
    }[name]
    by_hand = [float(of_torch(model.module_with(one)(x), y)) for one in weights]
    assert [one.loss for one in evaluate_many(model, weights, x, y)] == pytest.approx(by_hand, rel=1e-5)
    assert judge_many(model, weights, x, y).losses.mean(1) == pytest.approx(by_hand, rel=1e-5)


def three(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Linear(shape[0], 3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"loss": "mse"}, "loss mse does not suit the task classes: leave it out for cross_entropy"),
        ({"loss": "msee"}, "unknown loss 'msee'; did you mean 'mse'"),
        ({"metrics": "mae"}, "there is no metric 'mae' for classes. It is for regression"),
        ({"class_weights": "1,2,3"}, "a positive number for each of the 2 classes"),
        ({"class_weights": "1,-2"}, "a positive number for each of the 2 classes"),
        ({"model": three}, "gives 3 outputs, but the data have 2 classes"),
        ({"task": "regression"}, "labels of this task are numbers"),
        ({"task": "numbers"}, "option 'task' must be 'classes' or 'multilabel' or 'regression'"),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        run(tmp_path, clients(ill), **options)
    assert not (tmp_path / "run").exists()


def test_a_task_is_of_ones_own_data_and_mixtures_mix_classes(tmp_path: Path) -> None:
    numbers = clients(lambda x: x[:, 0])
    with pytest.raises(UserError, match="fedem weighs models by their likelihood"):
        run(tmp_path, numbers, system="fedem", task="regression")
    with pytest.raises(UserError, match="class_weights=balanced has no effect for the task regression"):
        run(tmp_path, numbers, task="regression", class_weights="balanced")
    with pytest.raises(UserError, match="task=regression is for your own data"):
        coterie.run("fedavg", data="digits", task="regression", out=str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_comparison_shows_the_metrics_that_were_asked_for(tmp_path: Path) -> None:
    race = coterie.compare(
        ["fedavg"], data=clients(ill), metrics=["auroc"], seeds=2, rounds=1, lr=0.1, model="linear", fine_tune="no",
        out=str(tmp_path / "race"), progress=False,
    )  # fmt: skip
    row = race.content["rows"][0]
    assert row["metrics"]["local_auroc"]["values"] == [
        one.summary["metrics"]["local_auroc"] for one in race.results["fedavg"]
    ]
    lead = race.content["leads"][-1]["metrics"]["local_auroc"]
    theirs = race.content["rows"][-1]["metrics"]["local_auroc"]["values"]
    assert lead["values"] == pytest.approx(np.subtract(row["metrics"]["local_auroc"]["values"], theirs))
    assert "local AUROC" in race.report().read_text()
    alone = next(one for one in race.results["fedavg"]).report().read_text()
    assert all(name in alone for name in ("north", "east", "west"))
    assert "AUROC" in race._repr_html_()
