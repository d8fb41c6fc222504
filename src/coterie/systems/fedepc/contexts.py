"""The hub's knowledge of each device: its claims with their bounds, the contexts of eq. (9), costs and the time budget.

Only the gradient's norm in modes paper and literal is no claim.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import log, nan

import numpy as np

import coterie.method as fl
from coterie.clustering import isomorphic
from coterie.selection.contexts import affordable, believed

MOST_LOSS = 1e6
"""The largest that counts: a device with a larger one says this."""
MOST_NORM = 1e12
CPU_GHZ = (0.001, 1000.0)
MEMORY_GIB = (1e-6, 1e6)


class Known(fl.State):
    """losses: of its cluster's models, newest last.  norms: of gradients, where it has trained.  missed: unanswered
    requests in a row.
    """

    samples: int
    cpu_ghz: float
    memory_gib: float
    losses: list[float] = fl.field(default_factory=list)
    norms: list[float] = fl.field(default_factory=list)
    missed: int = 0

    def answered(self, samples: int, loss: float, norm: float, history: int) -> None:
        """norm: NaN if it has not trained.  history: tau, the rounds to remember."""
        self.samples, self.missed = samples, 0
        self.losses = [*self.losses, loss][-history - 1 :]
        if norm == norm:
            self.norms = [*self.norms, norm][-history:]

    def context(self) -> tuple[float, float, float, float, float]:
        """x_i of eq. (9). The mean loss reduction telescopes. NaN: unknown."""
        steps = len(self.losses) - 1
        reduction = (self.losses[0] - self.losses[-1]) / steps if steps > 0 else nan
        norm = sum(self.norms) / len(self.norms) if self.norms else nan
        return self.cpu_ghz, self.memory_gib, float(self.samples), norm, reduction

    @property
    def cost(self) -> float:
        """|D_i| / f_i, in samples / GHz."""
        return self.samples / self.cpu_ghz


def check_within(name: str, what: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise fl.PeerError(f"{name}: {what} is {value:.6g}; from {least:.6g} to {most:.6g} are taken")


def check_device(name: str, samples: int, cpu_ghz: float, memory_gib: float) -> None:
    check_within(name, "the number of samples", samples, 1, fl.MOST_SAMPLES)
    check_within(name, "cpu_ghz", cpu_ghz, *CPU_GHZ)
    check_within(name, "memory_gib", memory_gib, *MEMORY_GIB)


def check_training(name: str, samples: int, loss: float, norm: float = 0.0) -> None:
    check_within(name, "the number of samples", samples, 1, fl.MOST_SAMPLES)
    check_within(name, "the loss", loss, 0, MOST_LOSS)
    check_within(name, "the gradient norm", norm, 0, MOST_NORM)


def check_vector(name: str, vector: fl.Array, floor: float, gamma: float, channels: int | None) -> fl.Doubles:
    """s^(i) of eq. (2), (C,) float64. gamma: of eq. (3).  channels: C, if known.

    Raises PeerError for another length, a sparsity outside [0, 1], or a noise floor that no C channels have.
    """
    if not len(vector) or (channels is not None and len(vector) != channels):
        raise fl.PeerError(f"{name}: a vector of {len(vector)} sparsities; expected {channels or 'at least one'}")
    check_within(name, "the smallest sparsity", float(vector.min()), 0, 1)
    check_within(name, "the largest sparsity", float(vector.max()), 0, 1)
    check_within(name, "the noise floor", floor, 0, (1 + gamma * len(vector)) * log(2))
    return np.asarray(vector, np.float64)


def gradient_norm(spec: fl.ModelSpec, start: fl.Array, end: fl.Array, lr: float) -> float:
    """|g_i| of eq. (9): the L2 norm of (W_k - W_i) / lr over the parameters, which grows with the steps."""
    change = np.where(spec.buffers, 0, start.astype(np.float64) - end)
    return min(float(np.linalg.norm(change)) / lr, MOST_NORM)


def time_budget(costs: fl.Doubles, longest: float, share: float, least: int = 1) -> float:
    """T_max of a cluster with ``time_budget=auto``: share * sum_i cost_i, and at least ``least * longest``.

    costs: (n,) of its devices.  longest: the largest that counts.
    """
    # so a slow device raises its own cluster's budget by at most share * longest, and no other's
    return float(max(share * np.minimum(costs, longest).sum(), least * longest))


def room(costs: fl.Doubles, budget: float, cheapest: float) -> int:
    """How many of these devices (n,) the time budget has room for. A cost below the share ``cheapest`` of their
    median counts as the median.
    """
    # so a device that claims to cost nothing never trains a cluster of slow devices alone
    return int(affordable(np.cumsum(np.sort(believed(costs, cheapest))), budget).sum())


def regrouped(
    groups: isomorphic.Groups | None,
    moved: Mapping[str, tuple[fl.Doubles, float]],
    left: Iterable[str],
    settings: isomorphic.Aidc,
) -> tuple[isomorphic.Groups, Sequence[isomorphic.Event]]:
    """Algorithm 2. moved: vectors and floors by name; of unusual lengths they are left out.

    left: those that were in no cluster, or have moved, do not count. Raises PeerError for no device at all.
    """
    common = Counter(len(vector) for vector, _ in moved.values()).most_common(1)
    moved = {name: one for name, one in moved.items() if len(one[0]) == common[0][0]}
    if groups is None:
        if not moved:
            raise fl.PeerError("no description has come, so there is nothing to cluster")
        features, floors = (np.array([one[i] for one in moved.values()]) for i in (0, 1))
        return isomorphic.cluster(tuple(moved), features, floors, settings)
    left = [name for name in left if name in groups.names and name not in moved]
    return isomorphic.update(groups, moved, left, settings) if moved or left else (groups, ())
