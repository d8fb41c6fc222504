"""Sparsity features: equation (1) against numpy, which ReLU is meant, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from coterie.protocol.errors import UserError
from coterie.training.model import Model
from coterie.training.models import NAMES, build
from coterie.training.sparsity import Extractor, rectified, relu_layer, sparsities

Array = NDArray[Any]


def whole(model: Model, seed: int) -> NDArray[np.float32]:
    """Small whole numbers as weights: with whole samples float32 is exact, and zeros before a ReLU occur."""
    return np.random.default_rng(seed).integers(-2, 3, model.spec.size).astype(np.float32)


def samples(shape: tuple[int, ...], count: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).integers(-2, 3, (count, *shape)).astype(np.float32)


# -- equation (1) against slow twins -----------------------------------------------------------------------------------


def correlated(x: Array, kernel: Array, bias: Array, padding: int) -> Array:
    """A convolution by loops. x: (C, *size).  kernel: (out, C, *width)."""
    x = np.pad(x, [(0, 0)] + [(padding, padding)] * (x.ndim - 1))
    width = kernel.shape[2:]
    out = np.zeros((len(kernel), *(n - w + 1 for n, w in zip(x.shape[1:], width, strict=True))))
    for c in range(len(kernel)):
        for at in np.ndindex(out.shape[1:]):
            window = x[(slice(None), *(slice(a, a + w) for a, w in zip(at, width, strict=True)))]
            out[(c, *at)] = (window * kernel[c]).sum() + bias[c]
    return out


def zeros(maps: Array) -> list[float]:
    """Equation (1), element by element: maps is (C, ...)."""
    found = []
    for channel in maps:
        cells = channel.reshape(-1)
        found.append(sum(1 for cell in cells if max(cell, 0.0) == 0.0) / len(cells))
    return found


@pytest.mark.parametrize("shape", [(2, 5, 6), (3, 9)])
def test_a_convolution_s_shares_are_those_of_a_twin(shape: tuple[int, ...]) -> None:
    kind = {3: nn.Conv2d, 2: nn.Conv1d}[len(shape)]
    module = nn.Sequential(kind(shape[0], 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3))
    module(torch.zeros(1, *shape))
    model = Model(module, shape)
    weights, x = whole(model, 1), samples(shape, 7)
    named = {name: value.numpy() for name, value in model.unflatten(weights).items()}
    expected = [zeros(correlated(one, named["0.weight"], named["0.bias"], 1)) for one in x]
    found = sparsities(model, weights, x)
    assert (found.dtype, found.shape) == (np.float32, (7, 4))
    np.testing.assert_allclose(found, expected, atol=1e-7)
    assert 0.1 < found.mean() < 0.9


def test_a_dense_layer_has_one_cell_a_channel() -> None:
    model = build("mlp", (1, 3, 3), 4)
    weights, x = whole(model, 2), samples((1, 3, 3), 6)
    w = {name: value.numpy().astype(float) for name, value in model.unflatten(weights).items()}
    one = np.maximum(x.reshape(6, -1) @ w["1.weight"].T + w["1.bias"], 0)
    two = one @ w["3.weight"].T + w["3.bias"]
    np.testing.assert_array_equal(sparsities(model, weights, x), (two <= 0).astype(np.float32))
    np.testing.assert_array_equal(sparsities(model, weights, x, "2"), (one <= 0).astype(np.float32))


class Functional(nn.Module):
    """Two convolutions and a dense layer, rectified by ``first``, ``second`` and ``last``."""

    def __init__(
        self, first: Callable[..., Tensor], second: Callable[..., Tensor], last: Callable[..., Tensor]
    ) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 3, 3), nn.Conv2d(3, 5, 3)
        self.fc, self.out = nn.Linear(5 * 4, 6), nn.Linear(6, 2)
        self.calls = first, second, last

    def forward(self, x: Tensor) -> Tensor:
        first, second, last = self.calls
        x = second(self.conv2(first(self.conv1(x))))
        return self.out(last(self.fc(x.flatten(1))))  # type: ignore[no-any-return]


FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "F.relu": functional.relu,
    "torch.relu": torch.relu,
    "method": lambda x: x.relu(),
    "in place": lambda x: x.relu_(),
    "F.relu in place": lambda x: functional.relu(x, inplace=True),
    "clamp": lambda x: x.clamp(min=0),
    "torch.clamp": lambda x: torch.clamp(x, 0, None),
    "clamp in place": lambda x: x.clamp_(0.0),
    "clamp_min": lambda x: x.clamp_min(0),
    "relu6": functional.relu6,  # nothing here reaches 6
    "module": nn.ReLU(),
}


@pytest.mark.parametrize("form", FORMS)
def test_functions_methods_and_clamps_are_seen_as_modules_are(form: str) -> None:
    plain = Functional(nn.ReLU(), nn.ReLU(), nn.ReLU())
    one, other = Model(plain, (1, 6, 6)), Model(Functional(*[FORMS[form]] * 3), (1, 6, 6))
    weights, x = one.flatten(), np.random.default_rng(0).normal(size=(9, 1, 6, 6)).astype(np.float32)
    for layer in ("auto", "conv", "dense", "conv1", "conv2", "fc"):
        np.testing.assert_array_equal(sparsities(other, weights, x, layer), sparsities(one, weights, x, layer), layer)
    assert [found.behind for found in rectified(other)] == ["conv1", "conv2", "fc"]


def test_what_is_changed_in_place_afterwards_counts_as_it_was() -> None:
    class Changed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 4)

        def forward(self, x: Tensor) -> Tensor:
            return functional.relu(self.fc(x)).add_(1.0)

    model = Model(Changed(), (3,))
    x = samples((3,), 8)
    found = sparsities(model, whole(model, 0), x)
    w = whole(model, 0)
    np.testing.assert_array_equal(found, (x @ w[:12].reshape(4, 3).T + w[12:] <= 0).astype(np.float32))


# -- which layer -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_every_model_of_ours_has_one_or_says_so(name: str) -> None:
    model = build(name, {"cnn_bn": (3, 32, 32), "gcn": (16, 40)}.get(name, (1, 28, 28)), 10)
    if name == "linear":
        with pytest.raises(UserError, match=r"linear has no ReLU .* need a model with one"):
            relu_layer(model)
        return
    layer = relu_layer(model)
    if name == "resnet18":  # without a dense one, the last after a convolution
        assert layer == "10.relu"
        return
    at = int(layer)
    assert isinstance(model.module[at], nn.ReLU)  # type: ignore[index]
    assert isinstance(model.module[at - 1], nn.Linear)  # type: ignore[index]
    width = model.module[at - 1].out_features  # type: ignore[index,union-attr]
    assert sparsities(model, model.initial(0), samples(model.input_shape, 2)).shape == (2, width)


def test_without_a_dense_relu_it_is_the_last_convolution_s() -> None:
    module = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 5, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(5, 3),
    )  # fmt: skip
    model = Model(module, (1, 8, 8))
    assert (relu_layer(model), relu_layer(model, "conv"), relu_layer(model, "0")) == ("3", "3", "1")
    with pytest.raises(UserError, match="has no dense ReLU: choose one of 1, 3, auto, dense, conv"):
        relu_layer(model, "dense")
    with pytest.raises(UserError, match=r"has no ReLU '4'\. There are: 1, 3, auto, dense, conv"):
        relu_layer(model, "4")
    with pytest.raises(UserError, match=r"has no ReLU 'cnv'; did you mean 'conv'\?"):
        relu_layer(model, "cnv")


def test_a_relu_that_is_used_twice_has_two_names() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.out = nn.Linear(3, 4), nn.Linear(4, 5), nn.Linear(5, 2)
            self.relu = nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.relu(self.two(self.relu(self.one(x)))))  # type: ignore[no-any-return]

    model = Model(Twice(), (3,))
    x = samples((3,), 4)
    assert [(one.name, one.behind) for one in rectified(model)] == [("relu", "one"), ("relu:2", "two")]
    assert (relu_layer(model), relu_layer(model, "two"), relu_layer(model, "one")) == ("relu:2", "relu:2", "relu")
    assert [sparsities(model, model.flatten(), x, name).shape for name in ("relu", "relu:2", "two")] == [
        (4, 4),
        (4, 5),
        (4, 5),
    ]


def test_a_dense_layer_over_a_sequence_has_its_features_last() -> None:
    module = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 4, 2))
    model = Model(module, (4, 3))
    weights, x = whole(model, 3), samples((4, 3), 5)
    before = x @ weights[:18].reshape(6, 3).T + weights[18:24]
    np.testing.assert_allclose(sparsities(model, weights, x), (before <= 0).mean(axis=1), atol=1e-7)
    assert relu_layer(model, "dense") == "1"


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(3, 4), nn.LeakyReLU(), nn.Linear(4, 2)),
        nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2)),
        nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)),
        nn.Sequential(nn.Linear(3, 4), nn.Hardtanh(-1, 1), nn.Linear(4, 2)),
    ],
)
def test_activations_that_are_never_at_rest_are_no_relu(module: nn.Module) -> None:
    with pytest.raises(UserError, match="has no ReLU"):
        relu_layer(Model(module, (3,)))


# -- evaluation mode, batches, dead channels ---------------------------------------------------------------------------


def test_batch_norm_and_dropout_work_as_in_evaluation() -> None:
    module = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(0.9), nn.Flatten(), nn.Linear(3 * 16, 8),
        nn.Dropout(0.9), nn.ReLU(), nn.Linear(8, 2),
    )  # fmt: skip
    model = Model(module, (1, 6, 6))
    weights = model.flatten().copy()
    named = model.unflatten(weights)  # shares memory
    named["1.running_mean"].fill_(0.3)
    named["1.running_var"].fill_(4.0)
    x = np.random.default_rng(0).normal(size=(20, 1, 6, 6)).astype(np.float32)
    whole_module = model.module_with(weights)
    with torch.inference_mode():
        maps = whole_module[:3](torch.from_numpy(x))  # type: ignore[index]
        dense = whole_module[:8](torch.from_numpy(x))  # type: ignore[index]
    np.testing.assert_allclose(sparsities(model, weights, x, "conv"), (maps == 0).float().mean((2, 3)), atol=1e-6)
    np.testing.assert_array_equal(sparsities(model, weights, x), (dense == 0).float())
    np.testing.assert_array_equal(sparsities(model, weights, x[:1]), sparsities(model, weights, x)[:1])


@given(st.integers(1, 600), st.integers(0, 5))
def test_a_sample_s_vector_does_not_depend_on_those_beside_it(count: int, seed: int) -> None:
    """256 samples go through the module at a time."""
    model = build("mlp_small", (5,), 3)
    extractor = Extractor(model, whole(model, seed))
    x = samples((5,), count, seed)
    found = extractor(x)
    assert found.shape == (count, 32)
    assert set(np.unique(found)) <= {0.0, 1.0}
    np.testing.assert_array_equal(found[-1], extractor(x[-1:])[0])
    np.testing.assert_array_equal(found, extractor(torch.from_numpy(x)))


def test_dead_and_constant_channels_are_one_and_zero() -> None:
    model = Model(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)), (2,))
    weights = np.zeros(model.spec.size, np.float32)
    weights[6:9] = -1.0, 1.0, 0.0  # biases: always at rest, never, and exactly 0, which is at rest
    np.testing.assert_array_equal(sparsities(model, weights, samples((2,), 4)), [[1.0, 0.0, 1.0]] * 4)


def test_read_only_samples_and_weights_are_only_read() -> None:
    model = build("mlp_small", (5,), 3)
    weights, x = whole(model, 0), samples((5,), 3)
    expected = sparsities(model, weights, x)
    for array in (weights, x):
        array.setflags(write=False)
    np.testing.assert_array_equal(sparsities(model, weights, x), expected)


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda w, x: (w[:-1], x), r"the extractor's weights must be \(\d+,\) float32"),
        (lambda w, x: (np.full_like(w, np.nan), x), "the extractor's weights are not finite"),
        (lambda w, x: (w, x[:0]), r"takes at least one sample \(5,\) torch.float32, got \(0, 5\)"),
        (lambda w, x: (w, x[:, :4]), r"got \(3, 4\) torch.float32"),
        (lambda w, x: (w, x.astype(np.float64)), r"got \(3, 5\) torch.float64"),
    ],
)
def test_weights_and_samples_that_do_not_fit(spoil: Callable[..., Any], says: str) -> None:
    model = build("mlp_small", (5,), 3)
    weights, x = spoil(whole(model, 0), samples((5,), 3))
    with pytest.raises(UserError, match=says):
        sparsities(model, weights, x)


def test_an_accelerator_that_is_not_there() -> None:
    model = build("mlp_small", (5,), 3)
    with pytest.raises(UserError, match="unknown device 'tpu': choose cpu, cuda or cuda:N"):
        sparsities(model, whole(model, 0), samples((5,), 3), accelerator="tpu")


def test_a_layer_that_has_no_row_for_each_sample() -> None:
    class Folded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.out = nn.Linear(3, 4), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(functional.relu(self.fc(x.reshape(-1, 3))).reshape(-1, 8))  # type: ignore[no-any-return]

    model = Model(Folded(), (2, 3))
    with pytest.raises(UserError, match=r"its ReLU 'forward' gives \(10, 4\) for 5 samples, .* choose another layer"):
        sparsities(model, model.flatten(), samples((2, 3), 5))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["mlp", "cnn", "cnn_bn"])
def test_a_gpu_gives_the_same(name: str) -> None:
    """Within float32 rounding, which moves a value across 0 now and then."""
    shape = (3, 32, 32)
    model = build(name, shape, 10)
    x = np.random.default_rng(0).normal(size=(300, *shape)).astype(np.float32)
    for layer in ("auto", *(["conv"] if name != "mlp" else [])):
        here, there = (sparsities(model, model.initial(0), x, layer, where) for where in ("cpu", "cuda"))
        assert np.abs(here - there).mean() < 1e-3
