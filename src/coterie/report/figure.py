"""Figures as plain SVG: panels with axes, marks, and a legend below. Text stays text and ink is CSS variables, for
light, dark and print. Lengths are pixels.
"""

from __future__ import annotations

import base64
import functools
import math
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import ArrayLike, NDArray

Doubles = NDArray[np.float64]
Place = Callable[[ArrayLike], Doubles]  # from values to pixels

INK, MUTED, GRID, PAPER = "var(--ink)", "var(--muted)", "var(--grid)", "var(--paper)"
# Okabe and Ito's colours for all kinds of colour vision, strongest first; then shades that keep apart from them.
_STRONG = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
PALETTE = (*_STRONG, "#8c6bb1", "#f0e442", "#7f7f7f", "#8c510a", "#80cdc1", "#fb9a99")
# Of a comparison's methods, for light and for dark pages: no two of them have the same grey, on screen and in print.
METHODS = (
    ("#005a8c", "#3580c4"),
    ("#d55e00", "#f28a4a"),
    ("#56b4e9", "#8fd0f7"),
    ("#007a53", "#00a37a"),
    ("#cc79a7", "#e8a3c8"),
    ("#3b1c57", "#7048a8"),
    ("#e6c229", "#f5e663"),
    ("#5e3a12", "#96602f"),
)
SIZE, SMALL = 12, 9.5  # of letters
_LETTER = 0.6  # the width of a letter of size 1
_KEY = 24  # a key's drawing in a legend, with the space behind it
_LINE = 1.4  # from one label to the next below it, in heights of letters
_ROW, _TITLE = 18, 16  # pixels of a line of a legend and of a title
_LARGEST = 1e308  # of an axis, whose end with its room may be infinite
_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def colour(index: int) -> str:
    return PALETTE[index % len(PALETTE)]


def method_colour(number: int) -> str:
    return f"var(--m{number % len(METHODS)})"


def rgba(hex_colour: str) -> tuple[int, int, int, int]:
    red, green, blue = bytes.fromhex(hex_colour[1:])
    return red, green, blue, 255


def label(text: object, limit: int = 30) -> str:
    """Others' words: printable and short."""
    words = "".join(c if c.isprintable() else "\ufffd" for c in str(text))
    return words if len(words) <= limit else words[: limit - 1] + "…"


def plain(value: float) -> str:
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 10 * unit or (abs(value) >= unit and value % (unit / 10) == 0):
            return f"{value / unit:g}{letter}"
    return f"{value:.6g}"


def percent(share: float) -> str:
    return f"{100 * share:.4g} %"


# -- axes --------------------------------------------------------------------------------------------------------------


@dataclass
class Axis:
    """low, high: its ends, else the marks' with some room; low may be the larger.  bounds: of that room.  most: of its
    ticks.  whole: only whole numbers.  ticks: values and words.  grid: lines cross the panel.  side: it is on the far
    side.
    """

    name: str = ""
    low: float | None = None
    high: float | None = None
    bounds: tuple[float, float] = (-math.inf, math.inf)
    most: int = 6
    whole: bool = False
    log: bool = False
    grid: bool = False
    side: bool = False
    form: Callable[[float], str] = plain
    ticks: Sequence[tuple[float, str]] | None = None
    size: float = SIZE

    def ends(self, values: Doubles) -> tuple[float, float]:
        known = values[np.isfinite(values) & ((values > 0) | (not self.log))]
        low, high = (float(known.min()), float(known.max())) if known.size else (0.5, 1.0)
        if self.log:
            low, high = low * (low / high) ** 0.05 * (1 - 1e-9), high * (high / low) ** 0.05 * (1 + 1e-9)
        else:
            room = 0.05 * (high - low) or 0.05 * abs(high) or 0.05
            low, high = min(low, max(low - room, self.bounds[0])), max(high, min(high + room, self.bounds[1]))
        return low if self.low is None else self.low, high if self.high is None else self.high

    def marked(self, low: float, high: float) -> list[tuple[float, str]]:
        if self.ticks is not None:
            return list(self.ticks)
        low, high = min(low, high), max(low, high)
        values = _powers(low, high, self.most) if self.log else _steps(low, high, self.most, self.whole)
        return [(value, self.form(value)) for value in values]


