"""Several runs as a comparison: which are the same but for the seed, their means and spreads, rounds to a target."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.report.load import EMULATED, Run
from coterie.report.plots import points
from coterie.runs.config import SIDES
from coterie.runs.intervals import mean_and_interval

_WORK = (
    "data",
    "partition",
    "clients",
    "rounds",
    "model",
    "devices",
    "delta",
    "delay",
    "min_samples",
    "scaling",
    "precision",
    "fine_tune",
)
_NOT_THE_METHOD = SIDES | {"seed"}


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed at most. label: for legends and tables."""

    label: str
    runs: tuple[Run, ...]

    @property
    def legend(self) -> str:
        """The label for a figure, where no badge stands beside it."""
        return self.label + (EMULATED if self.runs[0].result.crypto == "emulated" else "")

    def curve(self, field: str) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64] | None]:
        """Rounds that all runs evaluated, mean over the runs and standard deviation (None for a single run)."""
        runs = [dict(zip(*points(run.rounds, field), strict=True)) for run in self.runs]
        shared = sorted(set(runs[0]).intersection(*runs[1:]))
        values = np.array([[one[r] for r in shared] for one in runs])
        return (
            np.array(shared, dtype=np.int64),
            values.mean(axis=0),
            values.std(axis=0, ddof=1) if len(runs) > 1 else None,
        )

    def value(self, of: Callable[[Run], float | None]) -> tuple[float, float | None] | None:
        """Mean over the runs and half of its 95 % interval (None for one run); None where a run has no value."""
        values = [of(run) for run in self.runs]
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            return None
        return mean_and_interval(known)

    def rounds_to(self, field: str, target: float) -> int | None:
        """First evaluated round in which the mean over the runs reaches the target."""
        rounds, mean, _ = self.curve(field)
        reached = np.flatnonzero(mean >= target)
        return int(rounds[reached[0]]) if len(reached) else None


def group(runs: Sequence[Run]) -> list[Group]:
    """Runs by method: system, mode, cipher and settings, whatever the seed; in the order of their first run."""
    methods: dict[str, list[Run]] = {}
    for run in runs:
        method = {key: value for key, value in _flat(run.config).items() if key not in _NOT_THE_METHOD}
        identity = (run.result.system, run.result.mode, run.result.crypto, sorted(map(str, method.items())))
        methods.setdefault(repr(identity), []).append(run)
    groups = [tuple(sorted(found, key=lambda run: run.result.seed)) for found in methods.values()]
    return [Group(label, found) for label, found in zip(_labels([found[0] for found in groups]), groups, strict=True)]


def differing_work(runs: Sequence[Run]) -> dict[str, list[str]]:
    """What should be the same in a fair comparison and is not: option -> the values met."""
    found: dict[str, list[str]] = {}
    for key in _WORK:
        values = dict.fromkeys(str(getattr(run.result, key, None) or run.config.get(key)) for run in runs)
        if len(values) > 1:
            found[key] = list(values)
    seeds = {found.label: sorted(run.result.seed for run in found.runs) for found in group(runs)}
    if len({tuple(each) for each in seeds.values()}) > 1:
        found["seeds"] = [f"{name}: {', '.join(map(str, each))}" for name, each in seeds.items()]
    return found


def common_target(groups: Sequence[Group], field: str) -> float | None:
    """The highest whole percent that every method reaches with the mean of its runs; None if one was not evaluated."""
    best = [float(mean.max()) for _, mean, _ in (found.curve(field) for found in groups) if len(mean)]
    if len(best) < len(groups):
        return None
    return math.floor(100 * min(best) + 1e-9) / 100


def _labels(runs: Sequence[Run]) -> list[str]:
    """Names that tell the methods apart: the mode, the cipher and the settings only where they differ."""
    same = {run.result.system: [other for other in runs if other.result.system == run.result.system] for run in runs}
    labels = []
    for run in runs:
        rivals = same[run.result.system]
        mode = run.result.mode
        words = [run.result.name + (f"@{mode}" if mode not in (None, "paper") else "")]
        if len({other.result.crypto for other in rivals}) > 1:
            words.append(run.result.crypto)
        flat = [_flat(other.config) for other in rivals]
        mine = _flat(run.config)
        for key in sorted(set().union(*flat) - _NOT_THE_METHOD - {"mode", "crypto", "system"}):
            if len({str(other.get(key)) for other in flat}) > 1:
                words.append(f"{key.rpartition('.')[2]}={mine.get(key)}")
        labels.append(", ".join(words))
    return labels


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
