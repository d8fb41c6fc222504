"""Devices' contexts, FedEPC eq. (9), and their costs against the time budget."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.protocol.errors import UserError

COLUMNS = ("cpu_ghz", "memory_gib", "samples", "gradient_norm", "loss_reduction")
"""The columns of a context, eq. (9)."""
FARTHEST = 3.0
"""Of a standardised context, and of robust deviations from the median."""
_MAD = 1.4826  # makes the median absolute deviation of a Gaussian its standard deviation
_CONSTANT = 1e-12  # a relative deviation below which a column is constant
_ROUNDING = 1e-9  # by how much, relatively, a sum of costs may exceed the budget

Floats = NDArray[np.float64]


def as_contexts(contexts: Any) -> Floats:
    """(n, 5) float64. Raises UserError for another shape or type."""
    try:
        rows = np.asarray(contexts, np.float64)
    except (TypeError, ValueError) as error:
        raise UserError(f"contexts must be numbers, {', '.join(COLUMNS)} a device: {error}") from None
    if rows.ndim != 2 or rows.shape[1] != len(COLUMNS):
        raise UserError(f"contexts must have shape (devices, {len(COLUMNS)}), {', '.join(COLUMNS)}, not {rows.shape}")
    return rows


def as_costs(costs: Any, devices: int) -> Floats:
    """(n,) float64, one a device. Raises UserError for others."""
    try:
        values = np.asarray(costs, np.float64)
    except (TypeError, ValueError) as error:
        raise UserError(f"costs must be numbers, one a device: {error}") from None
    if values.shape != (devices,):
        raise UserError(f"costs must have shape ({devices},), one a device, not {values.shape}")
    return values


def as_budget(budget: float) -> float:
    """T_max. Raises UserError for NaN and negative numbers."""
    if not budget >= 0:
        raise UserError(f"the time budget must be a number of at least 0, not {budget!r}")
    return float(budget)


def usable(contexts: Floats, costs: Floats) -> NDArray[np.bool_]:
    """(n,) a finite cost of at least 0 and no infinite context."""
    return np.isfinite(costs) & (costs >= 0) & ~np.isinf(contexts).any(axis=1)


def affordable(cost: Any, budget: float) -> Any:
    return cost <= budget * (1 + _ROUNDING)


def believed(costs: Floats, cheapest: float) -> Floats:
    """Costs (n,); one below the share ``cheapest`` of their median counts as the median."""
    middle = np.median(costs)
    return np.asarray(np.where(costs < cheapest * middle, middle, costs))


def time_costs(contexts: Any) -> Floats:
    """(n,) |D_i| / f_i, the terms of the time budget (section 3.4): samples per GHz; infinity for an impossible CPU."""
    rows = as_contexts(contexts)
    frequency, samples = rows[:, 0], rows[:, 2]
    with np.errstate(all="ignore"):
        costs = np.where(frequency > 0, samples / frequency, np.inf)
    return np.where(np.isnan(costs), np.inf, costs)


def standardised(contexts: Any) -> Floats:
    """(n, 5), every column with mean 0 and standard deviation 1, within [-3, 3].

    Values are first ``tamed``. A constant column and NaN (unknown) give 0. Raises UserError for infinite values.
    """
    rows = as_contexts(contexts)
    if np.isinf(rows).any():
        i, column = np.argwhere(np.isinf(rows))[0]
        raise UserError(f"the context of device {i} has {COLUMNS[column]} = {rows[i, column]}; it must be finite")
    if not len(rows):
        return rows
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)  # a column of nothing but NaN: 0 in the end
        rows = tamed(rows)
        rows = rows / np.nanmax(np.abs(rows), axis=0)  # no overflow in squares
        spread = np.nanstd(rows, axis=0)
        scaled = (rows - np.nanmean(rows, axis=0)) / np.where(spread > _CONSTANT, spread, np.inf)
    return np.asarray(np.clip(np.nan_to_num(scaled, nan=0.0), -FARTHEST, FARTHEST))


def tamed(rows: Floats) -> Floats:
    """(n, ...) with values farther than 3 robust deviations (1.4826 times the median absolute deviation) from their
    column's median moved to that distance.
    """
    rows = rows / 4  # no overflow in sums of two
    middle = np.nanmedian(rows, axis=0)
    with np.errstate(over="ignore"):  # an infinite reach moves nothing
        reach = FARTHEST * _MAD * np.nanmedian(np.abs(rows - middle), axis=0)
    moved = np.where(reach > 0, np.clip(rows, middle - reach, middle + reach), rows)
    return np.asarray(4 * moved)


def standardised_rewards(rewards: Floats) -> tuple[Floats, float, float]:
    """Finite rewards (t,) -> (t,) standardised like a column of contexts, and their centre and unit; 0 in a unit of
    1 for equal ones.
    """
    if not len(rewards):
        return rewards, 0.0, 1.0
    values = tamed(rewards)
    largest = float(np.abs(values).max()) or 1.0
    values = values / largest
    centre, spread = float(values.mean()), float(values.std())
    unit = spread if spread > _CONSTANT else 1.0 / largest
    return np.clip((values - centre) / unit, -FARTHEST, FARTHEST), centre * largest, unit * largest
