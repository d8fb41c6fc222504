"""Which clients were selected, how fairly, and how clusters came about, for systems that note what they chose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from coterie.record.load import Run
from coterie.record.schema import Matrix
from coterie.report.clusters import Sets, groups_like
from coterie.report.figure import MARKERS, MUTED, PAPER, colour, drawn, image, legend, new_figure, round_axis
from coterie.report.plots import WIDTH, clients_axis, explained
from coterie.report.words import plural

TARGETS = (0.25, 0.5, 0.75, 0.8, 0.85, 0.9, 0.95)
"""Values of the leading metric whose latency is told: the accuracies of FedEPC's table 3, and .95."""
_SHOWN = 30  # events in the table


@dataclass(frozen=True)
class Selected:
    """Which clients each round selected. rounds: (r,) their numbers.  chosen: (r, clients) bool."""

    rounds: tuple[int, ...]
    chosen: NDArray[np.bool_]

    @property
    def times(self) -> NDArray[np.int64]:
        """(clients,): how often each was selected."""
        return np.asarray(self.chosen.sum(axis=0), np.int64)

    @property
    def fairness(self) -> float | None:
        """Jain's index of the times, (sum x)^2 / (n sum x^2): 1 if all are equal, 1/n if one client has all."""
        x = self.times.astype(float)
        return float(x.sum() ** 2 / (len(x) * (x @ x))) if x.any() else None


def selected(run: Run) -> Selected | None:
    """The selections of a run; None where no round noted any, or every round asked all clients."""
    noted = [(line.round, line.notes.selected) for line in run.rounds if line.notes.selected is not None]
    if not noted:
        return None
    chosen = np.zeros((len(noted), run.result.clients), dtype=bool)
    for row, (_, names) in zip(chosen, noted, strict=True):
        for name in names:
            number = name.rpartition("/")[2]
            if number.isdecimal() and int(number) < run.result.clients:
                row[int(number)] = True
    return None if chosen.all() else Selected(tuple(r for r, _ in noted), chosen)


def view(run: Run) -> dict[str, Any] | None:
    """What the page says of a run's selections; None where there is nothing to say."""
    found = selected(run)
    if found is None:
        return None
    times = found.times
    never = np.flatnonzero(times == 0)
    return {
        "rounds": len(found.rounds),
        "fairness": found.fairness,
        "never": never.tolist(),
        "most": int(times.max()),
        "clusters": _choices(run),
    }


def _choices(run: Run) -> list[dict[str, Any]]:
    """By cluster: how often it chose, what was expected of its choices, and why it was skipped."""
    rows: dict[str, dict[str, Any]] = {}
    for line in run.rounds:
        for number, choice in line.notes.choices.items():
            row = rows.setdefault(
                number, {"number": number, "sizes": [], "skipped": Counter(), "means": [], "devs": []}
            )
            if choice.skipped is not None:
                row["skipped"][choice.skipped] += 1
                continue
            row["sizes"].append(len(choice.chosen))
            if choice.mean is not None and choice.deviation is not None:
                row["means"].append(choice.mean)
                row["devs"].append(choice.deviation)
    return [
        {
            "number": row["number"],
            "colour": colour(int(row["number"]) if row["number"].isdecimal() else 0),
            "rounds": len(row["sizes"]),
            "size": float(np.mean(row["sizes"])) if row["sizes"] else None,
            "mean": (row["means"][0], row["means"][-1]) if row["means"] else None,
            "deviation": (row["devs"][0], row["devs"][-1]) if row["devs"] else None,
            "skipped": list(row["skipped"].items()),
        }
        for _, row in sorted(rows.items(), key=lambda item: (len(item[0]), item[0]))
    ]


def latencies(run: Run) -> list[dict[str, Any]]:
    """First round in which the leading metric reached each target, and the virtual clock at its end.

    On all test data, and on each client's own; only targets that were reached. Empty for a metric that is no share.
    """
    if not (run.leading.share and run.leading.higher):
        return []
    clock = dict(zip(*run.points("virtual_seconds"), strict=True))
    rows = []
    for target in TARGETS:
        cells: dict[str, tuple[int, float | None] | None] = {}
        for field in explained(run.leading):
            found = [r for r, value in zip(*run.points(field), strict=True) if value >= target]
            cells[field] = (found[0], clock.get(found[0])) if found else None
        if any(cells.values()):
            rows.append({"target": target, "cells": list(cells.values())})
    return rows


def events(run: Run) -> dict[str, Any] | None:
    """Merges, splits and moves of clusters over the rounds: counts by kind, and the first of them in a table."""
    every = [(line.round, event) for line in run.rounds for event in line.notes.events]
    if not every:
        return None
    return {
        "counts": Counter(happened(event.kind) for _, event in every).most_common(),
        "rows": [
            {"round": r, "kind": happened(e.kind), "clusters": e.clusters, "names": e.names, "value": e.value}
            for r, e in every[:_SHOWN]
        ],
        "more": max(len(every) - _SHOWN, 0),
    }


def happened(kind: str) -> str:
    """The kind of an event, as it is shown: ``merged`` of ``merge``."""
    return "merged" if kind == "merge" else kind


@drawn
def selections(found: Selected, order: Sequence[int], members: Sets | None) -> tuple[Figure, str]:
    """Clients by rounds, filled where a client was selected, in the colour of its cluster; beside it how often."""
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
    ax.set(title="Devices in feature space", xlabel=_axis(1, share), ylabel=_axis(2, share))
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


def _axis(number: int, share: NDArray[np.float64]) -> str:
    return f"direction {number} ({100 * share[number - 1]:.0f} % of the variance)"


def _rgb(own: frozenset[int]) -> tuple[float, float, float]:
    return to_rgb(colour(min(own)) if own else MUTED)
