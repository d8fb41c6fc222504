"""The figures of one run. Each function gives inline SVG: its first argument is the prefix of the figure's ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from coterie.report.clusters import History, Sets, groups_like, pixels
from coterie.report.figure import (
    GRID,
    MUTED,
    PALETTE,
    PAPER,
    alpha_ramp,
    colour,
    drawn,
    image,
    key_bar,
    label,
    new_figure,
    percent_axis,
    plain_log,
    round_axis,
)
from coterie.report.load import Matrix, Partition, Round, Run
from coterie.report.words import percent, plural

WIDTH = 10.4  # inches; about 1000 px on a laptop
EXPLAINED = {
    "global_accuracy": ("Global accuracy", "on the whole test set"),
    "local_accuracy": ("Local accuracy", "on test data like the client's own"),
}
_MANY = 40  # clients above which their names no longer fit an axis
_LARGEST = 5  # series in a stack; the rest is one


def points(rounds: Sequence[Round], field: str) -> tuple[list[int], list[float]]:
    """Rounds and values of a metric where it was evaluated."""
    found = [(line.round, value) for line in rounds if (value := getattr(line, field)) is not None]
    return [r for r, _ in found], [value for _, value in found]


@drawn
def accuracy(run: Run) -> tuple[Figure, str]:
    """Both accuracies over the rounds: mean, the clients' bands, and after fine-tuning where that was measured."""
    figure = new_figure(WIDTH, 3.9)
    panels = figure.subplots(1, 2, sharey=True)
    alt = []
    for ax, (field, (title, where)), c in zip(panels, EXPLAINED.items(), PALETTE, strict=False):
        xs, ys = points(run.rounds, field)
        banded = [(float(line.round), band) for line in run.rounds if (band := getattr(line.bands, field)) is not None]
        if banded:
            if len(banded) == 1:  # a band of one point has no width
                banded = [(banded[0][0] + side, banded[0][1]) for side in (-0.1, 0.1)]
            low, q25, _, q75, high = zip(*(band for _, band in banded), strict=True)
            at = [r for r, _ in banded]
            ax.fill_between(at, low, high, color=c, alpha=0.14, lw=0)
            ax.fill_between(at, q25, q75, color=c, alpha=0.28, lw=0)
        ax.plot(xs, ys, color=c, marker="o" if len(xs) <= 12 else None)
        tuned = points(run.rounds, f"fine_tuned_{field}")
        ax.plot(*tuned, color=MUTED, ls="--", lw=1.6, marker="D" if len(tuned[0]) <= 12 else None)
        ax.set_title(f"{title}: {where}")
        _rounds(ax, run)
        if ys:
            alt.append(f"{title} from {percent(ys[0])} in round {xs[0]} to {percent(ys[-1])} in round {xs[-1]}")
    percent_axis(panels[0], "accuracy")
    tuned_any = any(points(run.rounds, f"fine_tuned_{field}")[0] for field in EXPLAINED)
    banded_any = any(getattr(line.bands, field) for line in run.rounds for field in EXPLAINED)
    handles: list[Line2D | Patch] = [Line2D([], [], color=MUTED, label="mean over clients")]
    if banded_any:
        handles.append(Patch(color=MUTED, alpha=0.42, lw=0, label="middle half of the clients"))
        handles.append(Patch(color=MUTED, alpha=0.16, lw=0, label="all clients"))
    if tuned_any:
        handles.append(
            Line2D([], [], color=MUTED, ls="--", lw=1.6, marker="D", label="after each client's own fine-tuning")
        )
    _legend(figure, handles)
    return figure, "; ".join(alt) or "Accuracy: never evaluated"


