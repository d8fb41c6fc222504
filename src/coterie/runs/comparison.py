"""Comparisons: several methods on the same data, partition, seeds and budget, in one folder, with one table.

The budget is the settings that decide how much work a method may do, and when. All methods take them from one of them;
what a method cannot share is listed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs, to_builtins

import coterie
from coterie.data.own import name_of
from coterie.protocol.errors import CoterieError, UserError
from coterie.record.comparison import FORMS, MIXES, Benefit, ChosenSettings, Difference
from coterie.record.files import locked, writing
from coterie.record.folder import CLIENTS, COMPARE, CONFIG, RESULT, check_simulated, write_json
from coterie.record.summary import Line
from coterie.runs import benefit, registry
from coterie.runs.advice import advise, past_its_best
from coterie.runs.config import Resolved, RunConfig, check_settings, resolve, typed_settings
from coterie.runs.experiment import build
from coterie.runs.folder import numbered
from coterie.runs.intervals import mean_and_interval, spread
from coterie.runs.metrics import metrics_of, named, score
from coterie.runs.own_code import check_same_code, own_code
from coterie.runs.runner import FinishedRun, Interrupted, check_inputs, load_result, resumable, run
from coterie.runs.settings import field_types, unknown

WITHOUT: Mapping[str, Any] = {"server_lr": 1.0, "server_decay": 0.0, "server_rounds": 0}
"""What a method does that lacks one of these settings: its server takes the whole mean."""

BUDGET = (
    "participation",
    "deadline_s",
    "founders",
    "newcomers",
    "join_every",
    "max_epochs",
    "slowest",
    "batch_size",
    "lr",
    "momentum",
    "weight_decay",
    "server_lr",
    "server_decay",
    "server_rounds",
)
"""The settings of a budget, in the order in which they are shared."""

OPTIONS = ("delta", "delay", "public")
"""The options of the run that are part of a budget, for systems differ in what they are when nothing is said.

Rounds, data and devices are the same for all methods anyway.
"""

_ONLY_WITH = {"delay": "delta", "newcomers": "founders", "join_every": "founders"}


def _told(config: Resolved, what: str) -> Mapping[str, str]:
    own = config.own
    found: Mapping[str, str] = getattr(own, what)() if hasattr(own, what) else {}
    return found


def budget_of(config: Resolved, given: Collection[str]) -> dict[str, Any]:
    """The budget of a run: its settings, its delays and public data.

    It leaves out settings without effect and, unless given, those that are part of this method alone.
    """
    own = config.settings
    budget = {key: own.get(key, WITHOUT.get(key)) for key in BUDGET if key in own or key in WITHOUT}
    for key in _told(config, "own_budget"):
        if key not in given:
            budget[key] = WITHOUT[key]
    budget |= {key: getattr(config, key) for key in OPTIONS}
    for key, needs in _ONLY_WITH.items():
        if not budget.get(needs):
            budget.pop(key, None)
    return budget


def with_budget(
    label: str, config: RunConfig, budget: Mapping[str, Any], alone: Collection[str]
) -> tuple[Resolved, list[Difference]]:
    """The same run under this budget, and the settings that it does not share.

    alone: settings that were given for this method only, which stay. Raises UserError for an invalid run.
    """
    config = replace(config, **{key: budget[key] for key in OPTIONS if key in budget})
    found = resolve(config)
    own, kept = found.settings, _told(found, "own_budget")
    differences = [Difference(label, key, own[key], None, why) for key, why in _told(found, "beyond_budget").items()]
    for key, shared in budget.items():
        if key in OPTIONS:
            continue
        if key not in own:
            if shared != WITHOUT.get(key):
                does = f": as if it were {WITHOUT[key]:g}" if key in WITHOUT else ""
                differences.append(Difference(label, key, None, shared, f"it has no such setting{does}"))
            continue
        if own[key] == shared:
            continue
        if key in alone or key in kept:
            why = "set for it alone" if key in alone else kept[key]
            differences.append(Difference(label, key, own[key], shared, why))
            continue
        tried = replace(config, settings={**config.settings, key: shared})
        try:
            config, found = tried, resolve(tried)
        except UserError as error:
            differences.append(Difference(label, key, own[key], shared, f"it refuses the shared value: {error}"))
    return found, differences


LOCAL = "local"
"""The baseline that every comparison has: training without any federation."""
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
OnRound = Callable[[str, int, Line], None]
Learned = Callable[[Sequence[Path]], Mapping[str, Any]]
"""What attacks on the views of a method's run folders found out (``runs.audited.learned``)."""


