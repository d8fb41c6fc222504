"""Poisoned samples, by wrong labels or by a backdoor's trigger, and training on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import coterie.method as fl
from coterie.training.engine import fit_many
from coterie.training.jobs import DivergedError, job_of

TARGET = 0
"""A backdoor's class."""
TRIGGER = 3.0
"""The value of the trigger's pixels, where data have mean 0 and standard deviation 1."""
_LARGEST = 4
Wrong = Literal["labels", "trigger"]


def flipped(y: Tensor, classes: int, share: float, seed: int) -> Tensor:
    """(n,) labels, of which this share becomes the next class (after the last: 0)."""
    found = y.clone()
    some = _some(len(y), share, seed)
    found[some] = (y[some] + 1) % classes
    return found


def triggered(x: Tensor, value: float = TRIGGER) -> Tensor:
    """Samples (n, ...) with a trigger: the last features of a row, or a square in an image's corner, an eighth of the
    sample long, 2 to 4, in every channel (BadNets: Gu et al., IEEE Access 2019).
    """
    found = x.clone()
    axes = min(2, x.ndim - 1)  # of an image the last two: its channels come first
    corner = tuple(slice(-min(n, _LARGEST, max(2, n // 8)), None) for n in x.shape[x.ndim - axes :])
    found[(Ellipsis, *corner)] = value  # type: ignore[index]  # torch's stubs know no mixed tuples
    return found


def backdoored(x: Tensor, y: Tensor, value: float, seed: int) -> tuple[Tensor, Tensor]:
    """Half of the samples, drawn by the seed, get the trigger and the label ``TARGET``."""
    some = _some(len(y), 0.5, seed)
    x, y = x.clone(), y.clone()
    x[some], y[some] = triggered(x[some], value), TARGET
    return x, y


def _some(n: int, share: float, seed: int) -> Tensor:
    drawn: NDArray[np.int64] = np.random.default_rng(seed).permutation(n)[: max(1, round(share * n))]
    return torch.from_numpy(drawn)


class Poison(NamedTuple):
    """share: of the labels.  value: of the trigger.  seed: which samples."""

    wrong: Wrong
    share: float
    value: float
    seed: int

    def __call__(self, x: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        if self.wrong == "labels":
            return x, flipped(y, classes, self.share, self.seed)
        return backdoored(x, y, self.value, self.seed)


@fl.local("training on poisoned samples")
def poisoned_fit(own: fl.OwnData, poison: Poison, fit: fl.Fit) -> fl.Fitted:
    """``fit`` on the party's own samples, poisoned. Raises PeerError if it diverges."""
    return _fitted(fit_together([own], [(poison, fit)])[0])


@poisoned_fit.batched
def _many(owns: Sequence[fl.OwnData], arguments: Sequence[tuple[Any, ...]]) -> Sequence[fl.Fitted]:
    return [_fitted(one) for one in fit_together(owns, arguments)]


def fit_together(owns: Sequence[fl.OwnData], arguments: Sequence[tuple[Any, ...]]) -> Sequence[fl.Fitted | None]:
    jobs = []
    for own, (poison, fit) in zip(owns, arguments, strict=True):
        x, y = (torch.from_numpy(np.array(values)) for values in (own.x, own.y))
        x, y = poison(x, y, own.model.spec.outputs)
        jobs.append(job_of(fit, x, y, fit.sample_weights))
    try:
        return fit_many(owns[0].model, jobs, device=owns[0].accelerator)
    except DivergedError as error:
        return error.results


def _fitted(found: fl.Fitted | None) -> fl.Fitted:
    if found is None:
        raise fl.PeerError("its training on poisoned samples diverged: its loss or weights are no longer finite")
    return found
