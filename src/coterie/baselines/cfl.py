"""CFL: Sattler, Mueller and Samek, "Clustered federated learning: model-agnostic distributed multitask optimization
under privacy constraints", IEEE TNNLS 2021.

    server --Train (its cluster's model)--> client --Update--> server            (every round)

All clients begin as one cluster. A cluster is split in two (algorithm 1), again and again, if its model nears a
stationary point while single clients still want to move it far.

Decided here: docs/systems/hierarchical_baselines.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Annotated, Any

import numpy as np

import coterie.method as fl
from coterie.clustering.cosines import bipartition, cosines_to


@fl.settings
class CflConfig(fl.Averaging):
    """eps1: a cluster is near a stationary point if its mean update is below eps1 times the largest that it has had.

    eps2: its clients disagree if one's update is above eps2 times that.  gamma: they are parted only if, besides,
    sqrt((1 - alpha_cross^max) / 2) is above it; 0 parts them always.  smallest: a part has at least so many clients.
    """

    eps1: fl.Positive = 0.4
    eps2: float = 0.8
    gamma: Annotated[float, fl.Meta(ge=0, lt=1)] = 0.0
    smallest: fl.AtLeastOne = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.eps1 <= self.eps2:
            raise fl.UserError(f"eps1 <= eps2 must hold, not eps1={self.eps1}, eps2={self.eps2}")


class Server(fl.ServerOfGroups):
    class State(fl.State):
        """models: (k, d) of the clusters.  largest: (k,) each one's largest mean update so far.

        directions: (k, d) the mean update of each part at its split; zeros for the first cluster.
        groups: each client's cluster.  waiting: clients absent at their cluster's split; their next update places them.
        """

        models: fl.Vector = fl.from_party(lambda server: server.common.initial[None])
        largest: list[float] = fl.from_party(lambda server: [0.0])
        directions: fl.Vector = fl.from_party(lambda server: np.zeros((1, server.spec.size), np.float32))
        groups: dict[str, int] = fl.field(default_factory=dict)
        waiting: list[str] = fl.field(default_factory=list)

    state: State
    config: CflConfig

    def group_of(self, name: str) -> int:
        return int(self.state.groups.get(name, 0))

    def model_of(self, name: str) -> fl.Vector:
        return np.asarray(self.state.models[self.group_of(name)])

    def round(self, r: int) -> fl.Steps[Mapping[str, Any]]:
        state = self.state
        gather = fl.Gather(self.spec, state.models, means=len(state.models))
        changes: dict[str, fl.Vector] = {}

        def placed(name: str) -> bool:
            return len(state.models) == 1 or (name in state.groups and name not in state.waiting)

        def fold(name: str, update: fl.Update) -> None:
            weights = gather.take(name, update, self.group_of(name)) if placed(name) else gather.note(name, update)
            changes[name] = np.where(self.spec.buffers, 0, weights - self.model_of(name)).astype(np.float32)

        notes = yield from self.ask_own(r, fold)
        here = {name: changes[name] for name in self.clients if name in changes and placed(name)}
        for name in here:
            state.groups.setdefault(name, 0)
        step = self.config.server_step(r)
        state.models = np.stack([gather.moved(old, group, step) for group, old in enumerate(state.models)])
        self.place({name: change for name, change in changes.items() if not placed(name)})
        parted = [group for group in sorted(set(state.groups.values())) if self.part(group, here)]
        return {
            **notes,
            "clustered": bool(parted),
            "parted": parted,
            "clusters": {"sizes": np.bincount(list(state.groups.values()), minlength=len(gather.means)).tolist()},
            "membership": fl.membership(self.clients, state.groups),
            **gather.notes(),
        }

    def part(self, group: int, changes: Mapping[str, fl.Vector]) -> bool:
        state = self.state
        members = [name for name, own in state.groups.items() if own == group]
        here = [name for name in changes if state.groups[name] == group]
        if not here:
            return False
        rows = np.stack([changes[name] for name in here])
        mean = float(np.linalg.norm(rows.mean(axis=0, dtype=np.float64)))
        most = float(np.linalg.norm(rows.astype(np.float64), axis=1).max())
        state.largest[group] = peak = max(state.largest[group], mean)
        if len(here) < 2 * self.config.smallest or not (
            mean < self.config.eps1 * peak and most > self.config.eps2 * peak
        ):
            return False
        second, across = bipartition(rows)
        small = min(int(second.sum()), int((~second).sum())) < self.config.smallest
        if small or not sqrt(max(0.0, 1 - across) / 2) > self.config.gamma:
            return False
        new = len(state.models)
        state.models = np.concatenate([state.models, state.models[group][None]])
        state.directions = np.concatenate([state.directions, rows[second].mean(axis=0)[None]])
        state.directions[group] = rows[~second].mean(axis=0)
        state.largest = [*state.largest, peak]
        state.groups |= {name: new for name, of in zip(here, second, strict=True) if of}
        state.waiting = [*state.waiting, *(name for name in members if name not in here)]
        return True

    def place(self, changes: Mapping[str, fl.Vector]) -> None:
        state = self.state
        for name, change in changes.items():
            state.groups[name] = int(cosines_to(state.directions, change).argmax())
        state.waiting = [name for name in state.waiting if name not in changes]


def observe(federation: fl.Federation) -> Mapping[str, Any]:
    state = federation.look(federation.hub).state
    return {"membership": fl.membership(federation.common.clients, state.groups)}


SYSTEM = fl.system(
    "cfl",
    CflConfig,
    Server,
    fl.AveragingClient,
    cold="groups form anew from one common model, and it ends with one for each group",
    learns={
        "server": fl.LEARNS["server"],
        "client": "the model of its cluster",
    },
    models=fl.own_models,
    observe=observe,
)
