"""An audit of the real release: a device's noisy sparsity vector, on data that differ in one sample."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from torch import nn

from coterie.dp.gaussian import noise_multiplier
from coterie.privacy.attacks.noisy_uploads import lower_bound
from coterie.protocol.effects import Local, OwnData
from coterie.protocol.party import Party
from coterie.protocol.randomness import Randomness
from coterie.protocol.setup_info import Own
from coterie.protocols.sparsity import Noise, describe
from coterie.training.model import Model

WIDTH, SAMPLES, DRAWS = 4, 10, 4_000
CENTRE = np.full(WIDTH, 0.5, np.float32)


class Device(Party, role="client"):
    """Only what ``describe`` needs."""


def identity() -> tuple[Model, np.ndarray[Any, Any]]:
    """Its ReLU gives what it is given, so a sample's sparsity vector is where it is not positive."""
    model = Model(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2)), (WIDTH,))
    weights = np.zeros(model.spec.size, np.float32)
    weights[: WIDTH**2] = np.eye(WIDTH, dtype=np.float32).ravel()
    return model, weights


def released(first: float, seed: int, noise: Noise) -> np.ndarray[Any, Any]:
    """Vectors (draws, C) of data whose first sample has the same sign everywhere and whose others are mixed.

    The halves are drawn once, for all samples but one are alike; the noise is drawn anew each time.
    """
    model, weights = identity()
    x = np.tile(np.array([1.0, -1.0] * (WIDTH // 2), np.float32), (SAMPLES, 1))
    x[0] = first
    device, halves, vectors = Device(Own("c", Randomness(seed, True))), None, []
    for r in range(DRAWS):
        work = describe(device, weights, "1", round=r, noise=noise)
        effect = next(work)
        assert isinstance(effect, Local)
        if halves is None:
            halves = effect.registered(OwnData(x, np.zeros(SAMPLES, np.int64), model), *effect.arguments)
        with pytest.raises(StopIteration) as stopped:
            work.send(halves)
        vectors.append(stopped.value.value.vector)
    return np.stack(vectors)


def proven(multiplier: float, delta: float, clip: float = 0.3) -> float:
    """The neighbours are as far apart as clipping allows: 2 clip along (1, ..., 1)."""
    noise = Noise(clip, multiplier, CENTRE)
    present, replaced = (released(first, seed, noise).sum(axis=1) for first, seed in ((-1.0, 1), (1.0, 2)))
    return lower_bound(present, replaced, delta)


def test_a_described_device_keeps_the_epsilon_that_is_claimed() -> None:
    """The vector shows half of the change and 1/sqrt(2) of the noise: it tells less than both halves, the release."""
    multiplier = noise_multiplier(3.0, 1e-5)
    assert 0.3 < proven(multiplier, 1e-5) <= 3.0
    assert proven(multiplier / 6, 1e-5) > 3.0  # the audit would notice a sixth of the noise
