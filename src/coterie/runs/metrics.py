"""Metrics by name, most of scikit-learn: what a client's model is worth on test samples."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.data.targets import Targets
from coterie.protocol.arrays import Doubles
from coterie.protocol.errors import UserError, suggest
from coterie.protocol.import_path import import_object
from coterie.protocol.model_spec import TaskKind
from coterie.runs.options import RunConfig

Measure = Callable[[NDArray[Any], Doubles], float]
"""True labels (n,) or (n, k), and scores (n, k): probabilities, or numbers in stored units."""


@dataclass(frozen=True)
class Metric:
    """One number for a model on samples.  share: in 0 to 1, shown in percent.  higher: more is better.

    measure: computes it, NaN where undefined.  chance: its best mean for a constant answer, by test sets' shares of
    classes, (sets, classes).  drawn: for many draws (``on_draws``).  ranks: it ranks each class's samples against the
    rest.
    """

    name: str
    measure: Measure
    share: bool = True
    higher: bool = True
    chance: Callable[[Doubles], float] | None = None
    drawn: Callable[[NDArray[Any], Doubles, NDArray[np.int64]], Doubles] | None = None
    ranks: bool = False

    @property
    def facts(self) -> dict[str, Any]:
        short = {"auroc": "AUROC", "f1": "F1", "r2": "R²", "mae": "MAE", "rmse": "RMSE", "mcc": "MCC"}
        label = short.get(self.name, self.name.replace("_", " "))
        return {"name": self.name, "label": label, "share": self.share, "higher": self.higher}

    @property
    def worst(self) -> float:
        return 0.0 if self.share else float("-inf" if self.higher else "inf")

    def on_draws(self, labels: NDArray[Any], scores: Doubles, counts: NDArray[np.int64]) -> Doubles:
        """(draws,) values. counts: (draws, n), how often each sample counts."""
        if self.drawn is None:
            each = (np.repeat(np.arange(len(labels)), own) for own in counts)
            return np.array([self(labels[chosen], scores[chosen]) for chosen in each])
        if not np.isfinite(scores).all():
            return np.full(len(counts), self.worst)
        return self.drawn(labels, np.asarray(scores, np.float64), counts)

    def counted(self, labels: NDArray[Any], classes: int) -> float:
        """How many samples decide its error: all, or of a ranking those of the rarer class; of several classes the
        harmonic mean; 0 without another class.
        """
        if not self.ranks:
            return len(labels)
        own = _against_the_rest(labels, classes).sum(axis=0)
        rarer = np.minimum(own, len(labels) - own)
        return float(1 / (1 / rarer[rarer > 0]).mean()) if rarer.any() else 0.0

    def __call__(self, labels: NDArray[Any], scores: Doubles) -> float:
        """NaN where undefined, the worst value for non-finite scores.

        Raises UserError where one's own function fails, or gives no number.
        """
        if not len(labels):
            return float("nan")
        if not np.isfinite(scores).all():
            return self.worst
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # scikit-learn warns of what is not defined; here that is NaN
                return float(self.measure(labels, scores))
        except Exception as error:  # whatever a user's function raises
            raise UserError(
                f"metric {self.name!r} fails on labels {labels.shape} and scores {scores.shape} ({error!r}): it must "
                "give one number, NaN where it is not defined"
            ) from error


def _sklearn(name: str) -> Callable[..., float]:
    """scikit-learn takes a second to import."""

    def measure(*args: Any, **kwargs: Any) -> float:
        from sklearn import metrics

        return float(getattr(metrics, name)(*args, **kwargs))

    return measure


def _accuracy(labels: NDArray[Any], scores: Doubles) -> float:
    return float(np.mean(_answers(labels, scores) == labels))


def _answers(labels: NDArray[Any], scores: Doubles) -> NDArray[Any]:
    return scores.argmax(1) if labels.ndim == 1 else scores > 0.5


def _balanced_accuracy(labels: NDArray[Any], scores: Doubles) -> float:
    """The mean recall of the classes that there are."""
    right = _answers(labels, scores) == labels
    return float(np.mean([right[labels == of_class].mean() for of_class in np.unique(labels)]))


def _answered(measure: Callable[..., float]) -> Measure:

    def value(labels: NDArray[Any], scores: Doubles) -> float:
        return measure(labels, _answers(labels, scores)) if len(np.unique(labels)) > 1 else float("nan")

    return value


def _macro(measure: Callable[..., float]) -> Measure:
    def value(labels: NDArray[Any], scores: Doubles) -> float:
        answers = _answers(labels, scores)
        if labels.ndim == 1:
            return measure(labels, answers, labels=np.unique(labels), average="macro", zero_division=0)
        found = [k for k in range(labels.shape[1]) if labels[:, k].any()]
        each = [measure(labels[:, k] > 0.5, answers[:, k], zero_division=0) for k in found]
        return float(np.mean(each)) if each else float("nan")

    return value


def _against_the_rest(labels: NDArray[Any], classes: int) -> NDArray[np.bool_]:
    if labels.ndim > 1:
        return np.asarray(labels > 0.5)
    return np.asarray(labels[:, None] == np.arange(1 if classes == 2 else 0, classes))


def _average_precision(labels: NDArray[Any], scores: Doubles) -> float:
    one_hot, measure = _against_the_rest(labels, scores.shape[1]), _sklearn("average_precision_score")
    columns = zip(one_hot.T, scores[:, -one_hot.shape[1] :].T, strict=True)
    values = [measure(of_class, own) for of_class, own in columns if 0 < of_class.sum() < len(labels)]
    return float(np.mean(values)) if values else float("nan")


def _auroc(labels: NDArray[Any], scores: Doubles) -> float:
    (area,) = _drawn_auroc(labels, scores, np.ones((1, len(labels)), np.int64))
    return float(area)


def _drawn_accuracy(labels: NDArray[Any], scores: Doubles, counts: NDArray[np.int64]) -> Doubles:
    right = (_answers(labels, scores) == labels).reshape(len(labels), -1).mean(axis=1)
    with np.errstate(invalid="ignore"):
        return np.asarray(counts @ right / counts.sum(axis=1))


def _drawn_auroc(labels: NDArray[Any], scores: Doubles, counts: NDArray[np.int64]) -> Doubles:
    """The share of pairs, one of the class and one other, in order, a tie as half; the mean over classes with both."""
    one_hot = _against_the_rest(labels, scores.shape[1])
    areas = []
    for with_class, own in zip(one_hot.T, scores[:, -one_hot.shape[1] :].T, strict=True):
        order = np.argsort(own, kind="stable")
        of_class = with_class[order]
        ties = np.flatnonzero(np.diff(own[order], prepend=-np.inf))
        with_it, others = (np.add.reduceat(counts[:, order] * chosen, ties, axis=1) for chosen in (of_class, ~of_class))
        below = np.cumsum(others, axis=1) - others / 2
        with np.errstate(invalid="ignore"):
            areas.append((with_it * below).sum(axis=1) / (with_it.sum(axis=1) * others.sum(axis=1)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a draw in which no column is defined
        return np.asarray(np.nanmean(areas, axis=0))


def _log_loss(labels: NDArray[Any], scores: Doubles) -> float:
    return _sklearn("log_loss")(labels, scores, labels=np.arange(scores.shape[1]))


def _brier(labels: NDArray[Any], scores: Doubles) -> float:
    """Mean squared distance of probabilities from the truth; of two classes, of one (Brier 1950)."""
    distance = np.square(scores - np.eye(scores.shape[1])[labels]).sum(axis=1)
    return float(distance.mean()) / (2 if scores.shape[1] == 2 else 1)


def _gini(shares: Doubles) -> float:
    mean = shares.mean(axis=0)
    return float((mean * (1 - mean)).sum()) / (2 if len(mean) == 2 else 1)


def _r2(labels: NDArray[Any], scores: Doubles) -> float:
    varies = len(labels) > 1 and (np.ptp(labels, axis=0) > 0).all()
    return _sklearn("r2_score")(labels, scores) if varies else float("nan")


def _best(of_class: Callable[[Doubles], Doubles], over: bool = True) -> Callable[[Doubles], float]:
    def chance(shares: Doubles) -> float:
        present = (shares > 0).sum(axis=1, keepdims=True) if over else 1
        return float((of_class(shares) / present).mean(axis=0).max())

    return chance


def _prevalence(shares: Doubles) -> float:
    """Average precision of equal scores: the share of class 1 of two, else a set's classes' mean."""
    present = (shares > 0).sum(axis=1)
    found = (shares[:, 1] if shares.shape[1] == 2 else 1 / np.maximum(present, 1))[present > 1]
    return float(found.mean()) if len(found) else float("nan")


def _entropy(shares: Doubles) -> float:
    mean = shares.mean(axis=0)
    return float(-(mean[mean > 0] * np.log(mean[mean > 0])).sum())


_RECALL = _best(lambda p: (p > 0).astype(float))

_COMMON = (
    Metric("accuracy", _accuracy, chance=_best(lambda p: p, over=False), drawn=_drawn_accuracy),
    Metric("f1", _macro(_sklearn("f1_score")), chance=_best(lambda p: 2 * p / (1 + p))),
    Metric("precision", _macro(_sklearn("precision_score")), chance=_best(lambda p: p)),
    Metric("recall", _macro(_sklearn("recall_score")), chance=_RECALL),
    Metric("auroc", _auroc, chance=lambda p: 0.5, drawn=_drawn_auroc, ranks=True),
    Metric("average_precision", _average_precision, chance=_prevalence, ranks=True),
)
_CLASSES = (
    *_COMMON,
    Metric("balanced_accuracy", _balanced_accuracy, chance=_RECALL),
    Metric("mcc", _answered(_sklearn("matthews_corrcoef")), share=False, chance=lambda p: 0.0),
    Metric("kappa", _answered(_sklearn("cohen_kappa_score")), share=False, chance=lambda p: 0.0),
    Metric("log_loss", _log_loss, share=False, higher=False, chance=_entropy),
    Metric("brier", _brier, share=False, higher=False, chance=_gini),
)
_NUMBERS = (
    Metric("r2", _r2, share=False),
    Metric("mae", _sklearn("mean_absolute_error"), share=False, higher=False),
    Metric("rmse", _sklearn("root_mean_squared_error"), share=False, higher=False),
)
_OF_TASK: dict[TaskKind, tuple[Metric, ...]] = {"classes": _CLASSES, "multilabel": _COMMON, "regression": _NUMBERS}
METRICS: Mapping[TaskKind, Mapping[str, Metric]] = {
    task: {metric.name: metric for metric in known} for task, known in _OF_TASK.items()
}
"""By task and name. f1, precision, recall: unweighted means over the classes. auroc, average_precision: of the second
of two classes, else means over each against the rest.
"""

DEFAULTS: Mapping[TaskKind, str] = {"classes": "accuracy", "multilabel": "auroc", "regression": "r2"}


def metrics_of(names: Sequence[str], task: TaskKind) -> tuple[Metric, ...]:
    """The metrics of these names or ``module:FUNCTION`` (:data:`Measure`), or the task's own, the leading one first.
    Classes always have accuracy. Raises UserError for an unknown or repeated name, and one of another score.
    """
    known = METRICS[task]
    found = []
    for name in names or (DEFAULTS[task],):
        if ":" in name:
            function = import_object(name, "metric")
            if not callable(function):
                raise UserError(f"metric {name!r} is a {type(function).__name__}, not a function of labels and scores")
            own = name.rpartition(":")[2].removeprefix("metric.")
            if own in ("loss", *known):
                raise UserError(f"metric {name!r} has the name of a score that every run has or may have: rename it")
            found.append(Metric(own, function, share=False))
        elif name in known:
            found.append(known[name])
        else:
            others = [other for other, its in METRICS.items() if name in its]
            why = f". It is for {' and '.join(others)}." if others else suggest(name, known)
            raise UserError(
                f"there is no metric {name!r} for {task}{why} Known: {', '.join(known)}, or module:FUNCTION"
            )
    twice = [metric.name for i, metric in enumerate(found) if metric.name in [other.name for other in found[:i]]]
    if twice:
        raise UserError(f"metric {twice[0]!r} is given twice")
    missing = [known["accuracy"]] if task == "classes" and known["accuracy"] not in found else []
    return (*found, *missing)


def run_metrics(config: RunConfig) -> tuple[Metric, ...]:
    return metrics_of(named(config.metrics), config.task)


def score(of: Mapping[str, Any], field: str) -> Any:
    """None where missing."""
    value = of.get(field)
    return (of.get("metrics") or {}).get(field) if value is None else value


def named(words: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in (words or "").split(",") if word.strip())


ClassWeights = Callable[[NDArray[np.int64]], NDArray[np.float32]]
"""Of a client's labels (n,): each sample's weight in training, (n,)."""


def class_weights(words: str | None, targets: Targets, classes: int) -> ClassWeights | None:
    """By ``balanced`` (the same total for every class that a client holds) or a number for each class. Raises
    UserError.
    """
    if words is None:
        return None
    if targets.task != "classes":
        raise UserError(f"class_weights={words} has no effect for the task {targets.task}: leave it out")
    if words == "balanced":
        return lambda labels: _scaled(1 / np.maximum(np.bincount(labels, minlength=classes), 1), labels)
    try:
        numbers = np.array([float(word) for word in words.split(",")])
    except ValueError:
        numbers = np.array([])
    if numbers.shape != (classes,) or not np.isfinite(numbers).all() or (numbers <= 0).any():
        raise UserError(
            f"class_weights is {words!r}: write balanced, or a positive number for each of the {classes} classes with "
            "commas between"
        )
    numbers = np.asarray(numbers / numbers.mean(), np.float32)
    return lambda labels: np.asarray(numbers[labels])


def _scaled(weights: Doubles, labels: NDArray[np.int64]) -> NDArray[np.float32]:
    of_samples = weights[labels]
    return np.asarray(of_samples / of_samples.mean(), np.float32)
