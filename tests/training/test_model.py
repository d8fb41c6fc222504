"""Modules as flat vectors, the papers' models, and the solvers' own arithmetic."""

from __future__ import annotations

import copy
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from coterie.protocol.errors import UserError
from coterie.training import models
from coterie.training.model import Model, pooled_first
from coterie.training.models import build, default_model
from coterie.training.names import GRAPH_MODEL
from coterie.training.solvers import Proximal, Pull, Scaffold, Sgd, descend


class TestVectors:
    @given(st.lists(st.integers(1, 9), min_size=2, max_size=5), st.booleans(), st.integers(0, 2**32))
    def test_flatten_and_unflatten_are_inverse(self, widths: list[int], bias: bool, seed: int) -> None:
        layers = [nn.Linear(a, b, bias=bias) for a, b in pairwise(widths)]
        model = Model(nn.Sequential(*layers), (widths[0],), loss=lambda out, y: out.mean())
        vector = np.random.default_rng(seed).normal(size=model.spec.size).astype(np.float32)
        assert np.array_equal(model.flatten(model.module_with(vector)), vector)
        tensors = model.unflatten(vector)
        assert np.array_equal(np.concatenate([t.numpy().ravel() for t in tensors.values()]), vector)
        assert [p.offset for p in model.spec.parts] == list(np.cumsum([0, *(p.size for p in model.spec.parts)])[:-1])
        assert model.spec.size == sum(p.numel() for layer in layers for p in layer.parameters())

    def test_order_and_kinds_follow_the_state_dict(self) -> None:
        module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2 * 4, 3))
        model = Model(module, (1, 4, 4), personal=["3."])
        names = [n for n in module.state_dict() if n != "1.num_batches_tracked"]
        assert [p.name for p in model.spec.parts] == names
        assert {p.name for p in model.spec.parts if p.kind == "buffer"} == {"1.running_mean", "1.running_var"}
        assert {p.name for p in model.spec.parts if p.scope == "personal"} == {"3.weight", "3.bias"}
        assert np.array_equal(model.flatten(), np.concatenate([module.state_dict()[n].numpy().ravel() for n in names]))

    def test_a_permuted_convolution_weight_keeps_its_order(self) -> None:
        """Channels-last is a matter of memory; the flat vector is in logical order."""
        model = build("cnn", (3, 8, 8), 10)
        module = model.module_with(model.initial(0))
        flat = model.flatten(module)
        module.to(memory_format=torch.channels_last)
        assert np.array_equal(model.flatten(module), flat)

    def test_the_users_module_is_never_changed(self) -> None:
        module = nn.Linear(4, 3)
        before = module.weight.detach().clone()
        model = Model(module, (4,))
        model.module_with(model.initial(3))
        model.module_with(np.zeros(15, np.float32))
        assert torch.equal(module.weight, before)
        assert np.array_equal(model.flatten()[:12], before.numpy().ravel())

    @given(st.integers(0, 2**32), st.integers(1, 3), st.integers(0, 1))
    def test_pooling_before_relu_changes_no_bit(self, seed: int, window: int, padding: int) -> None:
        """Whole numbers in -2 .. 2 have many equal maxima, and windows of zeros."""
        generator = torch.Generator().manual_seed(seed)

        def whole(*shape: int) -> torch.Tensor:
            return torch.randint(-2, 3, shape, generator=generator).float()

        pooling = nn.MaxPool2d(window, padding=min(padding, window // 2))
        inner = nn.Sequential(nn.Conv2d(2, 3, 1), nn.ReLU(inplace=True), pooling, nn.ReLU())
        plain = nn.Sequential(nn.ReLU(), nn.AvgPool2d(1), inner, nn.Flatten(), nn.LazyLinear(2))
        images = whole(4, 2, 6, 6)
        plain(images)
        for parameter in plain.parameters():
            parameter.data = whole(*parameter.shape)
        moved = pooled_first(copy.deepcopy(plain))
        assert [type(layer).__name__ for layer in moved[2]] == ["Conv2d", "MaxPool2d", "ReLU", "ReLU"]
        assert [type(layer) for layer in moved[:2]] == [nn.ReLU, nn.AvgPool2d]
        assert moved.state_dict().keys() == plain.state_dict().keys()
        outputs = [module(images) for module in (plain, moved)]
        assert torch.equal(*outputs)
        factors = whole(4, 2)
        of_plain, of_moved = (
            torch.autograd.grad((out * factors).sum(), list(module.parameters()))
            for out, module in zip(outputs, (plain, moved), strict=True)
        )
        assert all(map(torch.equal, of_plain, of_moved))

    def test_a_sequence_of_which_a_module_uses_parts_stays(self) -> None:
        class Skips(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layers = nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU(), nn.MaxPool2d(2))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                before = self.layers[:2](x)
                return self.layers[2](before).flatten(1) + before.mean()

        module = nn.Sequential(Skips(), nn.Flatten())
        assert [type(layer) for layer in pooled_first(module)[0].layers] == [nn.Conv2d, nn.ReLU, nn.MaxPool2d]

    @pytest.mark.parametrize("at", [0, 1])
    @pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook"])
    def test_layers_with_hooks_stay(self, at: int, register: str) -> None:
        """A hook may change what a layer takes or gives, or look at it."""
        module = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))
        getattr(module[at], register)(lambda layer, *values: None)
        assert [type(layer) for layer in pooled_first(module)] == [nn.ReLU, nn.MaxPool2d]

    def test_wrong_vectors(self) -> None:
        model = Model(nn.Linear(4, 3), (4,))
        with pytest.raises(UserError, match=r"must be \(15,\) float32, got \(16,\)"):
            model.unflatten(np.zeros(16, np.float32))
        with pytest.raises(UserError, match="int64"):
            model.module_with(np.zeros(15, np.int64))
        with pytest.raises(UserError, match="architecture"):
            model.flatten(nn.Linear(4, 4))
        read_only = np.zeros(15, np.float32)
        read_only.flags.writeable = False
        model.unflatten(read_only)["weight"].fill_(1.0)
        assert not read_only.any()


