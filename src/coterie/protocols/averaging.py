"""Federated averaging: one server sends its model to clients, the clients train it, and the server averages the
results.

    server --Train--> client --Update--> server            (every round)

FedAvg and FedProx use it. They differ in the local solver only.

Sees. server: every client's plain model and sample count, by name. client: the global model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from coterie.aggregation.buffers import stepped
from coterie.aggregation.sums import WeightedMean
from coterie.protocol.effects import Fit, Fitted, Vector
from coterie.protocol.messages import Floats, Message, message
from coterie.protocol.party import Party, Work, on
from coterie.protocol.steps import Steps
from coterie.protocol.system import Federation, PartyFactory, Sees
from coterie.protocol.told import Common, Own
from coterie.protocols.local_training import SteppedTraining, ask_round, batch_seed, check_model, training_cost
from coterie.protocols.updates import Updates


@dataclass(frozen=True)
class Averaging(SteppedTraining):
    """Local training with the usual defaults of FedAvg, where the mean itself is the next model.

    Late updates are dropped. (``protocols/late.py`` has methods that use them.)
    """

    lr: float = 0.01
    momentum: float = 0.0
    max_epochs: int = 5
    slowest: float = 0.2
    participation: float = 1.0
    server_lr: float = 1.0
    server_decay: float = 0.0


@message(src="server", dst="client")
class Train(Message, frozen=True):
    """Train on your data. weights: (d,) the global model, or (k d,) all models, one after the other."""

    round: int
    spec: bytes
    weights: Floats


@message(src="client", dst="server")
class Update(Message, frozen=True):
    """What was trained. weights: (d,), or (k d,).  samples: this client's training samples, its weight in the mean.

    ``protocols/updates.py`` says which updates a server takes, here and in all other baselines.
    """

    round: int
    spec: bytes
    weights: Floats
    samples: int


class Client(Party, role="client"):
    """Trains when asked, and keeps nothing."""

    config: Averaging

    @on(Train, training_cost)
    def train(self, msg: Train, src: str) -> Work[Update]:
        """E_i epochs from the global model."""
        start = check_model(self.spec, msg.spec, msg.weights)
        fitted: Fitted = yield Fit(start, self.config.solver(), self.epochs, batch_seed(self, msg.round))
        return Update(msg.round, self.spec.digest, fitted.weights, fitted.samples)


class Server(Party, role="server"):
    """Holds the global model."""

    class State(msgspec.Struct):
        """weights: float32, (d,) of the global model, or (k, d) of several."""

        weights: Vector

    state: State
    config: Averaging

    def __init__(self, own: Own, common: Common, config: Averaging) -> None:
        super().__init__(own, common, config)
        self.state = self.State(common.initial)

    def round(self, r: int) -> Steps[Mapping[str, Any]]:
        """One round. The mean of the answers, weighted by samples, is the new global model."""
        old = self.state.weights
        mean, updates = WeightedMean(old.size), Updates(self.spec, old, self.config.models)

        def fold(name: str, update: Update) -> None:
            mean.take(updates.checked(name, update.spec, update.weights, update.samples), update.samples)
            updates.took(name, update.weights, samples=update.samples)

        notes = yield from ask_round(self, r, Train(r, self.spec.digest, old.reshape(-1)), Update, fold)
        if mean.count:
            step, new = self.config.server_step(r), mean.mean()  # FedCAPrivacy eq. (2)
            if step != 1:
                new = stepped(self.spec, old, new - old, new, step)
            self.state.weights = updates.model(new).reshape(old.shape)
        return {**notes, **updates.notes()}


class ServerOfSeveral(Server, role="server"):
    """Holds k models, (k, d), and takes the mean of each."""

    def __init__(self, own: Own, common: Common, config: Any) -> None:
        super().__init__(own, common, config)
        self.state = self.State(common.starts)


def parties(config: Averaging) -> Mapping[str, PartyFactory]:
    """A server and its clients, which all train with the config's solver."""
    return {"server": Server, "client": Client}


def models(federation: Federation) -> Mapping[str, Vector]:
    """All clients use the global model."""
    weights = federation.look(federation.hub).state.weights
    return dict.fromkeys(federation.common.clients, weights)


SEES = {
    "server": Sees((Update,), "every client's plain model and number of samples in every round, by name"),
    "client": Sees((Train,), "the global model of every round that it takes part in"),
}
