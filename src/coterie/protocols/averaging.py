"""Federated averaging: a server sends its model to clients, the clients train it, and the server averages the results.

    server --Train--> client --Update--> server            (every round)

FedAvg and FedProx use it. They differ in the local solver only. Baselines with late updates have another server
(``late.py``).

Sees. server: every client's plain model and sample count, by name. client: the global model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from coterie.aggregation.buffers import stepped, with_buffers
from coterie.aggregation.sums import WeightedMean
from coterie.protocol.effects import Fit, Fitted, Vector
from coterie.protocol.messages import Floats, Message, message
from coterie.protocol.party import Party, Work, on
from coterie.protocol.steps import Steps
from coterie.protocol.system import Federation, PartyFactory, Sees
from coterie.protocol.told import Common, Own
from coterie.protocols.local_training import SteppedTraining, ask_round, batch_seed, check_model, training_cost
from coterie.protocols.updates import Updates

Sends = Literal["model", "change"]


@dataclass(frozen=True)
class Averaging(SteppedTraining):
    """Local training with the usual defaults of FedAvg, where the mean itself is the next model."""

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
    """The result of one training. round: the round that asked for it.  samples: of this client's training data.

    weights: (d,), the model, its change, or what the method says; buffers (running statistics) are the trained values
    in each case. ``updates.py`` says which updates a server takes, here and in all other baselines.
    """

    round: int
    spec: bytes
    weights: Floats
    samples: int


class Client(Party, role="client"):
    """Trains when asked, and keeps nothing. sends: its trained model, or the change of the model."""

    config: SteppedTraining

    def __init__(self, own: Own, common: Common, config: SteppedTraining, sends: Sends = "model") -> None:
        super().__init__(own, common, config)
        self.sends = sends

    @on(Train, training_cost)
    def train(self, msg: Train, src: str) -> Work[Update]:
        """E_i epochs from the global model."""
        start = check_model(self.spec, msg.spec, msg.weights)
        fitted: Fitted = yield Fit(start, self.config.solver(), self.epochs, batch_seed(self, msg.round))
        weights = fitted.weights
        if self.sends == "change":
            weights = with_buffers(self.spec, weights - start, weights)
        return Update(msg.round, self.spec.digest, weights, fitted.samples)


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
