"""Clusters and selections by round, and what was reached when."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.record.load import Run
from coterie.record.schema import ChoiceRecord, Members
from coterie.report.figure import colour, rgba
from coterie.report.words import explained

Sets = tuple[frozenset[int], ...]  # of each client, its clusters; empty where it is in none or nobody knows
TARGETS = (0.25, 0.5, 0.75, 0.8, 0.85, 0.9, 0.95)
"""Of the leading metric: FedEPC's table 3, and .95."""
_SHOWN = 30  # events in the table


@dataclass(frozen=True)
class History:
    """Clusters over the rounds.

    members: by round, every client's.  events: rounds that clustered; None if unknown.  order: clients by their last
    cluster.  groups: the data's own, numbered like the last clusters; None without any.
    """

    rounds: tuple[int, ...]
    members: tuple[Sets, ...]
    events: tuple[int, ...] | None
    order: tuple[int, ...]
    groups: Sets | None

    @property
    def clusters(self) -> list[int]:
        return sorted({number for sets in self.members for number in _numbers(sets)})

    @property
    def mixed(self) -> bool:
        return any(len(own) > 1 for sets in self.members for own in sets)

    @property
    def last(self) -> Sets:
        return self.members[-1]


def history(run: Run) -> History | None:
    """None where no membership was noted. A round without clustering keeps the last one. New clusters are numbered so
    that as many clients as possible keep their number.
    """
    members: list[Sets] = []
    nobody: Sets = (frozenset(),) * run.result.clients
    current = known = nobody  # now, and where each client was last
    for line in run.rounds:
        if line.notes.membership is not None:
            current = _matched(_sets(line.notes.membership), known)
            known = tuple(now or before for now, before in zip(current, known, strict=True))
        elif line.notes.clustered is not False:
            current = nobody
        members.append(current)
    if known == nobody:
        return None
    rounds = tuple(line.round for line in run.rounds)
    groups = run.partition.groups
    return History(rounds, tuple(members), events(run), order(known, groups), groups_like(known, groups))


def events(run: Run) -> tuple[int, ...] | None:
    if all(line.notes.clustered is None for line in run.rounds):
        return None
    return tuple(line.round for line in run.rounds if line.notes.clustered)


def order(sets: Sets, groups: Sequence[int] | None = None) -> tuple[int, ...]:
    """By cluster: first clients of one alone, then those also in later ones; by group."""

    def place(i: int) -> tuple[int, ...]:
        return (not sets[i], min(sets[i], default=0), len(sets[i]), groups[i] if groups else 0, i)

    return tuple(sorted(range(len(sets)), key=place))


def groups_like(sets: Sets, groups: Sequence[int] | None) -> Sets | None:
    return None if groups is None else _matched(tuple(frozenset((group,)) for group in groups), sets)


def final_members(run: Run) -> Sets | None:
    known = history(run)
    if known is not None and any(known.last):
        return known.last
    return None if run.observed.membership is None else _sets(run.observed.membership)


def mingled(run: Run) -> bool:
    """The notes hide some client's own cluster among others."""
    noted = [line.notes.membership for line in run.rounds if line.notes.membership is not None]
    if not noted or run.observed.membership is None:
        return False
    pairs = zip(_sets(run.observed.membership), _sets(noted[-1]), strict=True)
    return any(own and own < shown for own, shown in pairs)


