"""Trainings and evaluations on parties' own data, in this process (``Here``) or on workers (``runs/workers.py``): pure
functions of effect and data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from coterie.protocol.effects import Evaluate, Evaluated, Fit, Fitted, Losses, Vector
from coterie.protocol.errors import PeerError
from coterie.protocol.interpreters import Interpreters, each, interpret
from coterie.runs.metrics import ClassWeights
from coterie.training.engine import fit_many
from coterie.training.evaluate import evaluate_many, judge_many
from coterie.training.jobs import DivergedError, How, job_of
from coterie.training.model import Model

Wanted = Sequence[tuple[str, Any]]
"""Parties and effects: ``Fit``, ``Evaluate`` or ``Losses``."""


@dataclass(frozen=True, eq=False)
class TensorSamples:
    """x: (n, ...) float32.  y: (n,) int64."""

    x: Tensor
    y: Tensor

    def at(self, places: NDArray[np.int64]) -> TensorSamples:
        return TensorSamples(self.x[places], self.y[places])


@dataclass(frozen=True, eq=False)
class ClientData:
    """Training samples x (n, ...) float32 and y (n,) int64, and test samples.

    inputs: x, or what makes it.  test_set: of its task, shared.  tests: own indices into it, or what makes them.
    held_out: kept out of training, or None.
    """

    inputs: Tensor | Callable[[], Tensor]
    y: Tensor
    tests: NDArray[np.int64] | Callable[[], NDArray[np.int64]]
    test_set: TensorSamples
    held_out: TensorSamples | None = None

    @property
    def x(self) -> Tensor:
        return self.inputs if isinstance(self.inputs, Tensor) else self.inputs()

    @cached_property
    def test(self) -> NDArray[np.int64]:
        return self.tests() if callable(self.tests) else self.tests

    def arrays(self) -> dict[str, Any]:
        """As in a party's ``.npz``, without those held out."""
        found = {"x": self.x.numpy(), "y": self.y.numpy()}
        if len(self.test):
            found |= {"x_test": self.test_set.x[self.test].numpy(), "y_test": self.test_set.y[self.test].numpy()}
        return found


class OnData(Protocol):
    def run(self, wanted: Wanted) -> list[Any]:
        """In order; a diverged training gives its DivergedError, a refused effect its PeerError."""

    def drift(self) -> None:
        """Clients have each other's data."""

    def close(self) -> None: ...


class Here:
    """class_weights: of the training loss."""

    def __init__(
        self, model: Model, data: Mapping[str, ClientData], how: How, class_weights: ClassWeights | None = None
    ) -> None:
        self.model, self.data, self.how, self.class_weights = model, data, how, class_weights
        self._table: Interpreters = {Fit: self._fit, Evaluate: each(self._evaluate), Losses: each(self._losses)}

    def run(self, wanted: Wanted) -> list[Any]:
        return interpret(self._table, wanted)

    def drift(self) -> None: ...

    def close(self) -> None: ...

    def of(self, party: str) -> ClientData:
        """Raises TypeError for a party without data."""
        if party not in self.data:
            raise TypeError(f"{party} has no data to train or evaluate on (a hub has what --public gives it)")
        return self.data[party]

    def _fit(self, wanted: Sequence[tuple[str, Fit]]) -> Sequence[Fitted | DivergedError]:
        jobs = [
            job_of(fit, own.x, own.y, self._weighted(own, fit.sample_weights))
            for own, fit in ((self.of(party), fit) for party, fit in wanted)
        ]
        try:
            return fit_many(self.model, jobs, **self.how)
        except DivergedError as error:
            found, error.results = error.results, ()
            return [error if result is None else result for result in found]

    def _weighted(self, own: ClientData, weights: Vector | None) -> Vector | None:
        if self.class_weights is None:
            return weights
        of_class = self.class_weights(own.y.numpy())
        return of_class if weights is None else of_class * weights

    def _evaluate(self, party: str, effect: Evaluate) -> Evaluated:
        own = self.of(party)
        whole, test = own.test_set, effect.split == "test"
        if test and not len(own.test):
            raise TypeError(f"{party} has no test samples to evaluate on")
        x, y = (whole.x[own.test], whole.y[own.test]) if test else (own.x, own.y)
        matrix = np.array(effect.weights)[None]  # torch dislikes read-only arrays
        return evaluate_many(self.model, matrix, x, y, device=self.how["device"])[0]

    def _losses(self, party: str, effect: Losses) -> NDArray[np.float32]:
        own = self.of(party)
        return judge_many(self.model, np.array(effect.weights), own.x, own.y, device=self.how["device"]).losses


def diverged() -> PeerError:
    return PeerError("its training diverged: its loss or weights are no longer finite")
