"""Losses of one's own: they train as the solver that says the same, one network at a time, and say what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout

from coterie.protocol.errors import UserError
from coterie.protocols.local_training import LocalTraining
from coterie.training import dense, slots
from coterie.training.engine import choose_path, fit_many
from coterie.training.jobs import DivergedError, Job, batch_order
from coterie.training.model import Model
from coterie.training.models import build
from coterie.training.solvers import Objective, Proximal, Sgd

F, CLASSES = 6, 3
MODEL = Model(lambda: nn.Sequential(nn.Linear(F, 8), nn.Tanh(), nn.Linear(8, CLASSES)), (F,))


class Mu(NamedTuple):
    mu: float


def job(solver: Any, seed: int = 0, samples: int = 21, model: Model = MODEL, **others: Any) -> Job:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, *model.input_shape, generator=generator)
    y = torch.randint(0, CLASSES, (samples,), generator=generator)
    return Job(model.initial(0), solver, 2, seed, x, y, **others)


def proximal(network: nn.Module, start: Any, x: Tensor, y: Tensor, settings: Mu) -> Tensor:
    far = sum(((value - start[name]) ** 2).sum() for name, value in network.named_parameters())
    return cross_entropy(network(x), y) + settings.mu / 2 * far


def each_sample(network: nn.Module, start: Any, x: Tensor, y: Tensor, settings: Any) -> Tensor:
    return cross_entropy(network(x), y, reduction="none")


def noisy(network: nn.Module, start: Any, x: Tensor, y: Tensor, settings: Any) -> Tensor:
    return cross_entropy(network(dropout(x, 0.5)), y)


def test_a_proximal_term_of_ones_own_trains_as_fedproxs_solver() -> None:
    for momentum in (0.0, 0.5):
        known = fit_many(MODEL, [job(Proximal(0.1, 8, momentum, 0.01, mu=0.7), seed) for seed in range(3)], path="loop")
        own = Objective(0.1, 8, momentum, 0.01, loss=proximal, settings=Mu(0.7))
        found = fit_many(MODEL, [job(own, seed) for seed in range(3)])
        for a, b in zip(known, found, strict=True):
            np.testing.assert_allclose(a.weights, b.weights, atol=1e-6)
            assert (a.samples, a.steps, a.state) == (b.samples, b.steps, b.state)
    plain = fit_many(MODEL, [job(Sgd(0.1, 8), seed) for seed in range(3)], path="loop")
    assert not np.allclose(plain[0].weights, found[0].weights, atol=1e-3)


def test_it_is_the_plain_loop_over_batches() -> None:
    """A slow twin: every step by hand, from the gradient of the function alone."""
    one = job(Objective(0.1, 8, loss=proximal, settings=Mu(2.0)))
    network = MODEL.module_with(one.weights).train()
    start = {name: value.detach().clone() for name, value in network.named_parameters()}
    total = 0.0
    for epoch in range(one.epochs):
        for rows in torch.split(torch.from_numpy(batch_order(one.seed, epoch, one.samples)), 8):
            loss = proximal(network, start, one.x[rows], one.y[rows], Mu(2.0))
            network.zero_grad()
            loss.backward()
            total += loss.item() * len(rows)
            with torch.no_grad():
                for value in network.parameters():
                    value -= 0.1 * value.grad
    (found,) = fit_many(MODEL, [one])
    np.testing.assert_allclose(found.weights, MODEL.flatten(network), atol=1e-6)
    assert found.loss == pytest.approx(total / (one.samples * one.epochs), rel=1e-5)


def test_no_batched_path_takes_it_and_others_keep_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Objective(0.1, 8, loss=proximal, settings=Mu(0.5))
    assert choose_path(MODEL) == "dense"
    assert choose_path(MODEL, solver=Sgd(0.1)) == "dense"
    assert choose_path(MODEL, solver=own) == "loop"
    assert choose_path(MODEL, "cuda", solver=own) == "loop"
    for path in ("dense", "vmap"):
        with pytest.raises(UserError, match=f"one network at a time, and takes no {path} path"):
            fit_many(MODEL, [job(own)], path=path)
    alone = fit_many(MODEL, [job(Sgd(0.1, 8), 1)]), fit_many(MODEL, [job(own, 2)])
    together = fit_many(MODEL, [job(own, 2), job(Sgd(0.1, 8), 1)])
    np.testing.assert_array_equal(together[1].weights, alone[0][0].weights)
    np.testing.assert_array_equal(together[0].weights, alone[1][0].weights)
    monkeypatch.setattr(dense, "DenseKernel", lambda *_, **__: pytest.fail("a batched kernel"))
    monkeypatch.setattr(slots, "run", lambda *_, **__: pytest.fail("a batched path"))
    fit_many(MODEL, [job(own, seed) for seed in range(3)])


def test_a_loss_of_each_sample_is_weighted_as_cross_entropy_is() -> None:
    weights = np.linspace(0, 2, 21, dtype=np.float32)
    (known,) = fit_many(MODEL, [job(Sgd(0.1, 8), sample_weights=weights)], path="loop")
    (found,) = fit_many(MODEL, [job(Objective(0.1, 8, loss=each_sample), sample_weights=weights)])
    np.testing.assert_allclose(found.weights, known.weights, atol=1e-6)
    assert found.loss == pytest.approx(known.loss, rel=1e-6)
    with pytest.raises(UserError, match="one number for a batch: leave the weights out"):
        fit_many(MODEL, [job(Objective(0.1, 8, loss=proximal, settings=Mu(1)), sample_weights=weights)])


def test_what_it_draws_follows_from_its_own_seed_whoever_trains_beside_it() -> None:
    own = Objective(0.1, 8, loss=noisy)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    (alone,) = fit_many(MODEL, [job(own, 1)])
    several = fit_many(MODEL, [job(own, seed) for seed in (3, 2, 1, 0)])
    assert torch.equal(before, torch.get_rng_state())
    np.testing.assert_array_equal(several[2].weights, alone.weights)
    (other,) = fit_many(MODEL, [replace(job(own, 1), seed=2)])
    assert not np.array_equal(other.weights, alone.weights)


def test_images_and_running_statistics_are_trained_too() -> None:
    model = build("cnn_bn", (3, 22, 22), CLASSES)
    known, found = (
        fit_many(model, [job(solver, samples=10, model=model)], path="loop")[0]
        for solver in (Sgd(0.05, 5), Objective(0.05, 5, loss=each_sample))
    )
    np.testing.assert_allclose(found.weights, known.weights, atol=1e-5)
    assert not np.array_equal(found.weights[model.spec.buffers], model.initial(0)[model.spec.buffers])


def test_a_loss_that_blows_up_is_a_diverged_training() -> None:
    with pytest.raises(DivergedError) as error:
        fit_many(MODEL, [job(Sgd(0.1, 8)), job(Objective(1e30, 8, loss=each_sample))])
    assert error.value.job == 1
    assert error.value.results[0] is not None


def test_the_start_that_it_reads_is_a_copy() -> None:
    def spoils(network: nn.Module, start: Any, x: Tensor, y: Tensor, settings: Any) -> Tensor:
        for value in start.values():
            value.zero_()
        return cross_entropy(network(x), y)

    one = job(Objective(0.1, 8, loss=spoils))
    fit_many(MODEL, [one])
    np.testing.assert_array_equal(one.weights, MODEL.initial(0))


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda *_: 1 / 0, r"fails on samples \(8, 6\) and labels \(8,\): ZeroDivisionError"),
        (lambda network, *_: "loss", "fails on samples"),
        (lambda network, start, x, y, s: network(x), r"gives \(8, 3\) for 8 samples.*or the mean"),
        (lambda network, start, x, y, s: torch.zeros(()), "a tensor with a gradient"),
    ],
)
def test_a_function_that_is_no_loss_is_told_so(loss: Callable[..., Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        fit_many(MODEL, [job(Objective(0.1, 8, loss=loss))])


def test_settings_that_cannot_tell_objectives_apart_are_refused() -> None:
    with pytest.raises(UserError, match="settings must be hashable"):
        Objective(0.1, loss=proximal, settings={"mu": 1})
    with pytest.raises(UserError, match="loss must be a function"):
        Objective(0.1, loss=0.5)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="lr must be"):
        Objective(0.0, loss=proximal)


def test_a_systems_settings_make_one() -> None:
    settings = LocalTraining(lr=0.3, batch_size=7, momentum=0.1, weight_decay=0.2)
    own = settings.solver_of(proximal)
    assert (own.lr, own.batch_size, own.momentum, own.weight_decay) == (0.3, 7, 0.1, 0.2)
    assert (own.loss, own.settings) == (proximal, settings)
