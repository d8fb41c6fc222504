"""Coterie beside other methods on ten partitions of two data sets: ``python -m benchmarks.cells cells``.

``control`` has Coterie alone, by the share of its control variates, and ``shown`` what each method's servers learn.

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
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.items import main
from benchmarks.signatures import Lent, name_of, written
from coterie.record.comparison import FORMS
from coterie.reproductions.study import Calculation, Cell, Curve, Item, Row, by_cell
from coterie.runs import RunConfig, resolve, run
from coterie.runs.audited import attack
from coterie.runs.budget import budget_of, with_budget
from coterie.runs.findings import by_topic
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
    "coterie+control": ("coterie", "paper", {"control_variates": 0.9}),
    "hardened": ("fedcaprivacy", "hardened", {"clusters": "auto"}),
    "ifca": ("ifca", "paper", {"clusters": 4}),
    "fedavg": ("fedavg", "paper", {}),
    "scaffold": ("scaffold", "paper", {}),
    "local": ("local", "paper", {}),
}
OTHERS = {
    "global %": "global_accuracy",
    "balanced %": "local_balanced_accuracy",
    "own classes %": "own_classes_accuracy",
    "all classes %": "all_classes_accuracy",
}
"""Columns of other scores, means over the clients, and how these are called after a form's beginning."""


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


def _mean(curves: Sequence[Curve], score: str) -> list[float] | None:
    """By seed, the mean over the clients; None for a form without this score."""
    if any(score not in curve.scores for curve in curves):
        return None
    return [float(np.nanmean(np.array(curve.scores[score], np.float64))) for curve in curves]


def _megabytes(curve: Curve) -> float:
    """What a client sends and receives in the whole run, 10^6 bytes."""
    of, role = curve.summary, curve.summary["client_role"]
    moved = [int(of[f"bytes_{way}_by_role"].get(role, 0)) for way in ("up", "down")]
    return sum(moved) / int(of["clients"]) / 1e6


def _row(method: str, curves: Sequence[Curve], ours: Sequence[Curve], form: str) -> Row | None:
    """Of one form of a method's models (how its scores begin); None where it has no such form.

    lead: of Coterie in the same form, paired by seed.
    """
    measure = f"{form}local_accuracy"
    if any(curve.diverged for curve in curves):
        return {"method": method, "local %": "diverged"}
    means = _mean(curves, measure)
    if means is None:
        return None
    deciles = [float(np.quantile(curve.scores[measure], 0.1)) for curve in curves]
    leads = [a - b for a, b in zip(_mean(ours, measure) or means, means, strict=True)]
    ends = [curve.grouping[-1] for curve in curves if curve.grouping]
    aris = [end["ari"] for end in ends if end and end["ari"] is not None]
    others = {words: _mean(curves, f"{form}{score}") for words, score in OTHERS.items()}
    return {
        "method": method,
        "local %": _percent(means),
        "worst decile %": _percent(deciles),
        "lead of coterie": None if method == "coterie" else _percent(leads),
        "ARI": round(float(np.mean(aris)), 2) if aris else None,
        **{words: None if values is None else _percent(values) for words, values in others.items()},
        "MB a client": round(float(np.mean([_megabytes(curve) for curve in curves])), 3),
        "virtual seconds": round(float(np.mean([curve.summary["virtual_seconds"] for curve in curves])), 1),
        "by seed": _each(means),
        "worst decile, by seed": _each(deciles),
    }


def _rows(outcomes: Mapping[str, Sequence[Curve]]) -> list[Row]:
    """A row for each partition, form of models and method."""
    found: list[Row] = []
    for (data, form), names in groupby(outcomes, key=lambda name: tuple(name.split("/")[:2])):
        of = {name.split("/")[2]: outcomes[name] for name in names}
        for start, words in FORMS.items():
            rows = (_row(method, curves, of["coterie"], start) for method, curves in of.items())
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
    local = {words: _mean(found, f"{form}local_accuracy") or [] for form, words in FORMS.items()}
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


def _seen(form: str, method: str, seed: int) -> list[Mapping[str, Any]]:
    """The rows of what each server of a method on digits finds out on its own."""
    first = _config("digits", form, "coterie")
    shared, _ = with_budget(method, _config("digits", form, method), budget_of(resolve(first), first.settings), ())
    with TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        run(replace(shared, seed=seed, fine_tune="no", record=True, evaluate="all", out=str(out)))
        return [row for row in attack(out)["attacks"] if row["topic"] is not None]


def _learned_row(name: str, found: Sequence[Sequence[Mapping[str, Any]]]) -> Row:
    """By the best attack of all seeds together, in percent; None where no attack applies or could tell."""
    form, method = name.split("/")
    best = by_topic(found)
    row: dict[str, Any] = {"partition": form, "method": method}
    for topic in LEARNT:
        of = best.get(topic)
        row[topic] = None if of is None else round(100 * max(0.0, of["mean"]))
    return row


LEARNT = ("models", "identity", "labels", "groups", "samples", "other")
SHOWN = Item(
    "shown",
    "What servers learn on their own on digits, percent of everything",
    tuple(
        Calculation(f"{form}/{method}", partial(_seen, form, method), {"data": "digits", "rounds": ROUNDS})
        for form in ("dirichlet:0.3", "permute:4+dirichlet:0.5")
        for method in METHODS
    ),
    by_cell(_learned_row),
    command="python -m benchmarks.cells",
)

if __name__ == "__main__":
    items = {one.name: one for one in (CELLS, CONTROL, SHOWN)}
    main(items, before=partial(written, *CLIENTS))
