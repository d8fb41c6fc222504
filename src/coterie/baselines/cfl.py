"""CFL: Sattler, Mueller and Samek, "Clustered federated learning: model-agnostic distributed multitask optimization
under privacy constraints", IEEE TNNLS 2021.

    server --Train (its cluster's model)--> client --Update--> server            (every round)

All clients begin as one cluster. If a cluster's model nears a stationary point while single clients still want to move
it far, its clients disagree. It is split in two by the cosine of their updates, so that the largest similarity across
the parts is least (algorithm 1). Each part goes on from the cluster's model, and may be split again.

Sees. server: every client's plain model, by name, and from it the cluster. client: the model of its cluster.
Decided here, as docs/systems/hierarchical_baselines.md explains: both bounds are relative to the cluster's largest mean
update so far, and how clients are placed that were absent when their cluster was split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

import msgspec
import numpy as np

import coterie.method as fl
from coterie.clustering.cosines import bipartition


@fl.settings
class CflConfig(fl.Averaging):
    """eps1: a cluster is near a stationary point if its mean update is below eps1 times the largest that it has had.

    eps2: its clients disagree if one's update is above eps2 times that.  gamma: they are parted only if, besides,
    sqrt((1 - alpha_cross^max) / 2) is above it; 0 parts them always.  smallest: a part has at least so many clients.
    """

    eps1: float = 0.4
    eps2: float = 0.8
    gamma: float = 0.0
    smallest: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        fl.at_least(self, smallest=1)
        if not 0 < self.eps1 <= self.eps2:
            raise fl.UserError(f"0 < eps1 <= eps2 must hold, not eps1={self.eps1}, eps2={self.eps2}")
        if not 0 <= self.gamma < 1:
            raise fl.UserError(f"gamma must lie in [0, 1), not {self.gamma}")


class Server(fl.Server):
    """Trains a model for each cluster, and splits clusters whose clients disagree."""

    class State(msgspec.Struct):
        """models: (k, d) of the clusters.  largest: (k,) each one's largest mean update so far.

        directions: (k, d) the mean update of each part at its split; zeros for the first cluster.
        groups: by client, its cluster.  waiting: clients absent at their cluster's split, to be placed by their next
        update.
        """

        models: fl.Vector = fl.from_party(lambda server: server.common.initial[None])
        largest: list[float] = fl.from_party(lambda server: [0.0])
        directions: fl.Vector = fl.from_party(lambda server: np.zeros((1, server.spec.size), np.float32))
        groups: dict[str, int] = msgspec.field(default_factory=dict)
        waiting: list[str] = msgspec.field(default_factory=list)

    state: State
    config: CflConfig

    def last(self) -> Mapping[str, fl.Vector]:
        return {name: self.state.models[group_of(self.state, name)] for name in self.clients}

    def round(self, r: int) -> fl.Steps[Mapping[str, Any]]:
        """One round of every cluster; then those whose clients disagree are split (algorithm 3)."""
        state = self.state
        asked = fl.asked_in(self.clients, self.config, self.randomness.seed, r)
        sent = {name: group_of(state, name) for name in asked}
        gather = fl.Gather(self.spec, state.models, means=len(state.models))
        changes: dict[str, fl.Vector] = {}

        def placed(name: str) -> bool:
            return len(state.models) == 1 or (name in state.groups and name not in state.waiting)

        def fold(name: str, update: fl.Update) -> None:
            weights = gather.take(name, update, sent[name]) if placed(name) else gather.note(name, update)
            changes[name] = np.where(self.spec.buffers, 0, weights - state.models[sent[name]]).astype(np.float32)

        train = {name: fl.Train(r, self.spec.digest, state.models[group]) for name, group in sent.items()}
        answers = yield from fl.ask_all(self, r, train, fl.Update, fold)
        here = {name: changes[name] for name in self.clients if name in changes and placed(name)}
        for name in here:
            state.groups.setdefault(name, sent[name])
        step = self.config.server_step(r)
        state.models = np.stack([gather.moved(old, group, step) for group, old in enumerate(state.models)])
        self.place({name: change for name, change in changes.items() if not placed(name)})
        parted = [group for group in sorted(set(state.groups.values())) if self.part(group, here)]
        return {
            "participants": len(answers.got),
            "asked": len(asked),
            "clustered": bool(parted),
            "parted": parted,
            "clusters": {"sizes": np.bincount(list(state.groups.values()), minlength=len(gather.means)).tolist()},
            "membership": membership(state, self.clients),
            **gather.notes(),
        }

    def part(self, group: int, changes: Mapping[str, fl.Vector]) -> bool:
        """Split a cluster in two if its clients of this round disagree. The second part is a new cluster."""
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
        """An absent or new client joins the cluster whose direction is most similar to its update."""
        state = self.state
        for name, change in changes.items():
            sizes = np.linalg.norm(state.directions, axis=1) * np.linalg.norm(change)
            state.groups[name] = int((state.directions @ change / np.where(sizes > 0, sizes, np.inf)).argmax())
        state.waiting = [name for name in state.waiting if name not in changes]


def group_of(state: Server.State, name: str) -> int:
    """A client's cluster; the first one before it is placed."""
    return state.groups.get(name, 0)


def membership(state: Server.State, clients: Sequence[str]) -> list[list[int]]:
    """Each client's cluster, in a list; none for a client that has not trained yet."""
    return [[state.groups[name]] if name in state.groups else [] for name in clients]


def models(federation: fl.Federation) -> Mapping[str, fl.Vector]:
    state = federation.look(federation.hub).state
    return {name: state.models[group_of(state, name)] for name in federation.common.clients}


def observe(federation: fl.Federation) -> Mapping[str, Any]:
    state = federation.look(federation.hub).state
    return {"membership": membership(state, federation.common.clients)}


SYSTEM = fl.system(
    "cfl",
    CflConfig,
    Server,
    fl.AveragingClient,
    learns={
        "server": fl.LEARNS["server"],
        "client": "the model of its cluster",
    },
    models=models,
    observe=observe,
    baseline=True,
)
