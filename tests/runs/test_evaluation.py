"""The observer against a plain loop over clients and samples, also of mixtures of models; and the effects that train
one.
"""

from __future__ import annotations

import hashlib
import tracemalloc
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie.protocol.effects import Fit, Losses
from coterie.protocol.errors import UserError
from coterie.protocol.system import ClientModel, Mixture
from coterie.runs import RunConfig, build, digests, evaluation, run
from coterie.runs.config import resolve
from coterie.runs.digests import models_digest
from coterie.runs.evaluation import Evaluator, train_accuracies
from coterie.runs.forms import priors_of
from coterie.runs.interpreter import LocalEffects
from coterie.runs.models import write_models
from coterie.runs.on_data import ClientData, TensorSamples
from coterie.training import evaluate
from coterie.training.evaluate import judge_many, outputs_of_many
from coterie.training.model import Model
from coterie.training.models import build as build_model
from coterie.training.solvers import Sgd

MODEL = build_model("mlp_small", (6,), 4)
RNG = np.random.default_rng(3)
X = torch.from_numpy(RNG.normal(size=(57, 6)).astype(np.float32))
Y = torch.from_numpy(RNG.integers(0, 4, 57))
OWN = {f"client/{i}": np.sort(RNG.permutation(57)[: 3 + 4 * i]) for i in range(5)}
TEST, OTHER = TensorSamples(X, Y), TensorSamples(-X, (Y + 1) % 4)
DATA = {name: ClientData(X[i : 2 * i + 5], Y[i : 2 * i + 5], test, TEST) for i, (name, test) in enumerate(OWN.items())}


def slow(
    model: Model, weights: ClientModel, samples: TensorSamples, indices: np.ndarray | None = None
) -> tuple[float, float]:
    """Accuracy and loss, a sample at a time, in float64 from the logits on."""
    indices = np.arange(len(samples.y)) if indices is None else indices
    mixture = weights if isinstance(weights, Mixture) else Mixture(np.ones(1), weights[None])
    modules = [model.module_with(vector) for vector in mixture.models]
    right, loss = 0, 0.0
    for i in indices:
        with torch.no_grad():
            p = [torch.softmax(module(samples.x[i : i + 1])[0].double(), 0) for module in modules]
        mean = sum(share * one for share, one in zip(mixture.weights, p, strict=True))
        assert isinstance(mean, torch.Tensor)
        right += int(mean.argmax() == samples.y[i])
        loss += float(-torch.log(mean[samples.y[i]]))
    return right / len(indices), loss / len(indices)


def models() -> dict[str, np.ndarray]:
    """Five clients, three models: one array shared, one equal by value."""
    a, b, c = (MODEL.initial(seed) for seed in range(3))
    return dict(zip(OWN, (a, b, a, a.copy(), c), strict=True))


def assert_plain(scores: Any, of: Mapping[str, Any]) -> None:
    for i, (name, model) in enumerate(of.items()):
        accuracy, loss = slow(MODEL, model, TEST)
        assert scores.values["global_accuracy"][i] == pytest.approx(accuracy)
        assert scores.values["global_loss"][i] == pytest.approx(loss, rel=1e-6)
        accuracy, loss = slow(MODEL, model, TEST, OWN[name])
        assert scores.values["local_accuracy"][i] == pytest.approx(accuracy)
        assert scores.values["local_loss"][i] == pytest.approx(loss, rel=1e-6)


def test_scores_equal_the_plain_loop() -> None:
    scores = Evaluator(MODEL, DATA).scores(models())
    assert_plain(scores, models())
    assert scores.means()["local_accuracy"] == pytest.approx(scores.values["local_accuracy"].mean())
    band = scores.bands()["local_loss"]
    values = sorted(scores.values["local_loss"])
    assert band == [pytest.approx(v) for v in (values[0], values[1], values[2], values[3], values[4])]


