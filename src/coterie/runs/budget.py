"""One budget for every method of a comparison: the settings that decide how much work a method may do, and when.

A comparison is fair if the methods differ in nothing else. So all methods take these settings from one of them. What a
method cannot share is listed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from coterie.protocol.errors import UserError
from coterie.record.comparison import Difference
from coterie.runs.config import Resolved, RunConfig, resolve

WITHOUT: Mapping[str, Any] = {"server_lr": 1.0, "server_decay": 0.0}
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
)
"""The settings of a budget, in the order in which they are shared."""

OPTIONS = ("delta", "delay", "public")
"""The options of the run that are part of a budget, for systems differ in what they are when nothing is said.

Rounds, data and devices are the same for all methods anyway.
"""

_ONLY_WITH = {"delay": "delta", "newcomers": "founders", "join_every": "founders"}


def _told(config: Resolved, what: str) -> Mapping[str, str]:
    """Settings and why, as a system's config tells them. what: ``own_budget``, those that are part of its method."""
    own = config.own
    found: Mapping[str, str] = getattr(own, what)() if hasattr(own, what) else {}
    return found


def budget_of(config: RunConfig) -> dict[str, Any]:
    """The budget of a run: its own settings over those that it lacks, and its delays and public data.

    It leaves out settings without effect and, unless they were given, settings that are part of this method alone.
    """
    resolved = resolve(config)
    own = resolved.settings
    budget = {key: own.get(key, WITHOUT.get(key)) for key in BUDGET if key in own or key in WITHOUT}
    for key in _told(resolved, "own_budget"):
        if key not in config.settings:
            budget[key] = WITHOUT[key]
    budget |= {key: getattr(resolved, key) for key in OPTIONS}
    for key, needs in _ONLY_WITH.items():
        if not budget.get(needs):
            budget.pop(key, None)
    return budget


def with_budget(
    label: str, config: RunConfig, budget: Mapping[str, Any], alone: Collection[str]
) -> tuple[RunConfig, list[Difference]]:
    """The same run under this budget, and the settings that it does not share.

    alone: settings that were given for this method only, which stay. Raises UserError for an invalid run.
    """
    config = replace(config, **{key: budget[key] for key in OPTIONS if key in budget})
    resolved = resolve(config)
    own, kept = resolved.settings, _told(resolved, "own_budget")
    differences = [Difference(label, key, own[key], None, why) for key, why in _told(resolved, "beyond_budget").items()]
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
            resolve(tried)
        except UserError as error:
            differences.append(Difference(label, key, own[key], shared, f"it refuses the shared value: {error}"))
        else:
            config = tried
    return config, differences