@drawn
def loss(run: Run) -> tuple[Figure, str]:
    """Both losses over the rounds; logarithmic where they span more than a factor of 20."""
    figure = new_figure(WIDTH / 2, 3.3)
    ax = figure.subplots()
    seen: list[float] = []
    alt = []
    for (field, where), c, dashes in zip(_LOSSES.items(), PALETTE, ("-", "--"), strict=False):
        xs, ys = points(run.rounds, field)
        ax.plot(xs, ys, color=c, ls=dashes, marker="o" if len(xs) <= 12 else None, label=where)
        bands = [(line.round, band[1], band[3]) for line in run.rounds if (band := getattr(line.bands, field))]
        if bands:
            at, q25, q75 = (np.array(column, dtype=float) for column in zip(*bands, strict=True))
            ax.fill_between(at, q25, q75, color=c, alpha=0.2, lw=0)
        seen += ys
        if ys:
            alt.append(f"{where} from {ys[0]:.3g} to {ys[-1]:.3g}")
    if seen and min(seen) > 0 and max(seen) / min(seen) > 20:
        ax.set_yscale("log")
        plain_log(ax.yaxis)
    ax.set_title("Loss: mean and middle half of the clients")
    ax.set_ylabel("cross entropy" if seen else "")
    _rounds(ax, run)
    ax.legend()
    return figure, "Loss: " + "; ".join(alt)


_LOSSES = {"global_loss": "on the whole test set", "local_loss": "on test data like the client's own"}


@drawn
def classes(partition: Partition, order: Sequence[int], members: Sets | None) -> tuple[Figure, str]:
    """Who holds which classes: samples of each client above, share of each class below, clusters and groups at foot."""
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
    top.set_ylabel("samples")
    top.yaxis.set_major_locator(MaxNLocator(3))
    top.yaxis.set_major_formatter(EngFormatter(sep=""))
    top.set_title("Training samples of each client, and its share of each class")
    image(heat, shares.T, -0.5, clients - 0.5, labels, cmap=alpha_ramp(), vmin=0, vmax=top_share)
    for edge in _edges(order, members):
        heat.axvline(edge, color=GRID, lw=0.8)
    heat.yaxis.set_major_locator(MaxNLocator(10, integer=True))
    heat.set_ylabel("class")
    key_bar(figure, heat, alpha_ramp(), 0, top_share, "share of client", percent=True)
    for ax, (name, sets) in zip(foot, shown.items(), strict=True):
        strip = pixels([sets], order, PALETTE).reshape(clients, -1, 4).swapaxes(0, 1)
        image(ax, strip, -0.5, clients - 0.5, 1)
        ax.set_yticks([0], [name])
        ax.tick_params(length=0)
    for ax in (top, heat, *foot[:-1]):
        ax.tick_params(axis="x", length=0, labelbottom=False)
    _clients(([heat, *foot])[-1], order, "x", grouped=members is not None)
    held = (counts > 0).sum(axis=1)
    return figure, (
        f"Heat map of {plural(clients, 'client')} by {plural(labels, 'class', 'classes')}: a client holds "
        f"{held.min()} to {held.max()} classes and {totals.min():.0f} to {totals.max():.0f} samples"
    )


