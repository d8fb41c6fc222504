"""Several runs as a comparison: which are the same but for the seed, their means and spreads, and their figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from coterie.record.comparison import ACCURACY, Measure
from coterie.record.load import Run
from coterie.record.schema import EMULATED
from coterie.report.figure import (
    MARKERS,
    MUTED,
    PAPER,
    colour,
    drawn,
    label,
    legend,
    new_figure,
    percent_axis,
    plain_log,
    round_axis,
)
from coterie.report.plots import WIDTH, explained
from coterie.report.words import metric
from coterie.runs.config import OPTIONS, SIDES
from coterie.runs.intervals import spread

_METHOD = {"system", "mode", "crypto"}  # options that name a method beside its settings
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
        runs = [dict(zip(*run.points(field), strict=True)) for run in self.runs]
        shared = sorted(set(runs[0]).intersection(*runs[1:]))
        values = np.array([[one[r] for r in shared] for one in runs])
        std = values.std(axis=0, ddof=1) if len(runs) > 1 else None
        return np.array(shared, dtype=np.int64), values.mean(axis=0), std

    def value(self, of: Callable[[Run], float | None]) -> tuple[float, float | None] | None:
        """Mean over the runs and half of its 95 % interval (None for one run); None where a run has no value."""
        found = spread([of(run) for run in self.runs])
        return None if found is None else (found["mean"], found["interval"])

    def rounds_to(self, field: str, target: float, *, higher: bool = True) -> int | None:
        """First evaluated round in which the mean over the runs reaches the target. higher: whether more is better."""
        rounds, mean, _ = self.curve(field)
        reached = np.flatnonzero(mean >= target if higher else mean <= target)
        return int(rounds[reached[0]]) if len(reached) else None

    def seconds_to(self, field: str, target: float, *, higher: bool = True) -> float | None:
        """Virtual seconds until the end of that round, mean over the runs; None if it never comes or has no clock."""
        reached = self.rounds_to(field, target, higher=higher)
        clocks = [dict(zip(*run.points("virtual_seconds"), strict=True)).get(reached or -1) for run in self.runs]
        known = [clock for clock in clocks if clock is not None]
        return sum(known) / len(known) if len(known) == len(clocks) else None


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
    for key in (option for option in OPTIONS if option not in _METHOD | _NOT_THE_METHOD):
        told = [None if key == "metrics" else getattr(run.result, key, None) for run in runs]  # those are results
        values = dict.fromkeys(str(of or run.config.get(key)) for of, run in zip(told, runs, strict=True))
        if len(values) > 1:
            found[key] = list(values)
    seeds = {found.label: sorted(run.result.seed for run in found.runs) for found in group(runs)}
    if len({tuple(each) for each in seeds.values()}) > 1:
        found["seeds"] = [f"{name}: {', '.join(map(str, each))}" for name, each in seeds.items()]
    return found


def leading(groups: Sequence[Group]) -> Measure:
    """The metric that leads the comparison: that of its first run."""
    return groups[0].runs[0].leading


def common_target(groups: Sequence[Group], field: str, measure: Measure = ACCURACY) -> float | None:
    """The best value that every method reaches with the mean of its runs; None if one was not evaluated.

    measure: of the field. Shares are rounded to the next whole percent that is reached, others to two digits.
    """
    curves = [mean[np.isfinite(mean)] for _, mean, _ in (found.curve(field) for found in groups)]
    if not all(map(len, curves)):
        return None
    reached = float(min(map(np.max, curves)) if measure.higher else max(map(np.min, curves)))
    unit = 0.01 if measure.share else 10.0 ** (math.floor(math.log10(abs(reached) or 1)) - 1)
    whole = math.floor(reached / unit + 1e-9) if measure.higher else math.ceil(reached / unit - 1e-9)
    return round(whole * unit, 12)


def _labels(runs: Sequence[Run]) -> list[str]:
    """Names that tell the methods apart: the mode, the cipher and the settings only where they differ."""
    same = {run.result.system: [other for other in runs if other.result.system == run.result.system] for run in runs}
    labels = []
    for run in runs:
        rivals = same[run.result.system]
        mode = run.result.mode
        words = [run.result.name if mode in (None, "paper") else f"{run.result.name}@{mode}"]
        if len({other.result.crypto for other in rivals}) > 1:
            words.append(run.result.crypto)
        flat = [_flat(other.config) for other in rivals]
        mine = _flat(run.config)
        for key in sorted(set().union(*flat) - _NOT_THE_METHOD - _METHOD):
            if len({str(other.get(key)) for other in flat}) > 1:
                words.append(f"{key.rpartition('.')[2]}={mine.get(key)}")
        labels.append(", ".join(words))
    return labels


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


@drawn
def scores(groups: Sequence[Group]) -> tuple[Figure, str]:
    """Both sides of the leading metric over the rounds, for all methods; dashed where clients fine-tuned."""
    measure = leading(groups)
    figure = new_figure(WIDTH, 4.4)
    panels = figure.subplots(1, 2, sharey=True)
    first = min(run.rounds[0].round for found in groups for run in found.runs)
    last = max(run.rounds[-1].round for found in groups for run in found.runs)
    alt = []
    for ax, (field, (title, where)) in zip(panels, explained(measure).items(), strict=True):
        for number, found in enumerate(groups):
            rounds, mean, std = found.curve(field)
            ax.plot(rounds, mean, **_line(number, len(mean)))
            if std is not None:
                ax.fill_between(rounds, mean - std, mean + std, color=colour(number), alpha=0.18, lw=0)
            tuned, share, _ = found.curve(f"fine_tuned_{field}")
            ax.plot(tuned, share, **_line(number, len(share)) | {"ls": "--", "lw": 1.4, "mfc": PAPER})
            if len(mean):
                alt.append(f"{found.label} {title} {metric(float(mean[-1]), measure.share)}")
        ax.set_title(f"{title}: {where}")
        round_axis(ax, first, last)
    _axis(panels[0], measure, f"{measure.label}, mean over clients")
    tuned_any = any(len(found.curve(f"fine_tuned_{field}")[0]) for field in explained(measure) for found in groups)
    _legend(figure, groups, tuned_any)
    return figure, "At the end: " + "; ".join(alt)


@drawn
def costs(groups: Sequence[Group]) -> tuple[Figure, str]:
    """Both sides of the leading metric against what they cost, of the costs that every run counted."""
    columns, measure = counted(groups), leading(groups)
    figure = new_figure(WIDTH, 6.6)
    axes = figure.subplots(2, len(columns), sharey="row", sharex="col", squeeze=False)
    for row, (field, (title, _)) in zip(axes, explained(measure).items(), strict=True):
        for ax, cost in zip(row, columns, strict=True):
            for number, found in enumerate(groups):
                rounds, mean, _std = found.curve(field)
                ax.plot(_at(found, rounds, cost.until), mean, **_line(number, len(mean)))
            _logarithmic(ax)
        _axis(row[0], measure, title)
    for above, below, cost in zip(*axes, columns, strict=True):
        above.set_title(cost.title)
        below.set_xlabel(cost.unit)
    _legend(figure, groups, False)
    return figure, f"{measure.label}, global and local, against {' and against '.join(cost.unit for cost in columns)}"


@dataclass(frozen=True)
class Cost:
    """Something that a run spends. until: what was spent by the end of each round; None where nobody counted."""

    title: str
    unit: str
    until: Callable[[Run], list[float] | None]


def counted(groups: Sequence[Group]) -> list[Cost]:
    """The costs that every run counted."""
    return [cost for cost in _COSTS if all(cost.until(run) is not None for found in groups for run in found.runs)]


def _sent(run: Run) -> list[float] | None:
    moved = run.client_bytes("bytes_up")
    return moved and [float(total) / 1e6 for total in np.cumsum(moved)]


def _clock(run: Run) -> list[float] | None:
    _, clocks = run.points("virtual_seconds")
    return clocks if len(clocks) == len(run.rounds) else None


_COSTS = (
    Cost("For the bytes", "MB sent by a client, in total", _sent),
    Cost("For the time on the simulated devices", "virtual seconds", _clock),
)


def _axis(ax: Axes, measure: Measure, name: str) -> None:
    if measure.share:
        percent_axis(ax, name)
    else:
        ax.set_ylabel(name)


def _line(number: int, length: int) -> dict[str, object]:
    every = max(1, length // 8)
    return {
        "color": colour(number),
        "marker": MARKERS[number % len(MARKERS)],
        "markevery": (number * every // 4 % every, every),  # staggered, so that lines on each other stay readable
    }


def _legend(figure: Figure, groups: Sequence[Group], tuned: bool) -> None:
    handles = [
        Line2D([], [], color=colour(number), marker=MARKERS[number % len(MARKERS)], label=label(found.legend, 46))
        for number, found in enumerate(groups)
    ]
    if tuned:
        words = "after each client's own fine-tuning"
        handles.append(Line2D([], [], color=MUTED, ls="--", lw=1.4, marker="o", mfc=PAPER, label=words))
    legend(figure, handles, columns=4, length=2.4)


def _at(found: Group, rounds: NDArray[np.int64], until: Callable[[Run], list[float] | None]) -> NDArray[np.float64]:
    """Mean over the runs of a cost at the end of each of these rounds."""
    costs = [dict(zip([line.round for line in run.rounds], until(run) or (), strict=True)) for run in found.runs]
    return np.array([np.mean([cost[int(r)] for cost in costs]) for r in rounds])


def _logarithmic(ax: Axes) -> None:
    """A logarithmic x axis where methods differ by more than a factor of 5 at their ends."""
    ends = [float(xs[-1]) for line in ax.lines if (xs := np.asarray(line.get_xdata(), dtype=float)).size]
    if ends and min(ends) > 0 and max(ends) / min(ends) > 5:
        ax.set_xscale("log")
        plain_log(ax.xaxis)
