"""The figures of a run, as inline SVG."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from coterie.record.comparison import Measure
from coterie.record.load import Run
from coterie.record.schema import Matrix, Partition, RoundRecord
from coterie.report import figure as fig
from coterie.report.clusters import History, Selected, Sets, groups_like, happened, pixels
from coterie.report.inline import drawn
from coterie.report.words import explained, metric, plural, sized

WIDTH, HALF = 1000, 490
MOST = 400
"""Clients with a mark of their own; of more, every k-th."""
_LOSSES = {"classes": "cross entropy"}
_MANY = 40  # clients above which their numbers no longer fit an axis
_NAMED = 8  # clients below which their names fit
_CLOCK = "clock"
_LARGEST = 5  # series in a stack; the rest is one
_FEW = 3  # classes that are colours of bars
_CLASSES, _LETTERS = 22, 20  # rows of classes that have room, and letters of a name


def step(clients: int) -> int:
    return math.ceil(clients / MOST)


def _shown(order: Sequence[int]) -> Sequence[int]:
    return order[:: step(len(order))]


def _every(clients: int) -> str:
    return f", one of every {step(clients)} shown" if step(clients) > 1 else ""


@drawn
def scores(run: Run, measure: Measure) -> tuple[fig.Figure, str]:
    sides = explained(measure)
    if run.result.deployment is not None:  # a side that nobody can know
        sides = {field: words for field, words in sides.items() if run.points(field)[0]} or sides
    panels, alt = [], []
    keys = {"mean": fig.Key("mean over clients", fig.MUTED, line=fig.Line([], [], fig.MUTED))}
    for (field, (title, where)), c in zip(sides.items(), fig.PALETTE, strict=False):
        panel = fig.Panel(f"{title}: {where}", _rounds(run))
        xs, ys = run.points(field)
        if banded := [(float(r), band) for r, band in run.bands(field)]:
            if len(banded) == 1:  # a band of one point has no width
                banded = [(banded[0][0] + side, banded[0][1]) for side in (-0.1, 0.1)]
            at = [r for r, _ in banded]
            low, q25, _, q75, high = np.array([band for _, band in banded], dtype=float).T
            panel.marks += [fig.Band(at, low, high, c, 0.14), fig.Band(at, q25, q75, c, 0.28)]
            keys["half"] = fig.Key("middle half of the clients", fig.MUTED, 0.42)
            keys["all"] = fig.Key("all clients", fig.MUTED, 0.16)
        panel.marks.append(fig.Line(xs, ys, c, every=_dots(xs)))
        tuned = run.points(f"fine_tuned_{field}")
        if tuned[0]:
            panel.marks.append(fig.Line(*tuned, fig.MUTED, dashed=True, width=1.8, every=_dots(tuned[0]), shape=3))
            several = len(tuned[0]) > 1
            sample = fig.Line([], [], fig.MUTED, dashed=True, width=1.8, every=slice(None), shape=3, joined=several)
            keys["tuned"] = fig.Key("after each client's own fine-tuning", fig.MUTED, line=sample)
        panels.append(panel)
        if ys:
            first, last = (metric(y, measure.share) for y in (ys[0], ys[-1]))
            alt.append(f"{title} from {first} in round {xs[0]} to {last} in round {xs[-1]}")
    share_y(panels, measure, measure.label)
    width = WIDTH if len(panels) == 2 else 0.6 * WIDTH
    figure = fig.Figure(width, 340, [panels], keys=list(keys.values()))
    return figure, "; ".join(alt) or f"{measure.label}: never evaluated"


@drawn
def loss(run: Run) -> tuple[fig.Figure, str]:
    """Logarithmic over more than a factor of 20."""
    panel = fig.Panel("Loss: mean and middle half of the clients", _rounds(run))
    seen: list[float] = []
    alt, keys = [], []
    kinds = ("global_loss", "on the whole test set", False), ("local_loss", "on test data like the client's own", True)
    for (field, where, dashed), c in zip(kinds, fig.PALETTE, strict=False):
        xs, ys = run.points(field)
        if not xs and run.result.deployment is not None:
            continue
        line = fig.Line(xs, ys, c, dashed=dashed, every=_dots(xs))
        keys.append(fig.Key(where, c, line=line))
        if bands := [(r, q25, q75) for r, (_, q25, _, q75, _) in run.bands(field)]:
            at, q25, q75 = (np.array(column, dtype=float) for column in zip(*bands, strict=True))
            panel.marks.append(fig.Band(at, q25, q75, c, 0.2))
        panel.marks.append(line)
        seen += ys
        if ys:
            alt.append(f"{where} from {ys[0]:.3g} to {ys[-1]:.3g}")
    log = bool(seen) and min(seen) > 0 and max(seen) / min(seen) > 20
    panel.y = fig.Axis(_LOSSES.get(run.result.task, "loss") if seen else "", log=log, grid=True, most=7)
    return fig.Figure(HALF, 300, [[panel]], keys=keys), "Loss: " + "; ".join(alt)


@drawn
def classes(partition: Partition, order: Sequence[int], members: Sets | None) -> tuple[fig.Figure, str]:
    every = np.array(partition.label_counts, dtype=float)
    shown = _shown(order)
    counts, (clients, labels) = every[list(shown)], every.shape
    strips = {"cluster": members} | ({"group": groups_like(members, partition.groups)} if members else {})
    known = {name: sets for name, sets in strips.items() if sets}
    right, few = len(shown) - 0.5, labels <= _FEW

    def across(last: bool) -> fig.Axis:
        return (
            _clients_axis(shown, members is not None, names=partition.names)
            if last
            else fig.Axis("", -0.5, right, ticks=())
        )

    title = f"Training samples of each client, and its share of each class{_every(clients)}"
    top = fig.Panel(title, across(few and not known), fig.Axis("samples", low=0, grid=True, most=4))
    top.x.low, top.x.high = -0.5, right
    beside: list[fig.Panel | None] = [] if few else [None]  # where the heat map has its scale
    panels: list[list[fig.Panel | None]] = [[top, *beside]]
    keys: list[fig.Key] = []
    if few:
        called = map(partition.class_name, range(labels))
        words = [f"class {name}" if name.isdecimal() else name for name in called]
        names = {word: dict(enumerate(of_class)) for word, of_class in zip(words, counts.T, strict=True)}
        keys = _stack(top, range(len(shown)), names, shade=fig.method_colour, width=0.8)
    else:
        top.marks.append(fig.Bars(range(len(shown)), 0, counts.sum(axis=1), fig.MUTED))
        heat, bar = _shares(partition, counts)
        heat.x = across(not known)
        heat.marks.append(fig.Rules(_edges(shown, members), -0.5, labels - 0.5, fig.GRID, upright=True))
        panels.append([heat, bar])
    for place, (name, sets) in enumerate(known.items(), start=1):
        strip = pixels([sets], shown, fig.PALETTE).reshape(len(shown), -1, 4).swapaxes(0, 1)
        of_strip = fig.Panel("", across(place == len(known)), fig.Axis("", 1, 0, ticks=[(0.5, name)]), frame=False)
        of_strip.marks.append(fig.Image(strip, -0.5, right, 0, 1))
        panels.append([of_strip, *beside])
    heights = [150.0] if few else [90, 19.0 * min(labels, _CLASSES)]
    heights += [13.0] * len(known)
    figure = fig.Figure(
        WIDTH, 90 + sum(heights) + 12 * len(known), panels, heights, (1, 0.018)[: 1 + len(beside)], keys
    )
    held = (every > 0).sum(axis=1)
    return figure, (
        f"{'Bars' if few else 'Heat map'} of {plural(clients, 'client')} by {plural(labels, 'class', 'classes')}: a "
        f"client holds {held.min()} to {held.max()} classes and {every.sum(1).min():.0f} to {every.sum(1).max():.0f} "
        "samples"
    )


def _shares(partition: Partition, counts: NDArray[np.float64]) -> tuple[fig.Panel, fig.Panel]:
    shares = counts / np.maximum(counts.sum(axis=1), 1)[:, None]
    top_share, (clients, labels) = float(shares.max()) or 1.0, counts.shape
    some = range(0, labels, math.ceil(labels / _CLASSES))
    named = [(k, partition.class_name(k)[:_LETTERS]) for k in some] if partition.class_names else None
    side = fig.Axis("class", labels - 0.5, -0.5, most=10, whole=True, ticks=named)
    heat = fig.Panel("", y=side, frame=False)
    pixels_of = fig.heat_map(shares.T, fig.PALETTE[0], 0, top_share)
    heat.marks.append(fig.Image(pixels_of, -0.5, clients - 0.5, -0.5, labels - 0.5))
    return heat, fig.scale_bar(fig.PALETTE[0], 0, top_share, "share of client", fig.percent)


@drawn
def membership(known: History) -> tuple[fig.Figure, str]:
    """Clients by rounds, coloured by cluster, striped for several; triangles mark clusterings. At the side are the
    data's groups.
    """
    clients, shown = len(known.order), _shown(known.order)
    rows, first, last = len(shown), known.rounds[0], known.rounds[-1]
    columns = dict(zip(known.rounds, known.members, strict=True))
    nobody: Sets = (frozenset(),) * clients
    sets = [columns.get(r, nobody) for r in range(first, last + 1)]
    panel = fig.Panel("Cluster of each client" + _every(clients), rounds_axis(first, last), above=known.events or ())
    panel.y, panel.frame = _clients_axis(shown, grouped=True, down=True), False
    panel.marks.append(fig.Image(pixels(sets, shown, fig.PALETTE), first - 0.5, last + 0.5, -0.5, rows - 0.5))
    if rows <= _MANY:
        panel.marks.append(fig.Rules([row - 0.5 for row in range(1, rows)], first - 0.5, last + 0.5, fig.PAPER))
    panels = [panel]
    if known.groups is not None:
        side = fig.Panel("", fig.Axis(ticks=[(0.5, "group")]), fig.Axis("", rows - 0.5, -0.5, ticks=()), frame=False)
        side.marks.append(fig.Image(pixels([known.groups], shown, fig.PALETTE), 0, 1, -0.5, rows - 0.5))
        panels.append(side)
    keys = [fig.Key(f"cluster {number}", fig.colour(number)) for number in known.clusters[: len(fig.PALETTE)]]
    if known.events:
        mark = fig.Line([], [], fig.MUTED, every=slice(None), shape=4, radius=4.5, joined=False)
        keys.append(fig.Key("clustering event", fig.MUTED, line=mark))
    figure = fig.Figure(WIDTH, _tall(rows) + 90, [panels], widths=(1, 0.018)[: len(panels)], keys=keys)
    return figure, (
        f"Heat map of {plural(clients, 'client')} over rounds {first} to {last} in "
        f"{plural(len(known.clusters), 'cluster')}" + ("; some clients are in several at once" if known.mixed else "")
    )


@drawn
def agreement(run: Run) -> tuple[fig.Figure, str]:
    noted = [(line.round, line.grouping) for line in run.rounds if line.grouping]
    rounds, found = zip(*noted, strict=True)
    known = [(r, one.ari) for r, one in noted if one.ari is not None]
    dots, panels, alt = _dots(rounds), [], []
    if known:
        at, index = zip(*known, strict=True)
        y = fig.Axis("adjusted Rand index", min(-0.05, *(ari - 0.05 for ari in index)), 1.05, grid=True)
        mark = fig.Line(at, index, fig.PALETTE[0], every=dots)
        panels.append(fig.Panel("Clusters and the data's own groups", _rounds(run), y, [mark]))
        alt.append(f"Adjusted Rand index from {index[0]:.2f} in round {at[0]} to {index[-1]:.2f} at the end")
    per_client = [one.per_client for one in found]
    most = 1.15 * max(*per_client, *(one.clusters for one in found), 1)
    right = fig.Panel("How many clusters", _rounds(run), fig.Axis("", 0, most, whole=True, grid=True))
    right.marks.append(fig.Line(rounds, [one.clusters for one in found], fig.PALETTE[2], every=dots))
    several = max(per_client) > 1
    if several:
        right.marks.append(fig.Line(rounds, per_client, fig.PALETTE[1], dashed=True, every=dots))
        names = ("clusters", "clusters of a client, mean")
        right.keys = [fig.Key(name, line.colour, line=line) for name, line in zip(names, right.lines(), strict=True)]
    alt.append(f"{plural(found[-1].clusters, 'cluster')} at the end" + f", {per_client[-1]:.2f} a client" * several)
    return fig.Figure(WIDTH if known else HALF, 270 + 36 * several, [[*panels, right]]), "; ".join(alt)


@drawn
def sizes(rounds: Sequence[RoundRecord]) -> tuple[fig.Figure, str]:
    noted = [(line.round, found.sizes) for line in rounds if (found := line.notes.clusters) and found.sizes]
    width = max(len(counts) for _, counts in noted)
    stack = {f"cluster {k}": {r: counts[k] if k < len(counts) else 0 for r, counts in noted} for k in range(width)}
    panel = fig.Panel(
        "Sizes of the clusters", rounds_axis(noted[0][0], noted[-1][0]), fig.Axis("clients", low=0, grid=True)
    )
    keys = _stack(panel, [r for r, _ in noted], stack)
    figure = fig.Figure(WIDTH, 260, [[panel]], keys=keys[: len(fig.PALETTE)])
    return figure, f"Sizes of up to {plural(width, 'cluster')} over {plural(len(noted), 'round')}"


@drawn
def affinity(matrix: Matrix, order: Sequence[int], members: Sets | None) -> tuple[fig.Figure, str]:
    """In the order of clusters, without the diagonal."""
    shown = _shown(order)
    every = np.array(matrix, dtype=float)
    np.fill_diagonal(every, np.nan)
    values, known = every[np.ix_(shown, shown)], every[np.isfinite(every)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    clients, rows, top = len(order), len(shown), max(high, low + 1e-9)
    panel = fig.Panel(f"Affinity of the clients{_every(clients)}", _clients_axis(shown, members is not None, fit=24))
    panel.y, panel.frame = _clients_axis(shown, members is not None, down=True, fit=24), False
    panel.marks.append(fig.Image(fig.heat_map(values, fig.PALETTE[2], low, top), -0.5, rows - 0.5, -0.5, rows - 0.5))
    for upright in (True, False):
        panel.marks.append(fig.Rules(_edges(shown, members), -0.5, rows - 0.5, fig.MUTED, upright))
    figure = fig.Figure(HALF, 440, [[panel, fig.scale_bar(fig.PALETTE[2], low, top, "affinity")]], widths=(1, 0.035))
    return figure, f"Matrix of {clients} by {clients} affinities from {low:.3g} to {high:.3g}"


@drawn
def per_round(run: Run) -> tuple[fig.Figure, str]:
    stacks = [
        ("Bytes sent", "sent a round", sized, _series(run, "bytes_up")),
        ("Real time by work", "seconds a round", fig.plain, _series(run, "phase_seconds")),
        ("Virtual time", "seconds a round", fig.plain, _durations(run)),
    ]
    found = [stack for stack in stacks if stack[-1]]
    panels = []
    for title, name, form, series in found:
        panel = fig.Panel(title, _rounds(run, 6), fig.Axis(name, low=0, form=form, grid=True))
        alone = _CLOCK in series
        keys = _stack(panel, [line.round for line in run.rounds], series, first=5 * alone)
        panel.keys = [] if alone else keys
        panels.append(panel)
    figure = fig.Figure(WIDTH, 270 + 18 * max(len(panel.keys) for panel in panels), [panels])
    return figure, f"{', '.join(title for title, *_ in found)}, for each of {plural(len(run.rounds), 'round')}"


def _durations(run: Run) -> dict[str, dict[int, float]]:
    rounds, at = run.points("virtual_seconds")
    if len(at) < len(run.rounds):
        return {}
    before = [run.result.set_up.virtual_seconds or 0.0, *at]
    return {_CLOCK: {r: max(b - a, 0.0) for r, a, b in zip(rounds, before, at, strict=False)}}


def _series(run: Run, field: str) -> dict[str, dict[int, float]]:
    parts: dict[int, Mapping[str, float]] = {line.round: getattr(line, field) for line in run.rounds}
    totals: Counter[str] = Counter()
    for values in parts.values():
        totals.update(values)
    names = sorted((name for name in totals if totals[name] > 0), key=lambda name: (-totals[name], name))
    largest = names if len(names) <= _LARGEST + 1 else names[:_LARGEST]
    rest = names[len(largest) :]
    series = {name: {r: values.get(name, 0) for r, values in parts.items()} for name in largest}
    if rest:
        series[f"{len(rest)} others"] = {r: sum(values.get(n, 0) for n in rest) for r, values in parts.items()}
    return series


def _stack(
    panel: fig.Panel,
    rounds: Sequence[int],
    series: Mapping[str, Mapping[int, float]],
    first: int = 0,
    shade: Callable[[int], str] = fig.colour,
    width: float = 1,
) -> list[fig.Key]:
    base: NDArray[np.float64] = np.zeros(len(rounds))
    keys = []
    for number, (name, values) in enumerate(series.items(), start=first):
        above = base + [values.get(r, 0) for r in rounds]
        panel.marks.append(fig.Bars(rounds, base, above, shade(number), width=width))
        keys.append(fig.Key(fig.label(name), shade(number)))
        base = above
    return keys


def _rounds(run: Run, most: int = 8) -> fig.Axis:
    return rounds_axis(run.rounds[0].round, run.rounds[-1].round, most)


def rounds_axis(first: int, last: int, most: int = 8) -> fig.Axis:
    return fig.Axis("round", first - 0.5, last + 0.5, most=most, whole=True)


def _dots(rounds: Sequence[int]) -> slice | None:
    return slice(None) if len(rounds) <= 12 else None


def _tall(rows: int) -> float:
    return min(max(16.0 * rows, 210.0), 570.0)


def _clients_axis(
    order: Sequence[int], grouped: bool, *, down: bool = False, fit: int = _MANY, names: Sequence[str] = ()
) -> fig.Axis:
    fits = len(order) <= fit
    name = ("client" if fits or not grouped else "clients") + ", grouped by last cluster" * grouped
    named = names if len(order) <= _NAMED else ()
    words = [fig.label(named[client], 12) if named else str(client) for client in order]
    ticks = [*enumerate(words)] if fits else []
    ends = (len(order) - 0.5, -0.5) if down else (-0.5, len(order) - 0.5)
    return fig.Axis(name, *ends, ticks=ticks, size=fig.SIZE - 1 if len(order) <= 24 else fig.SMALL)


def _edges(order: Sequence[int], members: Sets | None) -> list[float]:
    first = [min(members[i], default=-1) for i in order] if members else []
    return [i - 0.5 for i in range(1, len(first)) if first[i] != first[i - 1]]


@drawn
def selections(found: Selected, order: Sequence[int], members: Sets | None) -> tuple[fig.Figure, str]:
    clients, shown = len(order), list(_shown(order))
    first, last, rows = found.rounds[0], found.rounds[-1], len(shown)
    shades = [_shade(members[i] if members else frozenset()) for i in shown]
    painted = np.zeros((rows, last - first + 1, 4), np.uint8)
    paint = np.array([fig.rgba(shade) for shade in shades])
    for column, chosen in zip(found.rounds, found.chosen[:, shown], strict=True):
        painted[chosen, column - first] = paint[chosen]
    panel = fig.Panel("Selected in which round" + _every(clients), rounds_axis(first, last))
    panel.y, panel.frame = _clients_axis(shown, members is not None, down=True), False
    panel.marks.append(fig.Image(painted, first - 0.5, last + 0.5, -0.5, rows - 0.5))
    if rows <= _MANY:
        panel.marks.append(fig.Rules([row - 0.5 for row in range(1, rows)], first - 0.5, last + 0.5, fig.PAPER))
    side = fig.Panel("How often", fig.Axis("rounds", low=0, most=4, whole=True, grid=True))
    side.y = fig.Axis("", rows - 0.5, -0.5, ticks=())
    side.marks.append(fig.Bars(range(rows), 0, found.times[shown], shades, lying=True))
    times = found.times
    return fig.Figure(WIDTH, _tall(rows) + 80, [[panel, side]], widths=(4, 1)), (
        f"{plural(clients, 'client')} over {plural(len(found.rounds), 'round')}: a client was selected "
        f"{times.min()} to {times.max()} times, {times.mean():.1f} on average"
    )


def _shade(own: frozenset[int]) -> str:
    return fig.colour(min(own)) if own else fig.PALETTE[8]


@drawn
def feature_space(features: Matrix, members: Sets | None, groups: Sequence[int] | None) -> tuple[fig.Figure, str]:
    """Clients' features in two main directions, coloured by cluster, marked by group."""
    known = [i for i, row in enumerate(features) if row and all(v is not None for v in row)]
    at, share = _plane(np.array([features[i] for i in known], dtype=float))
    shapes = groups_like(members, groups) if members else None
    panel = fig.Panel(f"Devices in feature space{_every(len(known))}", fig.Axis(_direction(1, share), ticks=[]))
    panel.y = fig.Axis(_direction(2, share), ticks=[])
    for place in _shown(range(len(known))):
        own = sorted(members[known[place]]) if members else []
        shade, group = fig.colour(own[0]) if own else fig.PALETTE[8], min(shapes[known[place]]) if shapes else 0
        point = fig.Line(at[place, :1], at[place, 1:], shade, every=slice(None), shape=group, radius=5, joined=False)
        panel.marks.append(point)
    if len(known) <= _MANY:
        panel.marks.append(fig.Words(at[:, 0], at[:, 1], [str(client) for client in known], shift=(6, -4)))
    numbers = sorted({k for i in known for k in (members[i] if members else ())})
    keys = [fig.Key(f"cluster {k}", fig.colour(k)) for k in numbers[:8]]
    if shapes and groups is not None:
        for group in sorted({min(shapes[i]) for i in known})[:8]:
            sample = fig.Line([], [], fig.MUTED, every=slice(None), shape=group, radius=5, joined=False)
            keys.append(fig.Key(f"group {group}", fig.MUTED, line=sample))
    return (
        fig.Figure(HALF, 430, [[panel]], keys=keys),
        f"{plural(len(known), 'device')} in {plural(len(numbers), 'cluster')}, in the plane of their features",
    )


