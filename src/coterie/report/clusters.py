"""Who was in which cluster, round by round, made readable: carried between events, colours that stay with a group."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.colors import to_rgba
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from coterie.record.load import Run
from coterie.record.schema import Members

Sets = tuple[frozenset[int], ...]  # of each client, its clusters; empty where it is in none or nobody knows


@dataclass(frozen=True)
class History:
    """Clusters over the rounds.

    rounds: numbers of the rounds.  members: for each of these, the clusters of every client.  events: rounds
    that clustered; None where the system does not say.  order: clients, grouped by their last cluster.
    groups: the data's own groups, numbered like the last clusters as far as they are the same; None without any.
    """

    rounds: tuple[int, ...]
    members: tuple[Sets, ...]
    events: tuple[int, ...] | None
    order: tuple[int, ...]
    groups: Sets | None

    @property
    def clusters(self) -> list[int]:
        """The numbers in use."""
        return sorted({number for sets in self.members for number in _numbers(sets)})

    @property
    def mixed(self) -> bool:
        """Whether some client was in several clusters at once."""
        return any(len(own) > 1 for sets in self.members for own in sets)

    @property
    def last(self) -> Sets:
        """Membership at the end."""
        return self.members[-1]


def history(run: Run) -> History | None:
    """The clusters of a run; None where no membership was noted.

    A round that did not cluster keeps the membership of the one before. At every event the new clusters are numbered
    so that as many clients as possible keep their number (an optimal matching): a method that names its clusters
    anew each time would otherwise look as if all clients moved.
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
    """The rounds that clustered; None where no round says whether it did."""
    if all(line.notes.clustered is None for line in run.rounds):
        return None
    return tuple(line.round for line in run.rounds if line.notes.clustered)


def order(sets: Sets, groups: Sequence[int] | None = None) -> tuple[int, ...]:
    """Clients by cluster: first those of one cluster alone, then those that share it with later ones; then by group."""

    def place(i: int) -> tuple[int, ...]:
        return (not sets[i], min(sets[i], default=0), len(sets[i]), groups[i] if groups else 0, i)

    return tuple(sorted(range(len(sets)), key=place))


def groups_like(sets: Sets, groups: Sequence[int] | None) -> Sets | None:
    """The data's own groups, numbered for the largest overlap with clusters; None without any."""
    return None if groups is None else _matched(tuple(frozenset((group,)) for group in groups), sets)


def final_members(run: Run) -> Sets | None:
    """Who is in which cluster at the end, as numbered in the history, else as observed beside the protocol."""
    known = history(run)
    if known is not None and any(known.last):
        return known.last
    return None if run.observed.membership is None else _sets(run.observed.membership)


def mingled(run: Run) -> bool:
    """Whether what was noted hides some client's own cluster, which only the observer knows, among others."""
    noted = [line.notes.membership for line in run.rounds if line.notes.membership is not None]
    if not noted or run.observed.membership is None:
        return False
    pairs = zip(_sets(run.observed.membership), _sets(noted[-1]), strict=True)
    return any(own and own < shown for own, shown in pairs)


def pixels(sets_of_rounds: Sequence[Sets], clients: Sequence[int], colours: Sequence[str]) -> NDArray[np.float64]:
    """RGBA image (clients * 12, rounds, 4): each client's row is split evenly between its clusters; clear for none."""
    fine = 12  # divisible by 2, 3, 4 and 6 clusters
    painted = np.zeros((len(clients) * fine, len(sets_of_rounds), 4))
    for column, sets in enumerate(sets_of_rounds):
        for row, client in enumerate(clients):
            own = sorted(sets[client])
            for step in range(fine if own else 0):
                painted[row * fine + step, column] = to_rgba(colours[own[step * len(own) // fine] % len(colours)])
    return painted


def _sets(noted: Members) -> Sets:
    return tuple(frozenset(own or ()) for own in noted)


def _matched(new: Sets, old: Sets) -> Sets:
    """Renumber the clusters of ``new`` for the largest overlap with ``old``; unmatched ones get unused numbers."""
    found, known = _numbers(new), _numbers(old)
    if not known:
        return new
    overlap = [[sum(f in now and k in was for now, was in zip(new, old, strict=True)) for k in known] for f in found]
    pairs = zip(*linear_sum_assignment(overlap, maximize=True), strict=True) if found else ()
    names = {found[i]: known[j] for i, j in pairs if overlap[i][j]}
    free = (number for number in itertools.count() if number not in known)
    names |= {f: next(free) for f in found if f not in names}
    return tuple(frozenset(names[f] for f in own) for own in new)


def _numbers(sets: Sets) -> list[int]:
    return sorted(frozenset().union(*sets))
