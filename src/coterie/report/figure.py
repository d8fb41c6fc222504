"""The house style of figures, and how a matplotlib figure becomes inline SVG that follows the page's theme.

Text stays text and ink is CSS variables, so one drawing serves light, dark and print. Drawing holds a lock, because
matplotlib's settings are global.
"""

from __future__ import annotations

import functools
import io
import re
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec

import numpy as np
from markupsafe import Markup, escape
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import Colormap, ListedColormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray

P = ParamSpec("P")

# Stand-ins that become the CSS variables of the page (see `_THEME`).
INK, MUTED, GRID, PAPER = "#1b1e23", "#5c636d", "#dfe2e6", "#fefefe"
_THEME = {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--grid)", PAPER: "var(--paper)"}

# Okabe and Ito's colours for all kinds of colour vision, strongest first; then shades that keep apart from them.
_STRONG = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
PALETTE = (*_STRONG, "#8c6bb1", "#f0e442", "#7f7f7f", "#8c510a", "#80cdc1", "#fb9a99")
MARKERS = tuple("os^DvPX<>h*p")

_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # labels are other people's words: "$" is a dollar
    "text.color": INK,
    "font.size": 10,
    **dict.fromkeys(("figure.facecolor", "savefig.facecolor", "axes.facecolor"), "none"),
    **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), MUTED),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), 9),
    **dict.fromkeys(("axes.linewidth", "grid.linewidth"), 0.8),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": GRID,
    "lines.linewidth": 2,
    "lines.markersize": 4.5,
    "lines.solid_capstyle": "round",
}
_LOCK = threading.Lock()


def colour(index: int) -> str:
    """The colour of series or cluster number ``index`` >= 0; repeats after twelve."""
    return PALETTE[index % len(PALETTE)]


def alpha_ramp(hex_colour: str) -> Colormap:
    """From almost clear to a full colour, for light and dark pages; NaN is clear."""
    red, green, blue, _ = to_rgba(hex_colour)
    ramp = ListedColormap([(red, green, blue, 0.03 + 0.97 * i / 255) for i in range(256)])
    return ramp.with_extremes(bad=(0, 0, 0, 0))


def label(text: object, limit: int = 30) -> str:
    """Other people's words as a label: printable, short, and never taken for a hidden one (a leading underscore)."""
    words = "".join(c if c.isprintable() else "\ufffd" for c in str(text))
    words = words if len(words) <= limit else words[: limit - 1] + "…"
    return f" {words}" if words.startswith("_") else words


def drawn(plot: Callable[P, tuple[Figure, str]]) -> Callable[Concatenate[str, P], Markup]:
    """Turns a function that draws a figure and gives its alt text into one that gives ``<svg>`` for a page.

    The first argument is the prefix of its ids and must be unique in the page.
    """

    @functools.wraps(plot)
    def inline(key: str, /, *args: P.args, **kwargs: P.kwargs) -> Markup:
        file = io.StringIO()
        with _LOCK, warnings.catch_warnings(), style.context(_STYLE, after_reset=True):
            warnings.filterwarnings("ignore", message="Glyph .* missing")  # the page's font will have it
            figure, alt = plot(*args, **kwargs)
            FigureCanvasSVG(figure).print_svg(file)  # type: ignore[no-untyped-call]  # savefig would draw twice
        return _inline(file.getvalue(), key, alt)

    return inline


