"""The hub's state of one cluster: its model, the bandit of algorithm 3, and the losses of its panel.

L_k (algorithm 4, l. 12) is the mean loss of W_k on the training data of the panel, which is drawn with the cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from statistics import fmean
from typing import Any

import numpy as np

import coterie.method as fl
from coterie.selection.bandit import Bandit, Choice, Cics, learned

LEAST_LOSS = 1e-6
"""Smaller losses are all alike for the reward."""


class Chosen(fl.State):
    """A choice without its reward yet: contexts (n, 5), places of the chosen, and by name the losses of the model
    before.
    """

    contexts: fl.Doubles
    places: tuple[int, ...]
    losses: dict[str, float]


class Cluster(fl.State):
    """weights: (d,) W_k, None for W^0.  total: mode hardened: the message with its sum, encoded.

    panel: the devices that measure W_k.  losses: by name, measured on the current W_k.
    chosen: the last choice that trained, until its reward is known.
    budget: T_max.  owed: places in a round still due to it (``selection/places.py``).
    moved: the last training's change of L_k, infinite while unknown.
    calm: rounds in a row with little change.  stopped: it has converged (stop=cluster).
    """

    weights: fl.Vector | None = None
    total: bytes = b""
    panel: tuple[str, ...] = ()
    losses: dict[str, float] = fl.field(default_factory=dict)
    bandit: Bandit = fl.field(default_factory=Bandit)
    chosen: Chosen | None = None
    budget: float = 0.0
    owed: float = 0.0
    moved: float = inf
    calm: int = 0
    stopped: bool = False

    @property
    def loss(self) -> float | None:
        """L_k as last measured."""
        known = self.losses or (self.chosen.losses if self.chosen else {})
        return fmean(known.values()) if known else None

    @property
    def is_measured(self) -> bool:
        return bool(self.losses) and self.chosen is None

    def drawn(self, names: Sequence[str], size: int, source: np.random.Generator) -> None:
        kept = [name for name in self.panel if name in names]
        others = [name for name in names if name not in kept]
        more = source.permutation(len(others))[: max(0, size - len(kept))]
        self.panel = tuple(sorted([*kept, *(others[i] for i in more)], key=names.index))
        self.losses = {name: loss for name, loss in self.losses.items() if name in kept}

    def measured(self, losses: Mapping[str, float], settings: Cics) -> float | None:
        """Note this round's measurements. Returns the last training's change of L_k, or None."""
        # Only panel devices that have measured before and after count. The reward of the choice (algorithm 3, l. 7 and
        # 8) is ln(L_k before / L_k now): a late round lowers a loss by less than an early one, but by about the same
        # factor.
        self.losses |= {name: losses[name] for name in self.panel if name in losses}
        if self.chosen is None or not (both := sorted(self.chosen.losses.keys() & self.losses.keys())):
            return None
        old, new = (fmean(by[name] for name in both) for by in (self.chosen.losses, self.losses))
        reward = float(np.log(max(old, LEAST_LOSS) / max(new, LEAST_LOSS)))
        self.bandit = learned(self.bandit, self.chosen.contexts, self.chosen.places, reward, settings)
        self.chosen = None
        return new - old


@dataclass(frozen=True, eq=False)
class Pick:
    """Among the devices ``names`` of a cluster, by their ``contexts`` (n, 5).

    waits: it has no place in this round.  can_train: whether its T_max has room for a choice.
    """

    choice: Choice
    names: Sequence[str]
    contexts: fl.Doubles
    waits: bool = False
    can_train: bool = True

    @property
    def chosen(self) -> list[str]:
        return [self.names[i] for i in self.choice.chosen]

    def trained(self, cluster: Cluster, trained: Collection[str], settings: Cics) -> None:
        # a choice of which no device has trained earns nothing
        if any(name in trained for name in self.chosen):
            cluster.chosen = Chosen(self.contexts, self.choice.chosen, cluster.losses)
            cluster.losses = {}  # nobody has measured the new model
        elif self.chosen:
            cluster.bandit = learned(cluster.bandit, self.contexts, self.choice.chosen, 0.0, settings)

    def note(self) -> dict[str, Any]:
        numbers = ("mean", "deviation", "ucb", "candidates", "skipped")
        return {"chosen": self.chosen, **{key: getattr(self.choice, key) for key in numbers}}


@dataclass
class Trained:
    """names: of devices that trained.  losses: by name, of W_k, before any training."""

    names: set[str] = field(default_factory=set)
    losses: dict[str, float] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)


def successor(names: Sequence[str], before: Mapping[str, int], known: Mapping[int, Cluster]) -> Cluster:
    """With the model of the cluster that most were in; on ties, the first."""
    votes = Counter(before.get(name, -1) for name in names)
    parent = known.get(min(votes, key=lambda k: (-votes[k], k)))
    return Cluster() if parent is None else Cluster(weights=parent.weights, total=parent.total)
