"""Local alone: every client trains its own model on its own data, and nobody sends a model.

    server --Train--> client --Done--> server               (every round)

All clients start from the same weights; a round has the local epochs and batches of federated averaging.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

import coterie.method as fl


@fl.message(src="server", dst="client")
class Train(fl.OfRound, frozen=True):
    """Train for the epochs of one round."""


class Client(fl.Party, role="client"):
    class State(fl.State):
        """round: the last that it trained for."""

        weights: fl.Vector = fl.initial
        round: int = 0

    @fl.on(Train, fl.training, answers=fl.Done)
    def train(self, msg: Train, src: str) -> fl.Work[fl.Done]:
        if msg.round <= self.state.round:
            raise fl.PeerError(f"asked to train for round {msg.round} after round {self.state.round}")
        fitted: fl.Fitted = yield fl.fit(self, self.state.weights, msg.round)
        self.state.weights, self.state.round = fitted.weights, msg.round
        return fl.Done(msg.round)

    def last_starts(self) -> fl.Vector:
        return np.asarray(self.state.weights[None])


class Server(fl.Party, role="server"):
    def round(self, r: int) -> fl.Steps[Mapping[str, Any]]:
        return (yield from fl.ask_round(self, r, Train(r), fl.Done))


SYSTEM = fl.system(
    "local",
    fl.LocalTraining,
    Server,
    Client,
    model=lambda client: client.state.weights,
    title="Local alone",
    citation="no federation: each client trains on its own data",
    learns={
        "server": "which clients trained in which round, by name; nothing of models or data",
        "client": "nothing of any other client",
    },
)
