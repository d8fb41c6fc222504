"""FedAdam, FedYogi, FedAvgM, FedNova and FedDyn against slow twins that are read like the papers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from federation import Pulled, misbehaving, planted, rig

from coterie.baselines import fedadam, fedavg, fedavgm, feddyn, fednova
from coterie.protocols.averaging import Train
from coterie.training.solvers import pushed

TARGETS = planted([0, 0, 1, 1, 2], 40)


def changes(w: list[np.ndarray]) -> Iterator[np.ndarray]:
    """The mean change of each round, from the last of the models in ``w``: a step of a half towards every target."""
    while True:
        yield 0.5 * (TARGETS.mean(axis=0) - w[-1])


def adam_like(start: np.ndarray, rounds: int, yogi: bool) -> list[np.ndarray]:
    w, m, v = [start], np.zeros(40), np.zeros(40)
    for _, change in zip(range(rounds), changes(w), strict=False):
        for j in range(40):
            square = change[j] ** 2
            m[j] = 0.9 * m[j] + 0.1 * change[j]
            v[j] = v[j] - 0.01 * square * np.sign(v[j] - square) if yogi else 0.99 * v[j] + 0.01 * square
        w.append(w[-1] + 0.1 * m / (np.sqrt(v) + 1e-3))
    return w[1:]


def with_momentum(start: np.ndarray, rounds: int) -> list[np.ndarray]:
    w, v = [start], np.zeros(40)
    for _, change in zip(range(rounds), changes(w), strict=False):
        v = 0.9 * v + change
        w.append(w[-1] + v)
    return w[1:]


@pytest.mark.parametrize(
    ("system", "twin"),
    [
        (fedadam.SYSTEMS["fedadam"], lambda start, rounds: adam_like(start, rounds, yogi=False)),
        (fedadam.SYSTEMS["fedyogi"], lambda start, rounds: adam_like(start, rounds, yogi=True)),
        (fedavgm.SYSTEM, with_momentum),
    ],
    ids=["fedadam", "fedyogi", "fedavgm"],
)
def test_the_server_rule_is_the_papers(system: Any, twin: Any) -> None:
    made = rig(system, TARGETS)
    expected = twin(made.models()[0].astype(np.float64), 5)
    for r, weights in enumerate(expected, 1):
        made.round(r)
        assert np.abs(made.models() - weights).max() < 1e-5


class Uneven(Pulled):
    """Each client takes another number of steps."""

    def fit(self, party: str, effect: object) -> object:
        self.steps = 1 + int(party.removeprefix("client/"))
        return super().fit(party, effect)


def test_fednova_weighs_no_client_by_its_number_of_steps() -> None:
    """Eq. 8 and 11 by hand; small steps go towards the mean of all optima, and those of FedAvg do not.."""
    made = rig(fednova.SYSTEM, TARGETS, effects=Uneven, lr=0.1)
    w = made.models()[0].astype(np.float64)
    made.round(1)
    moved = [(1 - 0.9**steps) * (target - w) for steps, target in enumerate(TARGETS, 1)]
    tau = np.mean([1, 2, 3, 4, 5])
    expected = w + tau * np.mean([change / steps for steps, change in enumerate(moved, 1)], axis=0)
    assert np.abs(made.models() - expected).max() < 1e-5
    ends = {}
    for system in (fednova.SYSTEM, fedavg.SYSTEM):
        other = rig(system, TARGETS, effects=Uneven, lr=1e-3)
        other.rounds(3)
        ends[system.name] = other.models()[0] - other.common.initial
    towards = TARGETS.mean(axis=0) - other.common.initial
    angles = {name: towards @ end / np.linalg.norm(end) / np.linalg.norm(towards) for name, end in ends.items()}
    assert angles["fednova"] > 0.9999 > angles["fedavg"]


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_fednovas_work_is_the_sum_of_the_weights_of_all_gradients(rho: float) -> None:
    """With momentum the gradient of step k counts in this step and in all that follow."""
    for steps in (1, 2, 7):
        by_hand = sum(sum(rho**later for later in range(steps - k)) for k in range(steps))
        assert pushed(steps, rho) == pytest.approx(by_hand)


@pytest.mark.parametrize("work", [0.0, -1.0, 5.1, 2.0**40, float("nan")])
def test_fednova_takes_no_impossible_work(work: float) -> None:
    """More would lengthen everybody's changes, and nobody's weights would stand out. Here an epoch is one step."""
    made = rig(fednova.SYSTEM, TARGETS)
    misbehaving(
        made.party("client/1"), Train, lambda party, request, answer: msgspec.structs.replace(answer, work=work)
    )
    assert made.round(1)["participants"] == 4


class Curved(Pulled):
    """Clients whose losses are curved differently, so that FedAvg ends elsewhere than at the optimum of their sum."""

    def gradient(self, party: str, weights: torch.Tensor) -> torch.Tensor:
        return (1 + int(party.removeprefix("client/"))) * super().gradient(party, weights)


def test_feddyn_ends_at_the_optimum_of_the_sum() -> None:
    optimum = np.average(TARGETS, axis=0, weights=[1, 2, 3, 4, 5])
    ends = {}
    for system, settings in ((feddyn.SYSTEM, {"alpha": 1.0}), (fedavg.SYSTEM, {})):
        made = rig(system, TARGETS, effects=lambda targets: Curved(targets, steps=60), lr=0.1, **settings)
        made.rounds(60)
        ends[system.name] = float(np.abs(made.models()[0] - optimum).max())
    assert ends["feddyn"] < 1e-3 < 0.05 < ends["fedavg"]