@dataclass(frozen=True)
class ComparisonPlan:
    """methods: by label, ``system`` or ``system@mode`` for a mode other than ``paper``, in the order named.

    budget: the settings that all share, or None if each has its own.  budget_from: label of the method it is from.
    differences: the settings that a method does not share.
    """

    methods: Mapping[str, Resolved]
    budget: Mapping[str, Any] | None
    budget_from: str | None
    differences: Sequence[Difference]


@dataclass(frozen=True)
class FinishedComparison:
    """A finished comparison. content: of its ``compare.json``."""

    folder: Path
    content: Mapping[str, Any]


Choose = Callable[
    [int, Path, Callable[[str, Resolved], FinishedRun]], tuple[ComparisonPlan, ChosenSettings]
]  # of a seed, a folder, and what makes a run of a name


def plan(
    methods: Sequence[str],
    options: Mapping[str, Any],
    settings: Mapping[str, str],
    *,
    budget_from: str | None = None,
    each_own: bool = False,
    local: bool = False,
) -> ComparisonPlan:
    """A run for every method, under one budget. Raises UserError if no method has a given setting.

    methods: systems, each as ``name`` or ``name@mode``.  options: ``mode`` applies to methods that have it and name
    none; others run as ``paper``.  settings: texts; ``key`` goes to every method that has it, ``method.key`` to that
    one.
    budget_from: the method whose budget all share, by default the first.  each_own: every method keeps its own, but for
    the public data.  local: add the baseline ``local`` if it is not named.
    """
    labels = _labels(methods, str(options.get("mode", "paper")))
    if local and LOCAL not in labels:
        labels[LOCAL] = LOCAL, "paper"
    texts, alone = _share_out(labels, settings)
    own, options = {}, {"evaluate": "all", **options}  # on a sample some systems would be scored, and others on all
    for label, (name, mode) in labels.items():
        own[label] = RunConfig(**{**options, "system": name, "mode": mode}, settings=typed_settings(name, texts[label]))
    if each_own and budget_from is not None:
        raise UserError(
            "--budget gives all methods one budget, and --each-own lets each keep its own: leave one of the two out"
        )
    source = next(iter(labels)) if budget_from is None else budget_from
    if source not in labels:
        raise unknown("method whose budget all share", source, labels)
    own_alone = () if each_own else alone[source]
    everybodys = {key: value for key, value in own[source].settings.items() if key not in own_alone}
    first = resolve(replace(own[source], settings=everybodys))
    own = {label: replace(config, clients=first.clients) for label, config in own.items()}  # all have the same data
    if each_own:
        found = {label: resolve(replace(config, public=first.public)) for label, config in own.items()}
        return ComparisonPlan(found, None, None, [])
    budget, found, left_out = budget_of(first, everybodys), {}, []
    for label, config in own.items():
        with _naming(label):
            found[label], differing = with_budget(label, config, budget, alone[label])
        left_out += differing
    return ComparisonPlan(found, budget, source, left_out)


