"""What a device tells of its data: halves against numpy, batched and one by one alike, and its privacy."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn

import coterie.method as fl
from coterie.clustering.divergence import modified_divergence, noise_floor
from coterie.protocols.sparsity import Described, Halves, Noise, describe, described, halves, pretraining, public
from coterie.runs.interpreter import LocalEffects
from coterie.runs.on_data import ClientData, TensorSamples
from coterie.training.jobs import Job
from coterie.training.model import Model
from coterie.training.models import build
from coterie.training.sparsity import sparsities

Array = NDArray[Any]
WIDTH = 8


@cache
def identity() -> tuple[Model, NDArray[np.float32]]:
    """Its dense ReLU gives what it is given: sample i of ``np.eye`` has its zeros everywhere but in channel i."""
    model = Model(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2)), (WIDTH,))
    weights = np.zeros(model.spec.size, np.float32)
    weights[: WIDTH**2] = np.eye(WIDTH, dtype=np.float32).ravel()
    return model, weights


def bits(count: int, seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).integers(0, 2, (count, WIDTH)).astype(np.float32)


def own(x: Array, model: Model) -> fl.OwnData:
    return fl.OwnData(x.astype(np.float32), np.zeros(len(x), np.int64), model)


# -- halves ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 5, 8])
def test_every_sample_is_in_one_half(count: int) -> None:
    model, weights = identity()
    found = halves(own(np.eye(WIDTH)[:count], model), weights, "1", 3)
    assert found.counts == (count - count // 2, count // 2)
    inside = np.rint((1 - found.means) * np.array(found.counts)[:, None])  # how often channel i was not zero
    np.testing.assert_array_equal(inside.sum(axis=0), np.arange(WIDTH) < count)
    assert set(np.unique(inside)) == {0.0, 1.0}


def test_the_seed_draws_the_halves() -> None:
    model, weights = identity()
    device = own(bits(40, 0), model)
    one, again, other = (halves(device, weights, "1", seed).means for seed in (3, 3, 4))
    np.testing.assert_array_equal(one, again)
    assert np.abs(one - other).max() > 0
    np.testing.assert_allclose(one.mean(axis=0), other.mean(axis=0), atol=1e-12)


@given(st.integers(1, 60), st.integers(0, 9))
def test_the_vector_is_the_mean_over_all_samples(count: int, seed: int) -> None:
    """Also where the halves are not of one size, and for one sample."""
    model, weights = identity()
    x = bits(count, seed)
    found = described(halves(own(x, model), weights, "auto", seed))
    np.testing.assert_allclose(found.vector, (x == 0).mean(axis=0), atol=1e-12)
    assert found.vector.dtype == np.float64
    assert found.floor >= 0


def test_the_floor_is_the_divergence_of_the_halves() -> None:
    first, second = np.array([0.2, 0.7, 0.0]), np.array([0.3, 0.5, 0.0])
    for gamma in (0.0, 1.0, 2.5):
        found = described(Halves(np.stack([first, second]), (2, 1)), gamma)
        assert found.floor == noise_floor(first, second, gamma) == modified_divergence([first, second], gamma)[0, 1] > 0
        np.testing.assert_allclose(found.vector, [0.7 / 3, 1.9 / 3, 0.0])


def test_one_sample_has_no_halves_and_alike_samples_no_floor() -> None:
    model, weights = identity()
    one = described(halves(own(bits(1, 5), model), weights, "1", 0))
    np.testing.assert_array_equal(one.vector, bits(1, 5)[0] == 0)
    alike = described(halves(own(np.repeat(bits(1, 5), 9, axis=0), model), weights, "1", 0))
    np.testing.assert_array_equal(alike.vector, one.vector)
    assert one.floor == alike.floor == 0.0


def test_a_larger_share_of_the_data_lowers_the_floor_as_noise_does() -> None:
    """Four times the samples, a quarter of the floor, on average."""
    model, weights = identity()
    few, many = (
        np.mean([described(halves(own(bits(n, s), model), weights, "1", s)).floor for s in range(80)])
        for n in (100, 400)
    )
    assert 3.5 < few / many < 4.6


# -- batched -----------------------------------------------------------------------------------------------------------

NORMED = nn.Sequential(
    nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(4 * 36, 10), nn.ReLU(),
    nn.Dropout(0.5), nn.Linear(10, 3),
)  # fmt: skip
SERIES = nn.Sequential(nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 62, 3))
MODELS: Mapping[str, tuple[Model, str]] = {
    "dense": (build("mlp_small", (1, 8, 8), 3), "auto"),
    "convolution": (build("cnn_256", (1, 8, 8), 3), "conv"),
    "dense of a convolutional model": (build("cnn_256", (1, 8, 8), 3), "auto"),
    "batch norm and dropout": (Model(NORMED, (1, 8, 8)), "conv"),
    "dense behind dropout": (Model(NORMED, (1, 8, 8)), "auto"),
    "1-d": (Model(SERIES, (1, 64)), "auto"),
}


def simulation(model: Model, sizes: tuple[int, ...]) -> LocalEffects:
    source = np.random.default_rng(3)
    test = TensorSamples(torch.zeros(0, *model.input_shape), torch.zeros(0, dtype=torch.int64))
    data = {
        f"client/{i}": ClientData(
            torch.from_numpy(source.normal(size=(n, *model.input_shape)).astype(np.float32)),
            torch.from_numpy(source.integers(0, 3, n)), tests=np.zeros(0, np.int64), test_set=test,
        )
        for i, n in enumerate(sizes)
    }  # fmt: skip
    return LocalEffects(model, data)


@pytest.mark.parametrize("name", MODELS)
def test_batched_one_by_one_and_a_twin_agree(name: str) -> None:
    """Bit for bit with one by one: a result may not depend on what a simulation computes together."""
    model, layer = MODELS[name]
    sizes = (20, 1, 300, 7, 20) if name == "dense" else (9, 1, 40, 7, 9)
    runner, weights = simulation(model, sizes), model.initial(1)
    wanted = [(party, fl.Local(halves, (weights, layer, seed))) for seed, party in enumerate(runner.data)]
    together = runner.run(wanted)
    for (party, effect), found in zip(wanted, together, strict=True):
        (alone,) = runner.run([(party, effect)])
        np.testing.assert_array_equal(found.means, alone.means)
        assert found.counts == alone.counts
        x = runner.data[party].x.numpy()
        twin = np.mean([sparsities(model, weights, x[i : i + 1], layer)[0] for i in range(len(x))], axis=0)
        np.testing.assert_allclose(described(found).vector, twin, atol=2e-3)  # of 8 x 8 cells, a few are near 0
        assert not found.means.flags.writeable


def test_devices_may_be_asked_for_unlike_things_at_once() -> None:
    model = MODELS["dense of a convolutional model"][0]
    runner = simulation(model, (20, 30, 10, 5))
    asked = [(model.initial(1), "auto"), (model.initial(2), "conv"), (model.initial(1).copy(), "auto")]
    asked.append((model.initial(1), "conv"))
    wanted = [(name, fl.Local(halves, (*one, 0))) for name, one in zip(runner.data, asked, strict=True)]
    for one, found in zip(wanted, runner.run(wanted), strict=True):
        np.testing.assert_array_equal(found.means, runner.run([one])[0].means)


def test_the_extractor_is_set_up_once_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    model, layer = MODELS["dense"]
    runner, made = simulation(model, (20,) * 6), []
    loaded = Model.module_with
    monkeypatch.setattr(Model, "module_with", lambda *given: made.append(1) or loaded(*given))
    weights = model.initial(0)
    runner.run([(party, fl.Local(halves, (weights.copy(), layer, 0))) for party in runner.data])
    assert len(made) == 2  # one finds the layer, one runs it


# -- privacy -----------------------------------------------------------------------------------------------------------


@given(st.integers(1, 12), st.floats(0.05, 3.0), st.integers(0, WIDTH), st.integers(0, 9))
def test_one_sample_moves_one_half_by_at_most_the_sensitivity(
    count: int, clip: float, directions: int, seed: int
) -> None:
    """Along a basis, too. Nothing leaves its span, so noise along it covers everything that is sent."""
    model, weights = identity()
    basis = np.linalg.qr(np.random.default_rng(seed).normal(size=(WIDTH, directions)))[0].T if directions else None
    x = bits(count, seed)
    other = x.copy()
    other[seed % count] = bits(1, seed + 100)[0]
    centre = np.full(WIDTH, 0.4, np.float32)
    one, two = (halves(own(data, model), weights, "1", 7, centre, clip, basis) for data in (x, other))
    assert one.counts == two.counts
    moved = np.linalg.norm(one.means - two.means, axis=1)
    assert (moved <= 2 * clip / np.array(one.counts) + 1e-9).all()
    assert np.count_nonzero(moved) <= 1
    if basis is not None:
        outside = (one.means - centre) - (one.means - centre) @ basis.T @ basis
        np.testing.assert_allclose(outside, 0, atol=1e-6)


def test_noise_along_a_basis_is_that_of_the_gaussian_mechanism_and_none_elsewhere() -> None:
    basis = np.zeros((2, WIDTH), np.float32)
    basis[0, :4], basis[1, 4:] = 0.5, 0.5
    x, noise = np.repeat([[0.0, 1.0] * (WIDTH // 2)], 50, axis=0), Noise(0.5, 2.0, np.full(WIDTH, 0.5), basis)
    found = np.array([told(x, noise=noise, round=r).vector - 0.5 for r in range(150)])
    along = found @ basis.T
    np.testing.assert_allclose(along @ basis, found, atol=1e-9)
    std = np.sqrt(2) * 2.0 * 2 * 0.5 / 50
    assert abs(along.std() / std - 1) < 4 / np.sqrt(2 * along.size)
    assert abs(along.mean()) < 4 * std / np.sqrt(along.size)


def test_a_clip_and_a_basis_that_leave_room_change_nothing_and_the_bound_is_reached() -> None:
    model, weights = identity()
    device, centre = own(bits(30, 0), model), np.full(WIDTH, 0.5, np.float32)
    plain, along = (halves(device, weights, "1", 0, centre, 0.7, basis) for basis in (None, np.eye(WIDTH)))
    np.testing.assert_allclose(plain.means, along.means, atol=1e-9)
    free, clipped = halves(device, weights, "1", 0), halves(device, weights, "1", 0, centre, 10.0)
    np.testing.assert_allclose(free.means, clipped.means, atol=1e-12)
    none, all_ = (halves(own(np.full((1, WIDTH), v), model), weights, "1", 0, centre, 0.3) for v in (0.0, 1.0))
    assert np.linalg.norm(none.means - all_.means) == pytest.approx(0.6)


class Device(fl.Party, role="client"):
    """Only what ``describe`` needs."""


def told(x: Array, *, emulated: bool = True, round: int = 0, noise: Noise | None = None, name: str = "c") -> Described:
    """What a device with these samples tells."""
    model, weights = identity()
    work = describe(Device(fl.Own(name, fl.Randomness(5, emulated))), weights, "1", round=round, noise=noise)
    effect = next(work)
    assert isinstance(effect, fl.Local)
    with pytest.raises(StopIteration) as stopped:
        work.send(effect.registered(own(x, model), *effect.arguments))
    return stopped.value.value  # type: ignore[no-any-return]


def test_without_noise_it_is_what_its_halves_say() -> None:
    found = told(bits(30, 0))
    np.testing.assert_allclose(found.vector, (bits(30, 0) == 0).mean(axis=0), atol=1e-12)
    np.testing.assert_array_equal(found.vector, told(bits(30, 0), emulated=False).vector)
    assert found.floor > 0
    assert found.floor != told(bits(30, 0), round=1).floor  # other halves


def test_the_noise_is_that_of_the_gaussian_mechanism() -> None:
    """Each half's mean gets std = multiplier * 2 clip / n_half, so the vector sqrt(2) multiplier * 2 clip / n."""
    x, noise = np.repeat([[0.0, 1.0] * (WIDTH // 2)], 50, axis=0), Noise(0.5, 2.0, np.full(WIDTH, 0.5, np.float32))
    apart = np.where(x[0] == 0, 0.5, -0.5)
    exact = 0.5 + apart * 0.5 / np.linalg.norm(apart)  # all samples alike, clipped to .5
    found = np.array([told(x, noise=noise, round=r).vector - exact for r in range(150)]).ravel()
    std = np.sqrt(2) * 2.0 * 2 * 0.5 / 50
    assert abs(found.std() / std - 1) < 4 / np.sqrt(2 * len(found))
    assert abs(found.mean()) < 4 * std / np.sqrt(len(found))


def test_noise_follows_the_seed_in_emulated_runs_only() -> None:
    noise = Noise(0.5, 1.0, np.full(WIDTH, 0.5, np.float32))
    emulated = [told(bits(30, 0), noise=noise).vector for _ in range(2)]
    np.testing.assert_array_equal(*emulated)
    real = [told(bits(30, 0), noise=noise, emulated=False).vector for _ in range(2)]
    assert (real[0] != real[1]).any()
    assert (told(bits(30, 0), noise=noise, name="d").vector != emulated[0]).any()


def test_what_is_told_with_noise_is_still_a_share_and_shows_in_the_floor() -> None:
    noise = Noise(1.0, 20.0, np.full(WIDTH, 0.5, np.float32))
    found = told(np.repeat(bits(1, 0), 30, axis=0), noise=noise)
    assert found.vector.min() >= 0
    assert found.vector.max() <= 1
    assert found.floor > 0.1  # without noise it is 0
    one = told(bits(1, 0), noise=noise)
    assert one.floor == 0.0
    assert (one.vector != (bits(1, 0)[0] == 0)).any()


@pytest.mark.parametrize(("clip", "multiplier"), [(0.0, 1.0), (1.0, 0.0), (np.inf, 1.0), (1.0, np.nan), (-1.0, 1.0)])
def test_noise_needs_a_clip_and_a_multiplier(clip: float, multiplier: float) -> None:
    with pytest.raises(fl.UserError, match="of noise on sparsity features must be positive and finite"):
        Noise(clip, multiplier, np.zeros(WIDTH, np.float32))


def test_secrets_give_normal_numbers() -> None:
    for source in (fl.Secrets(np.random.default_rng(0)), fl.Secrets(None)):
        values = source.normal(100_000)
        assert abs(values.mean()) < 0.015
        assert abs(values.std() - 1) < 0.015
        assert abs((np.abs(values) > 1.959964).mean() - 0.05) < 0.004
        assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.015
    assert np.isfinite(fl.Secrets(_Zeros()).normal(3)).all()  # type: ignore[arg-type]
    assert np.isfinite(fl.Secrets(_Ones()).normal(3)).all()  # type: ignore[arg-type]


class _Zeros:
    def bytes(self, count: int) -> bytes:
        return bytes(count)


class _Ones:
    def bytes(self, count: int) -> bytes:
        return b"\xff" * count


# -- public samples, and what is refused -------------------------------------------------------------------------------


def test_public_samples_give_a_centre_and_norms() -> None:
    model, weights = identity()
    x = bits(50, 0)
    found = public(own(x, model), weights, "1")
    np.testing.assert_allclose(found.mean, (x == 0).mean(axis=0), atol=1e-7)
    np.testing.assert_allclose(found.norms, np.linalg.norm((x == 0) - found.mean, axis=1), rtol=1e-6)
    assert found.basis.shape == (0, WIDTH)  # all labels are the same


def test_the_basis_spans_the_means_of_the_classes_and_no_more() -> None:
    model, weights = identity()
    x, y = bits(90, 0), np.arange(90) % 3
    x[y == 1, :3], x[y == 2, 5] = 1, 0
    found = public(fl.OwnData(x, y, model), weights, "1")
    assert found.basis.shape == (2, WIDTH)
    np.testing.assert_allclose(found.basis @ found.basis.T, np.eye(2), atol=1e-5)
    apart = (x == 0) - found.mean
    for k in range(3):
        mean = apart[y == k].mean(axis=0)
        np.testing.assert_allclose(mean @ found.basis.T @ found.basis, mean, atol=1e-5)
    np.testing.assert_allclose(found.lengths, np.linalg.norm(apart @ found.basis.T, axis=1), rtol=1e-4)
    halves(own(x, model), weights, "1", 0, found.mean, 1.0, found.basis)  # is taken by devices
    for other in (np.ones((90, 2), np.int64), y.astype(np.float32)):
        assert public(fl.OwnData(x, other, model), weights, "1").basis.shape == (0, WIDTH)  # several labels, numbers


@pytest.mark.parametrize(("samples", "steps"), [(1, 150), (72, 150), (3000, 150), (3001, 10), (50, 1)])
def test_an_extractor_is_trained_for_at_least_so_many_steps_and_an_epoch_more_at_most(samples: int, steps: int) -> None:
    model = build("mlp_small", (5,), 3)
    fit = pretraining(model.initial(0), samples, 0, steps)
    x, y = torch.zeros(samples, 5), torch.zeros(samples, dtype=torch.int64)
    taken = Job(fit.weights, fit.solver, fit.epochs, fit.seed, x, y).steps
    assert steps <= taken < steps + -(-samples // 50)


@pytest.mark.parametrize(("samples", "steps"), [(0, 150), (10, 0)])
def test_an_extractor_needs_public_samples_and_steps(samples: int, steps: int) -> None:
    with pytest.raises(fl.UserError, match="1 public sample or more, for 1 step or more"):
        pretraining(np.zeros(3, np.float32), samples, 0, steps)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((np.zeros(5, np.float32), "1", 0), "the extractor's weights must be"),
        ((np.full(identity()[0].spec.size, np.inf, np.float32), "1", 0), "not finite"),
        ((identity()[1], "7", 0), "has no ReLU '7'"),
        ((identity()[1], "1", 0, np.zeros(3, np.float32), 1.0), r"a centre of shape \(3,\) for 8 channels"),
        ((identity()[1], "1", 0, np.full(WIDTH, np.nan, np.float32), 1.0), "or not finite"),
        ((identity()[1], "1", 0, np.zeros(WIDTH, np.float32), 1.0, np.eye(3)), r"a basis of shape \(3, 3\)"),
        ((identity()[1], "1", 0, np.zeros(WIDTH, np.float32), 1.0, np.full((1, WIDTH), np.nan)), "or not finite"),
        ((identity()[1], "1", 0, np.zeros(WIDTH, np.float32), 1.0, 2 * np.eye(WIDTH)), "not orthonormal"),
    ],
)
def test_what_another_party_sends_and_does_not_fit_is_refused(arguments: tuple[Any, ...], says: str) -> None:
    with pytest.raises(fl.PeerError, match=says):
        halves(own(bits(4, 0), identity()[0]), *arguments)


def test_a_refusal_reaches_the_one_that_was_asked_so() -> None:
    model = MODELS["dense"][0]
    runner = simulation(model, (5, 5, 5))
    layers = ("auto", "nowhere", "auto")
    wanted = [(n, fl.Local(halves, (model.initial(0), layer, 0))) for n, layer in zip(runner.data, layers, strict=True)]
    found = runner.run(wanted)
    assert [type(one) for one in found] == [Halves, fl.PeerError, Halves]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_run_s_accelerator_is_used() -> None:
    model, layer = MODELS["convolution"]
    runner = simulation(model, (20, 30))
    wanted = [(party, fl.Local(halves, (model.initial(0), layer, 0))) for party in runner.data]
    there = LocalEffects(model, runner.data, {"precision": "fp32", "device": "cuda"}).run(wanted)
    for one, other in zip(runner.run(wanted), there, strict=True):
        np.testing.assert_allclose(one.means, other.means, atol=1e-2)


def test_the_accelerator_of_a_run_reaches_the_function() -> None:
    model, _ = MODELS["dense"]
    runner = simulation(model, (5,))
    assert runner._own("client/0").accelerator == "cpu"
    runner.how = {**runner.how, "device": "cuda:1"}
    assert runner._own("client/0").accelerator == "cuda:1"
