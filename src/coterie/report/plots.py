"""The figures of a run and of a comparison, as inline SVG. The first argument prefixes a figure's ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from coterie.record.comparison import Measure
from coterie.record.load import Run
from coterie.record.schema import Matrix, Partition, RoundRecord
from coterie.report.clusters import History, Selected, Sets, groups_like, happened, pixels
from coterie.report.comparison import RunGroup, counted, leading
from coterie.report.figure import (
    GRID,
    MARKERS,
    MUTED,
    PALETTE,
    PAPER,
    colour,
    drawn,
    heat_map,
    image,
    label,
    legend,
    new_figure,
    percent_axis,
    plain_log,
    round_axis,
)
from coterie.report.words import explained, metric, plural

WIDTH = 10.4  # inches; about 1000 px on a laptop
_LOSSES = {"classes": "cross entropy"}
_MANY = 40  # clients above which their names no longer fit an axis
_CLOCK = "clock"
_LARGEST = 5  # series in a stack; the rest is one


@drawn
def scores(run: Run, measure: Measure) -> tuple[Figure, str]:
    """Both sides of a metric over the rounds: mean, the clients' bands, and any fine-tuned values."""
    sides = explained(measure)
    if run.result.deployment is not None:  # a side that nobody can know
        sides = {field: words for field, words in sides.items() if run.points(field)[0]} or sides
    figure = new_figure(WIDTH if len(sides) == 2 else 0.6 * WIDTH, 3.9)
    panels = figure.subplots(1, len(sides), sharey=True, squeeze=False)[0]
    alt = []
    handles: dict[str, Line2D | Patch] = {"mean": Line2D([], [], color=MUTED, label="mean over clients")}
    for ax, (field, (title, where)), c in zip(panels, sides.items(), PALETTE, strict=False):
        xs, ys = run.points(field)
        if banded := [(float(r), band) for r, band in run.bands(field)]:
            if len(banded) == 1:  # a band of one point has no width
                banded = [(banded[0][0] + side, banded[0][1]) for side in (-0.1, 0.1)]
            at = [r for r, _ in banded]
            low, q25, _, q75, high = np.array([band for _, band in banded], dtype=float).T
            ax.fill_between(at, low, high, color=c, alpha=0.14, lw=0)
            ax.fill_between(at, q25, q75, color=c, alpha=0.28, lw=0)
            handles["half"] = Patch(color=MUTED, alpha=0.42, lw=0, label="middle half of the clients")
            handles["all"] = Patch(color=MUTED, alpha=0.16, lw=0, label="all clients")
        ax.plot(xs, ys, color=c, marker=_dot(xs))
        tuned = run.points(f"fine_tuned_{field}")
        ax.plot(*tuned, color=MUTED, ls="--", lw=1.6, marker=_dot(tuned[0], "D"))
        if tuned[0]:
            words = "after each client's own fine-tuning"
            handles["tuned"] = Line2D([], [], color=MUTED, ls="--", lw=1.6, marker="D", label=words)
        ax.set_title(f"{title}: {where}")
        _rounds(ax, run)
        if ys:
            first, last = (metric(y, measure.share) for y in (ys[0], ys[-1]))
            alt.append(f"{title} from {first} in round {xs[0]} to {last} in round {xs[-1]}")
    _score_axis(panels[0], measure, measure.label)
    legend(figure, list(handles.values()))
    return figure, "; ".join(alt) or f"{measure.label}: never evaluated"


@drawn
def loss(run: Run) -> tuple[Figure, str]:
    """Both losses over the rounds; logarithmic where they span more than a factor of 20."""
    figure = new_figure(WIDTH / 2, 3.3)
    ax = figure.subplots()
    seen: list[float] = []
    alt = []
    kinds = ("global_loss", "on the whole test set", "-"), ("local_loss", "on test data like the client's own", "--")
    for (field, where, dashes), c in zip(kinds, PALETTE, strict=False):
        xs, ys = run.points(field)
        if not xs and run.result.deployment is not None:
            continue
        ax.plot(xs, ys, color=c, ls=dashes, marker=_dot(xs), label=where)
        if bands := [(r, q25, q75) for r, (_, q25, _, q75, _) in run.bands(field)]:
            at, q25, q75 = (np.array(column, dtype=float) for column in zip(*bands, strict=True))
            ax.fill_between(at, q25, q75, color=c, alpha=0.2, lw=0)
        seen += ys
        if ys:
            alt.append(f"{where} from {ys[0]:.3g} to {ys[-1]:.3g}")
    if seen and min(seen) > 0 and max(seen) / min(seen) > 20:
        ax.set_yscale("log")
        plain_log(ax.yaxis)
    ax.set(
        title="Loss: mean and middle half of the clients",
        ylabel=_LOSSES.get(run.result.task, "loss") if seen else "",
    )
    _rounds(ax, run)
    ax.legend()
    return figure, "Loss: " + "; ".join(alt)


