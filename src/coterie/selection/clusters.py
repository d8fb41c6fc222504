"""Selection of the fastest devices of sampled clusters: HACCS (Wolfrath et al., IPDPS 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.protocol.errors import UserError

Doubles = NDArray[np.float64]


def cluster_weights(clusters: NDArray[np.int64], losses: Any, seconds: Any, rho: float) -> Doubles:
    """(K,) rho (1 - L_k / max L) + (1 - rho) A_k / sum A: how likely each cluster is to be sampled, up to scale.

    clusters: (n,) of each device.  losses: (n,) at least 0, NaN for unknown.  seconds: (n,) at least 0.
    L_k is the mean of a cluster's seconds, A_k that of its known losses, by default the largest of the others. Raises
    UserError for rho beyond [0, 1].
    """
    if not 0 <= rho <= 1:
        raise UserError(f"rho must lie in [0, 1], not {rho}")
    loss, duration = np.asarray(losses, np.float64), np.asarray(seconds, np.float64)
    count = int(clusters.max(initial=-1)) + 1
    latency = np.bincount(clusters, duration, count) / np.bincount(clusters, minlength=count)
    known = ~np.isnan(loss)
    number = np.bincount(clusters, known, count)
    mean = np.bincount(clusters, np.where(known, loss, 0.0), count) / np.maximum(number, 1)
    mean = np.where(number > 0, mean, mean.max(initial=0.0))
    slowest, total = latency.max(initial=0.0), mean.sum()
    faster = 1 - latency / slowest if slowest > 0 else np.zeros(count)
    return np.asarray(rho * faster + (1 - rho) * (mean / total if total > 0 else np.full(count, 1 / max(count, 1))))


def sample_fastest(
    weights: Doubles, ordered: Sequence[Sequence[int]], number: int, rng: np.random.Generator
) -> tuple[int, ...]:
    """Devices as they are drawn: a cluster by weight, with replacement, then its next device.

    ordered: the devices of each cluster, fastest first.  number: fewer only where there are fewer.
    """
    left = [list(devices) for devices in ordered]
    chosen: list[int] = []
    while len(chosen) < number and any(left):
        there = np.array([bool(devices) for devices in left])
        chances = np.where(there, weights, 0.0)
        chances = chances if chances.sum() > 0 else there.astype(np.float64)
        chosen.append(left[int(rng.choice(len(left), p=chances / chances.sum()))].pop(0))
    return tuple(chosen)