def test_every_client_is_scored_on_the_test_set_of_its_own_task() -> None:
    """Clients of two tasks, three of whom share one model, and two one mixture."""
    data = {name: ClientData(X, Y, own, (TEST, OTHER)[i % 2]) for i, (name, own) in enumerate(OWN.items())}
    a, b = MODEL.initial(0), Mixture(np.array([0.3, 0.7]), np.stack([MODEL.initial(1), MODEL.initial(2)]))
    mixed: dict[str, ClientModel] = dict(zip(OWN, (a, a, b, b, a), strict=True))
    scores = Evaluator(MODEL, data).scores(mixed)
    for i, (name, model) in enumerate(mixed.items()):
        for indices, kind in ((None, "global"), (OWN[name], "local")):
            accuracy, loss = slow(MODEL, model, data[name].test_set, indices)
            assert scores.values[f"{kind}_accuracy"][i] == pytest.approx(accuracy)
            assert scores.values[f"{kind}_loss"][i] == pytest.approx(loss, rel=1e-5)
    assert scores.values["global_loss"][0] != scores.values["global_loss"][1]


def trained(observer: Evaluator, models: dict[str, ClientModel]) -> np.ndarray:
    """Training accuracy of each client."""
    found = train_accuracies(observer.trained(models))
    assert found is not None
    return found.values["train_accuracy"]


def test_training_accuracies_equal_the_plain_loop() -> None:
    found = trained(Evaluator(MODEL, DATA), models())
    expected = [
        slow(MODEL, weights, TensorSamples(DATA[name].x, DATA[name].y))[0] for name, weights in models().items()
    ]
    np.testing.assert_allclose(found, expected)


