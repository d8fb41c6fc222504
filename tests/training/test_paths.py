"""Every training path against a plain, readable PyTorch loop with torch.optim.SGD: trainings of all parts or of some,
alone or beside others, and in bfloat16.
"""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from coterie.protocol.errors import UserError
from coterie.training.engine import fit_many
from coterie.training.evaluate import evaluate_many
from coterie.training.jobs import Job, batch_order
from coterie.training.model import Model
from coterie.training.models import build
from coterie.training.solvers import Admm, Objective, Proximal, Scaffold, Sgd, Solver

F, CLASSES = 12, 5


def mlp(activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    return nn.Sequential(nn.Linear(F, 16), activation(), nn.Linear(16, 8), activation(), nn.Linear(8, CLASSES))


def small_cnn() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4 * 16, CLASSES)
    )


def client_data(model: Model, samples: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, *model.input_shape, generator=generator)
    return x, torch.randint(0, CLASSES, (samples,), generator=generator)


def make_jobs(
    model: Model, solver: Solver, sizes: tuple[int, ...] = (33, 7, 50, 1, 20), epochs: tuple[int, ...] = (2, 3, 1, 4, 2)
) -> list[Job]:
    jobs = []
    rng = np.random.default_rng(5)
    for seed, (samples, passes) in enumerate(zip(sizes, epochs, strict=True)):
        names = (*solver.needs, *(solver.takes if seed % 2 else ()))
        state = {name: rng.normal(0, 0.05, model.spec.size).astype(np.float32) for name in names}
        jobs.append(Job(model.initial(seed), solver, passes, 100 + seed, *client_data(model, samples, seed), state))
    return jobs


def plain_loop(model: Model, job: Job) -> tuple[np.ndarray, float, dict[str, np.ndarray]]:
    """What local training means, written as a text book would, in float64 so that it is the better number."""
    solver = job.solver
    module = model.module_with(job.weights).double().train()
    for name, p in module.named_parameters():
        p.requires_grad_(not job.only or name in job.only)
    start = [p.detach().clone() for p in module.parameters()]
    state = {name: list(model.unflatten(v).values()) for name, v in job.state.items()}
    moving = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(moving, solver.lr, solver.momentum, weight_decay=solver.weight_decay)
    losses, steps = [], 0
    for epoch in range(job.epochs):
        order = batch_order(job.seed, epoch, len(job.x))
        for at in range(0, len(order), solver.batch_size):
            rows = torch.from_numpy(order[at : at + solver.batch_size])
            optimizer.zero_grad()
            each = nn.functional.cross_entropy(module(job.x[rows].double()), job.y[rows], reduction="none")
            if job.sample_weights is not None:
                each = each * torch.from_numpy(job.sample_weights)[rows]
            loss = each.sum() / len(rows)
            losses += each.tolist()
            if isinstance(solver, Proximal):
                anchor = state.get("anchor", start)
                loss = loss + solver.mu / 2 * sum(
                    ((p - a) ** 2).sum() for p, a in zip(module.parameters(), anchor, strict=True)
                )
            if isinstance(solver, Admm):
                for p, a, dual in zip(module.parameters(), state.get("anchor", start), state["dual"], strict=True):
                    loss = loss + (dual * (p - a)).sum() + solver.rho / 2 * ((p - a) ** 2).sum()
            loss.backward()
            if isinstance(solver, Scaffold):
                for p, own, server in zip(module.parameters(), state["control"], state["server_control"], strict=True):
                    p.grad += server - own
            optimizer.step()
            steps += 1
    kept = {}
    if isinstance(solver, Scaffold):
        kept["control"] = np.concatenate(
            [
                (own - server + (x - y) / (steps * solver.lr)).detach().numpy().ravel()
                for own, server, x, y in zip(
                    state["control"], state["server_control"], start, module.parameters(), strict=True
                )
            ]
        )
    end = np.concatenate([p.detach().numpy().ravel() for p in module.parameters()])
    if isinstance(solver, Admm):
        kept["dual"] = job.state["dual"] + solver.rho * (end - job.state.get("anchor", job.weights))
    return end, float(np.mean(losses)), kept


