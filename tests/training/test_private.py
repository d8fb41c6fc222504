"""DP-SGD against a twin that goes sample by sample, closed forms, and an attack on a canary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import coterie.method as fl
from coterie.dp.ledger import Ledger
from coterie.privacy.attacks.noisy_uploads import lower_bound
from coterie.training import Admm, Job, Model, Objective, Proximal, Sgd, fit_many, private
from coterie.training.jobs import check
from coterie.training.private import clipped_sums, normal, poisson
from coterie.training.solvers import sampling

SECRET = bytes(range(32))
DELTA = 1e-5


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4, bias=False), nn.ReLU(), nn.Linear(4, 3))


def convolution() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16))


SHAPES: dict[Callable[[], nn.Module], tuple[int, ...]] = {mlp: (6,), convolution: (1, 4, 4), wide: (64,)}


def model_of(make: Callable[[], nn.Module]) -> Model:
    return Model(make, SHAPES[make], name=make.__name__)


def job_of(model: Model, solver: Any, samples: int = 23, epochs: int = 3, seed: int = 0, **more: Any) -> Job:
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.normal(size=(samples, *model.input_shape)).astype(np.float32))
    y = torch.from_numpy(rng.integers(0, 3, samples))
    return Job(model.initial(1), solver, epochs, 0, x, y, secret=SECRET, **more)


def sample_gradient(model: Model, weights: np.ndarray[Any, Any], x: Tensor, y: Tensor) -> np.ndarray[Any, Any]:
    """(d,) of one sample, by an ordinary backward pass."""
    module = model.module.double()
    try:
        torch.nn.utils.vector_to_parameters(torch.from_numpy(weights), module.parameters())
        loss = nn.functional.cross_entropy(module(x.double().unsqueeze(0)), y.unsqueeze(0))
        return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(module.parameters()))]).numpy()
    finally:
        model.module.float()


def twin(model: Model, job: Job) -> np.ndarray[Any, Any]:
    """Algorithm 1 of Abadi et al. with momentum and decay, one sample at a time in float64."""
    hidden, solver = check(model, job, 0).private, job.solver
    assert hidden is not None
    assert isinstance(solver, Sgd)
    assert solver.sample_noise is not None
    weights = job.weights.astype(np.float64)
    velocity, noises = np.zeros_like(weights), hidden.noises(len(weights))
    expected = min(solver.batch_size, job.samples)
    for batch in hidden.batches:
        total = np.zeros_like(weights)
        for i in batch:
            gradient = sample_gradient(model, weights, job.x[i], job.y[i])
            total += gradient * min(1.0, solver.sample_clip / np.linalg.norm(gradient))
        mean = total / expected + next(noises).numpy()
        velocity = solver.momentum * velocity + mean + solver.weight_decay * weights
        weights = weights - solver.lr * velocity
    return weights


SOLVERS = [Sgd(0.3, 5, sample_clip=0.4, sample_noise=0.7), Sgd(0.2, 8, 0.5, 0.01, sample_clip=2.0, sample_noise=0.3)]


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(("make", "path"), [(mlp, "dense"), (mlp, "loop"), (convolution, "auto")])
def test_every_path_is_the_twin_that_goes_sample_by_sample(
    make: Callable[[], nn.Module], path: str, solver: Sgd
) -> None:
    model = model_of(make)
    jobs = [job_of(model, solver, samples, seed=samples) for samples in (23, 4, 9)]
    for job, fitted in zip(jobs, fit_many(model, jobs, path=path), strict=True):
        assert np.abs(fitted.weights - twin(model, job)).max() < 2e-5
        assert fitted.steps == job.epochs * -(-job.samples // min(solver.batch_size, job.samples))


def test_solvers_pull_as_without_noise() -> None:
    """The proximal term and the dual variable come after clipping and noise."""
    model = model_of(mlp)
    drift = np.linspace(-1, 1, model.spec.size, dtype=np.float32)
    plain = fit_many(model, [job_of(model, SOLVERS[0], epochs=1, samples=5)])[0]
    admm = Admm(0.3, 5, sample_clip=0.4, sample_noise=0.7, rho=0.5)
    job = job_of(model, admm, epochs=1, samples=5, state={"dual": drift})
    noise = [next(check(model, one, 0).private.noises(model.spec.size)).numpy()  # type: ignore[union-attr]
             for one in (job, job_of(model, SOLVERS[0], epochs=1, samples=5))]  # fmt: skip
    moved = fit_many(model, [job])[0].weights - plain.weights
    np.testing.assert_allclose(moved, -0.3 * (drift + noise[0] - noise[1]), atol=1e-5)


def test_clipped_sums_of_a_linear_layer_have_a_closed_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient is (p - onehot) (x, 1)^T. Chunks of two samples give the same."""
    model = Model(lambda: nn.Linear(6, 3), (6,), name="linear")
    job = job_of(model, SOLVERS[0], 11)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = nn.Linear(6, 3)
    errors = torch.softmax(module(job.x), 1) - nn.functional.one_hot(job.y, 3)
    norms = errors.norm(dim=1) * (job.x.square().sum(1) + 1).sqrt()
    assert (norms > 1.6).any()
    assert (norms < 1.6).any()
    errors = errors * (1.6 / norms).clamp(max=1).unsqueeze(1)
    for most in (1 << 20, 2 * 4 * model.spec.size):
        monkeypatch.setitem(private._CHUNK_BYTES, "cpu", most)
        loss, (weight, bias) = clipped_sums(model, module, job.x, job.y, 1.6)
        torch.testing.assert_close(weight, errors.T @ job.x)
        torch.testing.assert_close(bias, errors.sum(0))
        torch.testing.assert_close(loss.float(), nn.functional.cross_entropy(module(job.x), job.y, reduction="sum"))


