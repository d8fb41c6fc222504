"""A small model with batch normalisation for tests: ``batch_norm_models:small``.

Its layers are torch's own: nothing here forgives a negative running variance.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn


def small(input_shape: Sequence[int], classes: int) -> nn.Sequential:
    """For the 8x8 digits: two strided convolutions, each with batch normalisation; d = 714, of which 24 are buffers."""
    return nn.Sequential(
        nn.Conv2d(input_shape[0], 4, 3, stride=2, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 8, 3, stride=2, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32, classes),
    )