SOLVERS = {
    "sgd": Sgd(0.1, batch_size=10),
    "momentum": Sgd(0.03, batch_size=10, momentum=0.9, weight_decay=0.01),
    "decay": Sgd(0.1, batch_size=10, weight_decay=0.05),
    "proximal": Proximal(0.1, batch_size=10, mu=0.5),
    "proximal_momentum": Proximal(0.03, batch_size=10, momentum=0.9, weight_decay=0.01, mu=0.5),
    "scaffold": Scaffold(0.1, batch_size=10, weight_decay=0.01),
    "admm": Admm(0.1, batch_size=10, rho=0.3),
    "admm_momentum": Admm(0.03, batch_size=10, momentum=0.5, rho=0.3),
}
MODELS = {
    "relu": lambda: Model(mlp, (F,)),
    "tanh": lambda: Model(lambda: mlp(nn.Tanh), (F,)),
    "sigmoid": lambda: Model(lambda: mlp(nn.Sigmoid), (F,)),
    "cnn": lambda: Model(small_cnn, (1, 8, 8)),
    "linear": lambda: build("linear", (1, 3, 4), CLASSES),
    "no_bias": lambda: Model(lambda: nn.Sequential(nn.Linear(F, 9, bias=False), nn.ReLU(), nn.Linear(9, 5)), (F,)),
}
CASES = [(m, p) for m in MODELS for p in ("dense", "vmap", "loop") if (m, p) != ("cnn", "dense")]