@drawn
def classes(partition: Partition, order: Sequence[int], members: Sets | None) -> tuple[Figure, str]:
    """Samples of each client above, share of each class below, clusters and groups at foot."""
    counts = np.array(partition.label_counts, dtype=float)[list(order)]
    totals = counts.sum(axis=1)
    shares = counts / np.maximum(totals, 1)[:, None]
    clients, labels = counts.shape
    top_share = float(shares.max()) or 1.0
    strips = {"cluster": members} | ({"group": groups_like(members, partition.groups)} if members else {})
    shown = {name: sets for name, sets in strips.items() if sets}
    figure = new_figure(WIDTH, 1.6 + min(0.19 * labels, 4.0) + 0.15 * len(shown))
    heights = [1.1, min(0.19 * labels, 4.0), *[0.14] * len(shown)]
    top, heat, *foot = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
    top.bar(range(clients), totals, color=MUTED, width=0.8)
    top.set(ylabel="samples", title="Training samples of each client, and its share of each class")
    top.yaxis.set_major_locator(MaxNLocator(3))
    top.yaxis.set_major_formatter(EngFormatter(sep=""))
    heat_map(heat, shares.T, PALETTE[0], (0, top_share), "share of client", percent=True)
    for edge in _edges(order, members):
        heat.axvline(edge, color=GRID, lw=0.8)
    heat.yaxis.set_major_locator(MaxNLocator(10, integer=True))
    heat.set_ylabel("class")
    for ax, (name, sets) in zip(foot, shown.items(), strict=True):
        strip = pixels([sets], order, PALETTE).reshape(clients, -1, 4).swapaxes(0, 1)
        image(ax, strip, -0.5, clients - 0.5, 1)
        ax.set_yticks([0], [name])
        ax.tick_params(length=0)
    for ax in (top, heat, *foot[:-1]):
        ax.tick_params(axis="x", length=0, labelbottom=False)
    clients_axis(([heat, *foot])[-1], order, "x", grouped=members is not None)
    held = (counts > 0).sum(axis=1)
    return figure, (
        f"Heat map of {plural(clients, 'client')} by {plural(labels, 'class', 'classes')}: a client holds "
        f"{held.min()} to {held.max()} classes and {totals.min():.0f} to {totals.max():.0f} samples"
    )