@drawn
def timeline(run: Run) -> tuple[fig.Figure, str]:
    every = [(line.round, happened(event.kind)) for line in run.rounds for event in line.notes.events]
    kinds = list(dict.fromkeys(kind for _, kind in every))
    panel = fig.Panel("What happened to the clusters", _rounds(run))
    panel.y = fig.Axis("", len(kinds) - 0.5, -0.5, ticks=list(enumerate(kinds)), grid=True)
    for (r, kind), count in Counter(every).items():
        place, size = kinds.index(kind), 4.5 + 2.5 * math.log2(1 + count)
        panel.marks.append(
            fig.Line([r], [place], fig.colour(place), every=slice(None), radius=min(size, 15), joined=False)
        )
        panel.marks.append(fig.Words([r], [place], [str(count)], fig.PAPER, shift=(0, 3.5), middle=True))
    words = (f"{kind} {n} times" for kind, n in Counter(kind for _, kind in every).items())
    return fig.Figure(HALF, 90 + 34 * len(kinds), [[panel]]), f"Events of the clusters: {', '.join(words)}"


def _plane(x: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    centred = x - x.mean(axis=0)
    u, s, _ = np.linalg.svd(centred, full_matrices=False)
    at = np.zeros((len(x), 2))
    kept = min(2, len(s))
    at[:, :kept] = u[:, :kept] * s[:kept]
    total = float((s**2).sum())
    share = np.zeros(2)
    share[:kept] = s[:kept] ** 2 / total if total else 0.0
    return at, share


def _direction(number: int, share: NDArray[np.float64]) -> str:
    return f"direction {number} ({100 * share[number - 1]:.0f} % of the variance)"


def share_y(panels: Sequence[fig.Panel], measure: Measure, name: str) -> None:
    axis = measure_axis(name, measure)
    together = fig.Panel(y=axis, marks=[mark for panel in panels for mark in panel.marks])
    axis.low, axis.high = together.limits()[1]
    for place, panel in enumerate(panels):
        panel.y = axis if place == 0 else fig.Axis("", axis.low, axis.high, form=axis.form, grid=True)


def measure_axis(name: str, measure: Measure) -> fig.Axis:
    bounds = (0.0, 1.003) if measure.share else (-math.inf, math.inf)
    return fig.Axis(name, bounds=bounds, form=fig.percent if measure.share else fig.plain, grid=True)
