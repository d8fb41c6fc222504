"""Trainings of some parts of a model: the others stay, bit for bit, and every path agrees with torch's own freezing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from coterie.protocol.errors import UserError
from coterie.training.engine import fit_many
from coterie.training.jobs import Job, batch_order
from coterie.training.model import Model
from coterie.training.solvers import Proximal, Sgd

F, CLASSES = 12, 5
MODEL = Model(
    lambda: nn.Sequential(nn.Linear(F, 16), nn.ReLU(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, CLASSES)), (F,)
)
HEAD, BODY = MODEL.spec.head, MODEL.spec.without(MODEL.spec.head).names


SOLVER = Proximal(0.1, 10, 0.5, 0.01, mu=0.3)


def job(only: tuple[str, ...], seed: int = 0, solver: Sgd = SOLVER) -> Job:
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(33 - seed, F, generator=generator), torch.randint(0, CLASSES, (33 - seed,), generator=generator)
    return Job(MODEL.initial(seed), solver, 2 + seed, seed, x, y, only=only)


def frozen(one: Job) -> np.ndarray:
    """The same training in plain torch, with parameters that require no gradient."""
    module = MODEL.module_with(one.weights).double().train()
    start = {name: p.detach().clone() for name, p in module.named_parameters()}
    for name, p in module.named_parameters():
        p.requires_grad = name in one.only
    moving = [p for p in module.parameters() if p.requires_grad]
    descent = torch.optim.SGD(moving, one.solver.lr, one.solver.momentum, weight_decay=one.solver.weight_decay)
    for epoch in range(one.epochs):
        for rows in torch.split(torch.from_numpy(batch_order(one.seed, epoch, len(one.x))), one.solver.batch_size):
            descent.zero_grad()
            far = sum(((p - start[n]) ** 2).sum() for n, p in module.named_parameters() if p.requires_grad)
            (
                nn.functional.cross_entropy(module(one.x[rows].double()), one.y[rows]) + one.solver.mu / 2 * far
            ).backward()
            descent.step()
    return MODEL.flatten(module)


def test_the_head_is_the_output_layer() -> None:
    assert HEAD == ("4.weight", "4.bias")
    assert BODY == ("0.weight", "0.bias", "2.weight", "2.bias")
    square = Model(lambda: nn.Sequential(nn.Linear(F, CLASSES), nn.ReLU(), nn.Linear(CLASSES, CLASSES)), (F,))
    assert square.spec.head == ("2.weight", "2.bias")
    assert replace(square.spec, outputs=3).head == ()


@pytest.mark.parametrize("path", ["dense", "vmap", "loop"])
@pytest.mark.parametrize("only", [HEAD, BODY, ("2.bias",)], ids=str)
def test_only_these_parts_are_trained(path: str, only: tuple[str, ...]) -> None:
    jobs = [job(only, seed) for seed in range(3)]
    still = ~MODEL.spec.of(only)
    for one, found in zip(jobs, fit_many(MODEL, jobs, path=path), strict=True):
        np.testing.assert_array_equal(found.weights[still], one.weights[still])
        np.testing.assert_allclose(found.weights, frozen(one), atol=1e-5)
        assert np.abs(found.weights - one.weights)[~still].max() > 1e-4


def test_jobs_of_other_parts_are_trained_side_by_side() -> None:
    jobs = [job(only, seed) for seed, only in enumerate([HEAD, BODY, HEAD])]
    alone = [fit_many(MODEL, [one])[0].weights for one in jobs]
    for found, expected in zip(fit_many(MODEL, jobs), alone, strict=True):
        np.testing.assert_allclose(found.weights, expected, atol=1e-6)


@pytest.mark.parametrize("only", [("nothing",), (*HEAD, "nothing")])
def test_parts_that_there_are_not_are_refused(only: tuple[str, ...]) -> None:
    with pytest.raises(
        UserError, match=r"job 0: only=.* names no part to train, or an unknown one; there are 0\.weight"
    ):
        fit_many(MODEL, [job(only)])


def test_a_private_training_of_some_parts_is_refused() -> None:
    with pytest.raises(UserError, match="a training of some parts has no sample_noise"):
        fit_many(MODEL, [replace(job(HEAD, solver=Sgd(0.1, 10, sample_noise=1.0)), secret=bytes(32))])
