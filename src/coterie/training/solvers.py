"""Local solvers: what a client minimises, and what it remembers.

Every solver descends on f(w) + <drift, w> + (shrink / 2) |w|^2, f the mean loss: weight decay, FedProx, SCAFFOLD, ADMM
and FedDyn.

Gradients point uphill; ``weights -= lr * direction``. Momentum lives within one ``Fit``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

import coterie.protocol.core as fl

if TYPE_CHECKING:
    from torch import Tensor, nn

State = Mapping[str, "Tensor"]
OwnLoss = Callable[["nn.Module", State, "Tensor", "Tensor", Any], "Tensor"]
"""``loss(network, start, x, y, settings)`` of a batch: its mean (a scalar), or one for each sample, (n,).

network: in training mode.  start: by name, the parameters at the start.  x, y: (n, ...) samples and labels.  settings:
the objective's.
"""

LEAST_SECRET = 32
"""Bytes of a hiding training's secret."""
MOST_WEIGHT = 2.0**40
"""A model with a larger weight, or variance, has blown up."""


def pushed(steps: int, momentum: float) -> float:
    """The sum of 1 + m + ... + m^(t-1) over t: how far a gradient of 1 in every step leads, over the learning rate."""
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


def largest(values: NDArray[np.floating[Any]]) -> float:
    return float(max(values.max(), -values.min()))


class Pull(NamedTuple):
    """The extra gradient ``shrink * weights + drift``. drift: shaped like the weights, or None for zero."""

    shrink: float
    drift: Tensor | None = None


@runtime_checkable
class Solver(Protocol):
    """A hashable dataclass: equal ones are trained together.  needs: names of the required ``(d,)`` vectors in the
    state.  takes: of optional ones.
    """

    needs: ClassVar[tuple[str, ...]]
    takes: ClassVar[tuple[str, ...]]

    @property
    def lr(self) -> float: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def momentum(self) -> float: ...
    def pull(self, start: Tensor, state: State) -> Pull: ...
    def keep(self, start: Tensor, end: Tensor, steps: int, state: State) -> dict[str, Tensor]: ...


class Sampling(NamedTuple):
    """size: of a full batch.  probability: by which DP-SGD takes each sample, for ``size`` on average.  steps: of all
    epochs.
    """

    size: int
    probability: float
    steps: int


