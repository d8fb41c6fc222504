"""The content of ``compare.json``: scores, leads, and what clients gain."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import to_builtins

import coterie
from coterie.protocol.errors import UserError
from coterie.record.comparison import FORMS, MIXES, Benefit, ChosenSettings
from coterie.record.folder import CLIENTS
from coterie.runs import benefit
from coterie.runs.budget import LOCAL, ComparisonPlan
from coterie.runs.config import Resolved
from coterie.runs.finished import FinishedRun
from coterie.runs.intervals import mean_and_interval, spread
from coterie.runs.metrics import run_metrics, score

ACCURACIES = (
    "global_accuracy",
    "local_accuracy",
    "fine_tuned_global_accuracy",
    "fine_tuned_local_accuracy",
    "prior_local_accuracy",
    "mixed_local_accuracy",
)
MEASURES = (
    *ACCURACIES,
    "global_loss",
    "local_loss",
    "fine_tuned_epochs",
    "backdoor_success",
    "detection_rate",
    "false_alarms",
    "ari",
    "bytes_up",
    "bytes_down",
    "seconds",
    "virtual_seconds",
)
Choose = Callable[[int, Path, Callable[[str, Resolved], FinishedRun]], tuple[ComparisonPlan, ChosenSettings]]
"""Chooses settings first, of a seed, a folder, and what makes a run of a name (``runs.choosing``)."""
Learned = Callable[[Sequence[Path]], Mapping[str, Any]]
"""What attacks on a method's run folders found out (``runs.findings.learned``)."""


def compared_content(
    planned: ComparisonPlan,
    results: Mapping[str, Sequence[FinishedRun]],
    seeds: Sequence[int],
    names: Mapping[str, str],
    learned: Learned | None,
    chosen: ChosenSettings | None,
) -> dict[str, Any]:
    first, summary = next(iter(planned.methods.values())), next(iter(results.values()))[0].summary
    measures = summary["measures"]
    rows = [
        {**_row(label, found, learned), "clients": _over_clients(found, measures[0])}
        for label, found in results.items()
    ]
    shared = ("data", "partition", "clients", "rounds", "model", "devices", "availability", "task", "measures")
    return {
        **{key: summary[key] for key in shared},
        **{key: getattr(first, key) for key in ("samples", "fine_tune", "attack", "attackers")},
        "seeds": list(dict.fromkeys(seeds)),
        "budget": planned.budget,
        "budget_from": planned.budget_from,
        "differences": to_builtins(planned.differences),
        "rows": rows,
        "leads": _leads(rows, measures),
        "chosen": to_builtins(chosen),
        "benefits": to_builtins(_benefits(first, results, names)),
        "version": coterie.__version__,
    }


def _benefits(first: Resolved, results: Mapping[str, Sequence[FinishedRun]], names: Mapping[str, str]) -> list[Benefit]:
    runs = {
        label: {one.summary["seed"]: benefit.read(one.folder, first.task) for one in found}
        for label, found in results.items()
    }
    if LOCAL not in runs or not all(of for by_seed in runs.values() for of in by_seed.values()):
        return []
    metric, *_ = run_metrics(first)
    return benefit.benefits(metric, runs.pop(LOCAL), runs, names)


def _row(label: str, results: Sequence[FinishedRun], learned: Learned | None) -> dict[str, Any]:
    summaries = [result.summary for result in results]
    row = {"method": label, **{key: summaries[0][key] for key in ("system", "title", "mode", "crypto")}}
    row["runs"] = [result.folder.name for result in results]
    for measure in MEASURES:
        row[measure] = spread([_measured(of).get(measure) for of in summaries])
    row["metrics"] = {name: spread([of["metrics"].get(name) for of in summaries]) for name in summaries[0]["metrics"]}
    if learned is not None:
        try:
            row |= learned([result.folder for result in results])
        except UserError as error:  # the runs are worth their table all the same
            row |= {"learned": None, "not_attacked": str(error)}
    return row


def _higher(measures: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    scores = [(form, side) for form in FORMS for side in ("global", *MIXES)]
    return {f"{form}{side}_{one['name']}": one["higher"] for one in measures for form, side in scores}


def _over_clients(results: Sequence[FinishedRun], leading: Mapping[str, Any]) -> dict[str, Any]:
    each = [json.loads((result.folder / CLIENTS).read_bytes()) for result in results]
    higher, found = _higher([{"name": "accuracy", "higher": True}, leading]), {}
    for field in (field for field in higher if all(field in scores for scores in each)):
        worst = 0.1 if higher[field] else 0.9
        values = [np.array(scores[field], np.float64) for scores in each]
        known = [of[~np.isnan(of)] for of in values]
        if all(map(len, known)):
            halves = [mean_and_interval(of.tolist())[1] for of in known]
            deciles = [float(np.quantile(of, worst)) for of in known]
            half = spread(halves)
            found[field] = {"worst_decile": spread(deciles), "interval": half and half["mean"]}
    return found


def _measured(summary: Mapping[str, Any]) -> dict[str, Any]:
    found = summary.get("detection") or {}
    rates = {"detection_rate": found.get("rate"), "false_alarms": found.get("false_alarms")}
    return {**(summary.get("grouping") or {}), **rates, **summary}


def _leads(rows: Sequence[Mapping[str, Any]], measures: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    first, *others = rows
    higher = _higher(measures)

    def lead(row: Mapping[str, Any], field: str) -> dict[str, Any] | None:
        ours, theirs = score(first, field), score(row, field)
        pairs = zip(ours["values"], theirs["values"], strict=True) if ours and theirs else ()
        return spread([a - b if higher.get(field, True) else b - a for a, b in pairs])

    return [
        {
            "over": row["method"],
            **{field: lead(row, field) for field in ACCURACIES},
            "metrics": {field: lead(row, field) for field in first["metrics"]},
        }
        for row in others
    ]