@drawn
def membership(known: History) -> tuple[Figure, str]:
    """Clients by rounds, coloured by cluster; a client of several clusters is striped; triangles mark clusterings.

    A strip at the side has the data's own groups, if any.
    """
    clients = len(known.order)
    figure = new_figure(WIDTH, float(np.clip(0.17 * clients, 2.2, 6.0)) + 1.0)
    ax = figure.subplots()
    first, last = known.rounds[0], known.rounds[-1]
    columns = dict(zip(known.rounds, known.members, strict=True))
    nobody: Sets = (frozenset(),) * clients
    sets = [columns.get(r, nobody) for r in range(first, last + 1)]
    image(ax, pixels(sets, known.order, PALETTE), first - 0.5, last + 0.5, clients)
    for row in range(1, clients if clients <= _MANY else 0):
        ax.axhline(row - 0.5, color=PAPER, lw=1)
    marks: list[Line2D] = []
    if known.events:
        above = ax.get_xaxis_transform()
        marks = ax.plot(known.events, [1.02] * len(known.events), "v", ms=5, color=MUTED, transform=above)
        marks[0].set(clip_on=False, label="clustering event")
    if known.groups is not None:
        side = ax.inset_axes((1.01, 0.0, 0.018, 1.0))
        image(side, pixels([known.groups], known.order, PALETTE), 0, 1, clients)
        side.set(yticks=[], xticks=[0.5], xticklabels=["group"])
        side.tick_params(length=0)
    ax.set_title("Cluster of each client", pad=18)
    round_axis(ax, first, last)
    clients_axis(ax, known.order, "y", grouped=True)
    shown = [Patch(color=colour(number), label=f"cluster {number}") for number in known.clusters[: len(PALETTE)]]
    legend(figure, [*shown, *marks])
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
    figure = new_figure(WIDTH if known else WIDTH / 2, 2.9)
    *left, right = figure.subplots(1, 1 + bool(known), squeeze=False)[0]
    mark = _dot(rounds)
    alt = []
    for ax in left:
        ax.plot(*zip(*known, strict=True), color=PALETTE[0], marker=mark)
        ax.set_ylim(min(-0.05, *(ari - 0.05 for _, ari in known)), 1.05)
        ax.set(title="Clusters and the data's own groups", ylabel="adjusted Rand index")
        alt.append(
            f"Adjusted Rand index from {known[0][1]:.2f} in round {known[0][0]} to {known[-1][1]:.2f} at the end"
        )
    right.plot(rounds, [one.clusters for one in found], color=PALETTE[2], marker=mark, label="clusters")
    per_client = [one.per_client for one in found]
    several = max(per_client) > 1
    if several:
        right.plot(rounds, per_client, color=PALETTE[1], marker=mark, ls="--", label="clusters of a client, mean")
    right.set_ylim(0, 1.15 * max(*per_client, *(one.clusters for one in found), 1))
    right.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    right.set_title("How many clusters")
    for ax in (*left, right):
        _rounds(ax, run)
    if several:
        right.legend()
    alt.append(f"{plural(found[-1].clusters, 'cluster')} at the end" + f", {per_client[-1]:.2f} a client" * several)
    return figure, "; ".join(alt)


@drawn
def sizes(rounds: Sequence[RoundRecord]) -> tuple[Figure, str]:
    """Clients in each cluster over the rounds, where only the sizes are known."""
    noted = [(line.round, found.sizes) for line in rounds if (found := line.notes.clusters) and found.sizes]
    figure = new_figure(WIDTH, 3.0)
    ax = figure.subplots()
    width = max(len(counts) for _, counts in noted)
    stack = {f"cluster {k}": {r: counts[k] if k < len(counts) else 0 for r, counts in noted} for k in range(width)}
    _stack(ax, [r for r, _ in noted], stack)
    ax.set(ylabel="clients", title="Sizes of the clusters")
    legend(figure, [Patch(color=colour(k), label=f"cluster {k}") for k in range(min(width, len(PALETTE)))])
    return figure, f"Sizes of up to {plural(width, 'cluster')} over {plural(len(noted), 'round')}"