@pytest.mark.parametrize(
    ("kind", "path", "name"),
    [
        pytest.param(*case, name, marks=() if case[0] == "relu" or name == "momentum" else pytest.mark.long)
        for case in CASES
        for name in SOLVERS
    ],
)
def test_every_path_is_the_plain_loop(kind: str, path: str, name: str) -> None:
    """Clients with sample weights and without, side by side."""
    model, solver = MODELS[kind](), SOLVERS[name]
    jobs = [weighted(job, i) if i in (0, 4) else job for i, job in enumerate(make_jobs(model, solver))]
    for job, fitted in zip(jobs, fit_many(model, jobs, path=path), strict=True):
        weights, loss, kept = plain_loop(model, job)
        assert np.abs(fitted.weights - weights).max() < 1e-5
        assert np.abs(fitted.weights - job.weights).max() > 1e-3  # it did train
        assert fitted.loss == pytest.approx(loss, abs=1e-5)
        assert fitted.samples == len(job.x)
        assert fitted.steps == job.epochs * -(-len(job.x) // 10)
        assert fitted.weights.dtype == np.float32
        assert set(fitted.state) == set(kept)
        for key, vector in kept.items():
            assert np.abs(fitted.state[key] - vector).max() < 2e-5 / solver.lr / fitted.steps + 1e-5
        if job.sample_weights is not None and job.sample_weights.any():
            unweighted, _, _ = plain_loop(model, replace(job, sample_weights=None))
            assert np.abs(weights - unweighted).max() > 1e-3  # the weights do matter


def weighted(job: Job, seed: int = 0) -> Job:
    """The job with random sample weights, a third of them zero."""
    rng = np.random.default_rng(seed)
    weights = rng.uniform(0, 2, job.samples) * (rng.random(job.samples) > 1 / 3)
    return replace(job, sample_weights=weights.astype(np.float32))


@pytest.mark.parametrize(("kind", "path"), CASES)
def test_weights_of_one_are_no_weights_bit_for_bit(kind: str, path: str) -> None:
    model = MODELS[kind]()
    jobs = make_jobs(model, SOLVERS["momentum"])
    ones = [replace(job, sample_weights=np.ones(job.samples, np.float32)) for job in jobs]
    for a, b in zip(fit_many(model, jobs, path=path), fit_many(model, ones, path=path), strict=True):
        assert a.weights.tobytes() == b.weights.tobytes()
        assert a.loss == pytest.approx(b.loss, abs=1e-6)


@pytest.mark.parametrize("path", ["dense", "vmap", "loop"])
def test_what_sample_weights_mean(path: str) -> None:
    """All equal: another learning rate. Whole numbers: that many copies of the sample. None: only the decay is left."""
    model = MODELS["relu"]()
    x, y = client_data(model, 12, 0)
    start, counts = model.initial(0), np.array([2, 0, 1, 3, 0, 0, 1, 1, 5, 1, 0, 1])
    job = Job(start, Sgd(0.2, 5), 3, 7, x, y)

    (half,) = fit_many(model, [replace(job, sample_weights=np.full(12, 0.5, np.float32))], path=path)
    (slow,) = fit_many(model, [replace(job, solver=Sgd(0.1, 5))], path=path)
    np.testing.assert_allclose(half.weights, slow.weights, atol=1e-6)

    full = replace(job, solver=Sgd(0.2, 100), sample_weights=counts.astype(np.float32))
    copies = np.repeat(np.arange(12), counts)  # a mean over 15, not over 12
    many = Job(start, Sgd(0.2 * 15 / 12, 100), 3, 7, x[copies], y[copies])
    (a,), (b,) = fit_many(model, [full], path=path), fit_many(model, [many], path=path)
    np.testing.assert_allclose(a.weights, b.weights, atol=1e-6)
    assert a.loss == pytest.approx(b.loss * 15 / 12, rel=1e-5)

    decay = replace(job, solver=Sgd(0.2, 12, weight_decay=0.5), sample_weights=np.zeros(12, np.float32))
    (left,) = fit_many(model, [decay], path=path)
    np.testing.assert_allclose(left.weights, start * 0.9**3, rtol=1e-5)
    assert left.loss == 0


@pytest.mark.parametrize("path", ["dense", "vmap", "loop"])
def test_one_full_batch_step_is_the_formula(path: str) -> None:
    """Softmax regression by hand in numpy: W - lr X^T (p - onehot) / n."""
    model = build("linear", (3,), 4)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, 3)).astype(np.float32)
    y = np.array([0, 1, 2, 3, 0, 1])
    start = rng.normal(size=model.spec.size).astype(np.float32)
    job = Job(start, Sgd(0.5, batch_size=100), 1, 0, torch.from_numpy(x), torch.from_numpy(y))
    (fitted,) = fit_many(model, [job], path=path)

    W, b = start[:12].reshape(4, 3).astype(float), start[12:].astype(float)
    logits = x @ W.T + b
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    error = p - np.eye(4)[y]
    expected = np.concatenate([(W - 0.5 * error.T @ x / 6).ravel(), b - 0.5 * error.mean(0)])
    np.testing.assert_allclose(fitted.weights, expected, atol=1e-6)
    assert fitted.loss == pytest.approx(-np.log(p[np.arange(6), y]).mean(), abs=1e-6)
    assert fitted.steps == 1


def test_batch_normalisation_statistics_travel_with_the_weights() -> None:
    """Buffers are trained by the forward pass, kept in the flat vector, and moved by no solver or control variate."""

    def make() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 36, CLASSES))

    model = Model(make, (1, 8, 8))
    zeros = np.zeros(model.spec.size, np.float32)
    x, y = client_data(model, 25, 0)
    x = x + 3.0
    start = model.initial(0)
    job = Job(start, Scaffold(0.05, 10), 2, 7, x, y, {"control": zeros, "server_control": zeros})
    (fitted,) = fit_many(model, [job])

    module = model.module_with(start).train()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    for epoch in range(2):
        for rows in torch.from_numpy(batch_order(7, epoch, 25)).split(10):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x[rows]), y[rows]).backward()
            optimizer.step()
    np.testing.assert_allclose(fitted.weights, model.flatten(module), atol=1e-5)
    mean = next(part for part in model.spec.parts if part.name == "1.running_mean")
    assert mean.kind == "buffer"
    at = slice(mean.offset, mean.offset + mean.size)
    assert np.abs(fitted.weights[at]).min() > 0.1  # it saw the shifted data
    assert not fitted.state["control"][at].any()


