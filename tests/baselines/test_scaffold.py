"""SCAFFOLD on quadratics whose optimum is known, where FedAvg drifts to another point (Karimireddy et al., 2020)."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch
from federation import Pulled, Steady, on_the_wire, rig

from coterie.baselines import fedavg, scaffold
from coterie.baselines.scaffold import Train
from coterie.runs import RunConfig, build

change = msgspec.structs.replace


class Quadratics(Pulled):
    """f_i(w) = a_i |w|^2 / 2 + b_i . w, gradient a_i w + b_i, by hand. targets: rows (a_i, b_i ...)."""

    def gradient(self, party: str, weights: torch.Tensor) -> torch.Tensor:
        a, *b = self.targets[party]
        return float(a) * weights + torch.tensor(b, dtype=torch.float32)


def quadratics(a: list[float], b: np.ndarray, system: object, steps: int, **settings: object):
    """A federation of clients with these functions; b: (clients, d)."""
    rows = np.column_stack([a, b])
    run = rig(
        system,
        np.zeros_like(b),
        effects=lambda targets: Quadratics(dict(zip(targets, rows, strict=True)), steps=steps),
        **settings,
    )
    return run


def optimum(a: list[float], b: np.ndarray) -> np.ndarray:
    """Where the gradient of the mean of the f_i is zero."""
    return -b.sum(axis=0) / np.sum(a)


def drifted(a: list[float], b: np.ndarray, lr: float, steps: int) -> np.ndarray:
    """The fixed point of FedAvg in closed form: K local steps take w to p_i w - q_i b_i with p_i = (1 - lr a_i)^K and
    q_i = (1 - p_i) / a_i (K lr for a_i = 0); the mean of these is w again.
    """
    p = [(1 - lr * x) ** steps for x in a]
    q = [(1 - y) / x if x else steps * lr for x, y in zip(a, p, strict=True)]
    return -(np.array(q)[:, None] * b).sum(axis=0) / np.sum(1 - np.array(p))


# The example of their figure 2: f_1 = w^2 + G w, f_2 = -G w. The mean is w^2 / 2, whatever G; the optimum is 0.
G = np.tile([10.0, 1.0, -3.0, 0.5], 2)
EXAMPLE = [2.0, 0.0], np.stack([G, -G])
UNEVEN = [1.0, 4.0, 0.5], np.random.default_rng(0).normal(size=(3, 8))


@pytest.mark.parametrize(
    ("a", "b"),
    [EXAMPLE, pytest.param(*UNEVEN, marks=pytest.mark.long)],
    ids=["the paper's example", "three quadratics"],
)
@pytest.mark.parametrize("steps", [2, pytest.param(10, marks=pytest.mark.long)])
def test_scaffold_reaches_the_optimum_where_fedavg_drifts(a: list[float], b: np.ndarray, steps: int) -> None:
    lr = 0.1
    avg = quadratics(a, b, fedavg.SYSTEM, steps, lr=lr)
    best, wrong = optimum(a, b), drifted(a, b, lr, steps)
    assert np.abs(best - wrong).max() > 0.02  # the two can be told apart
    for r in range(1, 151):
        avg.round(r)
    assert np.abs(avg.models()[0] - wrong).max() < 2e-3

    run = quadratics(a, b, scaffold.SYSTEM, steps, lr=lr)
    for r in range(1, 151):
        run.round(r)
    assert np.abs(run.models()[0] - best).max() < 1e-3
    for i, name in enumerate(run.common.clients):  # option II: the variates become the gradients at the optimum
        assert np.abs(run.party(name).state.control - (a[i] * best + b[i])).max() < 1e-2
    assert np.abs(run.hub.state.control).max() < 1e-2


def test_one_round_equals_algorithm_1_by_hand() -> None:
    """Lines 7 to 17 with numpy, two rounds, a server step of 0.7 and one client away in the second."""
    a, b = UNEVEN
    lr, K, eta_g, n = 0.1, 3, 0.7, 3
    links = Steady(away={("client/1", 2): "offline"})
    run = quadratics(a, b, scaffold.SYSTEM, K, lr=lr, server_lr=eta_g, links=links)
    x, c = run.common.initial.astype(np.float64), np.zeros(8)
    variates = np.zeros((n, 8))
    for r, here in ((1, [0, 1, 2]), (2, [0, 2])):
        moved, turned = [], []
        for i in here:
            y = x.copy()
            for _ in range(K):
                y = y - lr * (a[i] * y + b[i] - variates[i] + c)
            new = variates[i] - c + (x - y) / (K * lr)
            moved.append(y - x)
            turned.append(new - variates[i])
            variates[i] = new
        x = x + eta_g * np.mean(moved, axis=0)
        c = c + len(here) / n * np.mean(turned, axis=0)
        assert run.round(r) == {"participants": len(here), "asked": 3}
        assert np.abs(run.models()[0] - x).max() < 1e-5
        assert np.abs(run.hub.state.control - c).max() < 1e-5
        for i in range(n):
            assert np.abs(run.party(f"client/{i}").state.control - variates[i]).max() < 1e-5


def test_with_zero_variates_the_first_round_is_fedavg_without_weights() -> None:
    a, b = UNEVEN
    one, other = (quadratics(a, b, system, 4, lr=0.1) for system in (scaffold.SYSTEM, fedavg.SYSTEM))
    one.round(1)
    other.round(1)
    assert np.abs(one.models() - other.models()).max() < 1e-6


@pytest.mark.parametrize("participation", [0.5])
def test_partial_participation_still_reaches_the_optimum(participation: float) -> None:
    a, b = [1.0, 4.0, 0.5, 2.0], np.random.default_rng(1).normal(size=(4, 8))
    run = quadratics(a, b, scaffold.SYSTEM, 5, lr=0.05, participation=participation)
    for r in range(1, 301):
        assert run.round(r)["participants"] == 2
    assert np.abs(run.models()[0] - optimum(a, b)).max() < 0.02


def test_a_short_variate_of_the_server_is_refused_by_a_client() -> None:
    a, b = UNEVEN
    run = quadratics(a, b, scaffold.SYSTEM, 2)
    on_the_wire(run.transport, Train, lambda m: change(m, control=m.control[:-1]), dst="client/2")
    assert run.round(1)["participants"] == 2
    assert run.refusals("client", "Train") == 1


def test_scaffold_learns_digits() -> None:
    settings = {"lr": 0.05, "batch_size": 10}
    experiment = build(
        RunConfig("scaffold", clients=5, rounds=4, samples=600, partition="dirichlet:0.3", settings=settings)
    )
    experiment.set_up()
    accuracy = [experiment.round(r)["global_accuracy"] for r in range(1, 5)]
    assert accuracy[-1] > 0.7
