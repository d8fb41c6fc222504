"""The papers' models by name. Images come as (N, C, H, W) or flat (N, f) float32; all give logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod

from torch import nn

from coterie.protocol.errors import UserError
from coterie.protocol.own import imported
from coterie.training.model import Model


def dense(input_shape: Sequence[int], hidden: Sequence[int], classes: int) -> nn.Sequential:
    """Flatten, then fully connected layers of the given widths with ReLU between them."""
    widths = [prod(input_shape), *hidden, classes]
    layers: list[nn.Module] = [nn.Flatten()]
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def linear(input_shape: Sequence[int], classes: int) -> nn.Sequential:
    """Multinomial logistic regression."""
    return dense(input_shape, (), classes)


def mlp(input_shape: Sequence[int], classes: int) -> nn.Sequential:
    """FedCAPrivacy's for MNIST and Fashion-MNIST: two hidden layers of 200 and 100 (784-200-100-10: d = 178,110)."""
    return dense(input_shape, (200, 100), classes)


def mlp_small(input_shape: Sequence[int], classes: int) -> nn.Sequential:
    """One hidden layer of 32, for the 8x8 digits (64-32-10)."""
    return dense(input_shape, (32,), classes)


def cnn(input_shape: Sequence[int], classes: int) -> nn.Sequential:
    """FedCAPrivacy's for CIFAR: two pairs of a 5x5 convolution and 2x2 max pooling, 512 ReLU units, the output.

    The paper leaves channels, padding and the convolutions' activation open; here 32 and 64 channels, padding 2 (the
    size is kept) and ReLU, as in the CNN of McMahan et al. 2017, from which the description stems.
    """
    if len(input_shape) != 3:
        raise UserError(f"model 'cnn' needs images (C, H, W); the samples have shape {tuple(input_shape)}")
    channels, height, width = input_shape
    if height < 4 or width < 4:
        raise UserError(f"model 'cnn' halves images twice and needs 4x4 pixels or more, not {height}x{width}")
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 512),
        nn.ReLU(),
        nn.Linear(512, classes),
    )


_MODELS: dict[str, Callable[[Sequence[int], int], nn.Sequential]] = {
    "cnn": cnn,
    "linear": linear,
    "mlp": mlp,
    "mlp_small": mlp_small,
}
NAMES: tuple[str, ...] = tuple(_MODELS)

_DEFAULTS = {
    "digits": "mlp_small",
    "cifar10": "cnn",
    "cifar100": "cnn",
    "svhn": "cnn",
}


def build(name: str, input_shape: Sequence[int], classes: int) -> Model:
    """The named model for samples of ``input_shape`` and ``classes`` labels.

    name: one of ``NAMES``, or ``module:FACTORY`` of your own: a function of input_shape and classes that returns a
    ``torch.nn.Module``. Raises UserError for an unknown name and for a factory that gives no module.
    """
    factory = imported(name, "model") if ":" in name else _MODELS.get(name)
    if factory is None:
        raise UserError(f"unknown model {name!r}: choose one of {', '.join(NAMES)}, or module:FACTORY of your own")
    if classes < 2:
        raise UserError(f"model {name!r} needs at least 2 classes, not {classes}")

    def make() -> nn.Module:
        try:
            module = factory(tuple(input_shape), classes)
        except Exception as error:
            raise UserError(f"model {name!r} of shape {tuple(input_shape)} fails: {error}") from error
        if not isinstance(module, nn.Module):
            raise UserError(f"{name!r} gave a {type(module).__name__}, not a torch.nn.Module")
        return module

    return Model(make, input_shape, name=name)


def default_model(dataset: str) -> str:
    """Name of the model that suits a data set: small for digits, a CNN for colour images, else the MLP."""
    return _DEFAULTS.get(dataset, "mlp")