def own_cross_entropy(network: nn.Module, start: object, x: torch.Tensor, y: torch.Tensor, settings: None) -> object:
    return nn.functional.cross_entropy(network(x), y)


@pytest.mark.parametrize(
    "solver", [Sgd(0.1, 10), Objective(0.1, 10, loss=own_cross_entropy)], ids=["run's", "own loss"]
)
def test_a_batch_of_one_that_cannot_be_normalised_takes_the_running_statistics(solver: Sgd) -> None:
    """11 samples in batches of 10: the second step is the gradient with the means and variances of the first, which
    an earlier layer does not move either, though it has several values of a sample.
    """
    layers = nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, CLASSES), nn.BatchNorm1d(CLASSES)
    model = Model(nn.Sequential(*layers), (1, 3, 3))
    x, y = client_data(model, 11, 0)
    (fitted,) = fit_many(model, [Job(model.initial(0), solver, 1, 7, x, y)])
    module = model.module_with(model.initial(0))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for rows in torch.from_numpy(batch_order(7, 0, 11)).split(10):
        module.train(len(rows) > 1)
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x[rows]), y[rows]).backward()
        optimizer.step()
    np.testing.assert_allclose(fitted.weights, model.flatten(module), atol=1e-6)
    assert fitted.steps == 2


@pytest.mark.parametrize("own", [False, True], ids=["run's loss", "own loss"])
def test_a_batch_of_one_that_is_refused_for_another_reason_is_tried_once(own: bool) -> None:
    tried = list[int]()

    class Pairs(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            tried.append(len(x))
            if self.training and len(x) == 1:
                raise ValueError("pairs need two samples")
            return super().forward(x)

    model = Model(Pairs(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, CLASSES)), (4,))
    solver = Objective(0.1, 10, loss=own_cross_entropy) if own else Sgd(0.1, 10)
    tried.clear()
    with pytest.raises((ValueError, UserError), match="pairs need two samples"):
        fit_many(model, [Job(model.initial(0), solver, 1, 7, *client_data(model, 11, 0))])
    assert tried == [10, 1]


def test_a_batch_of_one_leaves_normalisation_that_a_user_has_frozen() -> None:
    class Frozen(nn.Sequential):
        def train(self, mode: bool = True) -> Frozen:
            super().train(mode)[1].eval()
            return self

    model = Model(Frozen(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.BatchNorm1d(6), nn.Linear(6, CLASSES)), (4,))
    start, at = model.initial(0), model.spec.of(("1.running_mean", "1.running_var"))
    jobs = [Job(start, Sgd(0.1, 10), 2, 7, *client_data(model, n, n)) for n in (11, 20)]
    together = fit_many(model, jobs)
    for one, beside in zip(jobs, together, strict=True):
        np.testing.assert_array_equal(beside.weights[at], start[at])
        np.testing.assert_array_equal(fit_many(model, [one])[0].weights, beside.weights)


def test_a_loss_of_ones_own_may_use_a_part_of_the_network() -> None:
    """ReLU and pooling change places only where nobody can tell."""

    def of_a_part(network: nn.Sequential, start: object, x: torch.Tensor, y: torch.Tensor, settings: None) -> object:
        assert [type(layer) for layer in network[:3]] == [nn.Conv2d, nn.ReLU, nn.MaxPool2d]
        assert (network[:2](x) >= 0).all()
        return nn.functional.cross_entropy(network(x), y)

    model = Model(
        nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 5)), (1, 5, 5)
    )
    fit_many(model, [Job(model.initial(0), Objective(0.1, 10, loss=of_a_part), 1, 7, *client_data(model, 9, 0))])


def test_frozen_parameters_stay() -> None:
    module = mlp()
    module[0].weight.requires_grad_(False)
    model = Model(module, (F,))
    job = Job(model.initial(0), Sgd(0.1, 10, weight_decay=0.1), 2, 0, *client_data(model, 30, 0))
    (fitted,) = fit_many(model, [job])
    frozen, moving = slice(0, F * 16), slice(F * 16, None)
    assert np.array_equal(fitted.weights[frozen], job.weights[frozen])
    assert not np.allclose(fitted.weights[moving], job.weights[moving])