def _steps(low: float, high: float, most: int, whole: bool) -> list[float]:
    if not high > low:
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    for step in (power * factor for factor in (1, 2, 5, 10, 20, 50)):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first < most and (step >= 1 or not whole):
            return [round(k * step, 12) for k in range(first, last + 1)]
    return [round(high)]


def _powers(low: float, high: float, most: int) -> list[float]:
    if high < 10 * low:
        return _steps(low, high, most, whole=False)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(min(high, _LARGEST))) + 1)
    if high < 1e3 * low:
        finer = [f * 10.0**k for k in powers for f in (1, 2, 5) if low <= f * 10.0**k <= high]
        return finer[:: math.ceil(len(finer) / most)]
    inside = [10.0**k for k in powers if low <= 10.0**k <= high]
    return inside[:: math.ceil(len(inside) / most)]


# -- marks -------------------------------------------------------------------------------------------------------------


class Mark(Protocol):
    def extent(self) -> tuple[ArrayLike, ArrayLike]:
        """Values along both axes in sight."""

    def draw(self, x: Place, y: Place) -> str: ...


@dataclass
class Line:
    """With a gap at non-finite values.  every: which points have a marker; None for none.  shape, filled, edge: of the
    markers.
    """

    x: ArrayLike
    y: ArrayLike
    colour: str
    dashed: bool = False
    width: float = 2.4
    every: slice | None = None
    shape: int = 0
    radius: float = 3.6
    filled: bool = True
    joined: bool = True
    edge: str = ""

    def extent(self) -> tuple[ArrayLike, ArrayLike]:
        return self.x, self.y

    def draw(self, x: Place, y: Place) -> str:
        points = np.stack([x(self.x), y(self.y)], axis=1).reshape(-1, 2)
        drawing = "".join(f"M{_joined(part)}" for part in _finite(points)) if self.joined else ""
        svg = f'<path d="{drawing}" {_stroke(self.colour, self.width, self.dashed)}/>' if drawing else ""
        if self.every is not None:
            fill = self.colour if self.filled else PAPER
            dots = "".join(map(functools.partial(marker, self.shape, self.radius), points[self.every]))
            edge = self.edge or self.colour
            svg += f'<path d="{dots}" fill="{fill}" stroke="{edge}" stroke-width="1.4"/>' if dots else ""
        return svg


@dataclass
class Band:
    x: ArrayLike
    low: ArrayLike
    high: ArrayLike
    colour: str
    opacity: float

    def extent(self) -> tuple[ArrayLike, ArrayLike]:
        return np.concatenate([self.x, self.x]), np.concatenate([self.low, self.high])

    def draw(self, x: Place, y: Place) -> str:
        rows = np.stack([x(self.x), y(self.low), y(self.high)], axis=1)
        shapes = (np.concatenate([part[:, [0, 1]], part[::-1][:, [0, 2]]]) for part in _finite(rows))
        drawing = "".join(f"M{_joined(shape)}Z" for shape in shapes)
        return f'<path d="{drawing}" fill="{self.colour}" fill-opacity="{self.opacity:g}"/>'


