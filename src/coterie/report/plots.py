"""The figures of a run and of a comparison, as inline SVG."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from coterie.record.comparison import Measure
from coterie.record.load import Run
from coterie.record.schema import Matrix, Partition, RoundRecord
from coterie.report.clusters import History, Selected, Sets, groups_like, happened, pixels
from coterie.report.comparison import RunGroup, counted, leading
from coterie.report.figure import (
    GRID,
    MUTED,
    PALETTE,
    PAPER,
    SIZE,
    SMALL,
    Axis,
    Band,
    Bars,
    Figure,
    Image,
    Key,
    Line,
    Panel,
    Rules,
    Words,
    colour,
    drawn,
    heat_map,
    label,
    percent,
    plain,
    rgba,
    scale_bar,
)
from coterie.report.words import explained, metric, plural

WIDTH, HALF = 1000, 490
MOST = 400
"""Clients with a row, column or point of their own in a figure; of more, every k-th is shown."""
_LOSSES = {"classes": "cross entropy"}
_MANY = 40  # clients above which their numbers no longer fit an axis
_CLOCK = "clock"
_LARGEST = 5  # series in a stack; the rest is one


_CLASSES, _LETTERS = 22, 20  # rows of classes that have room, and letters of a name


def step(clients: int) -> int:
    return math.ceil(clients / MOST)


def _shown(order: Sequence[int]) -> Sequence[int]:
    return order[:: step(len(order))]


def _every(clients: int) -> str:
    return f", one of every {step(clients)} shown" if step(clients) > 1 else ""


@drawn
def scores(run: Run, measure: Measure) -> tuple[Figure, str]:
    """Both sides of a metric over the rounds: mean, the clients' bands, and any fine-tuned values."""
    sides = explained(measure)
    if run.result.deployment is not None:  # a side that nobody can know
        sides = {field: words for field, words in sides.items() if run.points(field)[0]} or sides
    panels, alt = [], []
    keys = {"mean": Key("mean over clients", MUTED, line=Line([], [], MUTED))}
    for (field, (title, where)), c in zip(sides.items(), PALETTE, strict=False):
        panel = Panel(f"{title}: {where}", _rounds(run))
        xs, ys = run.points(field)
        if banded := [(float(r), band) for r, band in run.bands(field)]:
            if len(banded) == 1:  # a band of one point has no width
                banded = [(banded[0][0] + side, banded[0][1]) for side in (-0.1, 0.1)]
            at = [r for r, _ in banded]
            low, q25, _, q75, high = np.array([band for _, band in banded], dtype=float).T
            panel.marks += [Band(at, low, high, c, 0.14), Band(at, q25, q75, c, 0.28)]
            keys["half"] = Key("middle half of the clients", MUTED, 0.42)
            keys["all"] = Key("all clients", MUTED, 0.16)
        panel.marks.append(Line(xs, ys, c, every=_dots(xs)))
        tuned = run.points(f"fine_tuned_{field}")
        if tuned[0]:
            panel.marks.append(Line(*tuned, MUTED, dashed=True, width=1.8, every=_dots(tuned[0]), shape=3))
            sample = Line([], [], MUTED, dashed=True, width=1.8, every=slice(None), shape=3)
            keys["tuned"] = Key("after each client's own fine-tuning", MUTED, line=sample)
        panels.append(panel)
        if ys:
            first, last = (metric(y, measure.share) for y in (ys[0], ys[-1]))
            alt.append(f"{title} from {first} in round {xs[0]} to {last} in round {xs[-1]}")
    _share_y(panels, measure, measure.label)
    width = WIDTH if len(panels) == 2 else 0.6 * WIDTH
    figure = Figure(width, 340, [panels], keys=list(keys.values()))
    return figure, "; ".join(alt) or f"{measure.label}: never evaluated"


