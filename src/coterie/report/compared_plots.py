"""A comparison's figures, as inline SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.record.comparison import Measure
from coterie.record.load import Run
from coterie.report import figure as fig
from coterie.report.comparison import RunGroup, leading
from coterie.report.gains import helped
from coterie.report.inline import drawn
from coterie.report.plots import WIDTH, measure_axis, rounds_axis, share_y
from coterie.report.verdict import MethodStanding
from coterie.report.words import explained, metric, percent, plural, size, sized

WIDE = 720
"""Pixels of a figure narrower than the page."""
_RADII = 4.5, 8.0
_MOST_CLIENTS = 60  # rows of the gains
_ROW_HEIGHT = 17


def trade(found: Sequence[MethodStanding], measure: Measure) -> tuple[fig.Figure, str]:
    """The leading metric against the worst leak, or the bytes sent where nothing was attacked.

    A mark's size is the logarithm of the bytes. An unfilled one is fine-tuned.
    """
    leaks = any(one.worst is not None for one in found)
    shown = [(k, one) for k, one in enumerate(found) if one.own and (one.worst is not None if leaks else one.sent)]
    panel = fig.Panel("", *tradeoff_axes(measure, leaks))
    radii = mark_radii([one.sent for _, one in shown], leaks)
    at = [100 * one.worst[1] if leaks and one.worst else one.sent or 0.0 for _, one in shown]
    hollow = []
    largest_first = sorted(zip(shown, at, radii, strict=True), key=lambda each: -each[2])
    for (number, one), x, radius in largest_first:
        hollow += _method(panel, one, number, x, radius)
    panel.marks += hollow
    names = [one.marked if leaks else one.name for _, one in shown]
    more = [f", {size(one.sent)}" if leaks and one.sent else "" for _, one in shown]
    heights = [one.own["mean"] for _, one in shown if one.own]
    right = panel.limits()[0][1]
    panel.marks.append(fig.Labelled(at, heights, names, radii, right, more))
    keys = []
    if any(one.tuned for _, one in shown):
        sample = fig.Line([], [], fig.MUTED, every=slice(None), filled=False, joined=False)
        keys.append(fig.Key("after each client's own fine-tuning", fig.MUTED, line=sample))
    if leaks:
        keys += [fig.Key(fig.label(one.note, WIDE // 8), fig.method_colour(k)) for k, one in shown if one.note]
    lost = [one.left_out for one in found if leaks and one.own and one.left_out]
    keys += [fig.Key(fig.label(words, WIDE // 8), fig.MUTED, opacity=0) for words in lost]
    words = "; ".join(
        f"{one.marked if leaks else one.name}: {measure.label} {metric(one.own['mean'], measure.share)}"
        + (f", worst leak {percent(one.worst[1])}" if one.worst and one.worst[0] else "")
        + (f" ({one.note})" if leaks and one.note else "")
        + (f", {size(one.sent)} sent" if one.sent else "")
        for _, one in shown
        if one.own
    )
    words = "; ".join(filter(None, [words, *lost]))
    return fig.Figure(WIDE, 300, [[panel]], keys=keys), words or "nothing was measured"


tradeoff = drawn(trade)


def tradeoff_axes(measure: Measure, leaks: bool) -> tuple[fig.Axis, fig.Axis]:
    y = measure_axis(f"{measure.label} on own kind of data", measure)
    if leaks:
        return fig.Axis("worst leak: 0 chance, 100 all", -4, 104, most=6, grid=True), y
    return fig.Axis("sent by all parties", log=True, grid=True, most=5, form=sized), y


def mark_radii(sent: Sequence[float | None], leaks: bool) -> list[float]:
    """Pixels, by the logarithm of bytes; equal where an axis has them."""
    known = [math.log(many) for many in sent if many and many > 0]
    if not leaks or not known or max(known) == min(known):
        return [7.0] * len(sent)
    share = [(math.log(many) - min(known)) / (max(known) - min(known)) if many and many > 0 else 0.0 for many in sent]
    return [_RADII[0] + (_RADII[1] - _RADII[0]) * part for part in share]


def _method(panel: fig.Panel, one: MethodStanding, number: int, x: float, radius: float) -> list[fig.Line]:
    shade, own = fig.method_colour(number), one.own or {}
    if one.tuned:
        panel.marks.append(fig.Line([x, x], [own["mean"], one.tuned["mean"]], shade, dashed=True, width=1.2))
    if own["interval"] is not None:
        ends = [own["mean"] - own["interval"], own["mean"] + own["interval"]]
        panel.marks.append(fig.Line([x, x], ends, shade, width=2))
    mark = fig.Line([x], [own["mean"]], shade, every=slice(None), shape=number, radius=radius, joined=False)
    mark.edge = fig.PAPER
    panel.marks.append(mark)
    if not one.tuned:
        return []
    return [fig.Line([x], [one.tuned["mean"]], shade, every=slice(None), shape=number, filled=False, joined=False)]


_VERDICTS = {"better": (fig.PALETTE[0], 0), "worse": (fig.PALETTE[1], 4), "undecided": (fig.PALETTE[8], 1)}


def judged(benefit: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    keys = ("alone", "together", "gain")
    known = [one for one in benefit["clients"] if None not in [one.get(key) for key in keys]]
    return [one for one in known if not one.get("instead")]


@drawn
def gains(benefit: Mapping[str, Any], measure: Measure) -> tuple[fig.Figure, str]:
    """By client, the largest gain first: alone, together, and its 95 % interval."""
    known = sorted(judged(benefit), key=lambda one: -float(one["gain"]))
    every = math.ceil(len(known) / _MOST_CLIENTS)
    rows, sign = known[::every] if every > 1 else known, 1 if measure.higher else -1
    axis = measure_axis(measure.label, measure)
    seeds = len({one["seed"] for one in rows})
    ticks = [(place, fig.label(_client(one, seeds), 18)) for place, one in enumerate(rows)]
    panel = fig.Panel("", axis, fig.Axis("client", len(rows) - 0.5, -0.5, ticks=ticks, size=fig.SIZE - 1))
    for place, one in enumerate(rows):
        panel.marks.append(fig.Line([one["alone"], one["together"]], [place, place], fig.GRID, width=3))
    for place, one in enumerate(rows):
        if None not in (one["low"], one["high"]):
            ends = np.clip([one["alone"] + sign * one[end] for end in ("low", "high")], *axis.bounds)
            panel.marks.append(fig.Line(ends, [place, place], _VERDICTS[one["verdict"] or "undecided"][0], width=1.4))
        hollow = fig.Line([one["alone"]], [place], fig.MUTED, every=slice(None), filled=False, joined=False)
        shade, shape = _VERDICTS[one["verdict"] or "undecided"]
        mark = fig.Line([one["together"]], [place], shade, every=slice(None), shape=shape, radius=4.5, joined=False)
        panel.marks += [hollow, mark]
    keys = [
        fig.Key("alone", fig.MUTED, line=fig.Line([], [], fig.MUTED, every=slice(None), filled=False, joined=False))
    ]
    for word, (shade, shape) in _VERDICTS.items():
        if any(one["verdict"] == word for one in rows):
            sample = fig.Line([], [], shade, every=slice(None), shape=shape, radius=4.5, joined=False)
            keys.append(fig.Key(f"together: {word}", shade, line=sample))
    some = f", one of every {every} shown" if every > 1 else ""
    scale, form, unit = (100, "+.1f", " points") if measure.share else (1, "+.3g", "")
    best, least = (f"{helped(one)} {scale * one['gain']:{form}}{unit}" for one in (known[0], known[-1]))
    return (
        fig.Figure(WIDE, 70 + _ROW_HEIGHT * len(rows), [[panel]], keys=keys),
        f"{measure.label} alone and together of {plural(len(known), 'client')}{some}: from {best} to {least}",
    )


def _client(one: Mapping[str, Any], seeds: int) -> str:
    name = str(one["name"] or one["client"].rpartition("/")[2])
    return f"{name}, seed {one['seed']}" if seeds > 1 else name


@drawn
def compared_scores(groups: Sequence[RunGroup]) -> tuple[fig.Figure, str]:
    measure = leading(groups)
    first = min(run.rounds[0].round for found in groups for run in found.runs)
    last = max(run.rounds[-1].round for found in groups for run in found.runs)
    panels, alt, tuned_most = [], [], 0
    for field, (title, where) in explained(measure).items():
        panel = fig.Panel(f"{title}: {where}", rounds_axis(first, last))
        for number, found in enumerate(groups):
            rounds, mean, std = found.curve(field)
            if std is not None:
                panel.marks.append(fig.Band(rounds, mean - std, mean + std, fig.method_colour(number), 0.18))
            panel.marks.append(_line(number, rounds, mean))
            tuned, share, _ = found.curve(f"fine_tuned_{field}")
            if len(tuned):
                panel.marks.append(_line(number, tuned, share, tuned=True))
                tuned_most = max(tuned_most, len(tuned))
            if len(mean):
                alt.append(f"{found.label} {title} {metric(float(mean[-1]), measure.share)}")
        panels.append(panel)
    share_y(panels, measure, f"{measure.label}, mean over clients")
    return fig.Figure(WIDTH, 390, [panels], keys=_keys(groups, tuned_most)), "At the end: " + "; ".join(alt)


@drawn
def compared_costs(groups: Sequence[RunGroup]) -> tuple[fig.Figure, str]:
    columns, measure = counted(groups), leading(groups)
    rows: list[list[fig.Panel]] = []
    for field, (title, _) in explained(measure).items():
        row = []
        for cost in columns:
            panel = fig.Panel("" if rows else cost.title, fig.Axis(cost.unit if rows else "", form=cost.form, most=7))
            for number, found in enumerate(groups):
                rounds, mean, _std = found.curve(field)
                panel.marks.append(_line(number, found.cost(rounds, cost.until), mean))
            panel.x.log = _differ(panel)
            row.append(panel)
        share_y(row, measure, title)
        rows.append(row)
    figure = fig.Figure(WIDTH, 600, rows, keys=_keys(groups))
    return figure, f"{measure.label}, global and local, against {' and against '.join(cost.unit for cost in columns)}"


def _line(
    number: int, x: NDArray[np.float64] | NDArray[np.int64], y: NDArray[np.float64], tuned: bool = False
) -> fig.Line:
    every = max(1, len(y) // 8)
    dots = slice(number * every // 4 % every, None, every)  # staggered, so that lines on each other stay readable
    return fig.Line(x, y, fig.method_colour(number), tuned, 1.6 if tuned else 2.4, dots, number, filled=not tuned)


def _keys(groups: Sequence[RunGroup], tuned: int = 0) -> list[fig.Key]:
    keys = [
        fig.Key(fig.label(found.legend, 46), fig.method_colour(number), line=_line(number, np.array([]), np.array([])))
        for number, found in enumerate(groups)
    ]
    if tuned:
        sample = fig.Line([], [], fig.MUTED, True, 1.6, slice(None), filled=False, joined=tuned > 1)
        keys.append(fig.Key("after each client's own fine-tuning", fig.MUTED, line=sample))
    return keys


def _differ(panel: fig.Panel) -> bool:
    ends = [float(xs[-1]) for line in panel.lines() if (xs := np.asarray(line.x, dtype=float)).size]
    return bool(ends) and min(ends) > 0 and max(ends) / min(ends) > 5


@dataclass(frozen=True)
class CostMeasure:
    """until: by round, a run's cost by its end.  form: of a tick."""

    title: str
    unit: str
    until: Callable[[Run], list[float] | None]
    form: Callable[[float], str] = fig.plain


def counted(groups: Sequence[RunGroup]) -> list[CostMeasure]:
    return [
        cost for cost in COSTS.values() if all(cost.until(run) is not None for found in groups for run in found.runs)
    ]


def _sent(run: Run) -> list[float] | None:
    moved = run.client_bytes("bytes_up")
    return moved and np.cumsum(moved).tolist()


def _clock(run: Run) -> list[float] | None:
    _, clocks = run.points("virtual_seconds")
    return clocks if len(clocks) == len(run.rounds) else None


COSTS = {
    "bytes": CostMeasure("For the bytes", "sent by a client, in total", _sent, sized),
    "time": CostMeasure("For the time on the simulated devices", "virtual seconds", _clock),
}