@drawn
def affinity(matrix: Matrix, order: Sequence[int], members: Sets | None) -> tuple[Figure, str]:
    """The system's affinity of clients, in the order of their clusters, without the diagonal."""
    values = np.array([[np.nan if v is None else v for v in row] for row in matrix])[np.ix_(order, order)]
    np.fill_diagonal(values, np.nan)
    known = values[np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    high = high if high > low else low + 1e-9
    clients = len(order)
    figure = new_figure(WIDTH / 2, WIDTH / 2 - 0.6)
    ax = figure.subplots()
    heat_map(ax, values, PALETTE[2], (low, high), "affinity")
    ax.set_aspect("equal")
    for edge in _edges(order, members):
        ax.axhline(edge, color=MUTED, lw=0.8)
        ax.axvline(edge, color=MUTED, lw=0.8)
    clients_axis(ax, order, "x", grouped=members is not None)
    clients_axis(ax, order, "y", grouped=members is not None)
    ax.set_title("Affinity of the clients")
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
    figure = new_figure(WIDTH, 3.6)
    axes = figure.subplots(1, len(found), squeeze=False)[0]
    for ax, (title, unit, series) in zip(axes, found, strict=True):
        alone = _CLOCK in series
        shown = _stack(ax, [line.round for line in run.rounds], series, first=5 * alone)
        ax.set(title=title, ylabel=f"{unit} a round")
        if not alone:
            handles = [Patch(color=c, label=label(name)) for name, c in shown.items()]
            place = (-0.02, -0.2)
            ax.legend(handles=handles, loc="upper left", bbox_to_anchor=place, handlelength=1, labelspacing=0.3)
        _rounds(ax, run)
        ax.set_ylim(bottom=0)
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    return figure, f"{', '.join(title for title, *_ in found)}, for each of {plural(len(run.rounds), 'round')}"


def _durations(run: Run) -> dict[str, dict[int, float]]:
    """Virtual seconds of each round, from the clock at the rounds' ends; empty without a clock."""
    rounds, at = run.points("virtual_seconds")
    if len(at) < len(run.rounds):
        return {}
    before = [run.result.set_up.virtual_seconds or 0.0, *at]
    return {_CLOCK: {r: max(b - a, 0.0) for r, a, b in zip(rounds, before, at, strict=False)}}


def _series(run: Run, field: str, factor: float) -> dict[str, dict[int, float]]:
    """Of a field of the rounds, name -> round -> value * factor: the largest names, then the rest as one."""
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


def _stack(
    ax: Axes, rounds: Sequence[int], series: Mapping[str, Mapping[int, float]], first: int = 0
) -> dict[str, str]:
    """Stacked steps, a unit wide around each round; gives the colour of every name."""
    edges = np.arange(rounds[0], rounds[-1] + 2) - 0.5
    base: NDArray[np.float64] = np.zeros(len(edges) - 1)
    shown = {name: colour(number) for number, name in enumerate(series, start=first)}
    for name, values in series.items():
        above = base + [values.get(r, 0) for r in range(rounds[0], rounds[-1] + 1)]
        ax.stairs(above, edges, baseline=base, fill=True, color=shown[name], lw=0)
        base = above
    return shown


def _rounds(ax: Axes, run: Run) -> None:
    round_axis(ax, run.rounds[0].round, run.rounds[-1].round)


def _dot(rounds: Sequence[int], marker: str = "o") -> str | None:
    return marker if len(rounds) <= 12 else None


def clients_axis(ax: Axes, order: Sequence[int], axis: Literal["x", "y"], grouped: bool) -> None:
    """Client numbers along an axis, all of them where they fit."""
    fits = len(order) <= _MANY
    name = ("client" if fits or not grouped else "clients") + ", grouped by last cluster" * grouped
    ticks = list(range(len(order))) if fits else []
    if fits or grouped:
        which = ax.xaxis if axis == "x" else ax.yaxis
        which.set_ticks(ticks, [str(order[i]) for i in ticks], fontsize=8 if len(order) <= 24 else 6.5)
    ax.set(**{f"{axis}label": name})
    ax.tick_params(axis=axis, length=0, labelbottom=True)


def _edges(order: Sequence[int], members: Sets | None) -> list[float]:
    first = [min(members[i], default=-1) for i in order] if members else []
    return [i - 0.5 for i in range(1, len(first)) if first[i] != first[i - 1]]


@drawn
def selections(found: Selected, order: Sequence[int], members: Sets | None) -> tuple[Figure, str]:
    """Clients by rounds, filled in the cluster's colour where selected, and the number of selections."""
    clients = len(order)
    figure = new_figure(WIDTH, float(np.clip(0.17 * clients, 2.2, 6.0)) + 0.8)
    ax, side = figure.subplots(1, 2, sharey=True, width_ratios=[4, 1])
    first, last = found.rounds[0], found.rounds[-1]
    painted = np.zeros((clients, last - first + 1, 4))
    shades = [_rgb(members[i] if members else frozenset()) for i in order]
    for column, row in zip(found.rounds, found.chosen, strict=True):
        for place, client in enumerate(order):
            if row[client]:
                painted[place, column - first] = (*shades[place], 1.0)
    image(ax, painted, first - 0.5, last + 0.5, clients)
    for place in range(1, clients):
        ax.axhline(place - 0.5, color=PAPER, lw=0.6)
    ax.set_title("Selected in which round")
    round_axis(ax, first, last)
    clients_axis(ax, order, "y", grouped=members is not None)
    side.barh(range(clients), found.times[list(order)], color=shades, height=0.8)
    side.set(title="How often", xlabel="rounds")
    side.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    side.grid(axis="x")
    side.grid(False, axis="y")
    side.tick_params(axis="y", length=0, labelleft=False)
    times = found.times
    return figure, (
        f"{plural(clients, 'client')} over {plural(len(found.rounds), 'round')}: a client was selected "
        f"{times.min()} to {times.max()} times, {times.mean():.1f} on average"
    )


@drawn
def feature_space(features: Matrix, members: Sets | None, groups: Sequence[int] | None) -> tuple[Figure, str]:
    """Clients' feature vectors in their two main directions, coloured by cluster; markers are the data's groups."""
    known = [i for i, row in enumerate(features) if row and all(v is not None for v in row)]
    x = np.array([features[i] for i in known], dtype=float)
    at, share = _plane(x)
    figure = new_figure(WIDTH / 2, WIDTH / 2 - 0.6)
    ax = figure.subplots()
    shapes = groups_like(members, groups) if members else None
    for place, client in enumerate(known):
        own = sorted(members[client]) if members else []
        group = min(shapes[client]) if shapes else 0
        ax.plot(*at[place], MARKERS[group % len(MARKERS)], color=colour(own[0]) if own else MUTED, ms=7, alpha=0.85)
    if len(known) <= 40:
        for place, client in enumerate(known):
            ax.annotate(str(client), at[place], xytext=(4, 3), textcoords="offset points", fontsize=6.5, color=MUTED)
    ax.set(title="Devices in feature space", xlabel=_direction(1, share), ylabel=_direction(2, share))
    ax.grid(True, axis="both")
    ax.tick_params(labelbottom=False, labelleft=False, length=0)
    handles: list[Line2D | Patch] = []
    numbers = sorted({k for i in known for k in (members[i] if members else ())})
    handles += [Patch(color=colour(k), label=f"cluster {k}") for k in numbers[:8]]
    if shapes and groups is not None:
        for group in sorted({min(shapes[i]) for i in known})[:8]:
            mark = MARKERS[group % len(MARKERS)]
            handles.append(Line2D([], [], color=MUTED, ls="", marker=mark, label=f"group {group}"))
    if handles:
        legend(figure, handles, columns=4, length=1.0)
    return (
        figure,
        f"{plural(len(known), 'device')} in {plural(len(numbers), 'cluster')}, in the plane of their features",
    )


@drawn
def timeline(run: Run) -> tuple[Figure, str]:
    """Merges, splits, joins and moves, round by round."""
    every = [(line.round, happened(event.kind)) for line in run.rounds for event in line.notes.events]
    kinds = list(dict.fromkeys(kind for _, kind in every))
    counts = Counter(every)
    figure = new_figure(WIDTH / 2, 1.2 + 0.32 * len(kinds))
    ax = figure.subplots()
    for place, kind in enumerate(kinds):
        rounds = sorted({r for r, k in every if k == kind})
        sizes = [30 + 60 * np.log2(1 + counts[r, kind]) for r in rounds]
        ax.scatter(rounds, [place] * len(rounds), s=sizes, color=colour(place), alpha=0.8, lw=0)
        for r in rounds:
            ax.annotate(str(counts[r, kind]), (r, place), ha="center", va="center", fontsize=6.5, color=PAPER)
    ax.set_yticks(range(len(kinds)), kinds)
    ax.set(ylim=(len(kinds) - 0.5, -0.5), title="What happened to the clusters")
    round_axis(ax, run.rounds[0].round, run.rounds[-1].round)
    words = (f"{kind} {n} times" for kind, n in Counter(kind for _, kind in every).items())
    return figure, f"Events of the clusters: {', '.join(words)}"


def _plane(x: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(n, 2) coordinates along the two directions of most variance, and the share of the variance of each, (2,)."""
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


def _rgb(own: frozenset[int]) -> tuple[float, float, float]:
    return to_rgb(colour(min(own)) if own else MUTED)


# -- several runs as a comparison --------------------------------------------------------------------------------------


@drawn
def compared_scores(groups: Sequence[RunGroup]) -> tuple[Figure, str]:
    """Both sides of the leading metric over the rounds, for all methods; dashed where clients fine-tuned."""
    measure = leading(groups)
    figure = new_figure(WIDTH, 4.4)
    panels = figure.subplots(1, 2, sharey=True)
    first = min(run.rounds[0].round for found in groups for run in found.runs)
    last = max(run.rounds[-1].round for found in groups for run in found.runs)
    alt = []
    for ax, (field, (title, where)) in zip(panels, explained(measure).items(), strict=True):
        for number, found in enumerate(groups):
            rounds, mean, std = found.curve(field)
            ax.plot(rounds, mean, **_line(number, len(mean)))
            if std is not None:
                ax.fill_between(rounds, mean - std, mean + std, color=colour(number), alpha=0.18, lw=0)
            tuned, share, _ = found.curve(f"fine_tuned_{field}")
            ax.plot(tuned, share, **_line(number, len(share)) | {"ls": "--", "lw": 1.4, "mfc": PAPER})
            if len(mean):
                alt.append(f"{found.label} {title} {metric(float(mean[-1]), measure.share)}")
        ax.set_title(f"{title}: {where}")
        round_axis(ax, first, last)
    _score_axis(panels[0], measure, f"{measure.label}, mean over clients")
    tuned_any = any(len(found.curve(f"fine_tuned_{field}")[0]) for field in explained(measure) for found in groups)
    _legend(figure, groups, tuned_any)
    return figure, "At the end: " + "; ".join(alt)


@drawn
def compared_costs(groups: Sequence[RunGroup]) -> tuple[Figure, str]:
    """Both sides of the leading metric against each cost that every run counted."""
    columns, measure = counted(groups), leading(groups)
    figure = new_figure(WIDTH, 6.6)
    axes = figure.subplots(2, len(columns), sharey="row", sharex="col", squeeze=False)
    for row, (field, (title, _)) in zip(axes, explained(measure).items(), strict=True):
        for ax, cost in zip(row, columns, strict=True):
            for number, found in enumerate(groups):
                rounds, mean, _std = found.curve(field)
                ax.plot(_at(found, rounds, cost.until), mean, **_line(number, len(mean)))
            _logarithmic(ax)
        _score_axis(row[0], measure, title)
    for above, below, cost in zip(*axes, columns, strict=True):
        above.set_title(cost.title)
        below.set_xlabel(cost.unit)
    _legend(figure, groups, False)
    return figure, f"{measure.label}, global and local, against {' and against '.join(cost.unit for cost in columns)}"


def _score_axis(ax: Axes, measure: Measure, name: str) -> None:
    if measure.share:
        percent_axis(ax, name)
    else:
        ax.set_ylabel(name)


def _line(number: int, length: int) -> dict[str, object]:
    every = max(1, length // 8)
    return {
        "color": colour(number),
        "marker": MARKERS[number % len(MARKERS)],
        "markevery": (number * every // 4 % every, every),  # staggered, so that lines on each other stay readable
    }


def _legend(figure: Figure, groups: Sequence[RunGroup], tuned: bool) -> None:
    handles = [
        Line2D([], [], color=colour(number), marker=MARKERS[number % len(MARKERS)], label=label(found.legend, 46))
        for number, found in enumerate(groups)
    ]
    if tuned:
        words = "after each client's own fine-tuning"
        handles.append(Line2D([], [], color=MUTED, ls="--", lw=1.4, marker="o", mfc=PAPER, label=words))
    legend(figure, handles, columns=4, length=2.4)


def _at(found: RunGroup, rounds: NDArray[np.int64], until: Callable[[Run], list[float] | None]) -> NDArray[np.float64]:
    costs = [dict(zip([line.round for line in run.rounds], until(run) or (), strict=True)) for run in found.runs]
    return np.array([np.mean([cost[int(r)] for cost in costs]) for r in rounds])


def _logarithmic(ax: Axes) -> None:
    """A logarithmic x axis where methods differ by more than a factor of 5 at their ends."""
    ends = [float(xs[-1]) for line in ax.lines if (xs := np.asarray(line.get_xdata(), dtype=float)).size]
    if ends and min(ends) > 0 and max(ends) / min(ends) > 5:
        ax.set_xscale("log")
        plain_log(ax.xaxis)