def _labels(methods: Sequence[str], usual: str) -> dict[str, tuple[str, str]]:
    labels: dict[str, tuple[str, str]] = {}
    modes: set[str] = set()
    for written in methods:
        name, at, mode = written.partition("@")
        known = registry.get(name).modes
        modes |= {*known}
        if at and mode not in known:
            raise unknown(f"mode of {name}", mode, known)
        mode = mode if at else (usual if usual in known else "paper")
        label = name if mode == "paper" else f"{name}@{mode}"
        if label in labels:
            raise UserError(f"compare takes each method once, not: {' '.join(methods)}")
        labels[label] = name, mode
    if not labels:
        raise UserError("compare needs methods, such as: coterie compare coterie fedavg (coterie list systems)")
    if usual not in modes:
        raise unknown("mode", usual, modes)
    return labels


def _share_out(
    labels: Mapping[str, tuple[str, str]], settings: Mapping[str, str]
) -> tuple[dict[str, dict[str, str]], dict[str, set[str]]]:
    known = {label: field_types(registry.get(name).config) for label, (name, _) in labels.items()}
    texts: dict[str, dict[str, str]] = {label: {} for label in labels}
    alone: dict[str, set[str]] = {label: set() for label in labels}
    for key, value in sorted(settings.items(), key=lambda item: "@" in item[0]):  # one mode's last: it wins
        owner, dot, field = key.rpartition(".")
        named = owner.removesuffix("@paper")
        owners = [label for label, (name, _) in labels.items() if named == label or (owner == name)]
        if dot and not owners:
            raise unknown("method in --set", owner, {*labels, *(name for name, _ in labels.values())})
        takers = [label for label in (owners if dot else labels) if field in known[label]]
        if not takers:
            check_settings([key], {f for label in (owners or labels) for f in known[label]}, "setting")
        for label in takers:
            if dot:
                texts[label][field] = value
                alone[label].add(field)
            else:
                texts[label].setdefault(field, value)
    return texts, alone


def compare(
    planned: ComparisonPlan,
    seeds: Sequence[int],
    out: str | Path | None = None,
    on_round: OnRound | None = None,
    *,
    resume: bool = False,
    learned: Learned | None = None,
    choose: Choose | None = None,
) -> FinishedComparison:
    """Run every method with every seed, in subfolders of ``out``, and write ``compare.json``.

    on_round: called with label, seed and line.  resume: finished runs are read, unfinished ones continued.
    learned: attacks the views of a method's run folders.  choose: chooses settings first. Everything is built once
    before the folder is created, so that mistakes show at once. The folders are locked while written. Raises the errors
    of ``run``.
    """
    places = {label: re.sub(r"[^\w.@-]+", "_", label) for label in planned.methods}
    if len({*places.values()}) < len(places):
        raise UserError(f"two of these methods would share a folder: {', '.join(places)}; rename one of your own")
    first = next(iter(planned.methods.values()))
    if choose is not None and first.folds is not None and len({*seeds}) > 1:
        raise UserError(
            f"--tune chooses with the first seed, and in folds ({first.folds}) the next ones test what it has trained "
            "on: compare one seed at a time (--seed 0 --seeds 1), or split the data once (--test-share 0.2)"
        )
    for label, config in planned.methods.items():
        with _naming(label):
            built = build(replace(config, seed=seeds[0]))
            built.close()
    names = dict(zip(built.names, built.split.names or (), strict=False))
    digests = dict.fromkeys(seeds, built.inputs_digest)
    if resume and first.folds is not None:  # each seed splits the data in its own way
        digests = {seed: _digest(replace(first, seed=seed)) for seed in seeds}
    folder = _folder(out, name_of(first.data), resume)
    results: dict[str, list[FinishedRun]] = {label: [] for label in planned.methods}
    chosen = None
    with locked(folder):
        if choose is not None:
            planned, chosen = choose(
                seeds[0], folder, lambda name, config: _one(name, config, on_round, resume, digests[seeds[0]])
            )
        for seed in seeds:
            for label, config in planned.methods.items():
                one = replace(config, seed=seed, out=str(folder / f"{places[label]}-{seed}"))
                results[label].append(_one(label, one, on_round, resume, digests[seed]))
        summary = next(iter(results.values()))[0].summary
        leading = summary["measures"][0]
        rows = [
            {**_row(label, found, learned), "clients": _over_clients(found, leading)}
            for label, found in results.items()
        ]
        shared = ("data", "partition", "clients", "rounds", "model", "devices", "availability", "task", "measures")
        content = {
            **{key: summary[key] for key in shared},
            "samples": first.samples,
            "fine_tune": first.fine_tune,
            "attack": first.attack,
            "attackers": first.attackers,
            "seeds": list(dict.fromkeys(seeds)),
            "budget": planned.budget,
            "budget_from": planned.budget_from,
            "differences": [structs.asdict(difference) for difference in planned.differences],
            "rows": rows,
            "leads": _leads(rows, summary["measures"]),
            "chosen": to_builtins(chosen),
            "benefits": to_builtins(_benefits(first, results, names)),
            "version": coterie.__version__,
        }
        write_json(folder / COMPARE, content)
    runs = [(planned.methods[label], one.rounds) for label, found in results.items() for one in found]
    if said := [text for config, rounds in runs if (text := past_its_best(config, rounds)) is not None]:
        advise(said[0] + (f" (and {len(said) - 1} more of {len(runs)} runs)" if said[1:] else ""))
    return FinishedComparison(folder, content)