class TestInitial:
    @pytest.mark.parametrize("as_factory", [True, False])
    def test_follows_the_seed_alone(self, as_factory: bool) -> None:
        def make() -> nn.Module:
            return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))

        model = Model(make if as_factory else make(), (4,))
        torch.manual_seed(0)
        state = torch.get_rng_state()
        first = model.initial(5)
        assert torch.equal(state, torch.get_rng_state())
        torch.manual_seed(99)
        assert np.array_equal(first, model.initial(5))
        assert not np.array_equal(first, model.initial(6))
        assert first.dtype == np.float32
        assert np.abs(first[:32]).max() <= 0.5  # uniform in +-1/sqrt(fan_in), torch's own scheme
        assert np.array_equal(model.initial(2**90), model.initial(2**90))

    def test_making_a_model_draws_no_random_numbers(self) -> None:
        state = torch.get_rng_state()
        build("mlp_small", (1, 8, 8), 10)
        assert torch.equal(state, torch.get_rng_state())

    def test_a_layer_that_cannot_draw_again_is_named(self) -> None:
        class Scale(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.gain = nn.Parameter(torch.ones(3))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x * self.gain

        model = Model(nn.Sequential(nn.Linear(4, 3), Scale()), (4,))
        with pytest.raises(UserError, match=r"'1' \(Scale\).*factory"):
            model.initial(0)
        factory = Model(lambda: nn.Sequential(nn.Linear(4, 3), Scale()), (4,))
        assert factory.initial(0)[-3:].tolist() == [1, 1, 1]


def tied() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.ReLU(), layer)


UNSUPPORTED = {
    "half precision": (lambda: nn.Sequential(nn.Linear(4, 3).double()), r"'0' \(Linear\).*float64"),
    "complex": (lambda: nn.Sequential(nn.Linear(4, 3, dtype=torch.complex64)), r"'0' \(Linear\).*complex"),
    "lazy": (lambda: nn.Sequential(nn.ReLU(), nn.LazyLinear(3)), r"'1' \(UninitializedParameter|'1' \(LazyLinear"),
    "shared": (tied, "'2.weight' is the same tensor as '0.weight'"),
    "counter": (lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, momentum=None)), r"'1' \(BatchNorm1d"),
    "no parameters": (nn.Identity, "no parameters"),
    "wrong input": (lambda: nn.Linear(5, 3), "does not accept samples of shape"),
    "no logits": (lambda: nn.Linear(4, 1), "logits"),
    "images out": (lambda: nn.Sequential(nn.Linear(4, 4), nn.Unflatten(1, (2, 2))), "logits"),
    "tuple out": (lambda: nn.LSTM(4, 3), "one tensor"),
}