@drawn
def loss(run: Run) -> tuple[Figure, str]:
    """Both losses over the rounds; logarithmic where they span more than a factor of 20."""
    panel = Panel("Loss: mean and middle half of the clients", _rounds(run))
    seen: list[float] = []
    alt, keys = [], []
    kinds = ("global_loss", "on the whole test set", False), ("local_loss", "on test data like the client's own", True)
    for (field, where, dashed), c in zip(kinds, PALETTE, strict=False):
        xs, ys = run.points(field)
        if not xs and run.result.deployment is not None:
            continue
        line = Line(xs, ys, c, dashed=dashed, every=_dots(xs))
        keys.append(Key(where, c, line=line))
        if bands := [(r, q25, q75) for r, (_, q25, _, q75, _) in run.bands(field)]:
            at, q25, q75 = (np.array(column, dtype=float) for column in zip(*bands, strict=True))
            panel.marks.append(Band(at, q25, q75, c, 0.2))
        panel.marks.append(line)
        seen += ys
        if ys:
            alt.append(f"{where} from {ys[0]:.3g} to {ys[-1]:.3g}")
    log = bool(seen) and min(seen) > 0 and max(seen) / min(seen) > 20
    panel.y = Axis(_LOSSES.get(run.result.task, "loss") if seen else "", log=log, grid=True, most=7)
    return Figure(HALF, 300, [[panel]], keys=keys), "Loss: " + "; ".join(alt)


@drawn
def classes(partition: Partition, order: Sequence[int], members: Sets | None) -> tuple[Figure, str]:
    """Samples of each client above, share of each class below, clusters and groups at foot."""
    every = np.array(partition.label_counts, dtype=float)
    shown = _shown(order)
    counts, (clients, labels) = every[list(shown)], every.shape
    totals = counts.sum(axis=1)
    shares = counts / np.maximum(totals, 1)[:, None]
    top_share = float(shares.max()) or 1.0
    strips = {"cluster": members} | ({"group": groups_like(members, partition.groups)} if members else {})
    known = {name: sets for name, sets in strips.items() if sets}
    right, rows = len(shown) - 0.5, 19.0 * min(labels, _CLASSES)

    def across(last: bool) -> Axis:
        return _clients_axis(shown, members is not None) if last else Axis("", -0.5, right, ticks=())

    title = f"Training samples of each client, and its share of each class{_every(clients)}"
    top = Panel(title, across(False), Axis("samples", low=0, grid=True, most=4))
    top.x.low, top.x.high = -0.5, right
    top.marks.append(Bars(range(len(shown)), 0, totals, MUTED))
    some = range(0, labels, math.ceil(labels / _CLASSES))
    named = [(k, partition.class_name(k)[:_LETTERS]) for k in some] if partition.class_names else None
    side = Axis("class", labels - 0.5, -0.5, most=10, whole=True, ticks=named)
    heat = Panel("", across(not known), side, frame=False)
    heat.marks.append(Image(heat_map(shares.T, PALETTE[0], 0, top_share), -0.5, right, -0.5, labels - 0.5))
    heat.marks.append(Rules(_edges(shown, members), -0.5, labels - 0.5, GRID, upright=True))
    panels: list[list[Panel | None]] = [
        [top, None],
        [heat, scale_bar(PALETTE[0], 0, top_share, "share of client", percent)],
    ]
    for place, (name, sets) in enumerate(known.items(), start=1):
        strip = pixels([sets], shown, PALETTE).reshape(len(shown), -1, 4).swapaxes(0, 1)
        of_strip = Panel("", across(place == len(known)), Axis("", 1, 0, ticks=[(0.5, name)]), frame=False)
        of_strip.marks.append(Image(strip, -0.5, right, 0, 1))
        panels.append([of_strip, None])
    heights = [90, rows, *[13.0] * len(known)]
    figure = Figure(WIDTH, 90 + sum(heights) + 12 * len(known), panels, heights, (1, 0.018))
    held = (every > 0).sum(axis=1)
    return figure, (
        f"Heat map of {plural(clients, 'client')} by {plural(labels, 'class', 'classes')}: a client holds "
        f"{held.min()} to {held.max()} classes and {every.sum(1).min():.0f} to {every.sum(1).max():.0f} samples"
    )