def pixels(sets_of_rounds: Sequence[Sets], clients: Sequence[int], colours: Sequence[str]) -> NDArray[np.uint8]:
    """RGBA (clients * 12, rounds, 4): a client's row split evenly between its clusters."""
    fine = 12  # divisible by 2, 3, 4 and 6 clusters
    painted = np.zeros((len(clients), fine, len(sets_of_rounds), 4), np.uint8)
    for column, sets in enumerate(sets_of_rounds):
        for row, client in enumerate(clients):
            if own := sorted(sets[client]):
                stripes = [rgba(colours[number % len(colours)]) for number in own]
                painted[row, :, column] = (
                    stripes[0] if len(own) == 1 else [stripes[step * len(own) // fine] for step in range(fine)]
                )
    return painted.reshape(-1, len(sets_of_rounds), 4)


def _sets(noted: Members) -> Sets:
    return tuple(frozenset(own or ()) for own in noted)


def _matched(new: Sets, old: Sets) -> Sets:
    found, known = _numbers(new), _numbers(old)
    if not known:
        return new
    from scipy.optimize import linear_sum_assignment  # slow to import

    overlap = [[sum(f in now and k in was for now, was in zip(new, old, strict=True)) for k in known] for f in found]
    pairs = zip(*linear_sum_assignment(overlap, maximize=True), strict=True) if found else ()
    names = {found[i]: known[j] for i, j in pairs if overlap[i][j]}
    free = (number for number in itertools.count() if number not in known)
    names |= {f: next(free) for f in found if f not in names}
    return tuple(frozenset(names[f] for f in own) for own in new)


def _numbers(sets: Sets) -> list[int]:
    return sorted(frozenset().union(*sets))


@dataclass(frozen=True)
class Selected:
    """rounds: (r,) their numbers.  chosen: (r, clients) bool."""

    rounds: tuple[int, ...]
    chosen: NDArray[np.bool_]

    @property
    def times(self) -> NDArray[np.int64]:
        return np.asarray(self.chosen.sum(axis=0), np.int64)

    @property
    def fairness(self) -> float | None:
        """Jain's index of the times, (sum x)^2 / (n sum x^2): 1 if all are equal, 1/n for one client."""
        x = self.times.astype(float)
        return float(x.sum() ** 2 / (len(x) * (x @ x))) if x.any() else None

    @property
    def never(self) -> list[int]:
        found: list[int] = np.flatnonzero(self.times == 0).tolist()
        return found


def selected(run: Run) -> Selected | None:
    """None where no round noted a selection, or all asked everybody."""
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


def choices(run: Run) -> list[dict[str, Any]]:
    of: dict[str, list[ChoiceRecord]] = {}
    for line in run.rounds:
        for number, choice in line.notes.choices.items():
            of.setdefault(number, []).append(choice)
    return [_of_cluster(number, of[number]) for number in sorted(of, key=lambda number: (len(number), number))]


def _of_cluster(number: str, every: Sequence[ChoiceRecord]) -> dict[str, Any]:
    made = [one for one in every if one.skipped is None]
    known = [one for one in made if one.mean is not None and one.deviation is not None]
    return {
        "number": number,
        "colour": colour(int(number) if number.isdecimal() else 0),
        "rounds": len(made),
        "size": float(np.mean([len(one.chosen) for one in made])) if made else None,
        "mean": (known[0].mean, known[-1].mean) if known else None,
        "deviation": (known[0].deviation, known[-1].deviation) if known else None,
        "skipped": list(Counter(one.skipped for one in every if one.skipped is not None).items()),
    }


def latencies(run: Run) -> list[dict[str, Any]]:
    """First round in which the leading metric reached each target, and the virtual clock then, by side, without targets
    reached at once. Empty for a metric that is no share.
    """
    if not (run.leading.share and run.leading.higher):
        return []
    clock = dict(zip(*run.points("virtual_seconds"), strict=True))
    rows = []
    begun = [values[0] for field in explained(run.leading) if (values := run.points(field)[1])]
    for target in (one for one in TARGETS if one > min(begun, default=0.0)):
        cells: dict[str, tuple[int, float | None] | None] = {}
        for field in explained(run.leading):
            found = [r for r, value in zip(*run.points(field), strict=True) if value >= target]
            cells[field] = (found[0], clock.get(found[0])) if found else None
        if any(cells.values()):
            rows.append({"target": target, "cells": list(cells.values())})
    return rows


def cluster_events(run: Run) -> dict[str, Any] | None:
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
    return "merged" if kind == "merge" else kind