def test_a_loss_of_ones_own() -> None:
    """Least squares with one full-batch step: w - lr 2 X^T (Xw - y) / n."""
    model = Model(nn.Linear(3, 1, bias=False), (3,), loss=lambda out, y: ((out[:, 0] - y) ** 2).mean())
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(7, 3, generator=generator), torch.randn(7, generator=generator)
    start = model.initial(0)
    (fitted,) = fit_many(model, [Job(start, Sgd(0.1, 7), 1, 0, x, y)])
    residual = x.numpy() @ start - y.numpy()
    np.testing.assert_allclose(fitted.weights, start - 0.1 * 2 * x.numpy().T @ residual / 7, atol=1e-6)
    assert fitted.loss == pytest.approx((residual**2).mean(), rel=1e-5)


# -- trainings of some parts of a model


WHOLE = Model(mlp, (F,))
HEAD, BODY = WHOLE.spec.head, WHOLE.spec.without(WHOLE.spec.head).names


def partly(*only: tuple[str, ...], solver: Solver = SOLVERS["proximal_momentum"]) -> list[Job]:
    return [replace(one, only=parts) for one, parts in zip(make_jobs(WHOLE, solver), only, strict=False)]


def test_the_head_is_the_output_layer() -> None:
    assert HEAD == ("4.weight", "4.bias")
    assert BODY == ("0.weight", "0.bias", "2.weight", "2.bias")
    square = Model(lambda: nn.Sequential(nn.Linear(F, CLASSES), nn.ReLU(), nn.Linear(CLASSES, CLASSES)), (F,))
    assert square.spec.head == ("2.weight", "2.bias")
    assert replace(square.spec, outputs=3).head == ()


@pytest.mark.parametrize("path", ["dense", "vmap", "loop"])
@pytest.mark.parametrize("only", [HEAD, BODY, ("2.bias",)], ids=str)
def test_only_these_parts_are_trained(path: str, only: tuple[str, ...]) -> None:
    jobs = partly(only, only, only)
    still = ~WHOLE.spec.of(only)
    for one, found in zip(jobs, fit_many(WHOLE, jobs, path=path), strict=True):
        np.testing.assert_array_equal(found.weights[still], one.weights[still])
        np.testing.assert_allclose(found.weights, plain_loop(WHOLE, one)[0], atol=1e-5)
        assert np.abs(found.weights - one.weights)[~still].max() > 1e-4


def test_jobs_of_other_parts_are_trained_side_by_side() -> None:
    jobs = partly(HEAD, BODY, HEAD)
    alone = [fit_many(WHOLE, [one])[0].weights for one in jobs]
    for found, expected in zip(fit_many(WHOLE, jobs), alone, strict=True):
        np.testing.assert_allclose(found.weights, expected, atol=1e-6)


@pytest.mark.parametrize("only", [("nothing",), (*HEAD, "nothing")])
def test_parts_that_there_are_not_are_refused(only: tuple[str, ...]) -> None:
    with pytest.raises(
        UserError, match=r"job 0: only=.* names no part to train, or an unknown one; there are 0\.weight"
    ):
        fit_many(WHOLE, partly(only))


def test_a_private_training_of_some_parts_is_refused() -> None:
    (one,) = partly(HEAD, solver=Sgd(0.1, 10, sample_noise=1.0))
    with pytest.raises(UserError, match="a training of some parts has no sample_noise"):
        fit_many(WHOLE, [replace(one, secret=bytes(32))])


# -- bits and precision