@pytest.mark.parametrize("path", ["dense", "loop"])
def test_the_noise_of_a_step_has_the_stated_deviation(path: str) -> None:
    """z C / expected batch; the gradients of a tiny clip are no longer than C."""
    model = Model(lambda: nn.Linear(200, 50), (200,), name="wide")
    solver = Sgd(1.0, 4, sample_clip=1e-3, sample_noise=30.0)
    job = replace(job_of(model, solver, 4, epochs=1), weights=np.zeros(model.spec.size, np.float32))
    noise = fit_many(model, [job], path=path)[0].weights / (30 * 1e-3 / 4)
    assert len(noise) == 10_050
    assert abs(noise.mean()) < 4 / 100
    assert abs(noise.std() - 1) < 4 / 141


def test_noise_is_normal_and_new_in_each_step() -> None:
    draws = torch.stack([normal(SECRET, step, 50_001) for step in range(3)]).numpy()
    assert np.abs(draws.mean(1)).max() < 0.02
    assert np.abs((draws**4).mean(1) - 3).max() < 0.2
    assert np.abs(np.corrcoef(draws) - np.eye(3)).max() < 0.02
    assert abs(np.corrcoef(draws[0, :25_000], draws[0, 25_001:50_001])[0, 1]) < 0.03  # the two of one radius
    assert (normal(bytes(32), 0, 9).numpy() != draws[0, :9]).all()


def test_each_sample_is_taken_with_its_probability_alone() -> None:
    taken = np.zeros((4000, 10))
    for step, row in enumerate(taken):
        row[poisson(SECRET, step, 10, 0.3)] = 1
    assert np.abs(taken.mean(0) - 0.3).max() < 4 * np.sqrt(0.21 / 4000)
    assert np.abs(np.corrcoef(taken.T) - np.eye(10)).max() < 4 / np.sqrt(4000)
    assert abs(taken.sum(1).var() - 2.1) < 0.25  # binomial: batches of fixed size would have 0
    assert (poisson(SECRET, 0, 10, 1.0) == np.arange(10)).all()


def test_an_equal_training_has_equal_noise_and_another_one_other_noise() -> None:
    """So attempts of a round can neither be averaged, nor subtracted from each other."""
    model, solver = model_of(wide), Sgd(0.1, 5, sample_clip=0.1, sample_noise=1.0)
    job = job_of(model, solver)
    again = fit_many(model, [job, job])
    assert (again[0].weights == again[1].weights).all()
    others = [
        replace(job, secret=bytes(32)),
        replace(job, weights=job.weights + np.float32(1e-6)),
        replace(job, epochs=4),
        replace(job, solver=replace(solver, lr=0.11)),
        replace(job, y=torch.cat([(job.y[:1] + 1) % 3, job.y[1:]])),
        replace(job, x=torch.cat([job.x[:1] + 1, job.x[1:]])),
    ]
    first = check(model, job, 0).private
    assert first is not None
    noise = next(first.noises(1000))
    for other in others:
        hidden = check(model, other, 0).private
        assert hidden is not None
        assert abs(np.corrcoef(noise, next(hidden.noises(1000)))[0, 1]) < 0.15


def test_a_model_does_not_depend_on_who_trains_beside() -> None:
    model = model_of(wide)
    jobs = [job_of(model, SOLVERS[0], samples, seed=samples) for samples in (23, 400, 9, 60, 31)]
    together = fit_many(model, jobs)
    alone = [fit_many(model, [job])[0] for job in jobs]
    assert all((a.weights == b.weights).all() and a.loss == b.loss for a, b in zip(together, alone, strict=True))


def test_a_training_that_hides_samples_learns() -> None:
    model = Model(lambda: nn.Linear(6, 3), (6,), name="linear")
    rng = np.random.default_rng(3)
    x = torch.from_numpy(rng.normal(size=(600, 6)).astype(np.float32))
    y = x[:, :3].argmax(1)
    job = Job(model.initial(0), Sgd(1.0, 60, sample_noise=1.0), 20, 0, x, y, secret=SECRET)
    fitted = fit_many(model, [job])[0]
    module = nn.Linear(6, 3)
    torch.nn.utils.vector_to_parameters(torch.from_numpy(fitted.weights), module.parameters())
    assert (module(x).argmax(1) == y).float().mean() > 0.85


