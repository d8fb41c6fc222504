"""Metrics by name, against counts by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from coterie.data.targets import Targets
from coterie.protocol.errors import UserError
from coterie.runs.metrics import METRICS, metrics_of


def value(name: str, labels: Any, scores: Any, task: Any = "classes") -> float:
    metric, *_ = metrics_of([name], task)
    return metric(np.asarray(labels), np.asarray(scores, np.float64))


def two(p: list[float]) -> NDArray[np.float64]:
    """Probabilities of two classes from those of the second."""
    return np.stack([1 - np.array(p), np.array(p)], 1)


def test_area_under_the_curve_is_the_share_of_pairs_in_order() -> None:
    labels, p = [0, 1, 0, 1, 1, 0], [0.1, 0.4, 0.35, 0.8, 0.3, 0.3]
    pairs = [(a, b) for a, x in zip(p, labels, strict=True) if x for b, y in zip(p, labels, strict=True) if not y]
    share = sum((a > b) + (a == b) / 2 for a, b in pairs) / len(pairs)
    assert value("auroc", labels, two(p)) == pytest.approx(share)


def test_three_classes_are_the_mean_of_each_against_the_rest_that_is_there() -> None:
    rng = np.random.default_rng(0)
    labels, scores = np.array([0, 1, 1, 0, 1, 0]), rng.dirichlet([1, 1, 1], 6)
    each = [value("auroc", labels == k, two(scores[:, k].tolist())) for k in (0, 1)]  # no sample is of class 2
    assert value("auroc", labels, scores) == pytest.approx(np.mean(each))


def test_what_is_not_defined_is_nan() -> None:
    assert math.isnan(value("auroc", [1, 1], two([0.2, 0.3])))
    assert math.isnan(value("r2", [[1.0]], [[1.0]], "regression"))
    assert math.isnan(value("accuracy", np.zeros(0, int), np.zeros((0, 2))))


def test_constant_labels_have_no_variance_and_no_correlation() -> None:
    assert math.isnan(value("r2", np.full((5, 1), np.float32(0.1)) * 3.3 + 7, np.arange(5.0)[:, None], "regression"))
    assert math.isnan(value("mcc", [1, 1], two([0.9, 0.2])))
    assert math.isnan(value("kappa", [1, 1], two([0.9, 0.2])))


def test_several_labels_count_those_that_some_sample_has() -> None:
    labels = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 0]], np.float32)
    assert value("f1", labels, labels, "multilabel") == 1  # no sample has the third label
    one = np.array([[1], [1], [0], [0]], np.float32)
    assert value("recall", one, [[0.9], [0.1], [0.2], [0.1]], "multilabel") == 0.5
    assert value("precision", one, [[0.9], [0.1], [0.2], [0.1]], "multilabel") == 1


def test_a_model_that_has_blown_up_is_never_right() -> None:
    assert value("accuracy", [0, 1], [[np.nan, 1], [0, 1]]) == 0
    assert value("auroc", [0, 1], [[np.nan, 1], [0, 1]]) == 0
    assert value("log_loss", [0, 1], [[np.nan, 1], [0, 1]]) == math.inf
    assert value("r2", [[0.0], [1.0]], [[np.inf], [1.0]], "regression") == -math.inf


def test_answers_are_counted_over_the_classes() -> None:
    labels = [0, 0, 0, 0, 1, 1]
    p = [0.1, 0.1, 0.1, 0.9, 0.9, 0.1]  # 3 of 4 and 1 of 2 right
    assert value("accuracy", labels, two(p)) == pytest.approx(4 / 6)
    assert value("balanced_accuracy", labels, two(p)) == pytest.approx((3 / 4 + 1 / 2) / 2)
    assert value("recall", labels, two(p)) == pytest.approx((3 / 4 + 1 / 2) / 2)
    assert value("precision", labels, two(p)) == pytest.approx((3 / 4 + 1 / 2) / 2)
    assert value("f1", labels, two(p)) == pytest.approx((2 * 3 / (4 + 4) + 2 * 1 / (2 + 2)) / 2)
    assert value("log_loss", labels, two(p)) == pytest.approx(-(4 * math.log(0.9) + 2 * math.log(0.1)) / 6)
    assert value("brier", labels, two(p)) == pytest.approx((4 * 0.1**2 + 2 * 0.9**2) / 6)
    assert value("brier", [2, 0], [[0.5, 0.3, 0.2], [1, 0, 0]]) == pytest.approx((0.5**2 + 0.3**2 + 0.8**2) / 2)


def test_several_labels_count_alike() -> None:
    labels = np.array([[1, 0], [0, 1], [1, 1]], np.float32)
    scores = np.array([[0.9, 0.2], [0.1, 0.4], [0.3, 0.8]])
    assert value("accuracy", labels, scores, "multilabel") == pytest.approx(4 / 6)
    assert value("f1", labels, scores, "multilabel") == pytest.approx((2 / 3 + 2 / 3) / 2)
    assert value("auroc", labels, scores, "multilabel") == pytest.approx((1 + 1) / 2)


def test_numbers_are_measured_in_their_own_units() -> None:
    stored = np.array([[10.0], [20.0], [60.0]])
    targets = Targets("regression", ("sugar",), zero=stored.mean(0), unit=stored.std(0))
    scaled = (stored - stored.mean(0)) / stored.std(0)
    np.testing.assert_allclose(targets.stored(scaled), stored)
    guess = targets.scores(scaled + 1 / stored.std(0))
    assert value("mae", stored, guess, "regression") == pytest.approx(1)
    assert value("rmse", stored, guess, "regression") == pytest.approx(1)
    assert value("r2", stored, guess, "regression") == pytest.approx(1 - 3 / ((stored - 30) ** 2).sum())


def test_scores_are_probabilities() -> None:
    logits = np.array([[0.0, math.log(3)]])
    np.testing.assert_allclose(Targets("classes").scores(logits), [[0.25, 0.75]])
    np.testing.assert_allclose(Targets("multilabel").scores(logits), [[0.5, 0.75]])


def test_every_metric_is_best_for_perfect_scores() -> None:
    labels = {"classes": np.arange(6) % 3, "multilabel": np.eye(3, dtype=np.float32), "regression": np.eye(3) * 5}
    scores = {"classes": np.eye(3)[labels["classes"]], "multilabel": np.eye(3), "regression": np.eye(3) * 5}
    for task, known in METRICS.items():
        for metric in known.values():
            best = metric(labels[task], scores[task])
            assert best == pytest.approx(1.0 if metric.higher else 0.0, abs=1e-9), metric.name


def sensitivity(labels: NDArray[Any], scores: NDArray[np.float64]) -> float:
    return float((scores[labels == 1, 1] > 0.5).mean())


def test_a_function_of_ones_own() -> None:
    metric, *_ = metrics_of(["tests.runs.test_metrics:sensitivity"], "classes")
    assert metric.name == "sensitivity"
    assert metric(np.array([1, 1, 0]), two([0.9, 0.1, 0.9])) == 0.5


@pytest.mark.parametrize(
    ("names", "task", "words"),
    [
        (["auc"], "classes", "there is no metric 'auc' for classes"),
        (["acuracy"], "classes", "did you mean 'accuracy'"),
        (["auroc"], "regression", "It is for classes and multilabel. Known: r2, mae, rmse, or module:FUNCTION"),
        (["f1", "f1"], "classes", "'f1' is given twice"),
        (["math:pi"], "classes", "is a float, not a function"),
    ],
)
def test_metrics_that_are_refused(names: list[str], task: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        metrics_of(names, task)
