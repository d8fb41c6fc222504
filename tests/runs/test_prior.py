"""The label prior as an observer scores it: with one model of all, with models of each client's own, and guarded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from coterie.runs import RunConfig, run
from coterie.runs.experiment import Experiment, build
from coterie.runs.forms import scored_forms
from coterie.runs.on_data import TensorSamples
from coterie.training.evaluate import outputs_of_many
from coterie.training.mixing import mixing_shares


def played(system: str, partition: str) -> Experiment:
    options = {"clients": 8, "rounds": 3, "model": "linear", "settings": {"lr": 0.1}, "fine_tune": "held_out"}
    experiment = build(RunConfig(system, partition=partition, **options))
    experiment.set_up()
    for r in (1, 2, 3):
        experiment.round(r)
    return experiment


@pytest.fixture(scope="module")
def skewed() -> Experiment:
    return played("fedavg", "dirichlet:0.1")


def scores(experiment: Experiment) -> tuple[np.ndarray, np.ndarray]:
    models = experiment.models(3)
    with_priors = scored_forms(experiment.observer, models, 0)["prior_"]
    return experiment.observer.scores(models).values["local_accuracy"], with_priors.values["local_accuracy"]


def test_the_prior_gains_where_one_model_serves_clients_with_few_labels_each(skewed: Experiment) -> None:
    plain, prior = scores(skewed)
    assert prior.mean() > plain.mean() + 0.02


def test_a_model_of_ones_own_has_ones_own_prior_already() -> None:
    assert (np.equal(*scores(played("local", "dirichlet:0.3")))).all()


def test_a_batch_of_other_labels_leaves_the_prior_out(skewed: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each client is tested on all of the test set, whose labels are not its own."""
    name, own = next(iter(skewed.observer.data.items()))
    models = {name: skewed.models(3)[name], **{f"{name} too": skewed.models(3)[name]}}
    others = skewed.observer.data[list(skewed.observer.data)[1]]
    everywhere = np.arange(len(own.test_set.y))
    data = {**skewed.observer.data, name: replace(own, tests=everywhere), f"{name} too": others}
    monkeypatch.setattr(skewed.observer, "data", data)
    tuned = {name: -np.asarray(model) for name, model in models.items()}  # useless, and so is a mixture with it
    plain = skewed.observer.scores(models).values["local_accuracy"]
    forms = scored_forms(skewed.observer, models, 0, tuned=tuned)
    for form in ("prior_", "mixed_"):
        assert forms[form].values["local_accuracy"][0] == pytest.approx(plain[0], abs=1e-12)
    assert forms["prior_"].values["local_dropped"][0] == 1


def test_a_mixture_is_the_default_but_where_held_out_samples_say_that_it_gains(skewed: Experiment) -> None:
    """Against a plain twin: a client's models on its own samples, one after the other."""
    models = {name: np.asarray(model) for name, model in skewed.models(3).items()}
    tuned = {name: found.weights for name, found in skewed.observer.fine_tuned(3)[1].items()}
    forms = scored_forms(skewed.observer, models, 0, tuned=tuned)
    useless = scored_forms(skewed.observer, models, 0, tuned={name: -model for name, model in models.items()})
    assert np.array_equal(useless["mixed_"].values["local_accuracy"], forms["prior_"].values["local_accuracy"])
    every = np.sum([np.bincount(skewed.data[name].y, minlength=10) for name in models], axis=0) + 0.5
    mixed_some = 0
    for i, (name, model) in enumerate(models.items()):
        own = skewed.data[name]
        counts = np.bincount(own.y, minlength=10) + 0.5
        shift = np.log(counts / counts.sum()) - np.log(every / every.sum())

        def p(samples: TensorSamples, shift: np.ndarray = shift, of: tuple[np.ndarray, ...] = (model, tuned[name])):
            logits = [np.asarray(outputs_of_many(skewed.model, w[None], samples.x, samples.y)[0], float) for w in of]
            logits[0] = logits[0] + shift
            return [np.exp(one) / np.exp(one).sum(axis=1, keepdims=True) for one in logits]

        held, batch = p(own.held_out), p(own.test_set.at(own.test))
        likelihoods = np.stack([one[np.arange(len(own.held_out.y)), own.held_out.y] for one in held])
        shares = mixing_shares(np.log(likelihoods))
        mixed_some += bool(shares[1])
        right = (shares[0] * batch[0] + shares[1] * batch[1]).argmax(axis=1) == own.test_set.at(own.test).y.numpy()
        assert forms["mixed_"].values["local_accuracy"][i] == pytest.approx(right.mean(), abs=1e-12)
    assert mixed_some


def test_a_result_has_the_score_where_models_are_tuned_and_else_not() -> None:
    config = RunConfig("fedavg", samples=300, clients=4, rounds=1, model="linear", settings={"lr": 0.1})
    assert not {"prior_local_accuracy", "mixed_local_accuracy"} & {*run(config).summary}
    tuned = run(replace(config, fine_tune="held_out")).summary
    assert 0 < tuned["prior_local_accuracy"] <= 1
    assert 0 < tuned["mixed_local_accuracy"] <= 1
    assert "mixed_local_accuracy" not in run(replace(config, fine_tune="own_epochs")).summary


def test_clients_json_has_of_each_client_the_scores_of_which_the_result_has_the_means(tmp_path: Path) -> None:
    config = RunConfig(
        "fedavg", samples=300, clients=4, rounds=1, model="linear", settings={"lr": 0.1}, fine_tune="held_out"
    )
    out = tmp_path / "run"
    summary = run(replace(config, out=str(out))).summary
    of_all = msgspec.json.decode((out / "clients.json").read_bytes())
    for metric in ("local_accuracy", "prior_local_accuracy", "mixed_local_accuracy", "fine_tuned_local_accuracy"):
        assert np.mean(of_all[metric]) == pytest.approx(summary[metric], abs=1e-12)
