"""Coterie beside other methods on ten partitions of two data sets: ``python -m benchmarks.cells cells``.

``control`` has Coterie alone, by the share of its control variates, and ``shifted`` with other test labels.

Every method has the budget of Coterie, whose column ``coterie+control`` has control variates. Each client's model is
scored as it is, with the guarded prior of the client's own labels, after fine-tuning, and as a mixture of the last two
by the likelihood of the client's held-out samples. The best form of a method is not chosen by test data: forms are
compared one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np

from benchmarks.items import main
from benchmarks.signatures import Lent, name_of, written
from coterie.protocol.randomness import rng
from coterie.reproductions.study import Calculation, Cell, Curve, Item, Row, by_cell
from coterie.runs import RunConfig, build, resolve
from coterie.runs.comparison import budget_of, with_budget
from coterie.runs.intervals import mean_and_interval
from coterie.runs.on_data import ClientData

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
    "coterie+control": ("coterie", "paper", {"control_variates": 0.9}),
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
    "mixed": "mixed_local_accuracy",
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
        settings={**settings, **({"lr": 0.1} if system == "coterie" else {})},
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

KINDS: Mapping[str, tuple[str, int, Mapping[str, Any]]] = {
    "all there": ("dirichlet:0.3", 40, {}),
    "half asked": ("dirichlet:0.3", 24, {"participation": 0.5, "fewest": 1}),
    "three quarters asked, groups of six": ("permute:4+dirichlet:0.5", 24, {"participation": 0.75, "fewest": 1}),
}
SHARES = (0.0, 0.9, 1.0)


def _control_cell(kind: str, share: float) -> Cell:
    form, rounds, settings = KINDS[kind]
    config = _config("digits", form, "coterie")
    own = {**config.settings, **settings, "control_variates": share}
    return Cell(f"{kind}/{share:g}", replace(config, rounds=rounds, eval_every=rounds, settings=own))


def _control_row(name: str, found: Sequence[Curve]) -> Row:
    kind, share = name.split("/")
    local = {form: [float(np.mean(one.scores[measure])) for one in found] for form, measure in FORMS.items()}
    form, rounds, _ = KINDS[kind]
    row = {"clients": kind, "partition": form, "rounds": rounds, "share": share}
    return {**row, **{f"local %, {word}": _percent(values) for word, values in local.items()}}


CONTROL = Item(
    "control",
    "Coterie on digits by the share of its control variates, over more rounds and with clients away",
    tuple(_control_cell(kind, share) for kind in KINDS for share in SHARES),
    by_cell(_control_row),
    command="python -m benchmarks.cells",
)

MIXES = ("its own", "uniform over its own classes", "uniform over all classes")
Accuracies = Mapping[str, Mapping[str, float]]
"""By mix of test labels and form of the models, means over the clients."""


def other_test(own: ClientData, mix: str, draw: np.random.Generator) -> ClientData:
    """The same client, tested on as many samples of its task, drawn with labels of another mix."""
    y = own.test_set.y.numpy()
    held = np.unique(own.y.numpy()) if mix == MIXES[1] else np.unique(y)
    labels = draw.choice(np.intersect1d(held, y), len(own.test))
    return replace(own, tests=np.array([draw.choice(np.flatnonzero(y == label)) for label in labels]))


def shifted(data: str, form: str, seed: int) -> Accuracies:
    """Coterie's models, tested on label mixes that are not the clients' own."""
    experiment = build(replace(_config(data, form, "coterie"), seed=seed, evaluate="all"))
    experiment.set_up()
    for r in range(1, ROUNDS + 1):
        experiment.round(r)
    models, observer = experiment.models(ROUNDS), experiment.observer
    tuned = {name: one.weights for name, one in experiment.fine_tuned(ROUNDS)[1].items()}
    own, found = observer.data, dict[str, dict[str, float]]()
    for mix in MIXES:
        if mix != MIXES[0]:
            draws = {name: rng(seed, name, f"test labels, {mix}") for name in models}
            observer.data = {name: other_test(own[name], mix, draws[name]) for name in models}
        scores = {"as it is": observer.scores(models), "tuned": observer.scores(tuned)}
        adjusted = observer.adjusted(models, seed, tuned)
        scores |= {"prior": adjusted["prior_"], "mixed": adjusted["mixed_"]}
        found[mix] = {word: float(one.values["local_accuracy"].mean()) for word, one in scores.items()}
    experiment.close()
    return found


def _shifted_rows(outcomes: Mapping[str, Sequence[Accuracies]]) -> list[Row]:
    """A row for each data set and mix, over all partitions. lowest lead: over the model as it is, of any partition."""
    rows: list[Row] = []
    for data, names in groupby(outcomes, key=lambda name: name.partition("/")[0]):
        cells = [outcomes[name] for name in names]
        for mix in MIXES:
            row: dict[str, Any] = {"data": data, "test labels": mix}
            plain = [np.mean([one[mix]["as it is"] for one in seeds]) for seeds in cells]
            row["as it is"] = round(100 * float(np.mean(plain)), 1)
            for word in ("prior", "mixed", "tuned"):
                values = [np.mean([one[mix][word] for one in seeds]) for seeds in cells]
                lowest = min(value - other for value, other in zip(values, plain, strict=True))
                row[word], row[f"{word}: lowest lead"] = (round(100 * float(v), 1) for v in (np.mean(values), lowest))
            rows.append(row)
    return rows


SHIFTED = Item(
    "shifted",
    "Coterie's models where test labels are not the client's own mix",
    tuple(Calculation(f"{data}/{form}", partial(shifted, data, form)) for data in CLIENTS for form in PARTITIONS),
    _shifted_rows,
    command="python -m benchmarks.cells",
)

if __name__ == "__main__":
    for each in CLIENTS:
        written(each)
    main({one.name: one for one in (CELLS, CONTROL, SHIFTED)})
