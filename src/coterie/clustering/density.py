"""Dense parts of devices: "FedEPC", eq. (5) and (6), algorithm 2, l. 1-12.

From divergences (n, n), symmetric with a zero diagonal, to numbers of parts from 0, NOISE for none.
"""

from __future__ import annotations

import numpy as np

from coterie.clustering.labels import NOISE, Labels
from coterie.protocol.arrays import Array, Doubles, Flags

THIRD = 3  # the radius reaches this neighbour at least
FEW = 2000  # devices; above, eq. (5) goes without its logarithm

_BLOCK = 1024  # rows at a time


def radii(d: Array, neighbours: int) -> Doubles:
    """(n,) eq. (5) for each device's neighbourhood: (mu + sigma) / sqrt(log(n + 1)), the third neighbour's at least.

    mu, sigma: mean and standard deviation of the divergences to its nearest ``neighbours``.
    """
    n = len(d)
    k = min(neighbours, n - 1)
    if k == 0:
        return np.zeros(n)
    found = np.empty(n)
    shrink = np.sqrt(np.log(max(n, 2) + 1)) if n <= FEW else 1.0
    for lo in range(0, n, _BLOCK):
        rows = np.partition(d[lo : lo + _BLOCK], k, axis=1)[:, : k + 1].astype(np.float64)
        nearest = np.sort(rows, axis=1)[:, 1:]  # without the device itself
        spread = (nearest.mean(axis=1) + nearest.std(axis=1)) / shrink  # eq. (5): mu (1 + sigma / mu) / sqrt(log N)
        found[lo : lo + _BLOCK] = np.maximum(spread, nearest[:, min(THIRD, k) - 1])
    return found


def entropies(s: Doubles) -> Doubles:
    """(n,) -s ln s of each device, mean over its channels, (n, C)."""
    from scipy.special import xlogy

    return np.asarray(-xlogy(s, s).mean(axis=1))


def min_points(sizes: Array, entropy: Doubles, eta: float, most: int | None = None) -> Labels:
    """Eq. (6), ceil(|C| / (1 + exp(-eta Entropy(C)))), within [2, most]."""
    with np.errstate(over="ignore"):  # 1 / (1 + infinity) is 0, which is right
        points = np.ceil(sizes / (1 + np.exp(-eta * entropy)))
    return np.asarray(points if most is None else np.clip(points, 2, max(most, 2)), dtype=np.int64)


def parts(d: Array, s: Doubles, neighbours: int, eta: float) -> Labels:
    """Algorithm 2, l. 1-12, with a radius and MinPts for each device -> (n,) parts.

    Neighbours lie within each other's radius, so a distant device reaches nobody. C of eq. (6) is a device's
    neighbourhood, with itself.
    """
    n, radius, own = len(d), radii(d, neighbours).astype(d.dtype), entropies(s)
    sizes, entropy = np.empty(n, np.int64), np.empty(n)
    for lo in range(0, n, _BLOCK):
        near = d[lo : lo + _BLOCK] <= np.minimum(radius[lo : lo + _BLOCK, None], radius)
        sizes[lo : lo + _BLOCK] = near.sum(axis=1)
        entropy[lo : lo + _BLOCK] = near @ own
    core = sizes >= min_points(sizes, entropy, eta, int(np.ceil(np.sqrt(n))))
    return _expanded(d, radius, core)


def literal_parts(s: Doubles, mjs: Array, eta: float) -> Labels:
    """Algorithm 2, l. 1-12, as printed -> (n,) parts. C of eq. (5) and (6) is everybody."""
    n = len(s)
    # eq. (5), infinite for one device; the largest number below, because "<" is strict
    epsilon = np.nextafter((s.mean() + s.std()) / np.sqrt(np.log(n)), 0) if n > 1 else np.inf
    points = min_points(np.array(n), entropies(s).sum(), eta)  # eq. (6)
    core = np.array([(row <= epsilon).sum() >= points for row in mjs])
    return _expanded(mjs, np.full(n, epsilon), core)


def _expanded(d: Array, radius: Array, core: Flags) -> Labels:
    labels = np.full(len(d), NOISE)
    found = 0
    for first in np.flatnonzero(core):
        if labels[first] != NOISE:
            continue
        labels[first], waiting = found, [first]
        while waiting:
            i = waiting.pop()
            reached = np.flatnonzero((labels == NOISE) & (d[i] <= np.minimum(radius[i], radius)))
            labels[reached] = found
            waiting.extend(reached[core[reached]])
        found += 1
    return labels
