"""One model a cluster: the choice by loss, and where models start, for whatever system stands on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from federation import Pulled, rig
from torch import nn

import coterie.method as fl
from coterie.baselines import ifca
from coterie.runs import Experiment, RunConfig, build
from coterie.systems import mingledpie

# -- the choice --------------------------------------------------------------------------------------------------------


def chosen(losses: Sequence[float]) -> int:
    """What ``best_model`` makes of these losses."""
    models = [np.full(2, i, np.float32) for i in range(len(losses))]
    work, asked = fl.best_model(iter(models)), []
    try:
        effect = next(work)
        while True:
            assert isinstance(effect, fl.Evaluate)
            assert effect.split == "train"
            asked.append(int(effect.weights[0]))
            effect = work.send(fl.Evaluated(losses[asked[-1]], 0.0, 1))
    except StopIteration as stop:
        assert asked == list(range(len(losses)))
        found: int = stop.value
        return found


@pytest.mark.parametrize(
    ("losses", "best"),
    [
        ([3.0, 1.0, 2.0], 1),
        ([1.0], 0),
        ([2.0, 1.0, 1.0], 1),  # ties: the first
        ([0.0, -1.0], 1),
        ([float("nan"), 5.0, 4.0], 2),  # a model that has blown up is nobody's best
        ([5.0, float("nan")], 0),
        ([float("inf"), 7.0], 1),
        ([float("nan"), float("nan")], 0),
    ],
)
def test_the_model_with_the_lowest_loss_is_chosen(losses: list[float], best: int) -> None:
    assert chosen(losses) == best


def test_a_client_never_trains_a_model_that_has_blown_up() -> None:
    """Its loss is no number, and the lowest by careless comparison."""
    run = rig(ifca.SYSTEM, np.zeros((3, 6)), clusters=2, effects=Blown)
    run.hub.state = ifca.Server.State(np.stack([np.full(6, 9e9), np.ones(6)]).astype(np.float32))
    assert run.round(1)["membership"] == [[1]] * 3


class Blown(Pulled):
    """The loss of large weights is NaN."""

    def evaluate(self, party: str, effect: fl.Evaluate) -> fl.Evaluated:
        return fl.Evaluated(float("nan"), 0.0, 1) if effect.weights.max() > 1e6 else super().evaluate(party, effect)


# -- where they start --------------------------------------------------------------------------------------------------


def digits(system: str = "mingledpie", **options: Any) -> Experiment:
    settings = {"clusters": 3, "start": "pretrained", "lr": 0.1, "batch_size": 10, **options.pop("settings", {})}
    given = {"clients": 6, "rounds": 1, "partition": "labelsets:3", "seed": 2, "crypto": "emulated", **options}
    return build(RunConfig(system, "digits", samples=600, settings=settings, **given))


def starts(experiment: Experiment) -> np.ndarray:
    """(k, d): what the federation's models start from, as its clients are sent them by MingledPie's server."""
    if experiment.system.name != "mingledpie":
        return np.array(experiment.federation.parties[experiment.federation.hub].state.weights)
    client = experiment.federation.parties["client/0"]
    if client.state.models is None:
        experiment.set_up()
    return np.array(client.state.models)


def test_both_systems_get_the_same_start_models_and_get_them_again() -> None:
    for start in ("pretrained", "random"):
        one, again, other = (digits(name, settings={"start": start}) for name in ("mingledpie", "mingledpie", "ifca"))
        assert starts(one).tobytes() == starts(again).tobytes() == starts(other).tobytes()
        assert starts(one).shape == (3, one.common.spec.size)
        assert starts(one).dtype == np.float32
        assert starts(digits(seed=3, settings={"start": start})).tobytes() != starts(one).tobytes()


def test_random_starts_are_initial_models_of_the_seed() -> None:
    experiment = digits(settings={"start": "random"})
    seeds = [int(fl.rng(2, "hub", "initial weights", 0, i).integers(1 << 62)) for i in range(3)]
    assert starts(experiment).tobytes() == np.stack([experiment.model.initial(seed) for seed in seeds]).tobytes()
    assert len({row.tobytes() for row in starts(experiment)}) == 3


@pytest.mark.parametrize("batch", [0, 10])
def test_pretraining_is_plain_training_on_all_data_of_one_group(batch: int) -> None:
    """By a torch loop; with a batch of 0 an epoch is one gradient step."""
    experiment = digits(settings={"pretrain_epochs": 3, "pretrain_batch": batch})
    random = starts(digits(settings={"start": "random"}))
    for group in range(3):
        own = [
            experiment.effects.data[name]
            for name, of in zip(experiment.common.clients, experiment.split.groups, strict=True)
            if of == group
        ]
        x, y = torch.cat([one.x for one in own]), torch.cat([one.y for one in own])
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        begin = random[group]
        nn.utils.vector_to_parameters(torch.from_numpy(begin.copy()), model.parameters())
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        seed = int(fl.rng(2, "hub", "pre-training", 0, group).integers(1 << 62))
        for epoch in range(3):
            order = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, epoch]))).permutation(len(x))
            for at in range(0, len(order), batch or len(order)):
                part = torch.from_numpy(order[at : at + (batch or len(order))])
                optimiser.zero_grad()
                nn.functional.cross_entropy(model(x[part]), y[part]).backward()
                optimiser.step()
        expected = nn.utils.parameters_to_vector(model.parameters()).detach().numpy()
        assert np.abs(starts(experiment)[group] - expected).max() < 2e-5
        assert np.abs(expected - begin).max() > 1e-3


def test_pretrained_models_tell_groups_apart_from_the_start() -> None:
    experiment = digits(settings={"pretrain_epochs": 5})
    experiment.set_up()
    experiment.round(1)
    seen = mingledpie.SYSTEM.observe(experiment.federation)["membership"]
    assert [own[0] for own in seen] == experiment.split.groups.tolist()


@pytest.mark.parametrize(
    ("partition", "clusters"), [("iid", 3), ("dirichlet:0.3", 3), ("labelsets:3", 4), ("labelsets:4", 3)]
)
@pytest.mark.parametrize("system", ["mingledpie", "ifca"])
def test_pretraining_wants_as_many_known_groups_as_clusters(partition: str, clusters: int, system: str) -> None:
    with pytest.raises(fl.UserError, match=f"start=pretrained wants the data of {clusters} known groups.*labelsets:"):
        digits(
            system,
            partition=partition,
            settings={"clusters": clusters},
        )


@pytest.mark.parametrize(
    "wrong", [{"clusters": 0}, {"start": "warm"}, {"pretrain_epochs": 0}, {"pretrain_batch": -1}, {"lr": 0.0}]
)
def test_impossible_settings(wrong: dict) -> None:
    with pytest.raises(fl.UserError, match=next(iter(wrong))):
        fl.ClusterModels(**wrong)
