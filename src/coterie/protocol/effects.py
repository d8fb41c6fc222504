"""Effects: the heavy work that a handler asks for instead of doing it. ``interpreters.py`` computes them.

A result follows from the effect's fields and, for ``Fit``, ``Evaluate``, ``Losses`` and ``Local``, the party's own
data. Vectors are flat ``(d,) float32``, laid out by a ``ModelSpec``.
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
    """The result of local training.

    weights: (d,) float32.  state: the solver's named (d,) vectors to keep (SCAFFOLD's control).  samples: of this
    client's training data.  steps: of the optimiser.  loss: mean (weighted) training loss over the samples seen, each
    before its step.
    """

    weights: Vector
    samples: int
    steps: int
    loss: float
    state: Mapping[str, Vector] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Evaluated:
    """Mean loss and accuracy in [0, 1] of one model."""

    loss: float
    accuracy: float
    samples: int


@dataclass(frozen=True, eq=False)
class Fit:
    """Train on the party's own training data: ``-> Fitted``.

    weights: (d,) float32 start.  solver: of ``coterie.training.solvers``.  epochs: whole passes.  seed: >= 0, of the
    order of batches.  state: the solver's named (d,) vectors.  sample_weights: (n,) float32 >= 0, q_i of each sample in
    stored order, for a batch's loss sum_i q_i l_i / |batch|, of cross entropy.  secret: SECRET, of a private solver's
    batches and noise.  only: names of the trained parts; () for all.
    """

    weights: Vector
    solver: Any
    epochs: int
    seed: int
    state: Mapping[str, Vector] = field(default_factory=dict)
    sample_weights: Vector | None = None
    secret: bytes = field(default=b"", repr=False)
    only: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Evaluate:
    """Loss and accuracy of one model on the party's own data: ``-> Evaluated``. split: ``"train"`` or ``"test"``."""

    weights: Vector
    split: str = "train"


@dataclass(frozen=True, eq=False)
class Losses:
    """Cross entropy of the party's own training samples, in stored order, under models (k, d) float32: ``-> (k, n)
    float32``.
    """

    weights: Vector


@dataclass(frozen=True, eq=False)
class OwnData:
    """The party's own data and device, for a function of ``Local``. Arrays are read-only.

    x, y: its training samples in stored order, (n, ...) float32 and (n,) int64.  device: its
    ``coterie.devices.Profile``, if known.  model: the federation's ``coterie.training.model.Model``.  accelerator:
    ``"cpu"``, ``"cuda"`` or ``"cuda:N"``.  presence: its seconds between two instants, if known.
    """

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    model: Any = None
    device: Any = None
    accelerator: str = "cpu"
    presence: Callable[[float, float], float] | None = None


Many = Callable[[Sequence[OwnData], Sequence[tuple[Any, ...]]], Sequence[T]]
"""A batched form: several parties' data and arguments -> results in order."""


@dataclass(eq=False)
class LocalFunction(Generic[T]):
    """Registered by ``local``, and called like its function.  many: the batched form."""

    name: str
    run: Callable[..., T]
    many: Many[T] | None = None

    def __call__(self, own: OwnData, *arguments: Any) -> T:
        return self.run(own, *arguments)

    def batched(self, many: Many[T]) -> Many[T]:
        """Register the batched form. Raises TypeError for a second one."""
        if self.many is not None:
            raise TypeError(f"{self.name!r} has a batched form already")
        self.many = many
        return many


_REGISTERED: dict[str, LocalFunction[Any]] = {}


def local(name: str) -> Callable[[Callable[..., T]], LocalFunction[T]]:
    """``@local("class counts")`` registers a pure ``function(own, *arguments)`` for ``Local``, under a unique name, or
    raises TypeError. It may refuse with a PeerError.
    """

    def register(run: Callable[..., T]) -> LocalFunction[T]:
        if (known := _REGISTERED.get(name)) is not None and _place(known.run) != _place(run):
            raise TypeError(f"{name!r} is the name of {_place(known.run)} already: give {_place(run)} another name")
        _REGISTERED[name] = made = LocalFunction(name, run)
        return made

    return register


def _place(function: Any) -> str:
    code = getattr(function, "__code__", None)
    return repr(function) if code is None else f"{function.__qualname__} of {code.co_filename}"


@dataclass(frozen=True, eq=False)
class Local:
    """``function(own, *arguments)`` of the party's own data: ``-> its result``, with read-only arrays.

    function: registered by ``@local(name)``, or its name. Others raise TypeError.
    """

    function: LocalFunction[Any] | str
    arguments: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        known, given = _REGISTERED.get(self.name), self.function
        if known is None and isinstance(given, str):
            raise TypeError(f"no function is registered as {given!r}; there are: {', '.join(sorted(_REGISTERED))}")
        if known is None or (not isinstance(given, str) and _place(known.run) != _place(given.run)):
            raise TypeError(f"{_place(given)} is not registered: decorate it with @local(name)")

    @property
    def name(self) -> str:
        return self.function if isinstance(self.function, str) else getattr(self.function, "name", repr(self.function))

    @property
    def registered(self) -> LocalFunction[Any]:
        return _REGISTERED[self.name]


@dataclass(frozen=True, eq=False)
class Encrypt:
    """``key.encrypt(values)``: ``-> ciphertext vector``. values: (d,) float."""

    key: Any
    values: NDArray[Any]


@dataclass(frozen=True, eq=False)
class Open:
    """``key.decrypt(key.public.from_bytes(data))``: ``-> (d,) float64``. Identical bytes are opened once.

    blinded: it carries masks; ``key.open_blinded`` gives a ``BlindedVector``.
    """

    key: Any
    data: bytes
    blinded: bool = False


@dataclass(frozen=True, eq=False)
class Compute:
    """A pure ``function(*arguments)`` that several parties compute alike: ``-> its result``, never changed in place: a
    simulation runs it once for equal arguments (arrays by contents).
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]


Effect = Fit | Evaluate | Losses | Local | Encrypt | Open | Compute
