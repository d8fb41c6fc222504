"""What an attacker makes of its trained model, as pure functions of flat (d,) vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.protocol.effects import Vector

Doubles = NDArray[np.float64]


def moved(start: Vector, weights: Vector, factor: float) -> Vector:
    """``start + factor (weights - start)``, (d,): a step that many times as long, backwards if it is negative."""
    step = weights.astype(np.float64) - start
    return (start + factor * step).astype(np.float32)


def noisy(weights: Vector, deviation: float, rng: np.random.Generator) -> Vector:
    """(d,) weights with independent normal noise of this standard deviation on each."""
    return (weights + deviation * rng.standard_normal(len(weights))).astype(np.float32)


def cosine(a: NDArray[Any], b: NDArray[Any]) -> float:
    """The cosine of the angle between two vectors (d,), in float64; 0 if one is zero."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / lengths if lengths else 0.0


def within(towards: NDArray[Any], reference: NDArray[Any], least: float, length: float) -> Doubles:
    """The vector (d,) of this length that points most towards ``towards``, at a cosine with ``reference`` of ``least``.

    It is the projection on a cone: of all vectors whose cosine with the reference is at least ``least``, from -1 to 1,
    none has a larger one with ``towards``. A zero reference bounds nothing, and a zero ``towards`` prefers nothing, so
    the result then points along the reference.
    """
    t, r = (_unit(v.astype(np.float64)) for v in (towards, reference))
    along = float(t @ r)
    if not r.any() or (t.any() and along >= least):
        return length * t
    aside = _unit(t - along * r)
    if not aside.any():
        return length * r
    return np.asarray(length * (least * r + np.sqrt(max(0.0, 1 - least**2)) * aside))


def _unit(vector: Doubles) -> Doubles:
    """The vector at length 1, or zeros for one whose length is nothing but rounding."""
    length = float(np.linalg.norm(vector))
    return vector / length if length > 1e-12 else np.zeros_like(vector)