# -- what is refused ---------------------------------------------------------------------------------------------------


def own_loss(network: nn.Module, start: Any, x: Tensor, y: Tensor, settings: Any) -> Tensor:
    return nn.functional.cross_entropy(network(x), y)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"secret": b""}, "needs a secret"),
        ({"sample_weights": np.ones(23, np.float32)}, "no sample has a weight"),
    ],
)
def test_jobs_that_would_let_more_out_are_refused(change: dict[str, Any], words: str) -> None:
    model = model_of(mlp)
    with pytest.raises(fl.UserError, match=words):
        fit_many(model, [replace(job_of(model, SOLVERS[0]), **change)])


def test_batch_norm_and_the_path_of_many_models_are_refused() -> None:
    mixing = Model(lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), (6,), name="mixing")
    with pytest.raises(fl.UserError, match=r"batch normalisation 1 does: take nn\.GroupNorm"):
        fit_many(mixing, [job_of(mixing, SOLVERS[0])])
    model = model_of(mlp)
    with pytest.raises(fl.UserError, match="the dense or the loop path"):
        fit_many(model, [job_of(model, SOLVERS[0])], path="vmap")


@pytest.mark.parametrize("noise", [0.0, -1.0, float("nan"), float("inf"), "much", True])
@pytest.mark.parametrize("name", ["sample_noise", "sample_clip"])
def test_settings_without_a_meaning_are_refused(name: str, noise: Any) -> None:
    settings = {"sample_noise": 1.0, name: noise}
    for make in (lambda: Sgd(0.1, **settings), lambda: fl.LocalTraining(**settings), lambda: Proximal(0.1, **settings)):
        with pytest.raises(fl.UserError, match=f"{name} must be"):
            make()


def test_a_clip_without_noise_and_losses_of_ones_own_are_refused() -> None:
    with pytest.raises(fl.UserError, match=r"sample_clip=2\.0 has no effect with sample_noise=None"):
        fl.LocalTraining(sample_clip=2.0)
    with pytest.raises(fl.UserError, match="leave sample_noise out"):
        fl.LocalTraining(sample_noise=1.0).solver_of(own_loss)
    with pytest.raises(fl.UserError, match="leave sample_noise out"):
        Objective(0.1, sample_noise=1.0, loss=own_loss)


# -- an attack ---------------------------------------------------------------------------------------------------------

WORDS = (fl.FromTraining("model"),)


def scores(noise: float, sign: int, trials: int) -> np.ndarray[Any, Any]:
    """How far models have moved along a canary, whose gradient is as long as the clip; the others' gradients are 0.

    x of the neighbour is the opposite, so that the canary is replaced by the farthest other sample.
    """
    model = Model(lambda: nn.Linear(2, 2, bias=False), (2,), name="canary")
    x, y = torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64)
    x[0, 0] = 1e6 * sign
    solver = Sgd(1e-9, 2, sample_noise=noise)  # small steps keep the gradient as it is
    secrets = np.random.default_rng(sign + 2).bytes(32 * trials)
    jobs = [
        Job(np.zeros(4, np.float32), solver, 2, 0, x, y, secret=secrets[32 * i : 32 * i + 32]) for i in range(trials)
    ]
    direction = np.array([1, 0, -1, 0])
    return np.array([fitted.weights @ direction for fitted in fit_many(model, jobs)])


def bounds(noise: float, claimed: float, trials: int = 1500) -> tuple[float, float]:
    (release,) = fl.told(fl.LocalTraining(batch_size=2, sample_noise=claimed), 4, 2, WORDS, 1)
    sides: Sequence[Any] = [scores(noise, sign, trials) for sign in (1, -1)]
    return lower_bound(sides[0], sides[1], DELTA), Ledger((release,)).epsilon(DELTA)


@pytest.mark.long
def test_an_attack_on_a_canary_proves_less_than_is_claimed_and_finds_a_sixth_of_the_noise() -> None:
    found, claimed = bounds(8.0, 8.0)
    assert found <= claimed
    found, claimed = bounds(8.0 / 6, 8.0)
    assert found > claimed


def test_a_release_counts_all_steps_with_the_probability_of_a_sample() -> None:
    (release,) = fl.told(fl.LocalTraining(batch_size=20, sample_clip=0.5, sample_noise=1.2), 90, 3, WORDS, 4)
    assert (release.noise_multiplier, release.sensitivity_l2) == (0.6, 2 * 0.5 / 20)
    assert (release.sampled, release.hidden, release.draws, release.round) == (20 / 90, True, 15, 4)
    assert (release.draws, release.sampled) == sampling(90, 20, 3)[:0:-1]
    (full,) = fl.told(fl.LocalTraining(batch_size=100, sample_noise=1.2), 90, 3, WORDS, 4)
    assert (full.sampled, full.draws) == (1.0, 3)
