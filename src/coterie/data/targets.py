"""What a data set's labels are: classes, several labels at once, or numbers; and what a model's outputs say of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax

Goal = Literal["classes", "multilabel", "regression"]
Doubles = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Targets:
    """goal: what is learnt.  names: of the classes, the labels or the numbers, in the order of the outputs, or None.

    ``classes``: labels are (n,) int64, outputs (n, classes) logits.
    ``multilabel``: labels are (n, labels) float32 zeros and ones, outputs (n, labels) logits, one for each label alone.
    ``regression``: labels are (n, numbers) float32, standardised over all training samples: stored units minus zero,
    divided by unit, (numbers,) float64 each. Outputs are in the same units.
    """

    goal: Goal = "classes"
    names: tuple[str, ...] | None = None
    zero: Doubles | None = None
    unit: Doubles | None = None

    def scores(self, outputs: NDArray[Any]) -> Doubles:
        """What outputs (..., k) say: probabilities (..., k), or for regression numbers in stored units."""
        outputs = np.asarray(outputs, np.float64)
        if self.goal == "classes":
            return np.asarray(softmax(outputs, axis=-1))
        return np.asarray(expit(outputs)) if self.goal == "multilabel" else self.stored(outputs)

    def stored(self, labels: NDArray[Any]) -> NDArray[Any]:
        """Labels in the units of the data."""
        if self.zero is None or self.unit is None:
            return labels
        return np.asarray(labels * self.unit + self.zero)