@drawn
def membership(known: History) -> tuple[Figure, str]:
    """Clients by rounds, coloured by cluster; a client of several clusters is striped; triangles mark clusterings.

    A strip at the side has the data's own groups, where there are any.
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
    if known.events:
        ax.plot(
            known.events,
            [1.02] * len(known.events),
            ls="",
            marker="v",
            ms=5,
            color=MUTED,
            transform=ax.get_xaxis_transform(),
            clip_on=False,
        )
    if known.groups is not None:
        side = ax.inset_axes((1.01, 0.0, 0.018, 1.0))
        image(side, pixels([known.groups], known.order, PALETTE), 0, 1, clients)
        side.set_yticks([])
        side.set_xticks([0.5], ["group"])
        side.tick_params(length=0)
    ax.set_title("Cluster of each client", pad=18)
    round_axis(ax, first, last)
    _clients(ax, known.order, "y", grouped=True)
    handles: list[Line2D | Patch] = [
        Patch(color=colour(number), label=f"cluster {number}") for number in known.clusters[: len(PALETTE)]
    ]
    if known.events:
        handles.append(Line2D([], [], ls="", marker="v", ms=5, color=MUTED, label="clustering event"))
    _legend(figure, handles)
    return figure, (
        f"Heat map of {plural(clients, 'client')} over rounds {first} to {last} in "
        f"{plural(len(known.clusters), 'cluster')}" + ("; some clients are in several at once" if known.mixed else "")
    )


@drawn
def agreement(run: Run) -> tuple[Figure, str]:
    """The adjusted Rand index over the rounds, where the data have groups, beside how many clusters there are."""
    noted = [(line.round, line.grouping) for line in run.rounds if line.grouping]
    rounds, found = zip(*noted, strict=True)
    known = [(r, one.ari) for r, one in noted if one.ari is not None]
    figure = new_figure(WIDTH if known else WIDTH / 2, 2.9)
    *left, right = figure.subplots(1, 1 + bool(known), squeeze=False)[0]
    mark = "o" if len(rounds) <= 12 else None
    alt = []
    for ax in left:
        ax.plot(*zip(*known, strict=True), color=PALETTE[0], marker=mark)
        ax.set_ylim(min(-0.05, *(ari - 0.05 for _, ari in known)), 1.05)
        ax.set_title("Clusters and the data's own groups")
        ax.set_ylabel("adjusted Rand index")
        alt.append(
            f"Adjusted Rand index from {known[0][1]:.2f} in round {known[0][0]} to {known[-1][1]:.2f} at the end"
        )
    right.plot(rounds, [one.clusters for one in found], color=PALETTE[2], marker=mark, label="clusters")
    per_client = [one.per_client for one in found]
    right.plot(rounds, per_client, color=PALETTE[1], marker=mark, ls="--", label="clusters of a client, mean")
    right.set_ylim(0, 1.15 * max(*per_client, *(one.clusters for one in found), 1))
    right.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    right.set_title("How many clusters")
    for ax in (*left, right):
        _rounds(ax, run)
    right.legend()
    alt.append(f"{plural(found[-1].clusters, 'cluster')} at the end, {per_client[-1]:.2f} a client")
    return figure, "; ".join(alt)


@drawn
def sizes(rounds: Sequence[Round]) -> tuple[Figure, str]:
    """Clients in each cluster over the rounds, where only the sizes are known."""
    noted = [
        (line.round, line.notes.clusters.sizes) for line in rounds if line.notes.clusters and line.notes.clusters.sizes
    ]
    figure = new_figure(WIDTH, 3.0)
    ax = figure.subplots()
    width = max(len(counts) for _, counts in noted)
    stack = {f"cluster {k}": {r: counts[k] if k < len(counts) else 0 for r, counts in noted} for k in range(width)}
    _stack(ax, [r for r, _ in noted], stack)
    ax.set_ylabel("clients")
    ax.set_title("Sizes of the clusters")
    _legend(figure, [Patch(color=colour(k), label=f"cluster {k}") for k in range(min(width, len(PALETTE)))])
    return figure, f"Sizes of up to {plural(width, 'cluster')} over {plural(len(noted), 'round')}"


@drawn
def affinity(matrix: Matrix, order: Sequence[int], members: Sets | None) -> tuple[Figure, str]:
    """How alike the system found its clients, in the order of their clusters; the diagonal is left out."""
    values = np.array([[np.nan if v is None else v for v in row] for row in matrix])[np.ix_(order, order)]
    np.fill_diagonal(values, np.nan)
    known = values[np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    high = high if high > low else low + 1e-9
    clients = len(order)
    figure = new_figure(WIDTH / 2, WIDTH / 2 - 0.6)
    ax = figure.subplots()
    image(ax, values, -0.5, clients - 0.5, clients, cmap=alpha_ramp(PALETTE[2]), vmin=low, vmax=high)
    ax.set_aspect("equal")
    for edge in _edges(order, members):
        ax.axhline(edge, color=MUTED, lw=0.8)
        ax.axvline(edge, color=MUTED, lw=0.8)
    for axis in ("x", "y"):
        _clients(ax, order, axis, grouped=members is not None)
    ax.set_title("Affinity of the clients")
    key_bar(figure, ax, alpha_ramp(PALETTE[2]), low, high, "affinity")
    return figure, f"Matrix of {clients} by {clients} affinities from {low:.3g} to {high:.3g}"


@drawn
def per_round(run: Run) -> tuple[Figure, str]:
    """Bytes sent by role, real seconds by kind of work, and virtual seconds, round by round."""
    rounds = [line.round for line in run.rounds]
    stacks = [
        ("Bytes sent", "MB", _series({line.round: line.bytes_up for line in run.rounds}, 1e-6)),
        ("Real time by work", "seconds", _series({line.round: line.phase_seconds for line in run.rounds}, 1)),
    ]
    panels = [panel for panel in stacks if panel[2]]
    clock = _durations(run)
    figure = new_figure(WIDTH, 3.6)
    axes = figure.subplots(1, len(panels) + bool(clock), squeeze=False)[0]
    for ax, (title, unit, series) in zip(axes, panels, strict=False):
        shown = _stack(ax, rounds, series)
        ax.set_title(title)
        ax.set_ylabel(f"{unit} a round")
        ax.legend(
            handles=[Patch(color=c, label=label(name)) for name, c in shown.items()],
            loc="upper left",
            bbox_to_anchor=(-0.02, -0.2),
            ncols=1,
            handlelength=1,
            labelspacing=0.3,
        )
    if clock:
        _stack(axes[-1], rounds, {"clock": clock}, first=5)
        axes[-1].set_title("Virtual time")
        axes[-1].set_ylabel("seconds a round")
    for ax in axes:
        _rounds(ax, run)
        ax.set_ylim(bottom=0)
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    names = [title for title, *_ in panels] + (["Virtual time"] if clock else [])
    return figure, f"{', '.join(names)}, for each of {plural(len(rounds), 'round')}"


def _durations(run: Run) -> dict[int, float]:
    """Virtual seconds of each round, from the clock at the rounds' ends; empty where there is no clock."""
    at = [clock for line in run.rounds if (clock := line.virtual_seconds) is not None]
    if len(at) < len(run.rounds):
        return {}
    before = [run.result.set_up.virtual_seconds or 0.0, *at]
    return {line.round: max(b - a, 0.0) for line, a, b in zip(run.rounds, before, at, strict=False)}


