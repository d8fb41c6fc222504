"""The label prior as an observer scores it: with one model of all, with models of each client's own, and guarded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from coterie.runs import RunConfig, run
from coterie.runs.experiment import Experiment, build


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
    with_priors = experiment.observer.with_priors(models, 0)
    assert with_priors is not None
    return experiment.observer.scores(models).values["local_accuracy"], with_priors.values["local_accuracy"]


def test_the_prior_gains_where_one_model_serves_clients_with_few_labels_each(skewed: Experiment) -> None:
    plain, prior = scores(skewed)
    assert prior.mean() > plain.mean() + 0.02


def test_a_model_of_ones_own_has_ones_own_prior_already() -> None:
    assert (np.equal(*scores(played("local", "dirichlet:0.3")))).all()


def test_a_batch_of_other_labels_leaves_the_prior_out(skewed: Experiment) -> None:
    """Each client is tested on all of the test set, whose labels are not its own."""
    name, own = next(iter(skewed.observer.data.items()))
    models = {name: skewed.models(3)[name], **{f"{name} too": skewed.models(3)[name]}}
    others = skewed.observer.data[list(skewed.observer.data)[1]]
    everywhere = np.arange(len(own.test_set.y))
    skewed.observer.data = {**skewed.observer.data, name: replace(own, tests=everywhere), f"{name} too": others}
    found = skewed.observer.with_priors(models, 0)
    plain = skewed.observer.scores(models).values["local_accuracy"]
    assert found is not None
    assert found.values["local_accuracy"][0] == pytest.approx(plain[0], abs=1e-12)


def test_a_result_has_the_score_where_models_are_tuned_and_else_not() -> None:
    config = RunConfig("fedavg", clients=4, rounds=1, model="linear", settings={"lr": 0.1})
    assert "prior_local_accuracy" not in run(config).summary
    assert 0 < run(replace(config, fine_tune="held_out")).summary["prior_local_accuracy"] <= 1


def test_clients_json_has_of_each_client_the_scores_of_which_the_result_has_the_means(tmp_path: Path) -> None:
    config = RunConfig("fedavg", clients=4, rounds=1, model="linear", settings={"lr": 0.1}, fine_tune="held_out")
    out = tmp_path / "run"
    summary = run(replace(config, out=str(out))).summary
    of_all = msgspec.json.decode((out / "clients.json").read_bytes())
    for metric in ("local_accuracy", "prior_local_accuracy", "fine_tuned_local_accuracy"):
        assert np.mean(of_all[metric]) == pytest.approx(summary[metric], abs=1e-12)