@drawn
def membership(known: History) -> tuple[Figure, str]:
    """Clients by rounds, coloured by cluster; a client of several clusters is striped; triangles mark clusterings.

    A strip at the side has the data's own groups, if any.
    """
    clients, shown = len(known.order), _shown(known.order)
    rows, first, last = len(shown), known.rounds[0], known.rounds[-1]
    columns = dict(zip(known.rounds, known.members, strict=True))
    nobody: Sets = (frozenset(),) * clients
    sets = [columns.get(r, nobody) for r in range(first, last + 1)]
    panel = Panel("Cluster of each client" + _every(clients), _rounds_axis(first, last), above=known.events or ())
    panel.y, panel.frame = _clients_axis(shown, grouped=True, down=True), False
    panel.marks.append(Image(pixels(sets, shown, PALETTE), first - 0.5, last + 0.5, -0.5, rows - 0.5))
    if rows <= _MANY:
        panel.marks.append(Rules([row - 0.5 for row in range(1, rows)], first - 0.5, last + 0.5, PAPER))
    panels = [panel]
    if known.groups is not None:
        side = Panel("", Axis(ticks=[(0.5, "group")]), Axis("", rows - 0.5, -0.5, ticks=()), frame=False)
        side.marks.append(Image(pixels([known.groups], shown, PALETTE), 0, 1, -0.5, rows - 0.5))
        panels.append(side)
    keys = [Key(f"cluster {number}", colour(number)) for number in known.clusters[: len(PALETTE)]]
    if known.events:
        mark = Line([], [], MUTED, every=slice(None), shape=4, radius=4.5, joined=False)
        keys.append(Key("clustering event", MUTED, line=mark))
    figure = Figure(WIDTH, _tall(rows) + 90, [panels], widths=(1, 0.018)[: len(panels)], keys=keys)
    return figure, (
        f"Heat map of {plural(clients, 'client')} over rounds {first} to {last} in "
        f"{plural(len(known.clusters), 'cluster')}" + ("; some clients are in several at once" if known.mixed else "")
    )


@drawn
def agreement(run: Run) -> tuple[Figure, str]:
    """The adjusted Rand index over the rounds, where the data have groups, and the number of clusters."""
    noted = [(line.round, line.grouping) for line in run.rounds if line.grouping]
    rounds, found = zip(*noted, strict=True)
    known = [(r, one.ari) for r, one in noted if one.ari is not None]
    dots, panels, alt = _dots(rounds), [], []
    if known:
        at, index = zip(*known, strict=True)
        y = Axis("adjusted Rand index", min(-0.05, *(ari - 0.05 for ari in index)), 1.05, grid=True)
        mark = Line(at, index, PALETTE[0], every=dots)
        panels.append(Panel("Clusters and the data's own groups", _rounds(run), y, [mark]))
        alt.append(f"Adjusted Rand index from {index[0]:.2f} in round {at[0]} to {index[-1]:.2f} at the end")
    per_client = [one.per_client for one in found]
    most = 1.15 * max(*per_client, *(one.clusters for one in found), 1)
    right = Panel("How many clusters", _rounds(run), Axis("", 0, most, whole=True, grid=True))
    right.marks.append(Line(rounds, [one.clusters for one in found], PALETTE[2], every=dots))
    several = max(per_client) > 1
    if several:
        right.marks.append(Line(rounds, per_client, PALETTE[1], dashed=True, every=dots))
        names = ("clusters", "clusters of a client, mean")
        right.keys = [Key(name, line.colour, line=line) for name, line in zip(names, right.lines(), strict=True)]
    alt.append(f"{plural(found[-1].clusters, 'cluster')} at the end" + f", {per_client[-1]:.2f} a client" * several)
    return Figure(WIDTH if known else HALF, 270 + 36 * several, [[*panels, right]]), "; ".join(alt)


@drawn
def sizes(rounds: Sequence[RoundRecord]) -> tuple[Figure, str]:
    """Clients in each cluster over the rounds, where only the sizes are known."""
    noted = [(line.round, found.sizes) for line in rounds if (found := line.notes.clusters) and found.sizes]
    width = max(len(counts) for _, counts in noted)
    stack = {f"cluster {k}": {r: counts[k] if k < len(counts) else 0 for r, counts in noted} for k in range(width)}
    panel = Panel("Sizes of the clusters", _rounds_axis(noted[0][0], noted[-1][0]), Axis("clients", low=0, grid=True))
    keys = _stack(panel, [r for r, _ in noted], stack)
    figure = Figure(WIDTH, 260, [[panel]], keys=keys[: len(PALETTE)])
    return figure, f"Sizes of up to {plural(width, 'cluster')} over {plural(len(noted), 'round')}"


