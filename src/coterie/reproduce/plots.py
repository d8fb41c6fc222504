"""Curves of a study as one picture: both accuracies over the rounds, one line a cell, the mean over its seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from coterie.reproduce.study import Curve

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#8C564B")
_STYLES = ("-", "--", ":")


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
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("mean accuracy of the clients' models")
    axes[1].legend(fontsize=8, frameon=False, ncols=1 + len(curves) // 9)
    figure.suptitle(title)
    return figure
