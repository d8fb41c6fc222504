"""A figure as inline SVG in two forms, as drawn, and for a phone with its panels one under the other; ``style.html``
shows one.
"""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import ParamSpec

from markupsafe import Markup

from coterie.report.figure import Axis, Figure, Key, Labelled, Panel, label

PHONE = 340  # pixels of a figure's width on a phone
P = ParamSpec("P")
_BESIDE = 1 / 3  # of the widest column: narrower ones stay beside it
_SLIM = 0.05  # of the widest column: the least that can be seen
_PLOT = 180  # pixels: the height of a panel that was beside another
_TICKS, _TICK, _LETTER = 5, 12, 7.2  # how many along x; letters of a tick's name; pixels of a letter
_TITLE, _LINE, _KEY = 36, 16, 40  # letters of a title's line, its height, and letters of a key


def drawn(plot: Callable[P, tuple[Figure, str]]) -> Callable[P, Markup]:
    @functools.wraps(plot)
    def inline(*args: P.args, **kwargs: P.kwargs) -> Markup:
        figure, alt = plot(*args, **kwargs)
        return figure.svg(alt, "screen") + stacked(figure).svg(alt, "phone")

    return inline


def stacked(figure: Figure) -> Figure:
    """As wide as a phone. Narrow columns stay beside theirs."""
    shares = [share / max(figure.widths) for share in figure.widths] or [1.0]
    keys = [_short(key) for key in figure.keys]
    if figure.widths or len(figure.panels[0]) == 1:
        assert sum(share >= _BESIDE for share in shares) == 1, "slim columns belong to one wide column"
        room = PHONE * max(shares) / sum(shares)
        panels = [[panel and _narrow(panel, room) for panel in row] for row in figure.panels]
        higher = sum(max(_LINE * panel.title.count("\n") for panel in row if panel) for row in panels)
        widths = [max(share, _SLIM) for share in shares]
        return replace(figure, width=PHONE, height=figure.height + higher, panels=panels, widths=widths, keys=keys)
    alone = [_narrow(panel, PHONE) for panel in _alone(figure.panels)]
    margins = [panel.margins() for panel in alone]
    height = sum(_PLOT + top + bottom for _, top, _, bottom in margins)
    return Figure(PHONE, height, [[panel] for panel in alone], keys=keys)


def _alone(rows: Sequence[Sequence[Panel | None]]) -> Iterator[Panel]:
    """Every panel, with the title and names that it shared."""
    for row in rows:
        for place, panel in enumerate(row):
            if panel is not None:
                above, below = (end[place] or panel for end in (rows[0], rows[-1]))
                beside = row[0] or panel
                x, y = (
                    replace(axis, name=axis.name or shared.name)
                    for axis, shared in ((panel.x, below.x), (panel.y, beside.y))
                )
                yield replace(panel, title=panel.title or above.title, x=x, y=y)


def _narrow(panel: Panel, width: float) -> Panel:
    y = _named(panel.y, _TICK)
    left, _, right, _ = replace(panel, y=y).margins()
    x = replace(panel.x, most=min(panel.x.most, _TICKS))
    if x.ticks:
        letters = int((width - left - right) / len(x.ticks) / _LETTER)
        x = _thinned(x, letters) if all(word.isdecimal() for _, word in x.ticks) else _named(x, letters)
    marks = [replace(mark, more=()) if isinstance(mark, Labelled) else mark for mark in panel.marks]
    title, keys = textwrap.fill(panel.title, _TITLE), [_short(key) for key in panel.keys]
    return replace(panel, title=title, x=x, y=y, marks=marks, keys=keys)


def _named(axis: Axis, letters: int) -> Axis:
    ticks = axis.ticks and [(at, label(word, max(letters, 3))) for at, word in axis.ticks]
    return replace(axis, ticks=ticks)


def _thinned(axis: Axis, letters: int) -> Axis:
    """As many numbers as have room.  letters: of each."""
    ticks = list(axis.ticks or ())
    every = -(-(max(len(word) for _, word in ticks) + 1) // max(letters, 1))
    return replace(axis, ticks=ticks[::every])


def _short(key: Key) -> Key:
    return replace(key, words=label(key.words, _KEY))
