"""FedAvg and FedProx: against a plain twin, on quadratics with known fixed points, and what the server refuses."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch
from federation import Pulled, Steady, misbehaving, on_the_wire, rig
from torch import nn

from coterie.baselines import fedavg, fedprox
from coterie.protocol.randomness import rng
from coterie.protocols.averaging import Train, Update
from coterie.runs import Experiment, RunConfig, build

TARGETS = np.random.default_rng(0).normal(size=(4, 20))
change = msgspec.structs.replace


def digits(system: str, rounds: int = 3, **settings: object) -> Experiment:
    settings = {"lr": 0.05, "batch_size": 10, **settings}
    experiment = build(
        RunConfig(
            system,
            "digits",
            clients=5,
            rounds=rounds,
            samples=600,
            partition="dirichlet:0.3",
            seed=1,
            settings=settings,
        )
    )
    experiment.set_up()
    return experiment


# -- FedAvg ------------------------------------------------------------------------------------------------------------


def test_fedavg_on_digits_equals_a_plain_twin() -> None:
    """Eq. (1) and (2), in fifteen lines of torch; within 1e-6, since sums are rounded in another order."""
    experiment = digits("fedavg", max_epochs=2)
    w = experiment.common.initial
    for r in (1, 2):
        total, samples = np.zeros(len(w)), 0
        for name in experiment.common.clients:
            own = experiment.effects.data[name]
            model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
            nn.utils.vector_to_parameters(torch.from_numpy(w.copy()), model.parameters())
            sgd = torch.optim.SGD(model.parameters(), lr=0.05)
            seed = int(rng(1, name, "batches", r).integers(1 << 62))
            for epoch in range(experiment.owns[name].epochs):
                source = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, epoch])))
                for batch in torch.from_numpy(source.permutation(len(own.x))).split(10):
                    sgd.zero_grad()
                    nn.functional.cross_entropy(model(own.x[batch]), own.y[batch]).backward()
                    sgd.step()
            trained = nn.utils.parameters_to_vector(model.parameters()).detach().numpy()
            total, samples = total + len(own.x) * trained.astype(np.float64), samples + len(own.x)
        w = (total / samples).astype(np.float32)
        experiment.round(r)
        models = list(experiment.models().values())
        assert all(model is models[0] for model in models)  # one global model
        assert np.abs(models[0] - w).max() <= 1e-6
    assert np.abs(w - experiment.common.initial).max() > 0.02


def test_the_mean_is_weighted_by_samples() -> None:
    run = rig(fedavg.SYSTEM, TARGETS, lr=1.0)  # one step with rate 1 lands on the target
    weights = [1, 2, 3, 4]
    for i, samples in enumerate(weights):
        misbehaving(run.party(f"client/{i}"), Train, lambda p, request, update, s=samples: change(update, samples=s))
    run.round(1)
    expected = np.average(TARGETS.astype(np.float32), axis=0, weights=weights)
    assert np.abs(run.models()[0] - expected).max() < 1e-6


# -- FedProx -----------------------------------------------------------------------------------------------------------


def test_fedprox_without_its_term_is_fedavg_bit_for_bit() -> None:
    one, other = digits("fedavg"), digits("fedprox", mu=0.0)
    for r in (1, 2, 3):
        one.round(r)
        other.round(r)
        assert one.models()["client/0"].tobytes() == other.models()["client/0"].tobytes()
    third = digits("fedprox", mu=0.5)
    third.round(1)
    assert third.models()["client/0"].tobytes() != one.models()["client/0"].tobytes()


@pytest.mark.parametrize("mu", [0.0, 1.0, 10.0])
def test_fedprox_reaches_the_minimum_of_the_proximal_objective(mu: float) -> None:
    """argmin |w - b|^2 / 2 + mu/2 |w - w_g|^2 = (b + mu w_g) / (1 + mu); the mean over clients follows."""
    run = rig(fedprox.SYSTEM, TARGETS, effects=lambda t: Pulled(t, steps=400), lr=0.05, mu=mu)
    w = run.common.initial.astype(np.float64)
    for r in (1, 2):
        run.round(r)
        w = (TARGETS.mean(axis=0) + mu * w) / (1 + mu)
        assert np.abs(run.models()[0] - w).max() < 1e-4


def test_a_large_mu_keeps_digits_models_near_the_anchor() -> None:
    moved = []
    for mu in (0.0, 1.0, 10.0):
        experiment = digits("fedprox", rounds=1, mu=mu)
        experiment.round(1)
        moved.append(float(np.linalg.norm(experiment.models()["client/0"] - experiment.common.initial)))
    assert moved[0] > 1.2 * moved[1] > 2 * moved[2]


# -- who is there, and what is refused ---------------------------------------------------------------------------------

SYSTEMS = [fedavg.SYSTEM, fedprox.SYSTEM]


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name)
def test_who_is_away_does_not_count(system: object) -> None:
    links = Steady(away={("client/0", 1): "offline", ("client/1", 1): "dropped", ("client/2", 2): "offline"})
    run = rig(system, TARGETS, lr=1.0, links=links, **({"mu": 0.0} if system is fedprox.SYSTEM else {}))
    assert run.round(1) == {"participants": 2, "asked": 4}
    assert np.abs(run.models()[0] - TARGETS[2:].mean(axis=0)).max() < 1e-6
    assert run.round(2)["participants"] == 3


def test_a_sample_of_the_clients_is_asked_and_averaged() -> None:
    run = rig(fedavg.SYSTEM, TARGETS, lr=1.0, participation=0.5)
    for r in range(1, 6):
        assert run.round(r) == {"participants": 2, "asked": 2}
        here = [int(seen.src[-1]) for seen, _ in run.view("server").messages(Update, r)]
        assert np.abs(run.models()[0] - TARGETS[here].mean(axis=0)).max() < 1e-6


def test_a_late_update_is_not_averaged_into_a_later_round() -> None:
    run = rig(fedavg.SYSTEM, TARGETS, lr=1.0, links=Steady(slow={"client/3": 8.0}), deadline_s=5.0)
    for r in (1, 2, 3):
        assert run.round(r)["participants"] == 3
        assert run.transport.meter.late == ["client/3"]
        assert np.abs(run.models()[0] - TARGETS[:3].mean(axis=0)).max() < 1e-6


def test_a_client_refuses_a_model_of_another_shape() -> None:
    run = rig(fedavg.SYSTEM, TARGETS)
    on_the_wire(run.transport, Train, lambda m: change(m, spec=bytes(16)), dst="client/0")
    assert run.round(1)["participants"] == 3
    assert run.refusals("client", "Train") == 1