@pytest.mark.parametrize(("make", "message"), UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_unsupported_modules_are_refused_by_name(make, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UserError, match=message):
        Model(make(), (4,))


def test_other_refusals_of_a_model() -> None:
    with pytest.raises(UserError, match="unknown loss"):
        Model(nn.Linear(4, 3), (4,), loss="hinge")
    with pytest.raises(UserError, match=r"torch\.nn\.Module"):
        Model(lambda: 3, (4,))  # type: ignore[arg-type,return-value]
    with pytest.raises(UserError, match="head"):
        Model(nn.Linear(4, 3), (4,), personal=["head"])


class TestNamedModels:
    def test_sizes_are_the_published_ones(self) -> None:
        """178,110: the 784-200-100-10 MLP.  1,663,370: the MNIST CNN of McMahan et al. 2017, section 3."""
        assert build("mlp", (1, 28, 28), 10).spec.size == 178_110
        assert build("cnn", (1, 28, 28), 10).spec.size == 1_663_370
        assert build("mlp_small", (1, 8, 8), 10).spec.size == 64 * 32 + 32 + 32 * 10 + 10
        assert build("linear", (600,), 100).spec.size == 60_100

    def test_resnet18_is_the_published_one(self) -> None:
        """Parameters and multiply-accumulates of He et al. 2016, table 1, with a first convolution of 3x3, no pooling
        after it, and 100 classes.
        """
        convolutions = [(3, 64, 3, 32)]  # channels before and after, size, side of the output
        for before, after, side in [(64, 64, 32), (64, 128, 16), (128, 256, 8), (256, 512, 4)]:
            convolutions += [(before, after, 3, side), *[(after, after, 3, side)] * 3]
            convolutions += [(before, after, 1, side)] * (before != after)
        weights = [before * after * size**2 for before, after, size, _ in convolutions]
        channels = sum(after for _, after, _, _ in convolutions)
        model = build("resnet18", (3, 32, 32), 100)
        of_kind = {kind: sum(p.size for p in model.spec.parts if p.kind == kind) for kind in ("parameter", "buffer")}
        assert of_kind == {"parameter": sum(weights) + 2 * channels + 513 * 100, "buffer": 2 * channels}
        assert of_kind["parameter"] == 11_220_132
        macs = sum(count * side**2 for count, (*_, side) in zip(weights, convolutions, strict=True)) + 512 * 100
        assert model.spec.flops_per_sample == pytest.approx(6 * macs, rel=0.01)  # it counts normalisation, too

    def test_a_residual_block_adds_to_its_input(self) -> None:
        x = torch.randn(2, 4, 6, 6, generator=torch.Generator().manual_seed(0))
        same, halved = models.Residual(4, 4, 1).eval(), models.Residual(4, 8, 2).eval()
        for block in (same, halved):
            nn.init.zeros_(block.change[-1].weight)  # the change is 0
        assert torch.equal(same(x), x.relu())
        assert torch.equal(halved(x), halved.shortcut(x).relu())
        assert halved(x).shape == (2, 8, 3, 3)

    def test_flops(self) -> None:
        """6 per multiply-accumulate: of the MLP's weights; of the CNN's windows."""
        assert build("mlp", (784,), 10).spec.flops_per_sample == 6 * (784 * 200 + 200 * 100 + 100 * 10)
        windows = 28 * 28 * 25 * 32 + 14 * 14 * 25 * 32 * 64
        assert build("cnn", (1, 28, 28), 10).spec.flops_per_sample == 6 * (windows + 3136 * 512 + 512 * 10)
        grouped = Model(nn.Sequential(nn.Conv2d(4, 8, 3, groups=2), nn.Flatten()), (4, 5, 5))
        assert grouped.spec.flops_per_sample == 6 * 8 * 9 * (4 // 2) * 9
        normed = Model(nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)), (4,))
        assert normed.spec.flops_per_sample == 6 * (12 + 6)

    @pytest.mark.parametrize("name", models.NAMES)
    @pytest.mark.parametrize("shape", [(1, 8, 8), (3, 9, 10), (20,), (2, 22, 23)])
    def test_all_give_logits(self, name: str, shape: tuple[int, ...]) -> None:
        least = {"cnn": 4, "cnn_256": 4, "cnn_bn": 22, "lenet": 16, "resnet18": 9}.get(
            name, 0
        )  # pixels each way, of images
        if least and (len(shape) == 1 or min(shape[1:]) < least):
            with pytest.raises(UserError, match=f"images|{least}x{least}"):
                build(name, shape, 7)
            return
        if name == GRAPH_MODEL:
            shape = shape[-2:] if len(shape) > 1 else (5, *shape)
        model = build(name, shape, 7)
        assert model.classes == 7
        assert model.module_with(model.initial(0))(torch.zeros(2, *shape)).shape == (2, 7)

    def test_defaults_and_refusals(self) -> None:
        wanted = {"digits": "mlp_small", "mnist": "mlp", "fashion_mnist": "mlp", "cifar10": "cnn", "cifar100": "cnn"}
        wanted |= {"svhn": "cnn", "purchase100": "mlp", "texas100": "mlp", "location30": "mlp"}
        assert {name: default_model(name) for name in wanted} == wanted
        assert set(wanted.values()) <= set(models.NAMES)
        with pytest.raises(UserError, match=r"Known: cnn.*mlp_small.*or module:FACTORY"):
            build("resnet", (3, 32, 32), 10)
        with pytest.raises(UserError, match="classes"):
            build("mlp", (4,), 1)
        with pytest.raises(UserError, match="4x4"):
            build("cnn", (1, 3, 9), 10)