def _series(parts: Mapping[int, Mapping[str, float]], factor: float) -> dict[str, dict[int, float]]:
    """round -> name -> value as name -> round -> value: the largest names, then the rest as one."""
    totals: dict[str, float] = {}
    for values in parts.values():
        for name, value in values.items():
            totals[name] = totals.get(name, 0) + value
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
    shown = {}
    for number, (name, values) in enumerate(series.items(), start=first):
        above = base + [values.get(r, 0) for r in range(rounds[0], rounds[-1] + 1)]
        shown[name] = colour(number)
        ax.stairs(above, edges, baseline=base, fill=True, color=colour(number), lw=0)
        base = above
    return shown


def _rounds(ax: Axes, run: Run) -> None:
    round_axis(ax, run.rounds[0].round, run.rounds[-1].round)


def _clients(ax: Axes, order: Sequence[int], axis: str, grouped: bool) -> None:
    """Client numbers along an axis, all of them where they fit."""
    fits = len(order) <= _MANY
    name = (
        "client" if not grouped else "client, grouped by last cluster" if fits else "clients, grouped by last cluster"
    )
    ticks = list(range(len(order))) if fits else []
    which = ax.xaxis if axis == "x" else ax.yaxis
    if fits or grouped:
        which.set_ticks(ticks, [str(order[i]) for i in ticks], fontsize=8 if len(order) <= 24 else 6.5)
    if axis == "x":
        ax.set_xlabel(name)
        ax.tick_params(axis="x", length=0, labelbottom=True)
    else:
        ax.set_ylabel(name)
        ax.tick_params(axis="y", length=0)


def _edges(order: Sequence[int], members: Sets | None) -> list[float]:
    """Where one cluster ends and the next begins."""
    if members is None:
        return []
    first = [min(members[i], default=-1) for i in order]
    return [i - 0.5 for i in range(1, len(first)) if first[i] != first[i - 1]]


def _legend(figure: Figure, handles: Sequence[Line2D | Patch]) -> None:
    figure.legend(handles=list(handles), loc="outside lower center", ncols=min(len(handles), 7), handlelength=1.6)
