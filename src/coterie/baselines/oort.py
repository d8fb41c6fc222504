"""Oort: Lai et al., "Oort: Efficient federated learning via guided participant selection", OSDI 2021.

    server --Introduce--> client --Introduced (its speed)--> server       (set-up, and when a client joins)
    server --Train--> client --Scored (with its loss)--> server           (every round, to selected clients)

Federated averaging of one global model among selected clients, by ``selection/oort.py``.
Decided here: docs/systems/selection_baselines.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

import numpy as np

import coterie.method as fl
from coterie.protocols.selecting import SCORED, Introducing, Scored, Selecting, meet, selected_round
from coterie.selection import oort


@fl.settings
class OortConfig(Selecting, oort.Oort):
    pass


class Client(Introducing):
    config: OortConfig

    # a forward pass, a third of a training step for each sample, and its epochs
    @fl.on(fl.Train, fl.trained_for(lambda client: client.epochs + 1 / 3), answers=Scored)
    def train(self, msg: fl.Train, src: str) -> fl.Work[Scored]:
        start = self.model(msg)
        losses = yield fl.Losses(start[None])
        rms = float(np.sqrt(np.mean(np.square(losses[0], dtype=np.float64))))
        fitted: fl.Fitted = yield self.fit(start, msg.round)
        return Scored(msg.round, msg.spec, fitted.weights, fitted.samples, rms)


class Server(fl.Server):
    class State(fl.Server.State):
        """seconds: of a round, as each client claims."""

        pool: oort.Pool = fl.from_party(lambda server: oort.pool(len(server.clients), server.config))
        seconds: dict[str, float] = fl.field(default_factory=dict)

    state: State
    config: OortConfig

    def setup(self) -> fl.Steps[None]:
        yield from meet(self, 0)

    def round(self, r: int) -> fl.Steps[Mapping[str, Any]]:
        yield from meet(self, r)
        state, settings, clients = self.state, self.config, self.clients
        here = [i for i, name in enumerate(clients) if name in state.seconds]
        chosen: tuple[int, ...] = ()
        if here:
            claimed = [state.seconds.get(name, 0.0) for name in clients]
            speeds = [1 / seconds if seconds > 0 else np.nan for seconds in claimed]
            number = self.config.number(clients, r)
            chosen, state.pool = oort.select(state.pool, number, speeds, self.rng("selection", r), settings, here)
        names, utility = [clients[i] for i in chosen], dict[str, float]()

        def learn(name: str, update: Scored, loss: float) -> None:
            utility[name] = oort.utility_of_mean(update.samples, loss)

        notes, seconds = yield from selected_round(self, r, names, learn)
        told = [i for i in chosen if clients[i] in seconds]
        utilities, durations = ([of[clients[i]] for i in told] for of in (utility, seconds))
        state.pool = oort.told(state.pool, told, utilities, durations, settings)
        pace_s = oort.preferred_duration(state.pool, settings)
        return {
            **notes,
            "selected": dict.fromkeys(names, 0),
            "exploration": state.pool.exploration,
            "pace_s": pace_s if isfinite(pace_s) else None,
        }


def observe(federation: fl.Federation) -> Mapping[str, Any]:
    pool = federation.look(federation.hub).state.pool
    utilities = [None if np.isnan(value) else float(value) for value in pool.utility]
    return {"selected": pool.selected.tolist(), "utilities": utilities}


SYSTEM = fl.system(
    "oort",
    OortConfig,
    Server,
    Client,
    learns={
        "server": "every client's speed, and of the selected ones the plain model, number of samples and root mean "
        "square loss of every round, by name",
        "client": "the global model of every round that it is selected in",
    },
    observe=observe,
    releases=fl.telling({Scored: SCORED}),
)
