"""Pictures of studies: curves, both accuracies over the rounds, one line a cell, the mean over its seeds; heat maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from coterie.reproduce.study import Curve

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#8C564B")
_STYLES = ("-", "--", ":")
_INSIDE = 8  # curves whose names find room beside them


def curves_figure(curves: Mapping[str, Sequence[Curve]], title: str) -> Figure:
    """Global accuracy left, local accuracy right; the band is the range over the seeds."""
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for i, (name, found) in enumerate(curves.items()):
        style = {"color": _COLOURS[i % len(_COLOURS)], "linestyle": _STYLES[i // len(_COLOURS) % len(_STYLES)]}
        for axis, measure in zip(axes, ("global_accuracy", "local_accuracy"), strict=True):
            rows = np.array([[np.nan if v is None else v for v in getattr(curve, measure)] for curve in found], float)
            r = np.arange(1, rows.shape[1] + 1)
            axis.plot(r, rows.mean(axis=0), label=name, linewidth=1.4, **style)
            if len(found) > 1:
                axis.fill_between(r, rows.min(axis=0), rows.max(axis=0), color=style["color"], alpha=0.15, linewidth=0)
    for axis, text in zip(axes, ("whole test set", "clients' own distribution"), strict=True):
        axis.set(xlabel="round", title=text)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
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
    figure = Figure(figsize=(4.4 * columns, 3.6 * rows), layout="constrained")
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
) -> Figure:
    """Accuracy on the whole test set, a panel a case, a line a method, in the same colour everywhere.

    panels: over the rounds, the mean over the seeds and their range.  ends: panels of points over a parameter, delta.
    """
    names = list(dict.fromkeys(name for lines in (*panels.values(), *ends.values()) for name in lines))
    styles = {
        name: {"color": _COLOURS[i % len(_COLOURS)], "linestyle": _STYLES[i // len(_COLOURS) % len(_STYLES)]}
        for i, name in enumerate(names)
    }
    count = len(panels) + len(ends)
    columns = min(count, 3)
    rows = -(-count // columns)
    figure = Figure(figsize=(4.2 * columns + 0.4, 3.2 * rows + 1.0), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for (case, lines), axis in zip(panels.items(), axes, strict=False):
        for name, found in lines.items():
            longest = max(len(curve.global_accuracy) for curve in found)
            values = np.full((len(found), longest), np.nan)  # one that diverged ends early
            for row, curve in zip(values, found, strict=True):
                row[: len(curve.global_accuracy)] = [np.nan if v is None else v for v in curve.global_accuracy]
            r = np.arange(1, longest + 1)
            axis.plot(r, values.mean(axis=0), label=name, linewidth=1.2, **styles[name])
            if len(found) > 1:
                low, high = values.min(axis=0), values.max(axis=0)
                axis.fill_between(r, low, high, color=styles[name]["color"], alpha=0.15, linewidth=0)
        axis.set(xlabel="round", title=case)
        if axis is not axes[0]:
            axis.sharey(axes[0])
    for (case, points), axis in zip(ends.items(), axes[len(panels) :], strict=False):
        for name, values_at in points.items():
            axis.plot(list(values_at), list(values_at.values()), marker="o", markersize=4, label=name, **styles[name])
        axis.set(xlabel="δ", title=case)
    for axis in axes[:count]:
        axis.title.set_fontsize(9)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_ylabel("accuracy", fontsize=9)
    for axis in axes[count:]:
        axis.remove()
    handles = {line.get_label(): line for axis in axes[:count] for line in axis.get_lines()}
    figure.legend(
        [handles[name] for name in names], names, loc="outside lower center", ncols=min(5, len(names)), frameon=False
    )
    figure.suptitle(title)
    return figure
