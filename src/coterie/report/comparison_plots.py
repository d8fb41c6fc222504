"""The figures of a comparison: one line a method, a band of one standard deviation over the seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from coterie.report.comparison import Group
from coterie.report.figure import (
    MARKERS,
    MUTED,
    PAPER,
    colour,
    drawn,
    label,
    new_figure,
    percent_axis,
    plain_log,
    round_axis,
)
from coterie.report.load import Run
from coterie.report.plots import EXPLAINED, WIDTH
from coterie.report.words import percent


@drawn
def accuracies(groups: Sequence[Group]) -> tuple[Figure, str]:
    """Both accuracies of all methods over the rounds; dashed where clients fine-tuned."""
    figure = new_figure(WIDTH, 4.4)
    panels = figure.subplots(1, 2, sharey=True)
    first = min(run.rounds[0].round for found in groups for run in found.runs)
    last = max(run.rounds[-1].round for found in groups for run in found.runs)
    alt = []
    for ax, (field, (title, where)) in zip(panels, EXPLAINED.items(), strict=True):
        for number, found in enumerate(groups):
            rounds, mean, std = found.curve(field)
            ax.plot(rounds, mean, **_line(number, len(mean)))
            if std is not None:
                ax.fill_between(rounds, mean - std, mean + std, color=colour(number), alpha=0.18, lw=0)
            tuned, share, _ = found.curve(f"fine_tuned_{field}")
            ax.plot(tuned, share, **_line(number, len(share)) | {"ls": "--", "lw": 1.4, "mfc": PAPER})
            if len(mean):
                alt.append(f"{found.label} {title.lower()} {percent(float(mean[-1]))}")
        ax.set_title(f"{title}: {where}")
        round_axis(ax, first, last)
    percent_axis(panels[0], "accuracy, mean over clients")
    tuned_any = any(len(found.curve(f"fine_tuned_{field}")[0]) for field in EXPLAINED for found in groups)
    _legend(figure, groups, tuned_any)
    return figure, "At the end: " + "; ".join(alt)


@drawn
def costs(groups: Sequence[Group]) -> tuple[Figure, str]:
    """Both accuracies against what they cost, of the costs that every run counted (see ``counted``)."""
    columns = counted(groups)
    figure = new_figure(WIDTH, 6.6)
    axes = figure.subplots(2, len(columns), sharey="row", sharex="col", squeeze=False)
    for row, (field, (title, _)) in zip(axes, EXPLAINED.items(), strict=True):
        for ax, cost in zip(row, columns, strict=True):
            for number, found in enumerate(groups):
                rounds, mean, _std = found.curve(field)
                ax.plot(_at(found, rounds, cost.until), mean, **_line(number, len(mean)))
            _logarithmic(ax)
        percent_axis(row[0], title.lower())
    for above, below, cost in zip(*axes, columns, strict=True):
        above.set_title(cost.title)
        below.set_xlabel(cost.unit)
    _legend(figure, groups, False)
    return figure, f"Both accuracies against {' and against '.join(cost.unit for cost in columns)}"


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
    return None if moved is None else [float(total) / 1e6 for total in np.cumsum(moved)]


def _clock(run: Run) -> list[float] | None:
    clocks = [clock for line in run.rounds if (clock := line.virtual_seconds) is not None]
    return clocks if len(clocks) == len(run.rounds) else None


_COSTS = (
    Cost("For the bytes", "MB sent by a client, in total", _sent),
    Cost("For the time on the simulated devices", "virtual seconds", _clock),
)


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
        handles.append(
            Line2D(
                [], [], color=MUTED, ls="--", lw=1.4, marker="o", mfc=PAPER, label="after each client's own fine-tuning"
            )
        )
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 4), handlelength=2.4)


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
