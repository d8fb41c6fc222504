"""Plans of comparisons: a run for each method, under one method's budget, which decides how much work is done, and
when. What a method cannot share is listed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from coterie.protocol.errors import CoterieError, UserError
from coterie.record.comparison import Difference
from coterie.runs import registry
from coterie.runs.config import Resolved, RunConfig, resolve
from coterie.runs.registry import check_settings, typed_settings
from coterie.runs.settings import field_types, unknown

WITHOUT: Mapping[str, Any] = {"server_lr": 1.0, "server_decay": 0.0, "server_rounds": 0}
"""For a method without one of these settings: its server takes the whole mean."""

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
"""The shared settings, in order."""

OPTIONS = ("delta", "delay", "public")
"""The run's options in a budget, with systems' own defaults."""

_ONLY_WITH = {"delay": "delta", "newcomers": "founders", "join_every": "founders"}


def _told(config: Resolved, what: str) -> Mapping[str, str]:
    own = config.own
    found: Mapping[str, str] = getattr(own, what)() if hasattr(own, what) else {}
    return found


def budget_of(config: Resolved, given: Collection[str]) -> dict[str, Any]:
    """Settings, delays and public data, without those that have no effect or, unless given, are this method's alone."""
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
    """The run under this budget, and the settings that it does not share.

    alone: given for this method only, which stay. Raises UserError for an invalid run.
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
"""Every comparison's baseline, without a federation."""


@dataclass(frozen=True)
class ComparisonPlan:
    """methods: by label, ``system`` or, for a mode other than ``paper``, ``system@mode``.

    budget: None if each has its own.  budget_from: its method's label.
    """

    methods: Mapping[str, Resolved]
    budget: Mapping[str, Any] | None
    budget_from: str | None
    differences: Sequence[Difference]


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

    methods: ``name`` or ``name@mode``.  options: ``mode`` is for methods that have it and name none.  settings: texts;
    ``method.key`` goes to one.  budget_from: by default the first.  each_own: all but public data.  local: add the
    baseline ``local``.
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
        with naming(label):
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
            of = ", ".join(owners) if dot else "these methods"
            check_settings([key], {f for label in (owners or labels) for f in known[label]}, f"setting of {of}")
        for label in takers:
            if dot:
                texts[label][field] = value
                alone[label].add(field)
            else:
                texts[label].setdefault(field, value)
    return texts, alone


@contextmanager
def naming(method: str) -> Iterator[None]:
    try:
        yield
    except CoterieError as error:
        error.args = (f"{method}: {error}",)
        raise
