"""Effects: the heavy work that a handler asks for instead of doing it.

An effect is pure: its result follows from its fields and, for ``Fit``, ``Evaluate``, ``Losses`` and ``Local``, from the
party's own data, which the runner supplies. In a simulation the runner batches the trainings of many clients and opens
identical bytes once; on a device each effect runs alone. Party code cannot tell the difference. A table says how each
type of effect is computed (``interpreters.py``).

Vectors are flat ``(d,) float32``, laid out by a ``ModelSpec``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]
T = TypeVar("T")


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
class OwnData:
    """What a function of ``Local`` may read of its party. Arrays are read-only.

    x: (n, ...) float32 and y: (n,) int64, its training samples in their stored order.
    model: the network that the federation trains, for what needs one (``coterie.training.model.Model``).
    device: its own profile (``coterie.devices.Profile``), or None where nobody states one.
    """

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    model: Any = None
    device: Any = None


@dataclass(eq=False)
class LocalFunction(Generic[T]):
    """A function that is registered by ``local``. run(own, *arguments): of one party.  many: of several, or None.

    It is called like the function itself.
    """

    name: str
    run: Callable[..., T]
    many: Callable[[Sequence[OwnData], Sequence[tuple[Any, ...]]], Sequence[T]] | None = None

    def __call__(self, own: OwnData, *arguments: Any) -> T:
        return self.run(own, *arguments)

    def batched(
        self, many: Callable[[Sequence[OwnData], Sequence[tuple[Any, ...]]], Sequence[T]]
    ) -> Callable[[Sequence[OwnData], Sequence[tuple[Any, ...]]], Sequence[T]]:
        """Register the batched form: ``many(data, arguments)``, one of each for every party -> results in their order.

        It gives what ``run`` gives for one party after the other. Raises TypeError for a second one.
        """
        if self.many is not None:
            raise TypeError(f"{self.name!r} has a batched form already")
        self.many = many
        return many


_REGISTERED: dict[str, LocalFunction[Any]] = {}


def local(name: str) -> Callable[[Callable[..., T]], LocalFunction[T]]:
    """``@local("class counts")`` registers ``function(own, *arguments)`` for ``Local``, under a name of its own.

    It must be pure: the same data and arguments give the same result, and nothing else happens. It may refuse with a
    PeerError. Raises TypeError for a name that another function has.
    """

    def register(run: Callable[..., T]) -> LocalFunction[T]:
        if (known := _REGISTERED.get(name)) is not None and _place(known.run) != _place(run):
            raise TypeError(f"{name!r} is the name of {_place(known.run)} already: give {_place(run)} another")
        made = LocalFunction(name, run)
        _REGISTERED[name] = made
        return made

    return register


def _place(function: Any) -> str:
    """Where a function is defined, whatever name its module was imported under; of all else, how it prints."""
    code = getattr(function, "__code__", None)
    return repr(function) if code is None else f"{function.__qualname__} of {code.co_filename}"


@dataclass(frozen=True, eq=False)
class Local:
    """``function(own, *arguments)`` of the party's own data: ``-> its result``, whose arrays are read-only.

    For what a party computes of its data beside training: features, statistics, gradients, what its device can do.
    function: one that is registered by ``@local(name)``, or its name. Others are refused with a TypeError, so the
    registered functions are all that can ever be computed of a party's data.
    """

    function: LocalFunction[Any] | str
    arguments: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        known = _REGISTERED.get(self.name)
        if isinstance(self.function, str):
            if known is None:
                raise TypeError(
                    f"no function is registered as {self.function!r}; there are: {', '.join(sorted(_REGISTERED))}"
                )
        elif known is None or _place(known.run) != _place(self.function.run):
            raise TypeError(f"{_place(self.function)} is not registered: decorate it with @local(name)")

    @property
    def name(self) -> str:
        """Of the function; how it prints where it has none."""
        return self.function if isinstance(self.function, str) else getattr(self.function, "name", repr(self.function))

    @property
    def registered(self) -> LocalFunction[Any]:
        """The function itself."""
        return _REGISTERED[self.name]


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


Effect = Fit | Evaluate | Losses | Local | Encrypt | Open | Compute
