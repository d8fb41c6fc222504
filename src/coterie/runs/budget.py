"""One budget for every method of a comparison: the settings that decide how much work a method may do, and when.

A comparison is fair where the methods differ in nothing but themselves. So all take these settings from one of them;
what a method cannot share is listed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from coterie.protocol.errors import UserError
from coterie.runs import registry
from coterie.runs.config import RunConfig, resolve
from coterie.runs.settings import field_types

WITHOUT: Mapping[str, Any] = {"server_lr": 1.0, "server_decay": 0.0, "delta": 0.0}
"""What a method does that lacks one of these settings: its server takes the whole mean, and no delay is drawn."""

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
    "delta",
    "delay",
)
"""The settings of a budget, in the order in which they are shared. Rounds, data and devices are options of the run."""


_ONLY_WITH = {"delay": "delta", "newcomers": "founders", "join_every": "founders"}


@dataclass(frozen=True)
class Difference:
    """What one method does not share. value: its own, or None where it has no such setting.  why: in words."""

    method: str
    setting: str
    value: Any
    shared: Any
    why: str


def budget_of(config: RunConfig) -> dict[str, Any]:
    """The budget of a run, its own settings over those that it lacks; nothing that means nothing in it."""
    own = resolve(config).settings
    budget = {key: own.get(key, WITHOUT.get(key)) for key in BUDGET if key in own or key in WITHOUT}
    for key, needs in _ONLY_WITH.items():
        if not budget.get(needs):
            budget.pop(key, None)
    return budget


def with_budget(
    label: str, config: RunConfig, budget: Mapping[str, Any], alone: Collection[str]
) -> tuple[RunConfig, list[Difference]]:
    """The same run under this budget, and what it does not share.

    alone: settings that were given for this method only, which stay. Raises UserError for a run that is wrong anyway.
    """
    system = registry.get(config.system)
    known = field_types(system.config)
    own = resolve(config).settings
    intrinsic = system.config(**own).own_budget() if hasattr(system.config, "own_budget") else {}
    differences = []
    for key, shared in budget.items():
        if key not in known:
            if shared != WITHOUT.get(key):
                does = f": as if it were {WITHOUT[key]:g}" if key in WITHOUT else ""
                differences.append(Difference(label, key, None, shared, f"it has no such setting{does}"))
            continue
        if own[key] == shared:
            continue
        if key in alone or key in intrinsic:
            why = "set for it alone" if key in alone else intrinsic[key]
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
