"""Calibration of a classifier, and odds ratios of a linear one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from coterie.protocol.errors import UserError
from coterie.runs.benefit import Predicted
from coterie.runs.metrics import METRICS
from coterie.runs.trained import TrainedModel

BINS = 10


def calibration(clients: Iterable[Predicted], positive: str) -> dict[str, Any] | None:
    """How often the second of two classes is true beside its probability, on all clients' own test samples.

    bins: non-empty, of equal width: mean probability, share of the class, number of samples. None without samples, or
    for a diverged model.
    """
    every = list(clients)
    if not every or not all(np.isfinite(one.scores[""]).all() for one in every):
        return None
    scores, labels = (np.concatenate(parts) for parts in ([one.scores[""] for one in every], [c.labels for c in every]))
    p = scores[:, 1]
    place = np.minimum((p * BINS).astype(np.int64), BINS - 1)
    bins = [
        {"probability": float(p[here].mean()), "share": float(labels[here].mean()), "samples": int(here.sum())}
        for here in (place == i for i in range(BINS))
        if here.any()
    ]
    brier = METRICS["classes"]["brier"](labels, scores)
    return {"positive": positive, "brier": brier, "samples": len(labels), "bins": bins}


def coefficients(model: TrainedModel) -> list[dict[str, Any]]:
    """Of a linear classifier, for each class after the first and each input.

    coefficient: added to the log odds against the first class by one unit of the column. Raises UserError for another
    model, and for a mixture.
    """
    facts, tensors = model.facts, list(model.tensors[0].values())
    forms = sorted(tuple(value.shape) for value in tensors)
    inputs = int(np.prod(facts.input_shape))
    if (
        facts.task != "classes"
        or len(model.tensors) > 1
        or forms != sorted([(facts.classes,), (facts.classes, inputs)])
    ):
        raise UserError(
            f"{model.where} has no coefficients: only one linear classifier has (--model linear), not {facts.model} of "
            f"task {facts.task}"
        )
    weights = next(value for value in tensors if value.ndim == 2).double().numpy()
    bias = next(value for value in tensors if value.ndim == 1).double().numpy()
    unit, zero = (
        np.broadcast_to(of, facts.input_shape).reshape(-1).astype(np.float64) for of in (model.unit, model.zero)
    )
    stated = [(column.mean, column.scale) for column in facts.columns for _ in column.inputs]
    mean, scale = np.array(stated or [(0.0, 1.0)] * inputs).T
    weights = weights / unit / scale  # of (value - mean) / scale, less zero, by unit
    bias = bias - weights @ (mean + zero * scale)
    names = facts.features or [f"input {i}" for i in range(inputs)]
    classes = facts.class_names or [str(i) for i in range(facts.classes)]
    return [
        {
            "class": classes[k],
            "against": classes[0],
            "input": name,
            "coefficient": value,
            "odds_ratio": float(np.exp(value)),
        }
        for k in range(1, facts.classes)
        for name, value in zip(
            ("(intercept)", *names), (float(bias[k] - bias[0]), *(weights[k] - weights[0]).tolist()), strict=True
        )
    ]