@dataclass
class Bars:
    """From ``base`` to ``top``.  colours: one, or of each.  lying: along the x axis."""

    at: ArrayLike
    base: ArrayLike
    top: ArrayLike
    colours: str | Sequence[str]
    width: float = 0.8
    lying: bool = False

    def extent(self) -> tuple[ArrayLike, ArrayLike]:
        at, reach = np.asarray(self.at, float), np.concatenate([np.ravel(self.base), np.ravel(self.top)])
        across = np.concatenate([at - self.width / 2, at + self.width / 2])
        return (reach, across) if self.lying else (across, reach)

    def draw(self, x: Place, y: Place) -> str:
        at, base, top = np.broadcast_arrays(np.asarray(self.at, float), self.base, self.top)
        along, across = (x, y) if self.lying else (y, x)
        sides = np.stack([across(at - self.width / 2), across(at + self.width / 2), along(base), along(top)], axis=1)
        paths: dict[str, list[str]] = {}
        colours = [self.colours] * len(at) if isinstance(self.colours, str) else self.colours
        for (a, b, low, high), shade in zip(sides, colours, strict=True):
            box = f"M{low:.1f},{a:.1f}H{high:.1f}V{b:.1f}H{low:.1f}Z"
            upright = f"M{a:.1f},{low:.1f}V{high:.1f}H{b:.1f}V{low:.1f}Z"
            paths.setdefault(shade, []).append(box if self.lying else upright)
        return "".join(f'<path d="{"".join(boxes)}" fill="{shade}"/>' for shade, boxes in paths.items())


@dataclass
class Image:
    """pixels: (rows, columns, 4), the first row at ``top``."""

    pixels: NDArray[np.uint8]
    left: float
    right: float
    top: float
    bottom: float

    def extent(self) -> tuple[ArrayLike, ArrayLike]:
        return [self.left, self.right], [self.top, self.bottom]

    def draw(self, x: Place, y: Place) -> str:
        (left, right), (top, bottom) = x([self.left, self.right]), y([self.top, self.bottom])
        return (
            f'<image x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" height="{bottom - top:.1f}" '
            f'preserveAspectRatio="none" style="image-rendering:pixelated" href="{_png(self.pixels)}"/>'
        )


@dataclass
class Rules:
    """Lines between rows, or columns.  first, last: their ends."""

    at: Sequence[float]
    first: float
    last: float
    colour: str
    upright: bool = False

    def extent(self) -> tuple[ArrayLike, ArrayLike]:
        return [], []

    def draw(self, x: Place, y: Place) -> str:
        if self.upright:
            (first, last), lines = y([self.first, self.last]), x(self.at)
            drawing = "".join(f"M{at:.1f},{first:.1f}V{last:.1f}" for at in lines)
        else:
            (first, last), lines = x([self.first, self.last]), y(self.at)
            drawing = "".join(f"M{first:.1f},{at:.1f}H{last:.1f}" for at in lines)
        return f'<path d="{drawing}" {_stroke(self.colour, 1)}/>' if drawing else ""


@dataclass
class Words:
    """A word at each point.  shift: in pixels.  middle: around it."""

    x: ArrayLike
    y: ArrayLike
    words: Sequence[str]
    colour: str = MUTED
    shift: tuple[float, float] = (0, 0)
    middle: bool = False

    def extent(self) -> tuple[ArrayLike, ArrayLike]:
        return [], []

    def draw(self, x: Place, y: Place) -> str:
        at = zip(x(self.x) + self.shift[0], y(self.y) + self.shift[1], self.words, strict=True)
        return "".join(_text(*one, self.colour, SMALL, "middle" if self.middle else "start") for one in at)


@dataclass
class Labelled:
    """Words beside marks of these radii, moved where they would cover each other or a mark, or leave the right end.

    right: the largest x.  more: follows where there is room.
    """

    x: Sequence[float]
    y: Sequence[float]
    words: Sequence[str]
    radii: Sequence[float]
    right: float
    more: Sequence[str] = ()

    def extent(self) -> tuple[ArrayLike, ArrayLike]:
        return [], []

    def draw(self, x: Place, y: Place) -> str:
        end, svg = float(x(self.right)), ""
        taken: list[tuple[float, float, float]] = []
        marks = [*zip(x(self.x), y(self.y), self.radii, strict=True)]
        words = map("".join, zip(self.words, self.more or [""] * len(self.words), strict=True))
        at = sorted(zip(marks, words, strict=True), key=lambda one: float(one[0][1]))
        for (across, down, radius), told in at:
            wide = _wide(told)
            near = [(a, r) for a, d, r in marks if abs(a - across) < r + radius + 5 and abs(d - down) < r + SIZE]
            after, before = max(a + r for a, r in near) + 5, min(a - r for a, r in near) - 5
            first = after if after + wide <= end else before - wide
            for start, stop, height in taken:  # from the top down
                if first < stop and start < first + wide and down < height + _LINE * SIZE:
                    down = height + _LINE * SIZE
            taken.append((first, first + wide, down))
            svg += _text(first, down + 4, told)
        return svg


