"""Models of a stated size, for tests of large packets."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torch import nn


def _wide(parameters: int, input_shape: Sequence[int], outputs: int) -> nn.Sequential:
    inputs = prod(input_shape)
    hidden = parameters // (inputs + outputs + 1)
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


def of_8_mb(input_shape: Sequence[int], outputs: int) -> nn.Sequential:
    """8 MB of weights."""
    return _wide(2_000_000, input_shape, outputs)


def of_100_mb(input_shape: Sequence[int], outputs: int) -> nn.Sequential:
    """100 MB of weights, and a little more."""
    return _wide(25_100_000, input_shape, outputs)
