"""What a data set's labels are: classes, several labels at once, or numbers; and what a model's outputs say of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.protocol.errors import UserError
from coterie.protocol.model_spec import TaskKind

Doubles = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Targets:
    """task: what is learnt.  names: of the classes, the labels or the numbers, in the order of the outputs, or None.

    ``classes``: labels are (n,) int64, outputs (n, classes) logits.
    ``multilabel``: labels are (n, labels) float32 zeros and ones, outputs (n, labels) logits, one for each label alone.
    ``regression``: labels are (n, numbers) float32, standardised over all training samples: stored units minus zero,
    divided by unit, (numbers,) float64 each. Outputs are in the same units.
    """

    task: TaskKind = "classes"
    names: tuple[str, ...] | None = None
    zero: Doubles | None = None
    unit: Doubles | None = None

    def scores(self, outputs: NDArray[Any]) -> Doubles:
        """What outputs (..., k) say: probabilities (..., k), or for regression numbers in stored units."""
        from scipy.special import expit, softmax  # here, so that a list of data sets does not wait for scipy

        outputs = np.asarray(outputs, np.float64)
        if self.task == "classes":
            return np.asarray(softmax(outputs, axis=-1))
        return np.asarray(expit(outputs)) if self.task == "multilabel" else self.stored(outputs)

    def stored(self, labels: NDArray[Any]) -> NDArray[Any]:
        """Labels in the units of the data."""
        if self.zero is None or self.unit is None:
            return labels
        return np.asarray(labels * self.unit + self.zero)

    def counts(self, labels: NDArray[Any], outputs: int) -> NDArray[np.int64]:
        """(outputs,) samples of each class or with each label; for regression (1,), the number of samples."""
        if self.task == "classes":
            return np.bincount(labels, minlength=outputs).astype(np.int64)
        if self.task == "multilabel":
            return np.asarray((labels > 0.5).sum(0), np.int64)
        return np.array([len(labels)], np.int64)


def several(
    y_train: NDArray[Any], y_test: NDArray[Any], names: tuple[str, ...] | None, where: str
) -> tuple[NDArray[np.float32], NDArray[np.float32], Targets]:
    """Labels of ``multilabel``, (n,) or (n, k) zeros and ones, as (n, k). Raises UserError."""
    train, test = _numbers(y_train, where), _numbers(y_test, where)
    for labels in (train, test):
        if not np.isin(labels, (0, 1)).all():
            wrong = labels[~np.isin(labels, (0, 1))][0]
            raise UserError(f"{where}: labels of task multilabel must be 0 or 1, there is {wrong:g}")
    return train.astype(np.float32), test.astype(np.float32), Targets("multilabel", names)


def standardised(
    y_train: NDArray[Any], y_test: NDArray[Any], names: tuple[str, ...] | None, where: str
) -> tuple[NDArray[np.float32], NDArray[np.float32], Targets]:
    """Numbers of ``regression``, (n,) or (n, k), as (n, k): mean 0, deviation 1 in training. Raises UserError."""
    train, test = _numbers(y_train, where), _numbers(y_test, where)
    zero, unit = train.mean(0), train.std(0)
    if (unit == 0).any():
        raise UserError(f"{where}: all training samples have the value {zero[unit == 0][0]:g}: nothing can be learnt")
    scaled = [((labels - zero) / unit).astype(np.float32) for labels in (train, test)]
    return scaled[0], scaled[1], Targets("regression", names, zero, unit)


def _numbers(y: NDArray[Any], where: str) -> Doubles:
    """Finite numbers (n, k); raises UserError."""
    try:
        y = np.asarray(y).astype(np.float64)
    except (ValueError, TypeError):
        wrong = next(value for value in np.ravel(y) if not _is_number(value))
        raise UserError(f"{where}: labels of this task are numbers; {str(wrong)!r} is none") from None
    y = y[:, None] if y.ndim == 1 else y
    if y.ndim != 2 or not y.shape[1]:
        raise UserError(f"{where}: labels have shape {y.shape}; they must be (n,) or (n, outputs)")
    if not np.isfinite(y).all():
        raise UserError(f"{where}: the label of sample {int(np.argmin(np.isfinite(y).all(1)))} is no finite number")
    return y


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (ValueError, TypeError):
        return False
    return True