@pytest.mark.parametrize(("model", "batch"), [("mlp", 50), ("linear", 20), ("mlp_small", 300)])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_a_job_gives_the_same_bits_whoever_trains_beside_it(model: str, batch: int, momentum: float) -> None:
    """In one process with all others, alone, or at a worker."""
    made, solver = build(model, (64,), 10), Sgd(0.1, batch, momentum)
    sizes = np.random.default_rng(3).integers(3, 140, 13).tolist() if batch <= 256 else [40] * 13
    generator = torch.Generator().manual_seed(0)
    data = [(torch.randn(n, 64, generator=generator), torch.randint(0, 10, (n,), generator=generator)) for n in sizes]
    jobs = [Job(made.initial(0), solver, 1 + i % 3, i, x, y) for i, (x, y) in enumerate(data)]
    together = fit_many(made, jobs)
    for width in (1, 2, 3, 5, 8):
        parts = [fit_many(made, jobs[start : start + width]) for start in range(0, len(jobs), width)]
        for i, alone in enumerate(chain.from_iterable(parts)):
            np.testing.assert_array_equal(alone.weights, together[i].weights, err_msg=f"job {i}, {width} together")


class TestBf16:
    """bfloat16 products, float32 masters."""

    @pytest.mark.parametrize(
        "solver", [Sgd(0.1, 10), Sgd(0.03, 10, momentum=0.9, weight_decay=0.01)], ids=["sgd", "mom"]
    )
    @pytest.mark.parametrize("path", ["vmap", "loop"])
    def test_update_is_close_to_fp32(self, path: str, solver: Solver) -> None:
        model = MODELS["cnn"]()
        jobs = make_jobs(model, solver)
        exact = fit_many(model, jobs, path=path)
        rough = fit_many(model, jobs, path=path, precision="bf16")
        for job, a, b in zip(jobs, exact, rough, strict=True):
            update = a.weights - job.weights
            error = np.linalg.norm(b.weights - a.weights) / np.linalg.norm(update)
            assert 1e-6 < error < 0.15  # not the same numbers, but the same direction, even for one or seven samples
            assert b.loss == pytest.approx(a.loss, rel=0.02)

    def test_steps_too_small_for_bfloat16_are_not_lost(self) -> None:
        """A step of 1e-4 of a weight vanishes when added in bfloat16 (8 bits); 40 of them must not."""
        model = Model(lambda: nn.Sequential(nn.Conv2d(2, 2, 1), nn.Flatten()), (2, 1, 1))
        start = np.array([1, 1, 1, 1, 0, 0], np.float32)
        x, y = torch.ones(1, 2, 1, 1), torch.tensor([0])
        job = Job(start, Sgd(2e-4, 1), 40, 0, x, y)
        for path in ("loop", "vmap"):
            (fitted,) = fit_many(model, [job], path=path, precision="bf16")
            assert fitted.weights[0] - 1 == pytest.approx(40 * 2e-4 * 0.5, rel=0.02)


@pytest.mark.long
@pytest.mark.real_data
def test_bf16_is_within_a_point_after_ten_rounds_on_fashion_mnist() -> None:
    """Takes minutes."""
    folder = os.environ.get("COTERIE_DATA")
    path = Path(folder or "") / "fashion_mnist.npz"
    if folder is None or not path.exists():
        pytest.skip("needs fashion_mnist.npz in the folder COTERIE_DATA")
    with np.load(path) as data:
        x, x_test = (
            ((data[key].reshape(-1, 1, 28, 28) / np.float32(255)) - np.float32(0.286)) / np.float32(0.353)
            for key in ("x_train", "x_test")
        )
        y, y_test = (torch.from_numpy(data[key].reshape(-1).astype(np.int64)) for key in ("y_train", "y_test"))
    model = build("cnn", (1, 28, 28), 10)
    clients = np.random.default_rng(0).permutation(len(x)).reshape(100, 600)[:10]
    shares = [(torch.from_numpy(x[rows]), y[rows]) for rows in clients]
    accuracy = {}
    for precision in ("fp32", "bf16"):
        weights = model.initial(0)
        for r in range(10):
            jobs = [Job(weights, Sgd(0.05, 50), 2, 1000 * r + i, *share) for i, share in enumerate(shares)]
            weights = np.mean([f.weights for f in fit_many(model, jobs, precision=precision)], axis=0, dtype=np.float32)
        (result,) = evaluate_many(model, weights[None], torch.from_numpy(x_test), y_test)
        accuracy[precision] = result.accuracy
    assert accuracy["fp32"] > 0.75
    assert abs(accuracy["fp32"] - accuracy["bf16"]) < 0.01, accuracy
