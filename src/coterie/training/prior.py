"""What a client can add to a model without training: the prior of its own labels.

It adds log pi_own - log pi_mixture to the logits (Saerens, Latinne, Decaestecker, Neural Computation 2002, section 2).
That does harm where test labels are others, so it is left out where the model predicts other labels for a batch than
for own samples. A told mixture may be false, so there is no prior where own training samples speak against it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

LEAST_BATCH = 30
"""Samples from which on a batch is checked."""
ALARM = 0.01  # the p-value below which a batch does not look like the client's own samples
DRAWS = 999
SURE = 2.0
"""Standard errors by which samples speak against a prior."""

Doubles = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Prior:
    """Counts (labels,): of own training samples; of all that the model was trained on; of its
    predictions for own ones.
    """

    own: Counts
    mixture: Counts
    predicted: Counts

    @property
    def shift(self) -> Doubles:
        """(labels,), added to the logits."""
        return prior_shift(self.own, self.mixture)

    def fits(self, answers: Counts, rng: np.random.Generator) -> bool:
        """Whether a batch can be of the client's own label mix. answers: (n,) predicted labels."""
        return looks_like(self.predicted, np.bincount(answers, minlength=len(self.own)), rng)


def prior_shift(own: NDArray[Any], mixture: NDArray[Any]) -> Doubles:
    """(labels,). own, mixture: counts of labels; half a sample is added to each."""
    return np.asarray(_log_shares(own) - _log_shares(mixture), np.float64)


def bears_out(outputs: NDArray[Any], labels: Counts, shift: Doubles) -> bool:
    """The likelihood of a client's own samples loses by less than ``SURE`` standard errors.

    outputs: (n, classes).  labels: (n,).  shift: (classes,), of logits. False without samples.
    """
    if not len(labels):
        return False
    plain = np.asarray(outputs, np.float64)
    gains = _log_p(plain + shift, labels) - _log_p(plain, labels)
    return bool(gains.mean() >= -SURE * gains.std() / len(labels) ** 0.5)


def looks_like(own: Counts, batch: Counts, rng: np.random.Generator) -> bool:
    """By counts (labels,) of predictions for own samples and a batch: a two-sample chi-square, by permutation, from
    ``LEAST_BATCH`` on.
    """
    if batch.sum() < LEAST_BATCH:
        return True
    together = own + batch
    seen = _chi_square(batch[None], together)[0]
    drawn = rng.multivariate_hypergeometric(together, int(batch.sum()), size=DRAWS)
    at_least = int((_chi_square(drawn, together) >= seen - 1e-9).sum())
    return (1 + at_least) / (1 + DRAWS) >= ALARM


def _log_p(logits: Doubles, labels: Counts) -> Doubles:
    largest = logits.max(axis=1, keepdims=True)
    all_of = np.log(np.exp(logits - largest).sum(axis=1)) + largest[:, 0]
    return np.asarray(logits[np.arange(len(labels)), labels] - all_of)


def _log_shares(counts: NDArray[Any]) -> Doubles:
    smooth = np.asarray(counts, np.float64) + 0.5
    return np.asarray(np.log(smooth / smooth.sum()))


def _chi_square(some: NDArray[np.int64], together: NDArray[np.int64]) -> Doubles:
    """(n,) of equal parts (n, labels) of all, up to a common factor."""
    expected = together * (some.sum(axis=1, keepdims=True) / together.sum())
    return np.asarray(((some - expected) ** 2 / np.maximum(expected, 1e-12)).sum(axis=1))