class TestSolvers:
    def test_one_step_by_hand(self) -> None:
        """g = 2, w = 10, shrink 0.1, drift -0.5: direction 2.5; then velocity 0.9 * 4 + 2.5 = 6.1."""
        pull = Pull(0.1, torch.tensor([-0.5]))
        w = torch.tensor([10.0])
        descend(w, torch.tensor([2.0]), None, pull, Sgd(0.2))
        assert w.item() == pytest.approx(10 - 0.2 * 2.5)
        w, v = torch.tensor([10.0]), torch.tensor([4.0])
        descend(w, torch.tensor([2.0]), v, pull, Sgd(0.2, momentum=0.9))
        assert v.item() == pytest.approx(6.1)
        assert w.item() == pytest.approx(10 - 0.2 * 6.1)

    def test_pulls(self) -> None:
        start, anchor = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 5.0])
        assert Sgd(0.1, weight_decay=0.3).pull(start, {}) == Pull(0.3, None)
        w = torch.tensor([4.0, 4.0])
        for state, centre in (({}, start), ({"anchor": anchor}, anchor)):
            shrink, drift = Proximal(0.1, weight_decay=0.3, mu=0.5).pull(start, state)
            assert drift is not None
            torch.testing.assert_close(shrink * w + drift, 0.3 * w + 0.5 * (w - centre))
        state = {"control": torch.tensor([1.0, 1.0]), "server_control": torch.tensor([0.5, 4.0])}
        shrink, drift = Scaffold(0.1).pull(start, state)
        assert shrink == 0
        assert drift is not None
        assert drift.tolist() == [-0.5, 3.0]  # eq. 3: + c - c_i

    def test_scaffold_control_is_option_two(self) -> None:
        """(d,) and (clients, d) alike: c_i - c + (x - y) / (steps lr)."""
        x, y = torch.tensor([[1.0], [2.0]]), torch.tensor([[0.4], [3.0]])
        state = {"control": torch.tensor([[0.1], [0.2]]), "server_control": torch.tensor([[0.5], [0.5]])}
        kept = Scaffold(0.2).keep(x, y, 3, state)
        torch.testing.assert_close(kept["control"], torch.tensor([[0.1 - 0.5 + 1.0], [0.2 - 0.5 - 1 / 0.6]]))

    def test_equal_solvers_are_one_group(self) -> None:
        assert Sgd(0.1) == Sgd(0.1)
        assert hash(Proximal(0.1)) == hash(Proximal(0.1))
        assert Sgd(0.1) != Proximal(0.1, mu=0.0)  # an equal step, but another name in a run's configuration

    @pytest.mark.parametrize(
        ("make", "field"),
        [
            (lambda: Sgd(0.0), "lr"),
            (lambda: Sgd(-1.0), "lr"),
            (lambda: Sgd(float("nan")), "lr"),
            (lambda: Sgd(float("inf")), "lr"),
            (lambda: Sgd("fast"), "lr"),  # type: ignore[arg-type]
            (lambda: Sgd(None), "lr"),  # type: ignore[arg-type]
            (lambda: Sgd(0.1, batch_size=0), "batch_size"),
            (lambda: Sgd(0.1, batch_size=2.5), "batch_size"),  # type: ignore[arg-type]
            (lambda: Sgd(0.1, batch_size=True), "batch_size"),
            (lambda: Sgd(0.1, momentum=1.0), "momentum"),
            (lambda: Sgd(0.1, momentum=-0.1), "momentum"),
            (lambda: Sgd(0.1, weight_decay=-1e-9), "weight_decay"),
            (lambda: Proximal(0.1, mu=-1.0), "mu"),
            (lambda: Scaffold(0.0), "lr"),
            (lambda: Scaffold(0.1, batch_size=-5), "batch_size"),
            (lambda: Scaffold(0.1, weight_decay=float("nan")), "weight_decay"),
        ],
    )
    def test_hyper_parameters_out_of_range(self, make, field: str) -> None:  # type: ignore[no-untyped-def]
        with pytest.raises(UserError, match=field):
            make()
