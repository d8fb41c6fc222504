"""The ADMM solver on every training path, what ADMM clients send, and the models of PAFed's tables."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from coterie.protocol.errors import UserError
from coterie.protocol.model_spec import ModelSpec, Part
from coterie.training.engine import fit_many
from coterie.training.jobs import Job
from coterie.training.model import Model
from coterie.training.models import BatchNorm, build
from coterie.training.solvers import Admm, augmented_change, descend, unit_change

D = 7


def vectors(seed: int, count: int, size: int = D) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator, dtype=torch.float64) for _ in range(count)]


# -- the solver --------------------------------------------------------------------------------------------------------


@given(st.integers(0, 1000), st.floats(1e-3, 10), st.floats(0, 1), st.booleans())
def test_it_adds_the_gradient_of_the_augmented_lagrangian(seed: int, rho: float, decay: float, anchored: bool) -> None:
    """Eq. 8, differentiated by torch; the loss itself is the engine's."""
    w, start, anchor, dual = vectors(seed, 4)
    state = {"dual": dual} | ({"anchor": anchor} if anchored else {})
    reference = anchor if anchored else start
    solver = Admm(0.1, weight_decay=decay, rho=rho)
    w.requires_grad_()
    terms = dual @ (w - reference) + rho / 2 * (w - reference).square().sum() + decay / 2 * w.square().sum()
    (expected,) = torch.autograd.grad(terms, w)
    pull = solver.pull(start, state)
    assert pull.drift is not None
    torch.testing.assert_close((pull.shrink * w + pull.drift).detach(), expected)
    kept = solver.keep(start, w.detach(), 9, state)
    torch.testing.assert_close(kept["dual"], dual + rho * (w.detach() - reference))  # eq. 10
    assert kept.keys() == {"dual"}


