"""A data set's labels: classes, several at once, or numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.protocol.arrays import Array, Doubles, Floats, Integers
from coterie.protocol.errors import UserError
from coterie.protocol.model_spec import TaskKind

_EXACT = 2.0**53  # below it a double is exact


@dataclass(frozen=True, eq=False)
class Targets:
    """names: of classes, labels or numbers, in the order of outputs, or None.

    ``classes``: labels (n,) int64, outputs (n, classes) logits. ``multilabel``: labels (n, labels) float32 zeros and
    ones, outputs (n, labels) logits. ``regression``: both (n, numbers) float32: stored units minus zero, over unit,
    (numbers,) float64 each, so that training samples have mean 0 and deviation 1.
    """

    task: TaskKind = "classes"
    names: tuple[str, ...] | None = None
    zero: Doubles | None = None
    unit: Doubles | None = None

    def scores(self, outputs: Array) -> Doubles:
        """Probabilities (..., k), or for regression numbers in stored units."""
        from scipy.special import expit, softmax  # here, so that a list of data sets does not wait for scipy

        outputs = np.asarray(outputs, np.float64)
        if self.task == "classes":
            return np.asarray(softmax(outputs, axis=-1))
        return np.asarray(expit(outputs)) if self.task == "multilabel" else self.stored(outputs)

    def stored(self, labels: Array) -> Array:
        """In the units of the data."""
        if self.zero is None or self.unit is None:
            return labels
        return np.asarray(labels * self.unit + self.zero)

    def counts(self, labels: Array, outputs: int) -> Integers:
        """(outputs,) samples of each class or label; for regression (1,)."""
        if self.task == "classes":
            return np.bincount(labels, minlength=outputs).astype(np.int64)
        if self.task == "multilabel":
            return np.asarray((labels > 0.5).sum(0), np.int64)
        return np.array([len(labels)], np.int64)


_MOST_NUMBERS = 20  # of classes that few samples each have


def coded(labels: Sequence[tuple[str, Array]]) -> tuple[Integers, tuple[str, ...]]:
    """Labels as numbers 0, 1, ... (N,) in the order of their values, and these. Raises UserError.

    labels: their source, and (n,) numbers or text. Text of a number is a number.
    """
    for where, y in labels:
        if y.ndim != 1:
            raise UserError(f"{where}: labels have shape {y.shape}; there must be one label for each sample")
    numbers, found = [whole(y, where) for where, y in labels], [y for _, y in labels]
    words = [i for i, one in enumerate(numbers) if one is None]
    if 0 < len(words) < len(found):
        text, number = words[0], next(i for i, one in enumerate(numbers) if one is not None)
        raise UserError(
            f"some clients' labels are numbers and others' are text: {str(found[number][0])!r} in {labels[number][0]}, "
            f"{str(found[text][0])!r} in {labels[text][0]}; use one of the two for all"
        )
    if words:
        check_words(labels)
    else:
        _check_digits(labels)
        found = [one for one in numbers if one is not None]
    values, codes = np.unique(np.concatenate(found), return_inverse=True)
    if not words and len(values) > max(_MOST_NUMBERS, len(codes) / 5):
        raise UserError(
            f"{labels[0][0]}: the labels are {len(values)} different numbers for {len(codes)} samples: to predict "
            "numbers say task=regression (--task); if they are classes, write them as text"
        )
    if len(values) < 2:
        raise UserError(f"{labels[0][0]}: all labels are {values[0]}; at least two classes are needed")
    return codes.astype(np.int64), tuple(map(str, values))


def whole(y: Array, where: str) -> Integers | None:
    """Labels (n,) as whole numbers; None if one is a word. Raises UserError."""
    try:
        values = y.astype(np.float64)
    except (ValueError, TypeError):
        return None
    good = np.abs(values) < _EXACT
    good[good] = values[good] == np.round(values[good])
    if not good.all():
        raise UserError(
            f"{where}: labels must be whole numbers below 2^53 or text; there is {y[np.argmin(good)]} (for numbers to "
            "be predicted say task=regression)"
        )
    return values.astype(np.int64)


def spelt_twice(words: Iterable[str]) -> tuple[str, str] | None:
    """The first two words that differ only in case or blanks."""
    known: dict[str, str] = {}
    for word in words:
        first = known.setdefault("".join(word.casefold().split()), word)
        if first != word:
            return first, word
    return None


def check_words(labels: Sequence[tuple[str, Iterable[Any]]]) -> None:
    """labels: their source, and text. Raises UserError for two spellings of one."""
    found: dict[str, str] = {}
    for where, values in labels:
        for word in dict.fromkeys(map(str, values)):
            found.setdefault(word, where)
    if twice := spelt_twice(found):
        one, other = (f"{word!r} in {found[word]}" for word in twice)
        raise UserError(
            f"labels that differ only in case or blanks: {one}, {other}. Write them in one way; if they are two "
            "classes, give them other names"
        )


def _check_digits(labels: Sequence[tuple[str, Array]]) -> None:
    spelt: dict[int, str] = {}
    for where, y in labels:
        for text in dict.fromkeys(y) if y.dtype.kind == "O" else ():
            digits = str(text).lstrip("+-").partition(".")[0]
            known = spelt.setdefault(int(float(text)), digits)
            if known != digits:
                raise UserError(
                    f"{where}: the labels {known!r} and {digits!r} are the same number: write it in one way only"
                )


def several(y_train: Array, y_test: Array, names: tuple[str, ...] | None, where: str) -> tuple[Floats, Floats, Targets]:
    """Of ``multilabel``: (n,) or (n, k) zeros and ones, as (n, k). Raises UserError."""
    train, test = _numbers(y_train, where), _numbers(y_test, where)
    for labels in (train, test):
        if not np.isin(labels, (0, 1)).all():
            wrong = labels[~np.isin(labels, (0, 1))][0]
            raise UserError(f"{where}: labels of task multilabel must be 0 or 1, there is {wrong:g}")
    return train.astype(np.float32), test.astype(np.float32), Targets("multilabel", names)


def standardised(
    y_train: Array, y_test: Array, names: tuple[str, ...] | None, where: str
) -> tuple[Floats, Floats, Targets]:
    """Of ``regression``: (n,) or (n, k), as (n, k), mean 0 and deviation 1. Raises UserError."""
    train, test = _numbers(y_train, where), _numbers(y_test, where)
    zero, unit = train.mean(0), train.std(0)
    if (same := np.ptp(train, axis=0) == 0).any():
        raise UserError(f"{where}: all training samples have the value {train[0, same][0]:g}: nothing can be learnt")
    scaled = [((labels - zero) / unit).astype(np.float32) for labels in (train, test)]
    return scaled[0], scaled[1], Targets("regression", names, zero, unit)


def _numbers(y: Array, where: str) -> Doubles:
    try:
        y = np.asarray(y).astype(np.float64)
    except (ValueError, TypeError):
        wrong = next(value for value in np.ravel(y) if not is_number(value))
        raise UserError(f"{where}: labels of this task are numbers; {str(wrong)!r} is none") from None
    y = y[:, None] if y.ndim == 1 else y
    if y.ndim != 2 or not y.shape[1]:
        raise UserError(f"{where}: labels have shape {y.shape}; they must be (n,) or (n, outputs)")
    if not np.isfinite(y).all():
        raise UserError(f"{where}: the label of sample {int(np.argmin(np.isfinite(y).all(1)))} is not a finite number")
    return y


def is_number(value: Any) -> bool:
    try:
        float(value)
    except (ValueError, TypeError):
        return False
    return True


def has_decimal_comma(word: str) -> bool:
    return "," in word and is_number(word.replace(",", ".", 1))
