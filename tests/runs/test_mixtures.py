"""Mixtures of models: their scores against a plain loop, their digest; and the effects that train one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from coterie.protocol.effects import Fit, Losses
from coterie.protocol.errors import UserError
from coterie.protocol.system import ClientModel, Mixture
from coterie.runs.config import RunConfig
from coterie.runs.digests import models_digest
from coterie.runs.evaluation import Evaluator
from coterie.runs.experiment import build as build_experiment
from coterie.runs.interpreter import LocalEffects
from coterie.runs.on_data import ClientData, TensorSamples
from coterie.training.evaluate import judge_many, outputs_of_many
from coterie.training.model import Model
from coterie.training.models import build
from coterie.training.solvers import Sgd

MODEL = build("mlp_small", (6,), 4)
RNG = np.random.default_rng(3)
X = torch.from_numpy(RNG.normal(size=(57, 6)).astype(np.float32))
Y = torch.from_numpy(RNG.integers(0, 4, 57))
OWN = {f"client/{i}": np.sort(RNG.permutation(57)[: 3 + 4 * i]) for i in range(5)}
TEST = TensorSamples(X, Y)
DATA = {name: ClientData(X[:0], Y[:0], test, TEST) for name, test in OWN.items()}
THETA = 3 * np.stack([MODEL.initial(seed) for seed in range(3)])  # larger, so that they disagree


def everybody() -> dict[str, ClientModel]:
    """Two shares of the same components, a copy of one of them, one component alone, and a single model."""
    a, b = RNG.dirichlet(np.ones(3)), np.array([0.0, 0.25, 0.75])
    mixtures = [Mixture(a, THETA), Mixture(b, THETA), Mixture(a.copy(), THETA.copy()), Mixture(np.ones(1), THETA[2:])]
    return dict(zip(OWN, [*mixtures, THETA[2]], strict=True))


def slow(model: ClientModel, indices: np.ndarray) -> tuple[float, float]:
    """Accuracy and loss of the averaged probabilities, a sample at a time."""
    shares, vectors = (model.weights, model.models) if isinstance(model, Mixture) else (np.ones(1), model[None])
    right, loss = 0, 0.0
    for i in indices:
        outputs = [MODEL.module_with(vector)(X[i : i + 1])[0].detach().double() for vector in vectors]
        p = sum(share * torch.softmax(output, 0) for share, output in zip(shares, outputs, strict=True))
        right += int(p.argmax() == Y[i])
        loss -= float(torch.log(p[Y[i]]))
    return right / len(indices), loss / len(indices)


def test_the_scores_of_mixtures_equal_the_plain_loop() -> None:
    models = everybody()
    scores = Evaluator(MODEL, DATA).scores(models)
    for i, (name, model) in enumerate(models.items()):
        accuracy, loss = slow(model, np.arange(57))
        assert scores.values["global_accuracy"][i] == pytest.approx(accuracy)
        assert scores.values["global_loss"][i] == pytest.approx(loss, rel=1e-6)
        accuracy, loss = slow(model, OWN[name])
        assert scores.values["local_accuracy"][i] == pytest.approx(accuracy)
        assert scores.values["local_loss"][i] == pytest.approx(loss, rel=1e-6)
    assert len(set(scores.values["global_loss"])) == 3
    assert scores.values["global_loss"][0] == scores.values["global_loss"][2]
    assert (
        scores.values["global_loss"][3] == scores.values["global_loss"][4]
    )  # a mixture of one is that one, to the bit


def test_every_component_is_run_once_however_many_mix_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []

    def counted(model: Model, weights: np.ndarray, *data: Any, shares: Any, **options: Any) -> Any:
        seen.append((len(weights), len(shares)))
        return judge_many(model, weights, *data, shares=shares, **options)

    def alone(model: Model, weights: np.ndarray, *data: Any, **options: Any) -> Any:
        seen.append((len(weights), 0))
        return outputs_of_many(model, weights, *data, **options)

    monkeypatch.setattr("coterie.runs.evaluation.judge_many", counted)
    monkeypatch.setattr("coterie.runs.evaluation.outputs_of_many", alone)
    Evaluator(MODEL, DATA).scores(everybody())
    assert sorted(seen) == [(1, 0), (3, 2)]  # a mixture of one is that model; two shares of three components


def test_the_loss_of_a_mixture_survives_tiny_probabilities() -> None:
    """Both components are sure of another label: each gives this one e^-1000 and less, which is no double."""
    logits = np.array([[0.0, 1000.0], [0.0, 1100.0]])
    linear = build("linear", (1,), 2)
    models = np.concatenate([np.zeros((2, 2)), logits], axis=1).astype(np.float32)
    test = TensorSamples(torch.zeros(1, 1), torch.zeros(1, dtype=torch.int64))
    observer = Evaluator(linear, {"client/0": ClientData(test.x, test.y, np.array([0]), test)})
    loss = observer.scores({"client/0": Mixture(np.array([0.5, 0.5]), models)}).values["global_loss"][0]
    assert loss == pytest.approx(1000 + np.log(2))


def test_the_digest_tells_components_and_shares_apart() -> None:
    a, b = np.array([0.5, 0.25, 0.25]), np.array([0.25, 0.5, 0.25])
    whole = {
        models_digest({"client/0": model})
        for model in (Mixture(a, THETA), Mixture(b, THETA), Mixture(a, THETA + np.float32(1e-7)), THETA[0])
    }
    assert len(whole) == 4
    assert models_digest({"client/0": Mixture(a, THETA)}) == models_digest(
        {"client/0": Mixture(a.copy(), THETA.copy())}
    )


@pytest.mark.parametrize(
    ("weights", "models"),
    [
        ([1.0], THETA),
        ([[0.5, 0.25, 0.25]], THETA),
        ([1.0], THETA[0]),
        ([0.5, 0.5, 0.5], THETA),
        ([1.5, -0.5, 0.0], THETA),
        ([np.nan, 0.5, 0.5], THETA),
    ],
)
def test_what_is_no_mixture(weights: Any, models: Any) -> None:
    with pytest.raises(UserError, match="mixture"):
        Mixture(np.array(weights), models)


def test_a_mixture_cannot_be_fine_tuned() -> None:
    experiment = build_experiment(RunConfig("fedem", samples=300, clients=3, rounds=1, settings={"max_epochs": 1}))
    experiment.observer.run.system = replace(experiment.system, fine_tunes=True)
    with pytest.raises(TypeError, match="fedem says that it fine-tunes"):
        experiment.observer.fine_tuned(1)


def effects() -> LocalEffects:
    parts = np.split(np.arange(57), [10, 40])
    data = {f"client/{i}": ClientData(X[part], Y[part], part, TEST) for i, part in enumerate(parts)}
    return LocalEffects(MODEL, data)


def test_losses_are_of_the_own_training_samples_in_their_order() -> None:
    runner = effects()
    theta = THETA.copy()
    theta.flags.writeable = False  # as decoded messages are
    got = runner.run([("client/1", Losses(theta)), ("client/0", Losses(theta[:1]))])
    assert [losses.shape for losses in got] == [(3, 30), (1, 10)]
    for m in range(3):
        for i, sample in enumerate(range(10, 40)):
            output = MODEL.module_with(THETA[m])(X[sample : sample + 1]).detach()
            expected = torch.nn.functional.cross_entropy(output, Y[sample : sample + 1])
            assert got[0][m, i] == pytest.approx(float(expected), abs=1e-5)


def test_sample_weights_reach_the_training_of_their_own_client() -> None:
    """A client whose weights are all zero stays where it is; its neighbour in the same batch does not."""
    start, solver = THETA[0], Sgd(0.1, 8)
    none, plain = Fit(start, solver, 2, 0, sample_weights=np.zeros(10, np.float32)), Fit(start, solver, 2, 0)
    stayed, moved = effects().run([("client/0", none), ("client/1", plain)])
    assert (stayed.weights == start).all()
    assert np.abs(moved.weights - start).max() > 1e-3
    with pytest.raises(UserError, match=r"sample_weights must be \(30,\)"):
        effects().run([("client/1", replace(none))])
