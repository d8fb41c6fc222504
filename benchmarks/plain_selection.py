"""Selections under a time budget that learn nothing: at random, and the largest data first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from coterie.protocol.errors import UserError
from coterie.selection.contexts import affordable, as_budget, as_costs


def at_random(costs: Any, budget: float, rng: np.random.Generator) -> tuple[int, ...]:
    """Devices in random order, each taken if the budget has room for it. costs: (n,). Ascending numbers."""
    return _filled(rng.permutation(len(costs)), costs, budget)


def by_data_size(samples: Any, costs: Any, budget: float) -> tuple[int, ...]:
    """Devices by their number of samples, the largest first, each taken if the budget has room for it.

    samples, costs: (n,). Among equals the cheaper one is first, then the one with the lower number.
    """
    costs = as_costs(costs, len(costs))
    samples = np.asarray(samples, np.float64)
    if samples.shape != costs.shape or np.isnan(samples).any():
        raise UserError(f"samples must be {len(costs)} numbers, one a device, and not NaN")
    return _filled(np.lexsort((np.arange(len(costs)), costs, -samples)), costs, budget)


def _filled(order: Iterable[int], costs: Any, budget: float) -> tuple[int, ...]:
    """The devices of this order that fit beside those before them. One without a valid cost fits nowhere."""
    costs, budget = as_costs(costs, len(costs)), as_budget(budget)
    chosen, spent = list[int](), 0.0
    for i in order:
        if costs[i] >= 0 and np.isfinite(costs[i]) and affordable(spent + costs[i], budget):
            chosen.append(int(i))
            spent += costs[i]
    return tuple(sorted(chosen))
