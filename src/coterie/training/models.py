"""The papers' models: images (N, C, H, W) or flat (N, f) float32 to logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import prod

from torch import Tensor, nn

from coterie.protocol.errors import UserError, suggest
from coterie.protocol.import_path import import_object
from coterie.protocol.model_spec import TaskKind
from coterie.training.model import LOSSES, Model
from coterie.training.names import MODELS

Factory = Callable[[Sequence[int], int], nn.Sequential]


def _dense(*hidden: int) -> Factory:
    def make(input_shape: Sequence[int], classes: int) -> nn.Sequential:
        layers: list[nn.Module] = [nn.Flatten()]
        for fan_in, fan_out in pairwise([prod(input_shape), *hidden, classes]):
            layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    return make


def _image(input_shape: Sequence[int], least: int) -> tuple[int, int, int]:
    if len(input_shape) != 3:
        raise UserError("it needs images (C, H, W)")
    channels, height, width = input_shape
    if height < least or width < least:
        raise UserError(
            f"it halves images again and again and needs {least}x{least} pixels or more, not {height}x{width}"
        )
    return channels, height, width


class BatchNorm(nn.BatchNorm2d):
    """With 0 for a negative running variance."""

    def forward(self, input: Tensor) -> Tensor:
        if self.training or self.running_mean is None or self.running_var is None:
            return super().forward(input)
        variance = self.running_var.clamp(min=0)
        return nn.functional.batch_norm(input, self.running_mean, variance, self.weight, self.bias, eps=self.eps)


def cnn_bn(input_shape: Sequence[int], classes: int) -> nn.Sequential:
    """PAFed's for CIFAR-100 (table IV). 32x32 in colour, 100 classes: d = 966,180.

    Running means and variances are in the flat vector (``ModelSpec.buffers``) and only averaged. Training normalises by
    batch, evaluation by them. Dropout follows ``Job.seed``; a GPU draws other masks. The path is "loop".
    """
    channels, height, width = _image(input_shape, 22)
    size = [(((n - 2) // 2 - 2) // 2 - 2) // 2 for n in (height, width)]
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3, padding=1),
        BatchNorm(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3),
        BatchNorm(128),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.05),
        nn.Conv2d(128, 256, 3),
        BatchNorm(256),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.1),
        nn.Flatten(),
        nn.Linear(256 * prod(size), 512),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(512, classes),
    )


class Residual(nn.Module):
    """Two 3x3 convolutions, whose output is added to the input (He et al. 2016, figure 2)."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        second = _normalised(after, after, 3, 1)
        self.change = nn.Sequential(*_normalised(before, after, 3, stride), nn.ReLU(), *second)
        alike = before == after and stride == 1
        self.shortcut = nn.Identity() if alike else nn.Sequential(*_normalised(before, after, 1, stride))
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.relu(self.change(x) + self.shortcut(x))
        return found


