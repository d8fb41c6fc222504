"""Pictures of studies: curves, both accuracies over the rounds, one line a cell, the mean over its seeds; heat maps."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from coterie.report.drawing import curve, looks, new_figure, tidy, whole_rounds
from coterie.reproductions.study import Curve

_INSIDE = 8  # curves whose names find room beside them


def _line(axis: Axes, name: str, found: Sequence[Curve], measure: str, width: float, style: Mapping[str, str]) -> None:
    """The mean over the seeds, in a band of their range; one that diverged ends early."""
    rows = itertools.zip_longest(*(getattr(curve, measure) for curve in found))
    values = np.array(list(rows), float)  # (rounds, seeds), NaN for None
    band = None if len(found) < 2 else (values.min(axis=1), values.max(axis=1))
    curve(axis, name, np.arange(1, len(values) + 1), values.mean(axis=1), band, linewidth=width, **style)


def curves_figure(curves: Mapping[str, Sequence[Curve]], title: str) -> Figure:
    """Global accuracy left, local accuracy right; the band is the range over the seeds."""
    figure = new_figure(9, 4)
    axes = figure.subplots(1, 2, sharey=True)
    for name, style in looks(curves).items():
        for axis, measure in zip(axes, ("global_accuracy", "local_accuracy"), strict=True):
            _line(axis, name, curves[name], measure, 1.4, style)
    for axis, text in zip(axes, ("whole test set", "clients' own distribution"), strict=True):
        axis.set_title(text)
        whole_rounds(axis)
        tidy(axis)
    axes[0].set_ylabel("mean accuracy of the clients' models")
    if len(curves) > _INSIDE:
        figure.legend(*axes[1].get_legend_handles_labels(), loc="outside right upper", fontsize=8, frameon=False)
    else:
        axes[1].legend(fontsize=8, frameon=False)
    figure.suptitle(title)
    return figure


@dataclass(frozen=True)
class Panel:
    """A heat map. x, y: names of the axes.  across, down: their values.  values: (down, across), NaN for none."""

    title: str
    x: str
    y: str
    across: Sequence[float]
    down: Sequence[float]
    values: NDArray[np.float64]


def heat_maps(panels: Sequence[Panel], columns: int, title: str) -> Figure:
    """Panels in rows of so many, every value written into its field, one scale of colours for all; NaN is grey."""
    rows = -(-len(panels) // columns)
    figure = new_figure(4.4 * columns, 3.6 * rows)
    low = min(float(np.nanmin(panel.values)) for panel in panels)
    high = max(float(np.nanmax(panel.values)) for panel in panels)
    for panel, axis in zip(panels, figure.subplots(rows, columns, squeeze=False).flat, strict=False):
        axis.set_facecolor("#cccccc")
        axis.imshow(panel.values, cmap="YlOrRd", vmin=low, vmax=high, aspect="auto")
        axis.set_xticks(range(len(panel.across)), [f"{v:g}" for v in panel.across])
        axis.set_yticks(range(len(panel.down)), [f"{v:g}" for v in panel.down])
        axis.set(xlabel=panel.x, ylabel=panel.y)
        axis.set_title(panel.title, fontsize=9)
        for (row, column), value in np.ndenumerate(panel.values):
            if not np.isnan(value):
                dark = value > (low + high) / 2
                axis.text(column, row, f"{value:.1f}", ha="center", va="center", fontsize=8, color="w" if dark else "k")
    figure.suptitle(title)
    return figure


def accuracy_panels(
    panels: Mapping[str, Mapping[str, Sequence[Curve]]],
    ends: Mapping[str, Mapping[str, Mapping[float, float]]],
    title: str,
    measures: Mapping[str, str] = MappingProxyType({}),
) -> Figure:
    """Accuracy, a panel a case, a line a method, in the same colour everywhere.

    panels: over the rounds, the mean over the seeds and their range.  ends: panels of points over a parameter, delta.
    measures: which accuracy a case shows; by default that on the whole test set.
    """
    names = list(dict.fromkeys(name for lines in (*panels.values(), *ends.values()) for name in lines))
    styles = looks(names)
    count = len(panels) + len(ends)
    columns = min(count, 3)
    rows = -(-count // columns)
    figure = new_figure(4.2 * columns + 0.4, 3.2 * rows + 1.0)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for (case, lines), axis in zip(panels.items(), axes, strict=False):
        for name, found in lines.items():
            _line(axis, name, found, measures.get(case, "global_accuracy"), 1.2, styles[name])
        axis.set_title(case)
        whole_rounds(axis)
        if axis is not axes[0]:
            axis.sharey(axes[0])
    for (case, points), axis in zip(ends.items(), axes[len(panels) :], strict=False):
        for name, values_at in points.items():
            axis.plot(list(values_at), list(values_at.values()), marker="o", markersize=4, label=name, **styles[name])
        axis.set(xlabel="δ", title=case)
    for axis in axes[:count]:
        axis.title.set_fontsize(9)
        axis.set_ylabel("accuracy", fontsize=9)
        tidy(axis)
    for axis in axes[count:]:
        axis.remove()
    handles = {line.get_label(): line for axis in axes[:count] for line in axis.get_lines()}
    beside = min((0, 2, 4, 5)[columns], len(names))  # names that the figure is wide enough for
    figure.legend([handles[name] for name in names], names, loc="outside lower center", ncols=beside, frameon=False)
    figure.suptitle(title)
    return figure
