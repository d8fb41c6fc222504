"""Local training alone: every client trains its own model on its own data, and nobody sends a model.

    server --Train--> client --Trained--> server            (every round)

A federated method is worth its messages only where it beats this one on ``local_accuracy``. All clients start from the
same weights; a round is the local epochs that it would be in federated averaging, on the same batches.

Sees. server: which clients trained, by name. client: nothing of any other client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from coterie.protocol.effects import Fit, Fitted, Vector
from coterie.protocol.errors import PeerError
from coterie.protocol.messages import Message, message
from coterie.protocol.party import Party, Work, initial, on
from coterie.protocol.steps import Steps
from coterie.protocol.system import Federation, Sees, System, telling
from coterie.protocols.local_training import LocalTraining, ask_round, batch_seed, training_cost


@message(src="server", dst="client")
class Train(Message, frozen=True):
    """Train your own model for the epochs of one round."""

    round: int


@message(src="client", dst="server")
class Trained(Message, frozen=True):
    """Done."""

    round: int


class Client(Party, role="client"):
    """Keeps its own model across rounds."""

    class State(msgspec.Struct):
        """weights: (d,).  round: the last that it trained for."""

        weights: Vector = initial
        round: int = 0

    state: State

    @on(Train, training_cost)
    def train(self, msg: Train, src: str) -> Work[Trained]:
        """E_i epochs from its own model."""
        if msg.round <= self.state.round:
            raise PeerError(f"asked to train for round {msg.round} after round {self.state.round}")
        fitted: Fitted = yield Fit(self.state.weights, self.config.solver(), self.epochs, batch_seed(self, msg.round))
        self.state.weights, self.state.round = fitted.weights, msg.round
        return Trained(msg.round)


class Server(Party, role="server"):
    """Calls the rounds, so that they are those of the other methods."""

    def round(self, r: int) -> Steps[Mapping[str, Any]]:
        """Ask the clients of the round to train, and wait for them."""
        return (yield from ask_round(self, r, Train(r), Trained, lambda name, trained: None))


def models(federation: Federation) -> Mapping[str, Vector]:
    """Every client's own model."""
    return {client.name: client.state.weights for client in federation.of_role("client")}


SYSTEM = System(
    name="local",
    title="Local alone",
    citation="no federation: each client trains on its own data",
    config=LocalTraining,
    parties=lambda config: {"server": Server, "client": Client},
    models=models,
    own_model=lambda client: client.state.weights,
    sees={
        "server": Sees((Trained,), "which clients trained in which round, by name; nothing of models or data"),
        "client": Sees((Train,), "nothing of any other client"),
    },
    releases=telling({}),
    baseline=True,
)
