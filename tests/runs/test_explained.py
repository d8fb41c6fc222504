"""Calibration and odds ratios, by hand."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch

from coterie.data.columns import Column
from coterie.protocol.errors import UserError
from coterie.runs.benefit import Predicted
from coterie.runs.explained import calibration, coefficients
from coterie.runs.trained import ModelFacts, TrainedModel


def client(labels: list[int], p: list[float]) -> Predicted:
    return Predicted(np.arange(len(labels)), np.array(labels), {"": np.array([[1 - q, q] for q in p])})


def test_bins_hold_mean_probabilities_and_true_shares() -> None:
    found = calibration([client([0, 1], [0.11, 0.19]), client([1, 1], [1.0, 0.15])], "ill")
    assert found is not None
    assert (found["positive"], found["samples"]) == ("ill", 4)
    assert found["brier"] == pytest.approx((0.11**2 + 0.81**2 + 0 + 0.85**2) / 4)
    low, high = found["bins"]
    assert low == {"probability": pytest.approx(0.15), "share": pytest.approx(2 / 3), "samples": 3}
    assert high == {"probability": 1.0, "share": 1.0, "samples": 1}
    assert calibration([], "ill") is None
    assert calibration([client([0], [float("nan")])], "ill") is None


def trained(**other: object) -> TrainedModel:
    facts = ModelFacts(
        format=1,
        model="linear",
        input_shape=(3,),
        classes=3,
        class_names=("a", "b", "c"),
        task="classes",
        data_kind="tabular",
        version="0",
        features=("age", "sex=f", "sex=m"),
        columns=(Column("age", mean=50.0, scale=10.0), Column("sex", values=("f", "m"))),
    )
    weight, bias = torch.tensor(np.random.default_rng(0).normal(size=(3, 3))).float(), torch.tensor([0.1, 0.2, -0.3])
    zero, unit = np.array([0.5, 0, 0], np.float32), np.array([2, 1, 1], np.float32)
    return TrainedModel(
        msgspec.structs.replace(facts, **other), np.ones(1), ({"1.weight": weight, "1.bias": bias},), zero, unit, "ours"
    )


def test_coefficients_in_the_units_of_the_table_give_the_models_odds() -> None:
    model = trained()
    table = {(row["class"], row["input"]): row["coefficient"] for row in coefficients(model)}
    for age, female in ((30.0, 1.0), (71.0, 0.0)):
        p = model.predict([[(age - 50) / 10, female, 1 - female]], proba=True)[
            0
        ]  # stored units: as a schema makes them
        for k, name in ((1, "b"), (2, "c")):
            said = table[name, "(intercept)"] + age * table[name, "age"] + table[name, f"sex={'f' if female else 'm'}"]
            assert said == pytest.approx(np.log(p[k] / p[0]), abs=1e-5)
    assert all(row["against"] == "a" for row in coefficients(model))
    assert coefficients(model)[1]["odds_ratio"] == pytest.approx(np.exp(coefficients(model)[1]["coefficient"]))


def test_other_models_have_none() -> None:
    with pytest.raises(UserError, match="ours has no coefficients"):
        coefficients(trained(task="regression"))
