"""The observer against a plain loop over clients and samples."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coterie.runs.effects import ClientData, Samples
from coterie.runs.evaluation import Observer
from coterie.training.models import build

MODEL = build("mlp_small", (6,), 4)
RNG = np.random.default_rng(3)
X = torch.from_numpy(RNG.normal(size=(57, 6)).astype(np.float32))
Y = torch.from_numpy(RNG.integers(0, 4, 57))
OWN = {f"client/{i}": np.sort(RNG.permutation(57)[: 3 + 4 * i]) for i in range(5)}
TEST = Samples(X, Y)
DATA = {name: ClientData(X[:0], Y[:0], test, TEST) for name, test in OWN.items()}


def slow(weights: np.ndarray, indices: np.ndarray) -> tuple[float, float]:
    """Accuracy and loss, a sample at a time."""
    module = MODEL.module_with(weights)
    right, loss = 0, 0.0
    for i in indices:
        logits = module(X[i : i + 1])[0].detach().double()
        right += int(logits.argmax() == Y[i])
        loss += float(-torch.log_softmax(logits, 0)[Y[i]])
    return right / len(indices), loss / len(indices)


def models() -> dict[str, np.ndarray]:
    """Five clients, three models: one array shared, one equal by value."""
    a, b, c = (MODEL.initial(seed) for seed in range(3))
    return dict(zip(OWN, (a, b, a, a.copy(), c), strict=True))


def test_scores_equal_the_plain_loop() -> None:
    scores = Observer(MODEL, DATA).scores(models())
    for i, (name, weights) in enumerate(models().items()):
        accuracy, loss = slow(weights, np.arange(57))
        assert scores.global_accuracy[i] == pytest.approx(accuracy)
        assert scores.global_loss[i] == pytest.approx(loss, rel=1e-6)
        accuracy, loss = slow(weights, OWN[name])
        assert scores.local_accuracy[i] == pytest.approx(accuracy)
        assert scores.local_loss[i] == pytest.approx(loss, rel=1e-6)
    assert scores.means()["local_accuracy"] == pytest.approx(scores.local_accuracy.mean())
    band = scores.bands()["local_loss"]
    values = sorted(scores.local_loss)
    assert band == [pytest.approx(v) for v in (values[0], values[1], values[2], values[3], values[4])]


def test_each_distinct_model_is_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    observer, runs = Observer(MODEL, DATA), []
    real = observer._run
    monkeypatch.setattr(observer, "_run", lambda *given: runs.append(1) or real(*given))
    observer.scores(models())
    assert len(runs) == 3


def test_the_size_of_a_batch_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Observer(MODEL, DATA).scores(models())
    monkeypatch.setattr("coterie.runs.evaluation._BATCH_BYTES", 10 * 6 * 4)
    parts = Observer(MODEL, DATA).scores(models())
    np.testing.assert_array_equal(whole.local_accuracy, parts.local_accuracy)
    np.testing.assert_allclose(whole.global_loss, parts.global_loss, rtol=1e-6)


def test_a_model_that_has_blown_up_is_simply_bad() -> None:
    huge = {name: np.full(MODEL.spec.size, 1e30, np.float32) for name in OWN}
    scores = Observer(MODEL, DATA).scores(huge)
    assert (scores.global_accuracy < 0.5).all()


def test_only_some_clients() -> None:
    everybody = models()
    some = {name: everybody[name] for name in ("client/3", "client/1")}
    scores, all_scores = Observer(MODEL, DATA).scores(some), Observer(MODEL, DATA).scores(everybody)
    np.testing.assert_array_equal(scores.local_loss, all_scores.local_loss[[3, 1]])
