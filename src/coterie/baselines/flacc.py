"""FLACC: Mehta and Shao, "A greedy agglomerative framework for clustered federated learning", IEEE TII 2023.

    server --Train (global model, later the cluster's)--> client --Update--> server            (every round)

While the clients train one global model, the server greedily merges the groups whose summed updates are the most
similar, above a bound. After some rounds without new clients or merges each cluster goes on alone.

Decided here: docs/systems/selection_baselines.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np

import coterie.method as fl
from coterie.clustering.cosines import agglomerated, cosines_to


@fl.settings
class FlaccConfig(fl.Averaging):
    """similarity: two groups merge while the cosine of their updates is above this, from -1 to 1.

    settle: clustering is complete after so many rounds in a row without a merge and without a new client.
    """

    similarity: Annotated[float, fl.Meta(ge=-1, le=1)] = 0.5
    settle: fl.AtLeastOne = 2


def no_models(party: fl.Party) -> fl.Vector:
    return np.zeros((0, party.spec.size), np.float32)


class Server(fl.ServerOfGroups):
    class State(fl.Server.State):
        """weights: (d,) the global model, fixed once clusters are separate.  models: (k, d) theirs, none before.

        directions: (k, d) the summed updates of each group, 0 at buffers.  groups: number of each client's.
        quiet: rounds in a row without a merge and without a new client.
        """

        models: fl.Vector = fl.from_party(no_models)
        directions: fl.Vector = fl.from_party(no_models)
        groups: dict[str, int] = fl.field(default_factory=dict)
        quiet: int = 0

    state: State
    config: FlaccConfig

    def model_of(self, name: str) -> fl.Vector:
        group = self.state.groups.get(name, -1) if len(self.state.models) else -1
        return np.asarray(self.state.models[group] if group >= 0 else self.state.weights)

    def round(self, r: int) -> fl.Steps[Mapping[str, Any]]:
        state, separate = self.state, bool(len(self.state.models))
        before = np.concatenate([state.weights, state.models.reshape(-1)])
        gather = fl.Gather(self.spec, before, means=len(state.models) if separate else 1)
        changes: dict[str, fl.Vector] = {}

        def fold(name: str, update: fl.Update) -> None:
            group = state.groups.get(name) if separate else 0
            # a client without a group trains the old global model, only to be placed
            weights = gather.note(name, update) if group is None else gather.take(name, update, group)
            if not separate or group is None:
                changes[name] = np.where(self.spec.buffers, 0, weights - self.model_of(name)).astype(np.float32)

        asked = yield from self.ask_own(r, fold)
        step = self.config.server_step(r)
        if separate:
            state.models = np.stack([gather.moved(old, group, step) for group, old in enumerate(state.models)])
        else:
            state.weights = gather.moved(state.weights, step=step)
        ordered = {name: changes[name] for name in self.clients if name in changes}
        notes: dict[str, Any] = self.place(ordered) if separate else self.agglomerate(ordered)
        return {
            **asked,
            **notes,
            "clusters": {"sizes": np.bincount(list(state.groups.values())).tolist() if state.groups else []},
            "membership": fl.membership(self.clients, state.groups),
            **gather.notes(),
        }

    def agglomerate(self, changes: Mapping[str, fl.Vector]) -> dict[str, Any]:
        state, new = self.state, 0
        rows = [*state.directions]
        for name, change in alike(changes).items():
            if name in state.groups:
                rows[state.groups[name]] = rows[state.groups[name]] + change
            else:
                state.groups[name], new = len(rows), new + 1
                rows.append(change)
        if not rows:
            return {"clustered": False}
        numbers, merges = agglomerated(np.stack(rows), self.config.similarity)
        directions = np.zeros((int(numbers.max()) + 1, self.spec.size), np.float32)
        np.add.at(directions, numbers, np.stack(rows))
        state.directions = directions
        state.groups = {name: int(numbers[group]) for name, group in state.groups.items()}
        state.quiet = 0 if new or merges or not changes else state.quiet + 1
        if state.quiet >= self.config.settle:
            state.models = np.repeat(state.weights[None], len(directions), axis=0)
        return {"clustered": bool(new or merges), "separate": bool(len(state.models))}

    def place(self, changes: Mapping[str, fl.Vector]) -> dict[str, Any]:
        state = self.state
        for name, change in alike(changes).items():
            cosines = cosines_to(state.directions, change)
            state.groups[name] = best = int(cosines.argmax())
            if not cosines[best] > self.config.similarity:
                state.groups[name] = len(state.models)
                state.models = np.concatenate([state.models, state.weights[None]])
                state.directions = np.concatenate([state.directions, change[None]])
        return {"clustered": bool(changes), "separate": True}


def alike(changes: Mapping[str, fl.Vector]) -> dict[str, fl.Vector]:
    lengths = {name: float(np.linalg.norm(change.astype(np.float64))) for name, change in changes.items()}
    moved = {name: length for name, length in lengths.items() if length > 0}
    median = float(np.median(list(moved.values()))) if moved else 0.0
    return {name: (changes[name] * (median / length)).astype(np.float32) for name, length in moved.items()}


def observe(federation: fl.Federation) -> Mapping[str, Any]:
    state = federation.look(federation.hub).state
    return {"membership": fl.membership(federation.common.clients, state.groups), "separate": bool(len(state.models))}


SYSTEM = fl.system(
    "flacc",
    FlaccConfig,
    Server,
    fl.AveragingClient,
    cold="groups form anew from one common model, and it ends with one for each group",
    learns={
        "server": fl.LEARNS["server"],
        "client": "the global model, and later the model of its cluster",
    },
    models=fl.own_models,
    observe=observe,
)
