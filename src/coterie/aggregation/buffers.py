"""Running statistics (a model's buffers) beside its parameters: they get a mean with weights of at least 0 that sum
to one, and a client that sends a change sends its buffers as they are, so that no running variance becomes negative.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.protocol.model_spec import ModelSpec

Doubles = NDArray[np.float64]

CKKS_UNIT = 256.0
"""A 1 under CKKS at buffers: it has room for weights, of some tens, and running variances may be larger."""


def with_buffers(spec: ModelSpec, values: NDArray[Any], of: NDArray[Any]) -> NDArray[Any]:
    """``values`` (..., d) at the parameters, ``of`` (..., d) at the buffers."""
    return np.where(spec.buffers, of, values) if spec.buffers.any() else values


def stepped(
    spec: ModelSpec, weights: NDArray[Any], change: NDArray[Any], mean: NDArray[Any], step: float, share: float = 1.0
) -> Doubles:
    """A server's next model, (d,) float64: ``weights + step change`` at the parameters, a mean at the buffers.

    change, mean: (d,), the clients' mean change, and their mean at the buffers.  step: >= 0.
    share: >= 0, the part of all clients that these stand for, where ``change`` is a mean over all.
    Buffers move by step times share, at most by 1.
    """
    moved, b = np.asarray(weights + step * change, dtype=np.float64), spec.buffers
    moved[b] = weights[b] + min(step * share, 1.0) * (mean[b] - weights[b])
    return moved


@lru_cache(maxsize=4)
def ckks_units(spec: ModelSpec) -> NDArray[np.float32]:
    """(d,) what a 1 under CKKS stands for: 1 at parameters, ``CKKS_UNIT`` at buffers."""
    unit = np.where(spec.buffers, np.float32(CKKS_UNIT), np.float32(1))
    unit.setflags(write=False)
    return unit


def not_below_zero(spec: ModelSpec, values: NDArray[Any]) -> NDArray[Any]:
    """``values`` (..., d) with running variances of at least 0."""
    if not spec.variances.any():
        return values
    return np.asarray(np.where(spec.variances, np.maximum(values, 0), values), dtype=values.dtype)
