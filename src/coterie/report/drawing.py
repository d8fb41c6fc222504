"""One style for figures by matplotlib, in notebooks, papers and studies."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import ArrayLike

from coterie.report.figure import METHODS

_SAVED: Any = {"svg.fonttype": "none", "svg.hashsalt": "coterie", "pdf.fonttype": 42}  # text stays text, files repeat
_LINES = ("-", "--", ":", "-.")
DARK = {
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), "#1a1f25"),
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), "#e6e9ed"),
}
"""The colours of a report's dark page, for matplotlib."""
MARKERS = ("o", "s", "^", "D", "v", "p", "*")  # as in ``figure.py``: a method has one mark in a report and in a paper


class ShownFigure(Figure):
    """That notebooks show without ``pyplot``."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()

    def savefig(self, fname: Any, **kwargs: Any) -> None:
        """SVG and PDF keep their text, equal at every call."""
        form = str(kwargs.get("format") or str(fname).rpartition(".")[2]).lower()
        dated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
        with matplotlib.rc_context(_SAVED):
            super().savefig(fname, **({"metadata": dated[form]} if form in dated else {}) | kwargs)


def new_figure(width: float, height: float) -> Figure:
    return ShownFigure(figsize=(width, height), layout="constrained")


def looks(names: Iterable[str], *, dark: bool = False) -> dict[str, dict[str, str]]:
    """A colour and a kind of line by name: no two of 32 are alike, and eight differ in grey, too.  dark: for a dark
    page.
    """
    return {
        name: {"color": METHODS[k % len(METHODS)][dark], "linestyle": _LINES[(k + k // len(METHODS)) % len(_LINES)]}
        for k, name in enumerate(dict.fromkeys(names))
    }


def curve(axis: Axes, name: str, x: ArrayLike, mean: ArrayLike, band: Sequence[ArrayLike] | None, **look: Any) -> None:
    axis.plot(x, mean, label=name, **look)
    if band is not None:
        low, high = (np.asarray(end, float) for end in band)
        axis.fill_between(np.asarray(x, float), low, high, color=look["color"], alpha=0.15, linewidth=0)


def tidy(axis: Axes) -> None:
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)


def whole_rounds(axis: Axes) -> None:
    axis.set_xlabel("round")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))


def percent_axis(ax: Axes, name: str) -> None:
    low, high = ax.get_ylim()
    ax.set_ylim(max(low, 0.0), min(high, 1.003))
    ax.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    ax.set_ylabel(name)
