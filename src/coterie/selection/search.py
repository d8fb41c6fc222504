"""The best set of devices under a budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coterie.selection.contexts import affordable
from coterie.selection.posterior import SetSums, distances

Floats = NDArray[np.float64]
Score = Callable[[SetSums], Floats]
"""The value (N,) of N sets."""
_BATCH = 32  # moves that are valued together; the best of them is made


@dataclass(frozen=True)
class Devices:
    """contexts (n, 5), costs (n,), past and features as in `SetSums`, a row each."""

    contexts: Floats
    costs: Floats
    past: Floats
    features: Floats

    def __len__(self) -> int:
        return len(self.costs)

    def sums(self, members: NDArray[np.bool_]) -> SetSums:
        """members: (N, n)."""
        m = members.astype(np.float64)
        pairs = np.einsum("ij,ij->i", m @ distances(self.contexts, self.contexts), m)
        return SetSums(m.sum(axis=1), pairs, m @ self.past, m @ self.features)

    def with_nobody(self) -> Devices:
        rows = (np.concatenate([a, np.zeros((1, *a.shape[1:]))]) for a in (self.contexts, self.costs))
        sums = (np.concatenate([a, np.zeros((1, a.shape[1]))]) for a in (self.past, self.features))
        return Devices(*rows, *sums)


@dataclass(frozen=True)
class BestSet:
    """chosen: ascending.  candidates: sets that were valued."""

    chosen: tuple[int, ...]
    candidates: int


def every_set(devices: Devices, score: Score, budget: float, least: int, most: int | None = None) -> BestSet | None:
    """The best of all sets within the budget and of allowed size, the first of equals; None without any. 2^n sets:
    for a dozen devices.
    """
    n = len(devices)
    members = (np.arange(1, 1 << n)[:, None] >> np.arange(n)) & 1 > 0
    sizes = members.sum(axis=1)
    allowed = affordable(members @ devices.costs, budget) & (sizes >= least) & (sizes <= (n if most is None else most))
    members = members[allowed]
    if not len(members):
        return None
    best = members[int(np.argmax(score(devices.sums(members))))]
    return BestSet(tuple(np.flatnonzero(best).tolist()), len(members))


def greedy_with_swaps(
    devices: Devices,
    score: Score,
    budget: float,
    least: int,
    swaps: int,
    pool: int,
    rng: np.random.Generator,
    most: int | None = None,
) -> BestSet | None:
    """A good set among many devices; None if no set of ``least`` devices keeps the budget."""
    # The best of at most pool random devices that fit is added until none fits or there are most. Three sets are then
    # improved by random moves, swaps in all, which exchange, add or remove a device: the best on this way, the last,
    # and the cheapest devices that fit.
    if not affordable(np.sort(devices.costs)[:least].sum(), budget) or len(devices) < least:
        return None
    search = _Search(devices.with_nobody(), score, budget, least, len(devices) if most is None else most)
    way = search.greedy(pool, rng)
    starts = [max(way[least - 1 :], key=lambda s: s.value), way[-1], search.cheapest()]
    ends = [search.climb(start, swaps // len(starts), rng) for start in starts]
    best = max(ends, key=lambda end: end.value)
    return BestSet(tuple(np.flatnonzero(best.members).tolist()), search.valued)


@dataclass(frozen=True)
class _Set:
    members: NDArray[np.bool_]
    sums: SetSums
    value: float


class _Search:
    def __init__(self, devices: Devices, score: Score, budget: float, least: int, most: int) -> None:
        self.devices, self.score, self.budget, self.least, self.most = devices, score, budget, least, most
        self.nobody = len(devices) - 1
        self.valued = 0

    def greedy(self, pool: int, rng: np.random.Generator) -> list[_Set]:
        way, current = list[_Set](), self._set(np.zeros(self.nobody + 1, np.bool_))
        while len(fits := self.additions(current)):
            if len(fits) > pool:
                fits = rng.choice(fits, pool, replace=False)
            way.append(current := self.best(current, np.full(len(fits), self.nobody), fits))
        return way

    def cheapest(self) -> _Set:
        order = np.argsort(self.devices.costs[:-1], kind="stable")[: self.most]
        members = np.zeros(self.nobody + 1, np.bool_)
        members[order[affordable(np.cumsum(self.devices.costs[order]), self.budget)]] = True
        return self._set(members)

    def climb(self, current: _Set, swaps: int, rng: np.random.Generator) -> _Set:
        for tried in range(0, swaps, _BATCH):
            out, into = self.moves(current, min(swaps - tried, _BATCH), rng)
            if len(out):
                current = max(current, self.best(current, out, into), key=lambda s: s.value)
        return current

    def best(self, current: _Set, out: NDArray[np.int64], into: NDArray[np.int64]) -> _Set:
        d, own, sums = self.devices, self.devices.contexts[current.members], current.sums
        gone, new = (out != self.nobody).astype(np.float64), (into != self.nobody).astype(np.float64)
        to_gone = distances(d.contexts[out], own).sum(axis=1) * gone
        to_new = distances(d.contexts[into], own).sum(axis=1) * new
        between = np.linalg.norm(d.contexts[out] - d.contexts[into], axis=1) * gone * new
        pairs = sums.pairs + 2 * (to_new - to_gone - between)
        past = sums.past - d.past[out] + d.past[into]
        found = SetSums(sums.size - gone + new, pairs, past, sums.features - d.features[out] + d.features[into])
        values = self.score(found)
        self.valued += len(out)
        i = int(np.argmax(values))
        members = current.members.copy()
        members[out[i]], members[into[i]] = False, into[i] != self.nobody
        chosen = SetSums(found.size[i : i + 1], pairs[i : i + 1], past[i : i + 1], found.features[i : i + 1])
        return _Set(members, chosen, float(values[i]))

    def additions(self, current: _Set) -> NDArray[np.int64]:
        if current.members.sum() >= self.most:
            return np.zeros(0, np.int64)
        others = np.flatnonzero(~current.members[:-1])
        costs, spent = self.devices.costs[others], self.devices.costs[current.members].sum()
        further = self.least - int(current.members.sum()) - 1  # needed after this one
        rest = np.zeros(len(costs))
        if further > 0:
            cheapest = np.sort(costs)[: further + 1]
            rest = np.where(costs <= cheapest[further - 1], cheapest.sum() - costs, cheapest[:-1].sum())
        return np.asarray(others[affordable(spent + costs + rest, self.budget)])

    def moves(
        self, current: _Set, number: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        inside, outside = np.flatnonzero(current.members), np.flatnonzero(~current.members)  # nobody is outside
        out, into = rng.choice(np.append(inside, self.nobody), number), rng.choice(outside, number)
        size = len(inside) - (out != self.nobody) + (into != self.nobody)
        costs = self.devices.costs
        fits = affordable(costs[inside].sum() - costs[out] + costs[into], self.budget)
        kept = fits & (size >= self.least) & (size <= self.most) & (out != into)
        return out[kept], into[kept]

    def _set(self, members: NDArray[np.bool_]) -> _Set:
        d, own = self.devices, self.devices.contexts[members]
        pairs = np.array([sum(float(distances(own[i : i + 256], own).sum()) for i in range(0, len(own), 256))])
        past, features = d.past[members].sum(axis=0)[None], d.features[members].sum(axis=0)[None]
        sums = SetSums(np.array([float(members.sum())]), pairs, past, features)
        if not members.any():
            return _Set(members, sums, -np.inf)
        self.valued += 1
        return _Set(members, sums, float(self.score(sums)[0]))