def _inline(svg: str, key: str, alt: str) -> Markup:
    """Strip an SVG for a page, name ids by ``key`` and put the theme's variables in."""
    width, height = (float(x) for x in re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)[0])
    body = svg[svg.index("<g ") : svg.rindex("</svg>")]
    body = re.sub(r"(font(?:-family)?:[^;\"<]*?)'DejaVu Sans'[^;\"<]*", r"\1sans-serif", body)
    body = body.replace("xlink:href", "href").replace("base64,\n", "base64,").replace("\n", " ")
    used = dict.fromkeys(re.findall(r'(?:url\(#|href="#)([^)"]+)', body))
    names = {old: f"{key}-{number}" for number, old in enumerate(used)}
    body = re.sub(r' id="([^"]+)"', lambda m: f' id="{names[m[1]]}"' if m[1] in names else "", body)
    body = re.sub(r'(url\(#|href="#)([^)"]+)', lambda m: m[1] + names[m[2]], body)
    for stand_in, variable in _THEME.items():
        body = body.replace(stand_in, variable)
    body = re.sub(r"  +", " ", body).replace("> <", "><")
    return Markup(
        f'<svg viewBox="0 0 {width:g} {height:g}" style="max-width:{width * 4 / 3:.0f}px" role="img" '
        f'aria-label="{escape(alt)}">{body}</svg>'
    )


class ShownFigure(Figure):
    """A figure that notebooks show as a picture, also without an import of ``pyplot``."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()


def new_figure(width: float, height: float) -> Figure:
    """A figure of that many inches."""
    return ShownFigure(figsize=(width, height), layout="constrained")


def round_axis(ax: Axes, first: int, last: int, name: str = "round") -> None:
    """Whole rounds on the x axis."""
    ax.set_xlim(first - 0.5, last + 0.5)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=8, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))
    ax.set_xlabel(name)


def percent_axis(ax: Axes, name: str) -> None:
    """Shares in percent on the y axis, inside 0 to 100."""
    low, high = ax.get_ylim()
    ax.set_ylim(max(low, 0.0), min(high, 1.003))
    ax.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
    ax.yaxis.set_major_formatter(FuncFormatter(_percent))
    ax.set_ylabel(name)


def _percent(share: float, _: int | None) -> str:
    return f"{100 * share:.4g} %"


def plain_log(axis: Axis) -> None:
    """Plain numbers on a logarithmic axis at 1, 2 and 5 times the powers of ten, or at powers alone."""
    low, high = axis.get_view_interval()
    many = high >= 1e3 * low
    axis.set_major_locator(LogLocator(subs=(1.0,), numticks=6) if many else LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def heat_map(
    ax: Axes,
    values: NDArray[np.float64],
    hex_colour: str,
    limits: tuple[float, float],
    name: str,
    percent: bool = False,
) -> None:
    """Values (rows, columns) between limits as depths of a colour, beside a colour bar of this name."""
    rows, columns = values.shape
    ramp = alpha_ramp(hex_colour)
    image(ax, values, -0.5, columns - 0.5, rows, cmap=ramp, vmin=limits[0], vmax=limits[1])
    bar = ax.inset_axes((1.015, 0.0, 0.018, 1.0))  # one image: a see-through ramp drawn as patches would show its seams
    steps = np.linspace(*limits, 256)[:, None]
    bar.imshow(steps, cmap=ramp, aspect="auto", origin="lower", extent=(0, 1, *limits), interpolation="none")
    bar.yaxis.tick_right()
    bar.yaxis.set_label_position("right")
    bar.grid(False)
    bar.set(xticks=[], ylabel=name)
    bar.spines[:].set_visible(False)
    if percent:
        bar.yaxis.set_major_formatter(FuncFormatter(_percent))


def image(ax: Axes, pixels: NDArray[Any], left: float, right: float, rows: int, **kwargs: Any) -> None:
    """A heat map of ``rows`` rows, the first on top, each one unit high around a whole number."""
    ax.imshow(pixels, aspect="auto", interpolation="none", extent=(left, right, rows - 0.5, -0.5), **kwargs)
    ax.grid(False)
    ax.spines[:].set_visible(False)


def legend(figure: Figure, handles: Sequence[Line2D | Patch], columns: int = 7, length: float = 1.6) -> None:
    """Below all panels."""
    columns = min(len(handles), columns)
    figure.legend(handles=list(handles), loc="outside lower center", ncols=columns, handlelength=length)