def _normalised(before: int, after: int, size: int, stride: int) -> list[nn.Module]:
    return [nn.Conv2d(before, after, size, stride, size // 2, bias=False), BatchNorm(after)]


def resnet18(input_shape: Sequence[int], classes: int) -> nn.Sequential:
    """MingledPie's for CIFAR-100: ResNet-18 (He et al., CVPR 2016, table 1).

    Images of 32x32 are small, so the first convolution is 3x3, and no pooling follows it. 32x32 in colour, 100 classes:
    11,220,132 parameters, d = 11,229,732 with running means and variances. The path is "loop".
    """
    channels, _, _ = _image(input_shape, 9)  # so that normalisation has several values of a single image, too
    layers: list[nn.Module] = [*_normalised(channels, 64, 3, 1), nn.ReLU()]
    for before, after in pairwise([64, 64, 128, 256, 512]):
        layers += [Residual(before, after, after // before), Residual(after, after, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


def _convolutional(channels: Sequence[int], hidden: Sequence[int], padding: int, least: int) -> Factory:
    def make(input_shape: Sequence[int], classes: int) -> nn.Sequential:
        before, *size = _image(input_shape, least)
        layers: list[nn.Module] = []
        for after in channels:
            layers += [nn.Conv2d(before, after, 5, padding=padding), nn.ReLU(), nn.MaxPool2d(2)]
            before, size = after, [(n + 2 * padding - 4) // 2 for n in size]
        return nn.Sequential(*layers, *_dense(*hidden)((before, *size), classes))

    return make


class WeightedSum(nn.Module):
    """(n, rows, f + 1) to (n, hidden): the rows' sum, weighted by the last column, after ``convolve``."""

    def __init__(self, convolve: nn.Module) -> None:
        super().__init__()
        self.convolve = convolve

    def forward(self, x: Tensor) -> Tensor:
        rows: Tensor = self.convolve(x[..., :-1])
        return (rows * x[..., -1:]).sum(-2)


def gcn(input_shape: Sequence[int], classes: int) -> nn.Sequential:
    """OFL's for graphs. Samples are neighbourhoods (rows, f + 1), with A^ X in the first f columns and A^ in the last.

    H1 = relu(A^ X W1 + b1) of all rows, H2 = relu((A^ H1) W2 + b2) of the node; then 512 units with ReLU, and the
    output. The paper leaves the convolutions' width open; here 64. Cora: d = 132,807.
    """
    if len(input_shape) != 2 or input_shape[1] < 2:
        raise UserError("it needs neighbourhoods of nodes (rows, features + 1), which graph data sets have")
    first = nn.Sequential(nn.Linear(input_shape[1] - 1, 64), nn.ReLU())
    second = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
    return nn.Sequential(WeightedSum(first), *second, nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, classes))


_FACTORIES: Mapping[str, Factory] = {
    # FedCAPrivacy leaves channels, padding and the convolutions' activation open, PAFed (table II) all activations;
    # here 32 and 64 channels, padding 2 (the size is kept) and ReLU, as in the CNN of McMahan et al. 2017, from which
    # the description stems. 28x28 in one channel: d = 1,663,370.
    "cnn": _convolutional((32, 64), (512,), padding=2, least=4),
    "cnn_256": _convolutional((32, 64), (256,), padding=2, least=4),
    "cnn_bn": cnn_bn,
    "linear": _dense(),
    "mlp": _dense(200, 100),
    "mlp_small": _dense(32),
    "fcnn": _dense(200),
    "gcn": gcn,
    # Two 5x5 convolutions of 6 and 16 channels, each with 2x2 max pooling, then 120, 84 and the output; ReLU.
    "lenet": _convolutional((6, 16), (120, 84), padding=0, least=16),
    "resnet18": resnet18,
}

NAMES: tuple[str, ...] = tuple(MODELS)

_DEFAULTS = {"digits": "mlp_small", "cifar10": "cnn", "cifar100": "cnn", "svhn": "cnn"}


def factory(name: str) -> Factory | nn.Module:
    """name: one of ``NAMES``, or ``module:FACTORY``, a function of input_shape and classes that gives a
    ``torch.nn.Module``. Raises UserError.
    """
    if ":" in name:
        return import_object(name, "model")  # type: ignore[no-any-return]
    if name not in _FACTORIES:
        raise UserError(
            f"unknown model {name!r}{suggest(name, NAMES)} Known: {', '.join(NAMES)}, or module:FACTORY of your own"
        )
    return _FACTORIES[name]


def build(
    name: str, input_shape: Sequence[int], classes: int, task: TaskKind = "classes", loss: str | None = None
) -> Model:
    """name: as in ``factory``.  classes: labels or outputs.  loss: a name of ``LOSSES``, or ``module:FUNCTION``
    (``Loss``); by default the task's. Raises UserError for an unknown name, a factory without a module, and outputs
    that are not one a class.
    """
    made = factory(name)
    if classes < 2 and task == "classes":
        raise UserError(f"model {name!r} needs at least 2 classes, not {classes}")

    def make() -> nn.Module:
        try:
            module = made(tuple(input_shape), classes)
        except Exception as error:
            called = f"it is called with the input shape {tuple(input_shape)} and the number of outputs {classes}"
            raise UserError(f"model {name!r} fails: {error}; {called}, and must return a torch.nn.Module") from error
        if not isinstance(module, nn.Module):
            raise UserError(f"{name!r} gave a {type(module).__name__}, not a torch.nn.Module")
        return module

    of_task = LOSS_OF[task] if loss is None else loss
    if of_task in LOSSES and (of_task == "cross_entropy") != (task == "classes"):
        raise UserError(f"loss {of_task} does not suit the task {task}: leave it out for {LOSS_OF[task]}")
    own = import_object(of_task, "loss") if ":" in of_task else of_task
    model = Model(made if isinstance(made, nn.Module) else make, input_shape, loss=own, name=name)
    if model.outputs != classes:
        what = "classes" if task == "classes" else "targets"
        raise UserError(f"model {name!r} gives {model.outputs} outputs, but the data have {classes} {what}")
    return model


LOSS_OF: dict[TaskKind, str] = {
    "classes": "cross_entropy",
    "multilabel": "binary_cross_entropy",
    "regression": "mse",
}
"""A task's loss by default."""


def default_model(dataset: str) -> str:
    """Small for digits, a CNN for colour images, else the MLP."""
    return _DEFAULTS.get(dataset, "mlp")