def sampling(samples: int, batch_size: int, epochs: int) -> Sampling:
    size = min(batch_size, samples)
    return Sampling(size, size / samples, epochs * -(-samples // size))


def is_private(solver: Any) -> bool:
    return getattr(solver, "sample_noise", None) is not None


def descend(weights: Tensor, gradient: Tensor, velocity: Tensor | None, pull: Pull, solver: Solver) -> None:
    """One step in place; ``gradient`` is used up.  velocity: the momentum buffer, zero at first, None without.

    direction = gradient + shrink * weights + drift;  velocity = momentum * velocity + direction (as torch.optim.SGD).
    """
    if pull.shrink:
        gradient.add_(weights, alpha=pull.shrink)
    if pull.drift is not None:
        gradient.add_(pull.drift)
    if velocity is not None:
        gradient = velocity.mul_(solver.momentum).add_(gradient)
    weights.add_(gradient, alpha=-solver.lr)


@dataclass(frozen=True)
class Sgd:
    """Minibatch SGD.

    lr: learning rate > 0.  batch_size: samples a step; an epoch's last batch may be smaller.
    momentum: in [0, 1), heavy ball.  weight_decay: >= 0, adds ``weight_decay * weights`` to the gradient.
    sample_noise: of DP-SGD (``training/private.py``), the noise's standard deviation over ``sample_clip``; None for
        plain SGD.  sample_clip: the largest L2 norm of a sample's gradient.
    """

    lr: fl.Positive
    batch_size: fl.AtLeastOne = 50
    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    weight_decay: fl.NotNegative = 0.0
    sample_clip: fl.Positive = field(default=1.0, kw_only=True)
    sample_noise: Annotated[float | None, Meta(gt=0, le=fl.LARGEST)] = field(default=None, kw_only=True)

    needs: ClassVar[tuple[str, ...]] = ()
    takes: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        fl.check_bounds(self)

    def pull(self, start: Tensor, state: State) -> Pull:
        return Pull(self.weight_decay)

    def keep(self, start: Tensor, end: Tensor, steps: int, state: State) -> dict[str, Tensor]:
        return {}


@dataclass(frozen=True)
class Proximal(Sgd):
    """SGD on f(w) + (mu / 2) |w - anchor|^2 (FedProx, Li et al. 2020, eq. 2).

    mu: >= 0.  State, optional: "anchor", else the start weights.
    """

    mu: fl.NotNegative = 0.01

    takes: ClassVar[tuple[str, ...]] = ("anchor",)

    def pull(self, start: Tensor, state: State) -> Pull:
        return Pull(self.weight_decay + self.mu, -self.mu * state.get("anchor", start))


@dataclass(frozen=True)
class Admm(Sgd):
    """SGD on the augmented Lagrangian f(w) + <dual, w - anchor> + (rho / 2) |w - anchor|^2 (PAFed eq. 8; FedADMM).

    rho: > 0, coefficient of the quadratic term.
    State: "dual" (y_i, this client's; zeros in the first round); optional "anchor", the received global model, else the
    start weights.
    Kept, eq. 10: dual+ = dual + rho (w+ - anchor). What a client sends, eq. 16: ``augmented_change``.
    """

    rho: fl.Positive = 0.01

    needs: ClassVar[tuple[str, ...]] = ("dual",)
    takes: ClassVar[tuple[str, ...]] = ("anchor",)

    def pull(self, start: Tensor, state: State) -> Pull:
        return Pull(self.weight_decay + self.rho, state["dual"] - self.rho * state.get("anchor", start))

    def keep(self, start: Tensor, end: Tensor, steps: int, state: State) -> dict[str, Tensor]:
        return {"dual": state["dual"] + self.rho * (end - state.get("anchor", start))}


@dataclass(frozen=True)
class Scaffold(Sgd):
    """SGD corrected by control variates (SCAFFOLD, Karimireddy et al. 2020).

    State: "control" (c_i, this client's) and "server_control" (c); zeros in the first round. Step, eq. 3: y -= lr
    (gradient - c_i + c).  Kept, eq. 4 option II: c_i+ = c_i - c + (x - y) / (steps lr), which momentum would falsify.
    """

    needs: ClassVar[tuple[str, ...]] = ("control", "server_control")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.momentum:
            raise fl.UserError(f"Scaffold: momentum must be 0, not {self.momentum!r}")

    def pull(self, start: Tensor, state: State) -> Pull:
        return Pull(self.weight_decay, state["server_control"] - state["control"])

    def keep(self, start: Tensor, end: Tensor, steps: int, state: State) -> dict[str, Tensor]:
        return {"control": state["control"] - state["server_control"] + (start - end) / (steps * self.lr)}


@dataclass(frozen=True)
class Objective(Sgd):
    """SGD on a loss of one's own.

    loss: see ``OwnLoss``. It replaces the run's (``--loss``), and may draw from torch's generator, which the training
    seeds.  settings: what it reads, such as a system's config.
    """

    loss: Callable[..., Any] = field(kw_only=True)
    settings: Any = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if is_private(self):
            raise fl.UserError("a loss of one's own has no gradient of each sample to clip: leave sample_noise out")
        if not callable(self.loss):
            raise fl.UserError(
                f"Objective: loss must be a function of network, start, x, y, settings, not {self.loss!r}"
            )
        try:
            hash(self.settings)
        except TypeError:
            raise fl.UserError(
                f"Objective: settings must be hashable, as a frozen dataclass is, not {self.settings!r}"
            ) from None

    def losses(self, network: nn.Module, start: State, x: Tensor, y: Tensor) -> Tensor:
        """A scalar or (n,). Raises UserError if the function fails or gives something else."""
        name = getattr(self.loss, "__name__", repr(self.loss))
        try:
            found: Tensor = self.loss(network, start, x, y, self.settings)
            fits = found.shape in ((), y.shape[:1]) and found.requires_grad
        except Exception as error:  # whatever a user's function raises
            raise fl.UserError(
                f"objective {name} fails on samples {tuple(x.shape)} and labels {tuple(y.shape)}: {error!r}; "
                "it is called with network, start, x, y and config"
            ) from error
        if not fits:
            raise fl.UserError(
                f"objective {name} gives {tuple(found.shape)} for {len(y)} samples: it must give a tensor with a "
                "gradient, of one number for each sample, or the mean"
            )
        return found


def augmented_change(change: fl.Vector, dual_change: fl.Vector, rho: float) -> fl.Vector:
    """What an ADMM client sends: (w+ - w) + (y+ - y) / rho (PAFed eq. 16; FedADMM); all (d,) float32.

    change: w+ - w, from the client's reference to its new model.  dual_change: y+ - y, eq. 10. Both terms are equal if
    w was just received. At buffers it is the change alone.
    """
    return (change + dual_change / np.float32(rho)).astype(np.float32)


def unit_change(spec: fl.ModelSpec, change: fl.Vector, clip: float | None = None) -> tuple[fl.Vector, float]:
    """PAFed algorithm 3, line 8: a client's change at length 1, (d,) float32, and its former length.

    clip: the largest length told.  Buffers keep their changes and count in no length: a rescaled variance may leave the
    range of all. A change of length 0 stays 0.
    """
    is_parameter = ~spec.buffers
    length = float(np.linalg.norm(change[is_parameter].astype(np.float64)))
    factor = np.where(is_parameter, 1 / length if length else 0.0, 1.0)
    return (change * factor).astype(np.float32), length if clip is None else min(length, clip)