# -- panels and figures ------------------------------------------------------------------------------------------------


@dataclass
class Key:
    """A line of a legend: a patch, or that line."""

    words: str
    colour: str
    opacity: float = 1.0
    line: Line | None = None

    @property
    def width(self) -> float:
        return _KEY + _wide(self.words) + 18

    def draw(self, x: float, y: float) -> str:
        if self.line is None:
            box = f"M{x + 3:.1f},{y - 5:.1f}h14v10h-14Z"
            drawing = f'<path d="{box}" fill="{self.colour}" fill-opacity="{self.opacity:g}"/>'
        else:
            at = [x + 10] if self.line.every is not None and not self.line.joined else [x, x + 10, x + 20]
            every = slice(len(at) // 2, len(at) // 2 + 1) if self.line.every is not None else None
            sample = Line(**vars(self.line) | {"x": at, "y": [y] * len(at), "every": every})
            drawing = sample.draw(np.asarray, np.asarray)
        return drawing + _text(x + _KEY, y + 4, self.words, INK)


@dataclass
class Panel:
    """keys: its legend.  above: values of x with a triangle.  frame: axes are lines."""

    title: str = ""
    x: Axis = field(default_factory=Axis)
    y: Axis = field(default_factory=lambda: Axis(grid=True))
    marks: list[Mark] = field(default_factory=list)
    keys: list[Key] = field(default_factory=list)
    above: Sequence[int] = ()
    frame: bool = True

    def lines(self) -> list[Line]:
        return [mark for mark in self.marks if isinstance(mark, Line)]

    def limits(self) -> tuple[tuple[float, float], tuple[float, float]]:
        every = [mark.extent() for mark in self.marks] or [((), ())]
        x, y = (np.concatenate([np.ravel(np.asarray(one[k], float)) for one in every]) for k in (0, 1))
        return self.x.ends(x), self.y.ends(y)

    def margins(self) -> tuple[float, float, float, float]:
        """Pixels for its words: left, top, right, bottom."""
        x, y = self.limits()
        words = [_wide(word, self.y.size) for _, word in self.y.marked(*y)]
        beside = max(words, default=-4) + 8 + (18 if self.y.name else 0)
        last = max((_wide(word, self.x.size) / 2 for _, word in self.x.marked(*x)[-1:]), default=6.0)
        left, right = (10.0, beside) if self.y.side else (beside, last)
        top = 8 + (20 + _TITLE * self.title.count("\n") if self.title else 0) + (14 if self.above else 0)
        bottom = (20 if self.x.marked(*x) else 4) + (18 if self.x.name else 0) + _ROW * len(self.keys)
        return left, top, right, bottom

    def draw(self, left: float, top: float, right: float, bottom: float) -> str:
        x_ends, y_ends = self.limits()
        x, y = _scale(self.x.log, *x_ends, left, right), _scale(self.y.log, *y_ends, bottom, top)
        columns, rows = self.x.marked(*x_ends), self.y.marked(*y_ends)
        grid = "".join(f"M{left:.1f},{at:.1f}H{right:.1f}" for at in y([v for v, _ in rows]) if self.y.grid)
        grid += "".join(f"M{at:.1f},{top:.1f}V{bottom:.1f}" for at in x([v for v, _ in columns]) if self.x.grid)
        svg = [f'<path d="{grid}" {_stroke(GRID, 1)}/>' if grid else ""]
        svg += [mark.draw(x, y) for mark in self.marks]
        if self.frame:
            svg.append(f'<path d="M{left:.1f},{top:.1f}V{bottom:.1f}H{right:.1f}" {_stroke(MUTED, 1)}/>')
        svg += [_text(at, bottom + 15, word, MUTED, self.x.size, "middle") for at, word in _at(x, columns)]
        edge, anchor = (right + 5, "start") if self.y.side else (left - 6, "end")
        svg += [_text(edge, at + 4, word, MUTED, self.y.size, anchor) for at, word in _at(y, rows)]
        below = bottom + (20 if columns else 4)
        if self.x.name:
            svg.append(_text((left + right) / 2, below + 13, self.x.name, MUTED, SIZE, "middle"))
            below += 18
        if self.y.name:
            beside, _, far, _ = self.margins()
            at = right + far - 4 if self.y.side else left - beside + 12
            svg.append(_text(at, (top + bottom) / 2, self.y.name, MUTED, SIZE, "middle", upright=True))
        for row, words in enumerate(reversed(self.title.split("\n") if self.title else ())):
            at = top - (24 if self.above else 10) - _TITLE * row
            svg.append(_text(left, at, words, INK, 13, weight="bold"))
        marks = "".join(marker(4, 4.5, (at, top - 7)) for at in x(self.above))
        svg.append(f'<path d="{marks}" fill="{MUTED}"/>' if marks else "")
        svg += [key.draw(left, below + _ROW * (row + 0.5)) for row, key in enumerate(self.keys)]
        return "".join(svg)


@dataclass
class Figure:
    """Panels in rows and columns, and a legend below.  width, height: pixels without it.  heights, widths: weights,
    inside the margins.
    """

    width: float
    height: float
    panels: Sequence[Sequence[Panel | None]]
    heights: Sequence[float] = ()
    widths: Sequence[float] = ()
    keys: Sequence[Key] = ()

    def svg(self, alt: str, form: str = "") -> Markup:
        margins = [[None if panel is None else panel.margins() for panel in row] for row in self.panels]
        columns = list(zip(*margins, strict=True))
        across = _spread(self.width, [_most(column, 0, 2) for column in columns], self.widths)
        along = _spread(self.height, [_most(row, 1, 3) for row in margins], self.heights)
        body = "".join(
            panel.draw(left, top, right, bottom)
            for row, (top, bottom) in zip(self.panels, along, strict=True)
            for panel, (left, right) in zip(row, across, strict=True)
            if panel is not None
        )
        rows: list[list[Key]] = [[]]
        for key in self.keys:
            if rows[-1] and sum(one.width for one in rows[-1]) + key.width > self.width:
                rows.append([])
            rows[-1].append(key)
        y = self.height + 4
        for keys in rows if self.keys else []:
            x = max((self.width - sum(key.width for key in keys)) / 2, 0)
            for key in keys:
                body += key.draw(x, y + _ROW / 2)
                x += key.width
            y += _ROW
        of_form = f' class="{form}"' if form else ""
        return Markup(
            f'<svg{of_form} viewBox="0 0 {self.width:g} {y:g}" style="max-width:{self.width:g}px" role="img" '
            f'aria-label="{escape(alt)}">{body}</svg>'
        )


def marker(shape: int, radius: float, at: Sequence[float]) -> str:
    sides, turn, inner = ((12, 0, 1), (4, 45, 1), (3, -90, 1), (4, 0, 1), (3, 90, 1), (5, -90, 1), (10, -90, 0.5))[
        shape % 7
    ]
    if not np.isfinite(at).all():
        return ""
    corners = [
        (at[0] + size * math.cos(angle), at[1] + size * math.sin(angle))
        for k in range(sides)
        for size, angle in [(radius * (inner if k % 2 else 1), math.radians(turn + 360 * k / sides))]
    ]
    return f"M{'L'.join(f'{x:.1f},{y:.1f}' for x, y in corners)}Z"


def swatch(number: int) -> Markup:
    """A method's mark, for a line of text."""
    drawing = f'<path d="{marker(number, 5.5, (6, 6))}" fill="{method_colour(number)}"/>'
    return Markup(f'<svg class="mark" viewBox="0 0 12 12" aria-hidden="true">{drawing}</svg>')


def heat_map(values: Doubles, hex_colour: str, low: float, high: float) -> NDArray[np.uint8]:
    """Values between two ends as depths of a colour; NaN is clear."""
    pixels = np.empty((*values.shape, 4), np.uint8)
    pixels[...] = rgba(hex_colour)
    depth = np.clip((values - low) / (high - low), 0, 1)
    pixels[..., 3] = np.where(np.isnan(depth), 0, 255 * (0.03 + 0.97 * np.nan_to_num(depth)))
    return pixels


def scale_bar(hex_colour: str, low: float, high: float, name: str, form: Callable[[float], str] = plain) -> Panel:
    shades = heat_map(np.linspace(high, low, 256)[:, None], hex_colour, low, high)
    y = Axis(name, low, high, side=True, form=form)
    return Panel(x=Axis(ticks=()), y=y, marks=[Image(shades, 0, 1, high, low)], frame=False)


# -- SVG ---------------------------------------------------------------------------------------------------------------


def _scale(log: bool, low: float, high: float, first: float, last: float) -> Place:
    of: Callable[[Any], Any] = np.log if log else np.asarray
    start, span = of(low), of(high) - of(low)

    def place(values: ArrayLike) -> Doubles:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(first + (of(np.asarray(values, float)) - start) / (span or 1) * (last - first))

    return place


def _spread(
    whole: float, margins: Sequence[tuple[float, float]], weights: Sequence[float]
) -> list[tuple[float, float]]:
    shares = weights or [1.0] * len(margins)
    room = max(whole - sum(map(sum, margins)), 1.0)
    found, at = [], 0.0
    for (before, after), share in zip(margins, shares, strict=True):
        start = at + before
        end = start + room * share / sum(shares)
        found.append((start, end))
        at = end + after
    return found


def _most(margins: Iterable[tuple[float, ...] | None], *which: int) -> tuple[float, float]:
    known = [margin for margin in margins if margin is not None]
    first, last = (max(margin[k] for margin in known) for k in which)
    return first, last


def _at(place: Place, ticks: Sequence[tuple[float, str]]) -> Iterable[tuple[float, str]]:
    return zip(place([value for value, _ in ticks]), (word for _, word in ticks), strict=True)


def _wide(text: str, size: float = SIZE) -> float:
    return _LETTER * size * len(text)


def _text(
    x: float,
    y: float,
    words: str,
    ink: str = INK,
    size: float = SIZE,
    anchor: str = "start",
    *,
    upright: bool = False,
    weight: str = "normal",
) -> str:
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if upright else ""
    bold = f' font-weight="{weight}"' if weight != "normal" else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{ink}" font-size="{size:g}" text-anchor="{anchor}"{bold}{turn}>'
        f"{escape(words)}</text>"
    )


def _stroke(ink: str, width: float, dashed: bool = False) -> str:
    dashes = ' stroke-dasharray="6 4"' if dashed else ""
    return f'fill="none" stroke="{ink}" stroke-width="{width:g}"{dashes}'


def _joined(points: Doubles) -> str:
    return "L".join(f"{x:.1f},{y:.1f}" for x, y in points.tolist())


def _finite(rows: Doubles) -> list[Doubles]:
    known = np.isfinite(rows).all(axis=1)
    parts = np.split(rows, np.flatnonzero(np.diff(known)) + 1)
    return [part for part in parts if len(part) and np.isfinite(part).all()]


def _png(pixels: NDArray[np.uint8]) -> str:
    rows, columns, _ = pixels.shape
    lines = np.concatenate([np.zeros((rows, 1), np.uint8), pixels.reshape(rows, -1)], axis=1)  # no filter
    head = struct.pack(">IIBBBBB", columns, rows, 8, 6, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(lines.tobytes())), (b"IEND", b""))
    file = b"".join(
        struct.pack(">I", len(of)) + kind + of + struct.pack(">I", zlib.crc32(kind + of)) for kind, of in parts
    )
    return f"data:image/png;base64,{base64.b64encode(_SIGNATURE + file).decode()}"