@drawn
def affinity(matrix: Matrix, order: Sequence[int], members: Sets | None) -> tuple[Figure, str]:
    """The system's affinity of clients, in the order of their clusters, without the diagonal."""
    shown = _shown(order)
    every = np.array(matrix, dtype=float)
    np.fill_diagonal(every, np.nan)
    values, known = every[np.ix_(shown, shown)], every[np.isfinite(every)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    clients, rows, top = len(order), len(shown), max(high, low + 1e-9)
    panel = Panel(f"Affinity of the clients{_every(clients)}", _clients_axis(shown, members is not None, fit=24))
    panel.y, panel.frame = _clients_axis(shown, members is not None, down=True, fit=24), False
    panel.marks.append(Image(heat_map(values, PALETTE[2], low, top), -0.5, rows - 0.5, -0.5, rows - 0.5))
    for upright in (True, False):
        panel.marks.append(Rules(_edges(shown, members), -0.5, rows - 0.5, MUTED, upright))
    figure = Figure(HALF, 440, [[panel, scale_bar(PALETTE[2], low, top, "affinity")]], widths=(1, 0.035))
    return figure, f"Matrix of {clients} by {clients} affinities from {low:.3g} to {high:.3g}"


@drawn
def per_round(run: Run) -> tuple[Figure, str]:
    """Bytes sent by role, real seconds by kind of work, and virtual seconds, round by round."""
    stacks = [
        ("Bytes sent", "MB", _series(run, "bytes_up", 1e-6)),
        ("Real time by work", "seconds", _series(run, "phase_seconds", 1)),
        ("Virtual time", "seconds", _durations(run)),
    ]
    found = [stack for stack in stacks if stack[-1]]
    panels = []
    for title, unit, series in found:
        panel = Panel(title, _rounds(run, 6), Axis(f"{unit} a round", low=0, grid=True))
        alone = _CLOCK in series
        keys = _stack(panel, [line.round for line in run.rounds], series, first=5 * alone)
        panel.keys = [] if alone else keys
        panels.append(panel)
    figure = Figure(WIDTH, 270 + 18 * max(len(panel.keys) for panel in panels), [panels])
    return figure, f"{', '.join(title for title, *_ in found)}, for each of {plural(len(run.rounds), 'round')}"


def _durations(run: Run) -> dict[str, dict[int, float]]:
    rounds, at = run.points("virtual_seconds")
    if len(at) < len(run.rounds):
        return {}
    before = [run.result.set_up.virtual_seconds or 0.0, *at]
    return {_CLOCK: {r: max(b - a, 0.0) for r, a, b in zip(rounds, before, at, strict=False)}}


def _series(run: Run, field: str, factor: float) -> dict[str, dict[int, float]]:
    parts: dict[int, Mapping[str, float]] = {line.round: getattr(line, field) for line in run.rounds}
    totals: Counter[str] = Counter()
    for values in parts.values():
        totals.update(values)
    names = sorted((name for name in totals if totals[name] > 0), key=lambda name: (-totals[name], name))
    largest = names if len(names) <= _LARGEST + 1 else names[:_LARGEST]
    rest = names[len(largest) :]
    series = {name: {r: values.get(name, 0) * factor for r, values in parts.items()} for name in largest}
    if rest:
        series[f"{len(rest)} others"] = {r: sum(values.get(n, 0) for n in rest) * factor for r, values in parts.items()}
    return series


def _stack(panel: Panel, rounds: Sequence[int], series: Mapping[str, Mapping[int, float]], first: int = 0) -> list[Key]:
    base: NDArray[np.float64] = np.zeros(len(rounds))
    keys = []
    for number, (name, values) in enumerate(series.items(), start=first):
        above = base + [values.get(r, 0) for r in rounds]
        panel.marks.append(Bars(rounds, base, above, colour(number), width=1))
        keys.append(Key(label(name), colour(number)))
        base = above
    return keys


def _rounds(run: Run, most: int = 8) -> Axis:
    return _rounds_axis(run.rounds[0].round, run.rounds[-1].round, most)


def _rounds_axis(first: int, last: int, most: int = 8) -> Axis:
    return Axis("round", first - 0.5, last + 0.5, most=most, whole=True)


def _dots(rounds: Sequence[int]) -> slice | None:
    return slice(None) if len(rounds) <= 12 else None


def _tall(rows: int) -> float:
    return min(max(16.0 * rows, 210.0), 570.0)


def _clients_axis(order: Sequence[int], grouped: bool, *, down: bool = False, fit: int = _MANY) -> Axis:
    """Clients side by side or, with ``down``, below each other; with their numbers where these fit."""
    fits = len(order) <= fit
    name = ("client" if fits or not grouped else "clients") + ", grouped by last cluster" * grouped
    ticks = [(place, str(client)) for place, client in enumerate(order)] if fits else []
    ends = (len(order) - 0.5, -0.5) if down else (-0.5, len(order) - 0.5)
    return Axis(name, *ends, ticks=ticks, size=SIZE - 1 if len(order) <= 24 else SMALL)


def _edges(order: Sequence[int], members: Sets | None) -> list[float]:
    first = [min(members[i], default=-1) for i in order] if members else []
    return [i - 0.5 for i in range(1, len(first)) if first[i] != first[i - 1]]


@drawn
def selections(found: Selected, order: Sequence[int], members: Sets | None) -> tuple[Figure, str]:
    """Clients by rounds, filled in the cluster's colour where selected, and the number of selections."""
    clients, shown = len(order), list(_shown(order))
    first, last, rows = found.rounds[0], found.rounds[-1], len(shown)
    shades = [_shade(members[i] if members else frozenset()) for i in shown]
    painted = np.zeros((rows, last - first + 1, 4), np.uint8)
    paint = np.array([rgba(shade) for shade in shades])
    for column, chosen in zip(found.rounds, found.chosen[:, shown], strict=True):
        painted[chosen, column - first] = paint[chosen]
    panel = Panel("Selected in which round" + _every(clients), _rounds_axis(first, last))
    panel.y, panel.frame = _clients_axis(shown, members is not None, down=True), False
    panel.marks.append(Image(painted, first - 0.5, last + 0.5, -0.5, rows - 0.5))
    if rows <= _MANY:
        panel.marks.append(Rules([row - 0.5 for row in range(1, rows)], first - 0.5, last + 0.5, PAPER))
    side = Panel("How often", Axis("rounds", low=0, most=4, whole=True, grid=True))
    side.y = Axis("", rows - 0.5, -0.5, ticks=())
    side.marks.append(Bars(range(rows), 0, found.times[shown], shades, lying=True))
    times = found.times
    return Figure(WIDTH, _tall(rows) + 80, [[panel, side]], widths=(4, 1)), (
        f"{plural(clients, 'client')} over {plural(len(found.rounds), 'round')}: a client was selected "
        f"{times.min()} to {times.max()} times, {times.mean():.1f} on average"
    )


def _shade(own: frozenset[int]) -> str:
    return colour(min(own)) if own else PALETTE[8]


@drawn
def feature_space(features: Matrix, members: Sets | None, groups: Sequence[int] | None) -> tuple[Figure, str]:
    """Clients' feature vectors in their two main directions, coloured by cluster; markers are the data's groups."""
    known = [i for i, row in enumerate(features) if row and all(v is not None for v in row)]
    at, share = _plane(np.array([features[i] for i in known], dtype=float))
    shapes = groups_like(members, groups) if members else None
    panel = Panel(f"Devices in feature space{_every(len(known))}", Axis(_direction(1, share), ticks=[]))
    panel.y = Axis(_direction(2, share), ticks=[])
    for place in _shown(range(len(known))):
        own = sorted(members[known[place]]) if members else []
        shade, group = colour(own[0]) if own else PALETTE[8], min(shapes[known[place]]) if shapes else 0
        point = Line(at[place, :1], at[place, 1:], shade, every=slice(None), shape=group, radius=5, joined=False)
        panel.marks.append(point)
    if len(known) <= _MANY:
        panel.marks.append(Words(at[:, 0], at[:, 1], [str(client) for client in known], shift=(6, -4)))
    numbers = sorted({k for i in known for k in (members[i] if members else ())})
    keys = [Key(f"cluster {k}", colour(k)) for k in numbers[:8]]
    if shapes and groups is not None:
        for group in sorted({min(shapes[i]) for i in known})[:8]:
            sample = Line([], [], MUTED, every=slice(None), shape=group, radius=5, joined=False)
            keys.append(Key(f"group {group}", MUTED, line=sample))
    return (
        Figure(HALF, 430, [[panel]], keys=keys),
        f"{plural(len(known), 'device')} in {plural(len(numbers), 'cluster')}, in the plane of their features",
    )


@drawn
def timeline(run: Run) -> tuple[Figure, str]:
    every = [(line.round, happened(event.kind)) for line in run.rounds for event in line.notes.events]
    kinds = list(dict.fromkeys(kind for _, kind in every))
    panel = Panel("What happened to the clusters", _rounds(run))
    panel.y = Axis("", len(kinds) - 0.5, -0.5, ticks=list(enumerate(kinds)), grid=True)
    for (r, kind), count in Counter(every).items():
        place, size = kinds.index(kind), 4.5 + 2.5 * math.log2(1 + count)
        panel.marks.append(Line([r], [place], colour(place), every=slice(None), radius=min(size, 15), joined=False))
        panel.marks.append(Words([r], [place], [str(count)], PAPER, shift=(0, 3.5), middle=True))
    words = (f"{kind} {n} times" for kind, n in Counter(kind for _, kind in every).items())
    return Figure(HALF, 90 + 34 * len(kinds), [[panel]]), f"Events of the clusters: {', '.join(words)}"


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


# -- several runs as a comparison --------------------------------------------------------------------------------------


@drawn
def compared_scores(groups: Sequence[RunGroup]) -> tuple[Figure, str]:
    measure = leading(groups)
    first = min(run.rounds[0].round for found in groups for run in found.runs)
    last = max(run.rounds[-1].round for found in groups for run in found.runs)
    panels, alt, tuned_any = [], [], False
    for field, (title, where) in explained(measure).items():
        panel = Panel(f"{title}: {where}", _rounds_axis(first, last))
        for number, found in enumerate(groups):
            rounds, mean, std = found.curve(field)
            if std is not None:
                panel.marks.append(Band(rounds, mean - std, mean + std, colour(number), 0.18))
            panel.marks.append(_line(number, rounds, mean))
            tuned, share, _ = found.curve(f"fine_tuned_{field}")
            if len(tuned):
                panel.marks.append(_line(number, tuned, share, tuned=True))
                tuned_any = True
            if len(mean):
                alt.append(f"{found.label} {title} {metric(float(mean[-1]), measure.share)}")
        panels.append(panel)
    _share_y(panels, measure, f"{measure.label}, mean over clients")
    return Figure(WIDTH, 390, [panels], keys=_keys(groups, tuned_any)), "At the end: " + "; ".join(alt)


@drawn
def compared_costs(groups: Sequence[RunGroup]) -> tuple[Figure, str]:
    """Both sides of the leading metric against each cost that every run counted."""
    columns, measure = counted(groups), leading(groups)
    rows: list[list[Panel]] = []
    for field, (title, _) in explained(measure).items():
        row = []
        for cost in columns:
            panel = Panel("" if rows else cost.title, Axis(cost.unit if rows else "", most=7))
            for number, found in enumerate(groups):
                rounds, mean, _std = found.curve(field)
                panel.marks.append(_line(number, _at(found, rounds, cost.until), mean))
            panel.x.log = _differ(panel)
            row.append(panel)
        _share_y(row, measure, title)
        rows.append(row)
    figure = Figure(WIDTH, 600, rows, keys=_keys(groups, False))
    return figure, f"{measure.label}, global and local, against {' and against '.join(cost.unit for cost in columns)}"


def _share_y(panels: Sequence[Panel], measure: Measure, name: str) -> None:
    bounds = (0.0, 1.003) if measure.share else (-math.inf, math.inf)
    axis = Axis(name, bounds=bounds, form=percent if measure.share else plain, grid=True)
    together = Panel(y=axis, marks=[mark for panel in panels for mark in panel.marks])
    axis.low, axis.high = together.limits()[1]
    for place, panel in enumerate(panels):
        panel.y = axis if place == 0 else Axis("", axis.low, axis.high, form=axis.form, grid=True)


def _line(number: int, x: NDArray[np.float64] | NDArray[np.int64], y: NDArray[np.float64], tuned: bool = False) -> Line:
    every = max(1, len(y) // 8)
    dots = slice(number * every // 4 % every, None, every)  # staggered, so that lines on each other stay readable
    return Line(x, y, colour(number), tuned, 1.6 if tuned else 2.4, dots, number, filled=not tuned)


def _keys(groups: Sequence[RunGroup], tuned: bool) -> list[Key]:
    keys = [
        Key(label(found.legend, 46), colour(number), line=_line(number, np.array([]), np.array([])))
        for number, found in enumerate(groups)
    ]
    if tuned:
        sample = Line([], [], MUTED, dashed=True, width=1.6, every=slice(None), filled=False)
        keys.append(Key("after each client's own fine-tuning", MUTED, line=sample))
    return keys


def _at(found: RunGroup, rounds: NDArray[np.int64], until: Callable[[Run], list[float] | None]) -> NDArray[np.float64]:
    costs = [dict(zip([line.round for line in run.rounds], until(run) or (), strict=True)) for run in found.runs]
    return np.array([np.mean([cost[int(r)] for cost in costs]) for r in rounds])


def _differ(panel: Panel) -> bool:
    ends = [float(xs[-1]) for line in panel.lines() if (xs := np.asarray(line.x, dtype=float)).size]
    return bool(ends) and min(ends) > 0 and max(ends) / min(ends) > 5
