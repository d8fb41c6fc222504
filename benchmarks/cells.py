"""Coterie beside other methods on ten partitions of two data sets: ``python -m benchmarks.cells cells``.

Every method has the budget of Coterie. Each client's model is scored as it is, with the guarded prior of the client's
own labels, and after fine-tuning. The best form of a method is not chosen by test data: forms are compared one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from benchmarks.items import main
from benchmarks.signatures import Lent, name_of, written
from coterie.reproductions.study import Cell, Curve, Item, Row
from coterie.runs.comparison import budget_of, with_budget
from coterie.runs.config import RunConfig, resolve
from coterie.runs.intervals import mean_and_interval

PARTITIONS = (
    "iid",
    "dirichlet:0.3",
    "dirichlet:0.1",
    "labelsets:5",
    "rotate:4",
    "permute:4",
    "permute:4+dirichlet:0.5",
    "permute:4+dirichlet:0.1",
    "rotate:4+dirichlet:0.3",
    "swap:4+dirichlet:0.5",
)
CLIENTS: Mapping[str, int] = {"digits": 24, "fashion_mnist": 32}
ROUNDS = 12
METHODS: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "coterie": ("coterie", "paper", {}),
    "hardened": ("fedcaprivacy", "hardened", {"clusters": "auto"}),
    "ifca": ("ifca", "paper", {"clusters": 4}),
    "fedavg": ("fedavg", "paper", {}),
    "scaffold": ("scaffold", "paper", {}),
    "local": ("local", "paper", {}),
}
FORMS = {
    "as it is": "local_accuracy",
    "prior": "prior_local_accuracy",
    "tuned": "fine_tuned_local_accuracy",
}


def _config(data: str, form: str, method: str) -> RunConfig:
    system, mode, settings = METHODS[method]
    return RunConfig(
        system,
        data=name_of(data),
        model="mlp_small" if data == "digits" else "mlp",
        clients=CLIENTS[data],
        partition=form,
        rounds=ROUNDS,
        eval_every=ROUNDS,
        mode=mode,
        crypto="emulated",
        fine_tune="held_out",
        settings={**settings, **({"lr": 0.1} if method == "coterie" else {})},
    )


def _cell(data: str, form: str, method: str) -> Cell:
    """A method with the budget of Coterie."""
    config = _config(data, form, method)
    if method != "coterie":
        first = _config(data, form, "coterie")
        shared, differences = with_budget(method, config, budget_of(resolve(first), first.settings), METHODS[method][2])
        if differences:
            raise ValueError(f"{method} does not share the budget: {differences}")
        config = RunConfig(**{key: getattr(shared, key) for key in RunConfig.__dataclass_fields__})
    return Lent(f"{data}/{form}/{method}", config)


def _percent(values: Sequence[float]) -> str:
    mean, half = mean_and_interval([100 * value for value in values])
    return f"{mean:.1f}" + ("" if half is None else f" ± {half:.1f}")


def _each(values: Sequence[float]) -> list[float]:
    return [round(100 * value, 2) for value in values]


def _row(method: str, curves: Sequence[Curve], ours: Sequence[Curve], measure: str) -> Row | None:
    """Of one form of a method's models; None where it has no such form.

    lead: of Coterie in the same form, paired by seed.
    """
    if any(curve.diverged for curve in curves):
        return {"method": method, "local %": "diverged"}
    if any(measure not in curve.scores for curve in curves):
        return None
    means = [float(np.mean(curve.scores[measure])) for curve in curves]
    deciles = [float(np.quantile(curve.scores[measure], 0.1)) for curve in curves]
    leads = [float(np.mean(one.scores[measure])) - mean for one, mean in zip(ours, means, strict=True)]
    ends = [curve.grouping[-1] for curve in curves if curve.grouping]
    aris = [end["ari"] for end in ends if end and end["ari"] is not None]
    return {
        "method": method,
        "local %": _percent(means),
        "worst decile %": _percent(deciles),
        "lead of coterie": None if method == "coterie" else _percent(leads),
        "ARI": round(float(np.mean(aris)), 2) if aris else None,
        "by seed": _each(means),
        "worst decile, by seed": _each(deciles),
    }


def _rows(outcomes: Mapping[str, Sequence[Curve]]) -> list[Row]:
    """A row for each partition, form of models and method."""
    found: list[Row] = []
    for (data, form), names in groupby(outcomes, key=lambda name: tuple(name.split("/")[:2])):
        of = {name.split("/")[2]: outcomes[name] for name in names}
        for words, measure in FORMS.items():
            rows = (_row(method, curves, of["coterie"], measure) for method, curves in of.items())
            found += [{"data": data, "partition": form, "form": words, **row} for row in rows if row is not None]
    return found


CELLS = Item(
    "cells",
    "Coterie beside other methods on ten partitions of two data sets (12 rounds)",
    tuple(_cell(data, form, method) for data in CLIENTS for form in PARTITIONS for method in METHODS),
    _rows,
    command="python -m benchmarks.cells",
)

if __name__ == "__main__":
    for each in CLIENTS:
        written(each)
    main({"cells": CELLS})
