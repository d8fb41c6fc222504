"""Effects: the heavy work that a handler asks for instead of doing it.

An effect is pure: its result follows from its fields and, for ``Fit`` and ``Evaluate``, from the party's own data,
which the runner supplies. In a simulation the runner batches the trainings of many clients and opens identical
bytes once; on a device each effect runs alone. Party code cannot tell the difference.

Vectors are flat ``(d,) float32``, laid out by a ``ModelSpec``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Fitted:
    """What local training gives.

    weights: (d,) float32 after training.  state: the solver's named (d,) vectors to keep (e.g. SCAFFOLD's control).
    samples: training samples of this client.  steps: optimiser steps taken.
    loss: mean (weighted) training loss over the samples seen, each measured before the step that used it.
    """

    weights: Vector
    samples: int
    steps: int
    loss: float
    state: Mapping[str, Vector] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Evaluated:
    """Mean loss and accuracy in [0, 1] of one model on one set of samples."""

    loss: float
    accuracy: float
    samples: int


@dataclass(frozen=True, eq=False)
class Fit:
    """Train on the party's own training data: ``-> Fitted``.

    weights: (d,) float32 start.  solver: one of ``coterie.training.solvers``.  epochs: whole passes.
    seed: decides the order of the batches (any non-negative integer).  state: the solver's named (d,) vectors.
    sample_weights: (n,) float32 >= 0, q_i of each training sample in its stored order. A batch's loss is sum_i q_i l_i
    / |batch|: weights of 1 (and None) give the plain mean, smaller ones smaller steps. Needs cross entropy.
    """

    weights: Vector
    solver: Any
    epochs: int
    seed: int
    state: Mapping[str, Vector] = field(default_factory=dict)
    sample_weights: Vector | None = None


@dataclass(frozen=True, eq=False)
class Evaluate:
    """Loss and accuracy of one model on the party's own data: ``-> Evaluated``. split: ``"train"`` or ``"test"``."""

    weights: Vector
    split: str = "train"


@dataclass(frozen=True, eq=False)
class Losses:
    """Cross entropy of every one of the party's own training samples under several models: ``-> (k, n) float32``.

    weights: (k, d) float32.  Samples are in their stored order, that of ``Fit.sample_weights``.
    """

    weights: Vector


@dataclass(frozen=True, eq=False)
class Encrypt:
    """``key.encrypt(values)``: ``-> ciphertext vector``. values: (d,) float."""

    key: Any
    values: NDArray[Any]


@dataclass(frozen=True, eq=False)
class Open:
    """``key.decrypt(key.public.from_bytes(data))``: ``-> (d,) float64``. Identical bytes are opened once.

    blinded: open a vector that carries masks with ``key.open_blinded`` instead; gives the scheme's blinded integers.
    """

    key: Any
    data: bytes
    blinded: bool = False


@dataclass(frozen=True, eq=False)
class Compute:
    """``function(*arguments)``, a pure function that parties compute from the same inputs: ``-> its result``.

    In a simulation it runs once for equal arguments (arrays by their contents, which takes no time for the very same
    ones), so nobody may change its result in place.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]


Effect = Fit | Evaluate | Losses | Encrypt | Open | Compute
