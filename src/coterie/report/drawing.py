"""What notebooks draw with matplotlib, which is loaded for this alone."""

from __future__ import annotations

import io

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter


class ShownFigure(Figure):
    """A figure that notebooks show as a picture, also without an import of ``pyplot``."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()


def new_figure(width: float, height: float) -> Figure:
    return ShownFigure(figsize=(width, height), layout="constrained")


def percent_axis(ax: Axes, name: str) -> None:
    low, high = ax.get_ylim()
    ax.set_ylim(max(low, 0.0), min(high, 1.003))
    ax.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    ax.set_ylabel(name)