@contextmanager
def _naming(method: str) -> Iterator[None]:
    """Errors say first which of the methods they are of."""
    try:
        yield
    except CoterieError as error:
        error.args = (f"{method}: {error}",)
        raise


def _digest(config: Resolved) -> str:
    experiment = build(config)
    experiment.close()
    return experiment.inputs_digest


def _benefits(first: Resolved, results: Mapping[str, Sequence[FinishedRun]], names: Mapping[str, str]) -> list[Benefit]:
    """What clients gain over training alone; [] without ``local``, or where a run kept no predictions."""
    runs = {
        label: {one.summary["seed"]: benefit.read(one.folder, first.task) for one in found}
        for label, found in results.items()
    }
    if LOCAL not in runs or not all(of for by_seed in runs.values() for of in by_seed.values()):
        return []
    metric, *_ = metrics_of(named(first.metrics), first.task)
    return benefit.benefits(metric, runs.pop(LOCAL), runs, names)


def _one(label: str, config: Resolved, on_round: OnRound | None, resume: bool, inputs: str) -> FinishedRun:
    out = Path(str(config.out))
    started = resume and (out / CONFIG).exists()
    if started:
        resumable(config)
        if (out / RESULT).exists() and (found := load_result(out)).summary["rounds"] == config.rounds:
            check_inputs(found, inputs)
            check_same_code(found.summary.get("own_code", {}), own_code(config), str(out))
            return found

    def told(line: Line) -> None:
        if on_round is not None:
            on_round(label, config.seed, line)

    try:
        with _naming(f"{label}, seed {config.seed}, in {out}"):
            return run(config, told, resume=started)
    except Interrupted as interrupted:
        interrupted.advice = f"the same coterie compare, with --resume --out {out.parent}"
        raise


def _folder(out: str | Path | None, data: str, resume: bool) -> Path:
    if out is None:
        if resume:
            raise UserError("--resume continues the comparison in a folder: say which with --out")
        return numbered(f"compare-{data}", lambda folder: folder.mkdir(parents=True))
    folder = Path(out)
    check_simulated(folder)
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not resume)):
        raise UserError(f"{folder} is not empty: choose another --out, or continue the comparison in it with --resume")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


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
    """By score of these metrics, of every form of the models and mix of test labels: whether more is better."""
    scores = [(form, side) for form in FORMS for side in ("global", *MIXES)]
    return {f"{form}{side}_{one['name']}": one["higher"] for one in measures for form, side in scores}


def _over_clients(results: Sequence[FinishedRun], leading: Mapping[str, Any]) -> dict[str, Any]:
    """``record.comparison.OverClients`` of every form of the models and mix of test labels."""
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