def minimise(solver: Admm, a: float, b: torch.Tensor, w: torch.Tensor, dual: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What a long training on f(v) = a/2 |v - b|^2 from w gives: the model and the dual variable."""
    state, v = {"dual": dual}, w.clone()
    for _ in range(120):
        descend(v, a * (v - b), None, solver.pull(w, state), solver)
    return v, solver.keep(w, v, 120, state)["dual"]


@pytest.mark.parametrize("rho", [0.05, 1.0, 5.0])
def test_it_reaches_the_closed_form_on_a_quadratic(rho: float) -> None:
    """argmin a/2 |v - b|^2 + <y, v - w> + rho/2 |v - w|^2 = (a b - y + rho w) / (a + rho); and then y+ = -grad f."""
    (b, w, dual), a = vectors(1, 3), 0.7
    v, new = minimise(Admm(0.2, rho=rho), a, b, w, dual)
    torch.testing.assert_close(v, (a * b - dual + rho * w) / (a + rho))
    torch.testing.assert_close(new, -a * (v - b))


def test_rounds_of_it_find_the_minimum_of_unequal_clients() -> None:
    """w <- mean (w_i + y_i / rho) over all clients: at the end w minimises the sum, and the duals cancel."""
    a, targets, rho = (0.2, 1.0, 3.0), vectors(2, 3), 1.0
    w, duals = torch.zeros(D, dtype=torch.float64), [torch.zeros(D, dtype=torch.float64)] * 3
    for _ in range(60):
        done = [minimise(Admm(0.2, rho=rho), *client, w, y) for *client, y in zip(a, targets, duals, strict=True)]
        duals = [y for _, y in done]
        w = torch.stack([v + y / rho for v, y in done]).mean(0)
    optimum = sum(ai * b for ai, b in zip(a, targets, strict=True)) / sum(a)
    torch.testing.assert_close(w, optimum, atol=1e-6, rtol=0)
    torch.testing.assert_close(sum(duals), torch.zeros(D, dtype=torch.float64), atol=1e-6, rtol=0)
    assert max(y.abs().max() for y in duals) > 0.5  # each holds its own gradient there, which is not small


@pytest.mark.parametrize("rho", [0.0, -1.0, float("inf"), float("nan"), "much"])
def test_a_coefficient_that_makes_no_sense_is_refused(rho: float) -> None:
    with pytest.raises(UserError, match="rho must be"):
        Admm(0.1, rho=rho)


def test_a_client_without_its_dual_variable_is_told_so() -> None:
    model = Model(lambda: nn.Linear(D, 3), (D,))
    job = Job(model.initial(0), Admm(0.1), 1, 0, torch.zeros(4, D), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(UserError, match=r"Admm needs the state \['dual'\]; give zeros"):
        fit_many(model, [job])


# -- what clients send -------------------------------------------------------------------------------------------------


def test_the_change_from_what_was_received_is_sent_twice() -> None:
    """Eq. 16 with eq. 10 and w_i = w: (w+ - w) + rho (w+ - w) / rho."""
    w, end, dual = (v.numpy().astype(np.float32) for v in vectors(3, 3))
    solver = Admm(0.1, rho=0.01)
    new = solver.keep(torch.from_numpy(w), torch.from_numpy(end), 1, {"dual": torch.from_numpy(dual)})["dual"].numpy()
    sent = augmented_change(end - w, new - dual, 0.01)
    assert sent.dtype == np.float32
    np.testing.assert_allclose(sent, 2 * (end - w), atol=1e-4)  # float32: 1e-7 / rho


def test_changes_from_a_clients_own_last_model_add_up_to_where_it_is() -> None:
    models, duals, rho = vectors(4, 6), vectors(5, 6), 0.5
    sent = sum(
        augmented_change((models[k + 1] - models[k]).numpy(), (duals[k + 1] - duals[k]).numpy(), rho) for k in range(5)
    )
    np.testing.assert_allclose(sent, (models[5] - models[0]) + (duals[5] - duals[0]) / rho, atol=1e-5)


SPEC = ModelSpec(
    (
        Part("weight", (2, 2), "float32", "parameter", "shared", 0),
        Part("running_var", (2,), "float32", "buffer", "shared", 4),
        Part("bias", (1,), "float32", "parameter", "shared", 6),
    )
)


def test_unit_length_leaves_buffers_alone() -> None:
    change = np.array([2, 0, 0, 1, 50, -60, 2], np.float32)  # its parameters: length 3
    unit, length = unit_change(SPEC, change)
    np.testing.assert_allclose(unit, [2 / 3, 0, 0, 1 / 3, 50, -60, 2 / 3], rtol=1e-6)
    assert (unit.dtype, length) == (np.float32, 3.0)
    assert unit_change(SPEC, change, clip=2.5)[1] == 2.5
    assert unit_change(SPEC, change, clip=4.0)[1] == 3.0


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_unit_length_of_tiny_and_huge_changes(scale: float) -> None:
    unit, length = unit_change(SPEC, np.full(7, scale, np.float32))
    assert np.linalg.norm(unit[[0, 1, 2, 3, 6]]) == pytest.approx(1, rel=1e-6)
    assert length == pytest.approx(scale * 5**0.5, rel=1e-6)


def test_a_client_that_did_not_move_sends_zeros() -> None:
    unit, length = unit_change(SPEC, np.array([0, 0, 0, 0, 1, 1, 0], np.float32))
    assert unit.tolist() == [0, 0, 0, 0, 1, 1, 0]
    assert length == 0.0


# -- the models of tables II and IV ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shape", "classes", "size"),
    [
        ("cnn", (1, 28, 28), 10, 832 + 51_264 + 3136 * 512 + 512 + 5130),  # table II, MNIST
        ("cnn_256", (3, 32, 32), 10, 2432 + 51_264 + 4096 * 256 + 256 + 2570),  # table II, CIFAR-10
        # table IV: convolutions, scale, shift and two statistics for 32 + 128 + 256 channels, fully connected
        ("cnn_bn", (3, 32, 32), 100, 896 + 18_496 + 73_856 + 295_168 + 4 * 416 + 1024 * 512 + 512 + 51_300),
        ("mlp", (1, 28, 28), 10, 178_110),
    ],
)
def test_models_have_the_papers_sizes(name: str, shape: tuple[int, ...], classes: int, size: int) -> None:
    model = build(name, shape, classes)
    assert model.spec.size == size
    assert model.classes == classes


def small() -> tuple[Model, list[Job]]:
    """The CIFAR-100 model on the smallest images that it takes, and three clients."""
    model = build("cnn_bn", (1, 22, 22), 4)
    made = []
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(9, 1, 22, 22, generator=generator)
        y = torch.randint(0, 4, (9,), generator=generator)
        dual = np.zeros(model.spec.size, np.float32)
        made.append(Job(model.initial(0), Admm(0.05, 4, rho=0.1), 1, seed, x, y, {"dual": dual}))
    return model, made


def test_dropout_follows_the_seed_whoever_trains_beside_it() -> None:
    model, made = small()
    assert model.stochastic
    together = [f.weights for f in fit_many(model, made)]
    torch.manual_seed(99)
    backwards = [f.weights for f in fit_many(model, made[::-1])][::-1]
    alone = [fit_many(model, [job])[0].weights for job in made]
    for a, b, c in zip(together, backwards, alone, strict=True):
        assert a.tobytes() == b.tobytes() == c.tobytes()


def test_buffers_travel_with_the_weights_and_have_no_dual_variable() -> None:
    model, made = small()
    fitted = fit_many(model, made[:1])[0]
    buffers = [part for part in model.spec.parts if part.kind == "buffer"]
    assert [part.name.split(".")[-1] for part in buffers] == ["running_mean", "running_var"] * 3
    for part in buffers:
        at = slice(part.offset, part.offset + part.size)
        assert np.abs(fitted.weights[at] - made[0].weights[at]).max() > 0.01
        assert not fitted.state["dual"][at].any()
    moved = fitted.weights - made[0].weights
    sent = augmented_change(moved, fitted.state["dual"], 0.1)
    weight = slice(0, 9 * 32)
    np.testing.assert_allclose(sent[weight], 2 * moved[weight], atol=1e-6)
    for part in buffers:
        at = slice(part.offset, part.offset + part.size)
        np.testing.assert_array_equal(sent[at], moved[at])


def test_a_negative_running_variance_counts_as_zero() -> None:
    layer, reference = BatchNorm(3).eval(), nn.BatchNorm2d(3).eval()
    x = torch.randn(2, 3, 4, 4)
    for name in ("running_mean", "running_var"):
        getattr(layer, name).copy_(torch.tensor([0.5, 1.0, 2.0]))
        getattr(reference, name).copy_(torch.tensor([0.5, 1.0, 2.0]))
    torch.testing.assert_close(layer(x), reference(x))
    layer.running_var[1], reference.running_var[1] = -0.3, 0.0
    torch.testing.assert_close(layer(x), reference(x))
    torch.testing.assert_close(layer.train()(x), reference.train()(x))


@pytest.mark.parametrize(("name", "least"), [("cnn", 4), ("cnn_256", 4), ("cnn_bn", 22)])
def test_images_that_are_too_small_are_refused(name: str, least: int) -> None:
    assert build(name, (1, least, least), 2).classes == 2
    with pytest.raises(UserError, match=f"{least}x{least} pixels or more, not {least - 1}x{least}"):
        build(name, (1, least - 1, least), 2)
    with pytest.raises(UserError, match=f"{name}.*needs images"):
        build(name, (64,), 2)