def test_training_accuracies_take_one_pass_a_distinct_model(
    computed: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the samples of all its clients together, however many there are; or in parts that fit into memory."""
    a, b = MODEL.initial(0), MODEL.initial(1)
    shared = {f"client/{i}": (a, a.copy(), a, b)[i % 4] for i in range(100)}
    data = {name: list(DATA.values())[i % 5] for i, name in enumerate(shared)}
    found = trained(Evaluator(MODEL, data), shared)
    sizes = [len(data[name].y) for name in shared]
    assert computed == [(1, sum(size for i, size in enumerate(sizes) if (i % 4 == 3) is odd)) for odd in (False, True)]
    computed.clear()
    monkeypatch.setattr(evaluation, "_BATCH_BYTES", 1)
    np.testing.assert_array_equal(trained(Evaluator(MODEL, data), shared), found)
    assert [size for _, size in sorted(computed)] == sorted(sizes)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Of each pass, how many models and samples."""
    passes: list[tuple[int, int]] = []

    def counted(model: Model, weights: np.ndarray, x: torch.Tensor, *args: Any, **options: Any) -> Any:
        passes.append((len(weights), len(x)))
        return outputs_of_many(model, weights, x, *args, **options)

    monkeypatch.setattr(evaluation, "outputs_of_many", counted)
    return passes


def test_outputs_of_own_test_samples_take_each_sample_once_a_distinct_model(computed: list[tuple[int, int]]) -> None:
    """Clients of one model share test samples. Each has its own in its own order."""
    shuffled = {name: replace(own, tests=own.test[::-1].copy()) for name, own in DATA.items()}
    observer = Evaluator(MODEL, shuffled)
    for (name, weights), found in zip(models().items(), observer.own_outputs(models()), strict=True):
        own = TEST.at(shuffled[name].test)
        np.testing.assert_allclose(found, outputs_of_many(MODEL, weights[None], own.x, own.y)[0], atol=1e-6)
    a, b, c, d, e = (set(own.tolist()) for own in OWN.values())
    assert computed == [(1, len(a | c | d)), (1, len(b)), (1, len(e))]


@pytest.mark.parametrize("told", [False, True], ids=["supplied", "told"])
def test_a_prior_takes_one_pass_a_distinct_model_over_a_hundred_samples_of_each_client(
    computed: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch, told: bool
) -> None:
    monkeypatch.setattr(evaluation, "TRAIN_SAMPLES", 0)
    x, y = X.repeat(5, 1), Y.repeat(5)
    data = {name: replace(own, inputs=x[: 60 * i + 5], y=y[: 60 * i + 5]) for i, (name, own) in enumerate(DATA.items())}
    counts = {name: np.bincount(own.y, minlength=4) for name, own in data.items()}
    found = priors_of(Evaluator(MODEL, data, seed=1), models(), counts if told else None)
    assert list(found) == [*DATA]  # a client's own counts shift nothing, so no sample speaks against them
    assert computed == [(1, 5 + 100 + 100), (1, 65), (1, 100)]
    assert [prior.predicted.sum() for prior in found.values()] == [5, 65, 100, 100, 100]
    assert [prior.own.sum() for prior in found.values()] == [5, 65, 125, 185, 245]
    whole = priors_of(Evaluator(MODEL, data), models())
    assert [prior.predicted.sum() for prior in whole.values()] == [5, 65, 125, 185, 245]


def test_many_training_samples_are_drawn_as_many_of_each_client(many: Any) -> None:
    """The stated error is that of the mean over the clients. Few are all taken."""
    data, models = many
    large = {
        name: replace(own, inputs=own.test_set.x[: 600 + i], y=own.test_set.y[: 600 + i])
        for i, (name, own) in enumerate(data.items())
    }
    whole = trained(Evaluator(MODEL, large), models).mean()
    scores: list[Any] = [train_accuracies(Evaluator(MODEL, large, seed=seed).trained(models)) for seed in range(30)]
    sampled = scores[0].sampled
    assert (sampled.samples, sampled.of) == (20 * 500, sum(600 + i for i in range(20)))
    errors = [one.means()["train_accuracy"] - whole for one in scores]
    assert 0 < np.std(errors) < 1.2 * sampled.standard_error < 0.005
    assert np.abs(errors).max() < 4 * sampled.standard_error
    few = {name: models[name] for name in DATA}
    assert train_accuracies(Evaluator(MODEL, DATA, seed=1).trained(few)).sampled is None  # type: ignore[union-attr]


# -- a sample of the test set ------------------------------------------------------------------------------------------

LARGE = 6_000


@pytest.fixture(scope="module")
def many() -> tuple[dict[str, ClientData], dict[str, ClientModel]]:
    """Twenty clients with models of their own, which are right more or less often, and a large test set."""
    x = torch.from_numpy(RNG.normal(size=(LARGE, 6)).astype(np.float32))
    best = MODEL.initial(0)
    zeros = torch.zeros(LARGE, dtype=torch.int64)
    y = torch.from_numpy(evaluate.outputs_of_many(MODEL, best[None], x, zeros)[0].argmax(1))
    test = TensorSamples(x, y)
    names = [f"client/{i}" for i in range(20)]
    data = {name: ClientData(X, Y, np.sort(RNG.permutation(LARGE)[:50]), test) for name in names}
    noise = RNG.normal(size=(len(names), len(best))).astype(np.float32)
    return data, {name: best + np.float32(0.05 * i) * noise[i] for i, name in enumerate(names)}


def test_many_models_are_scored_on_a_sample_within_its_standard_error(many: Any) -> None:
    """Over 40 seeds the error of each client has the stated size, at most; local scores have none."""
    data, models = many
    whole = Evaluator(MODEL, data).scores(models)
    assert whole.sampled is None
    errors = []
    for seed in range(40):
        some = Evaluator(MODEL, data, seed=seed).scores(models)
        assert some.sampled is not None
        assert (some.sampled.of, some.sampled.samples) == (LARGE, 1765)  # 2500 / (1 + 2499 / 6000), rounded up
        for name in ("local_accuracy", "local_loss"):
            np.testing.assert_allclose(some.values[name], whole.values[name], rtol=1e-5)
        errors.append(some.values["global_accuracy"] - whole.values["global_accuracy"])
    stated = some.sampled.standard_error
    assert 0.0099 < stated <= evaluation.STANDARD_ERROR
    assert some.line()["test_sample"] == {"samples": 1765, "of": LARGE, "standard_error": stated}
    p = whole.values["global_accuracy"]
    expected = stated * 2 * np.sqrt(p * (1 - p))  # of a share p; the stated one is that of one half
    found = np.std(errors, axis=0)
    assert np.all(found < 1.5 * expected + 1e-12)
    assert found.mean() > 0.7 * expected.mean()
    assert np.abs(errors).max() < 4.5 * stated


def test_all_clients_and_all_runs_of_a_seed_are_scored_on_the_same_sample(many: Any) -> None:
    data, models = many
    one, again, other = (Evaluator(MODEL, data, seed=seed).scores(models) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one.values["global_loss"], again.values["global_loss"])
    assert (one.values["global_loss"] != other.values["global_loss"]).all()
    alike = {name: models["client/7"] + np.float32(1e-9 * i) for i, name in enumerate(models)}
    assert len(set(Evaluator(MODEL, data, seed=3).scores(alike).values["global_accuracy"])) == 1


def test_few_models_and_small_test_sets_are_scored_on_everything(many: Any) -> None:
    data, models = many
    names = list(models)
    few = {name: models[names[i % evaluation.FEW_MODELS]] for i, name in enumerate(names)}
    small = {
        name: replace(own, tests=np.arange(9), test_set=TensorSamples(own.test_set.x[:2500], own.test_set.y[:2500]))
        for name, own in data.items()
    }
    small = {name: replace(own, test_set=small[names[0]].test_set) for name, own in small.items()}
    for its_data, its_models in ((data, few), (small, models)):
        sampled, whole = (Evaluator(MODEL, its_data, seed=seed).scores(its_models) for seed in (1, None))
        assert sampled.sampled is None
        for name, values in whole.values.items():
            np.testing.assert_array_equal(sampled.values[name], values)


def test_a_run_says_what_it_was_scored_on(tmp_path: Path) -> None:
    """Personal models of synthetic data, whose test set has 10,000 samples. With ``all`` nothing is drawn."""
    config = RunConfig("local", "synthetic:8x4", clients=12, rounds=1, settings={"max_epochs": 1})
    some, every = (run(replace(config, evaluate=way, out=str(tmp_path / way))) for way in ("sample", "all"))
    assert some.rounds[-1]["models_sha256"] == every.rounds[-1]["models_sha256"]
    done, whole = some.summary, every.summary
    assert (done["test_sample"]["samples"], done["test_sample"]["of"]) == (2001, 10_000)
    assert done["test_sample"]["standard_error"] <= 0.01
    assert whole["test_sample"] is None
    made = build(config)
    made.set_up()
    made.round(1)
    expected = Evaluator(made.model, made.data, made.config.accelerator).scores(made.models(1)).means()
    assert {name: whole[name] for name in expected} == expected
    assert 0 < abs(done["global_accuracy"] - whole["global_accuracy"]) < 0.03
    assert done["local_accuracy"] == pytest.approx(whole["local_accuracy"], abs=1e-9)
    made.close()


def test_of_very_many_clients_a_thousand_are_scored_if_nobody_asks_for_more() -> None:
    many = RunConfig("fedavg", "synthetic:8x4", clients=1001)
    assert resolve(many).evaluated == 1000
    assert resolve(replace(many, evaluated=1001)).evaluated == 1001
    for others in ({"evaluate": "all"}, {"record": True}, {"clients": 1000}):
        assert resolve(replace(many, **others)).evaluated is None


def test_each_distinct_model_is_run_once(computed: list[tuple[int, int]]) -> None:
    """Also for the predictions of models that were scored before, however they came to be the same."""
    observer = Evaluator(MODEL, DATA)
    observer.scores(models())
    assert computed == [(3, 57)]
    before = observer.own_outputs(models())
    assert computed == [(3, 57)]
    for found, expected in zip(before, Evaluator(MODEL, DATA).own_outputs(models()), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)
    computed.clear()
    observer.own_outputs({"client/0": models()["client/0"] + 1})
    assert computed == [(1, len(OWN["client/0"]))]


def test_a_model_that_many_clients_share_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = MODEL.initial(0), MODEL.initial(1)
    shared = {f"client/{i}": (a, b)[i % 2] for i in range(30)}
    plain = hashlib.sha256(b"".join(hashlib.sha256(one.tobytes()).digest() for one in shared.values())).hexdigest()
    hashed: list[np.ndarray] = []
    digest = digests.array_digest
    monkeypatch.setattr(digests, "array_digest", lambda array: hashed.append(array) or digest(array))
    assert models_digest(shared) == plain
    assert [id(one) for one in hashed] == [id(a), id(b)]


def test_a_model_that_many_clients_share_is_hashed_once_for_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[int] = []
    digest = digests.array_digest
    monkeypatch.setattr(digests, "array_digest", lambda array: hashed.append(id(array)) or digest(array))
    made = build(RunConfig("fedavg", "digits", clients=9, rounds=1))
    made.set_up()
    made.round(1)
    hashed.clear()
    write_models(tmp_path, made, made.models(1), 1)
    assert len(hashed) == 1
    made.close()


def test_the_size_of_a_batch_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Evaluator(MODEL, DATA).scores(models())
    monkeypatch.setattr(evaluation, "_BATCH_BYTES", 1)
    monkeypatch.setattr(evaluate, "_CHUNK_BYTES", 1)
    parts = Evaluator(MODEL, DATA).scores(models())
    np.testing.assert_array_equal(whole.values["local_accuracy"], parts.values["local_accuracy"])
    np.testing.assert_allclose(whole.values["global_loss"], parts.values["global_loss"], rtol=1e-6)


def test_memory_does_not_grow_with_the_number_of_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """160 models of 1.3 MB, 205 MB in all, under a bound of 8 MiB. They are one, which is taken for many."""
    model = build_model("mlp", (1500,), 4)
    test = TensorSamples(torch.zeros(70, 1500), torch.zeros(70, dtype=torch.int64))
    data = {f"client/{i}": ClientData(test.x, test.y, np.arange(5), test) for i in range(160)}
    many = dict.fromkeys(data, model.initial(0))
    monkeypatch.setattr(evaluation, "_BATCH_BYTES", 8 << 20)
    monkeypatch.setattr(evaluation, "_sharing", lambda arrays: [[key] for key in arrays])
    tracemalloc.start()
    try:
        Evaluator(model, data).scores(many)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 6 << 20 < peak < 20 << 20


def test_a_model_that_has_blown_up_is_simply_bad() -> None:
    """It has no loss, and takes none from the models that are judged beside it."""
    sound = models()
    broken: dict[str, ClientModel] = {**sound, "client/1": np.full(MODEL.spec.size, 1e30, np.float32)}
    vectors = np.stack([sound["client/0"], np.full(MODEL.spec.size, np.nan, np.float32)])
    broken["client/4"] = Mixture(np.array([0.5, 0.5]), vectors)
    scores, before = Evaluator(MODEL, DATA).scores(broken), Evaluator(MODEL, DATA).scores(sound)
    assert np.isnan(scores.values["global_loss"][[1, 4]]).all()
    assert np.isnan(scores.values["local_loss"][[1, 4]]).all()
    assert (scores.values["global_accuracy"][[1, 4]] < 0.5).all()
    np.testing.assert_allclose(
        scores.values["local_loss"][[0, 2, 3]], before.values["local_loss"][[0, 2, 3]], rtol=1e-6
    )
    np.testing.assert_array_equal(
        scores.values["global_accuracy"][[0, 2, 3]], before.values["global_accuracy"][[0, 2, 3]]
    )


def test_only_some_clients() -> None:
    everybody = models()
    some = {name: everybody[name] for name in ("client/3", "client/1")}
    scores, all_scores = Evaluator(MODEL, DATA).scores(some), Evaluator(MODEL, DATA).scores(everybody)
    np.testing.assert_allclose(scores.values["local_loss"], all_scores.values["local_loss"][[3, 1]], rtol=1e-6)


# What the batches are judged by


@pytest.mark.parametrize(
    ("name", "shape"), [("mlp", (1, 8, 8)), ("linear", (5,)), ("cnn", (1, 12, 12)), ("cnn_bn", (1, 22, 22))]
)
@pytest.mark.parametrize("mixed", [False, True])
def test_judgements_equal_the_plain_loop(name: str, shape: tuple[int, ...], mixed: bool) -> None:
    model = build_model(name, shape, 3)
    rng = np.random.default_rng(1)
    samples = TensorSamples(
        torch.from_numpy(rng.normal(size=(150, *shape)).astype(np.float32)), torch.from_numpy(rng.integers(0, 3, 150))
    )
    weights = np.stack([model.initial(seed) for seed in range(4)])
    shares = rng.dirichlet(np.ones(4), 3) if mixed else None
    judged = judge_many(model, weights, samples.x, samples.y, shares=shares)
    assert (judged.losses.dtype, judged.right.dtype) == (np.float32, np.bool_)
    predictors = list(weights) if shares is None else [Mixture(own, weights) for own in shares]
    assert judged.losses.shape == judged.right.shape == (len(predictors), 150)
    for row, predictor in enumerate(predictors):
        for i in range(0, 150, 29):
            accuracy, loss = slow(model, predictor, samples, np.array([i]))
            assert judged.right[row, i] == (accuracy == 1)
            assert judged.losses[row, i] == pytest.approx(loss, rel=1e-4)


def test_mixtures_do_not_depend_on_the_blocks_of_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    weights, shares = (
        np.stack([MODEL.initial(seed) for seed in range(3)]),
        np.random.default_rng(0).dirichlet(np.ones(3), 2),
    )
    whole = judge_many(MODEL, weights, X, Y, shares=shares)
    monkeypatch.setattr(evaluate, "_MIXED_BYTES", 12 * 3 * 4 * 10)
    parts = judge_many(MODEL, weights, X, Y, shares=shares)
    np.testing.assert_allclose(whole.losses, parts.losses, rtol=1e-6)
    np.testing.assert_array_equal(whole.right, parts.right)


def test_data_lie_where_their_bits_do_not_depend_on_the_process() -> None:
    """Numpy's memory begins at a multiple of 16 bytes, and some processors' matrix products are by multiples of 64."""
    for own in build(RunConfig("fedavg", data="digits", clients=5, public=0.1)).effects.data.values():
        assert {x.data_ptr() % 64 for x in (own.x, own.test_set.x) if len(x)} == {0}


# -- mixtures ----------------------------------------------------------------------------------------------------------


THETA = 3 * np.stack([MODEL.initial(seed) for seed in range(3)])  # larger, so that they disagree


def everybody() -> dict[str, ClientModel]:
    """Two shares of the same components, a copy of one of them, one component alone, and a single model."""
    a, b = np.random.default_rng(4).dirichlet(np.ones(3)), np.array([0.0, 0.25, 0.75])
    mixtures = [Mixture(a, THETA), Mixture(b, THETA), Mixture(a.copy(), THETA.copy()), Mixture(np.ones(1), THETA[2:])]
    return dict(zip(OWN, [*mixtures, THETA[2]], strict=True))


def test_the_scores_of_mixtures_equal_the_plain_loop() -> None:
    mixed = everybody()
    scores = Evaluator(MODEL, DATA).scores(mixed)
    assert_plain(scores, mixed)
    assert len(set(scores.values["global_loss"])) == 3
    assert scores.values["global_loss"][0] == scores.values["global_loss"][2]
    # a mixture of one is that one, to the bit
    assert scores.values["global_loss"][3] == scores.values["global_loss"][4]


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
    linear = build_model("linear", (1,), 2)
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
    experiment = build(RunConfig("fedem", samples=300, clients=3, rounds=1, settings={"max_epochs": 1}))
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
