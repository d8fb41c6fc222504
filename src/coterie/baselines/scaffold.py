"""SCAFFOLD: Karimireddy et al., "SCAFFOLD: stochastic controlled averaging for federated learning", ICML 2020.

    server --Train (x, c)--> client --Change (dy, dc)--> server

Clients correct every local step by the difference of the server's control variate and their own (their algorithm 1,
option II). A client's own variate stays with it. Deltas = local - global.

Sees. server: every client's change of model and of control variate, by name. client: the global model and variate.
Departure: changes are averaged unweighted, as printed, over the clients that answered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from coterie.aggregation.buffers import stepped, with_buffers
from coterie.aggregation.sums import WeightedMean
from coterie.protocol.effects import Fit, Fitted, Vector
from coterie.protocol.errors import UserError
from coterie.protocol.messages import Floats, Message, message
from coterie.protocol.party import Work, initial, on, zeros
from coterie.protocol.steps import Steps
from coterie.protocol.system import Sees, System, telling
from coterie.protocols import averaging
from coterie.protocols.averaging import Updates
from coterie.protocols.keeping import HandingOut, Keeper, Kept, keep, own_model
from coterie.protocols.local_training import LocalTraining, ask_round, batch_seed, check_model, training_cost
from coterie.training.solvers import Scaffold


@dataclass(frozen=True)
class ScaffoldConfig(LocalTraining):
    """server_lr: the global step size, eta_g; 1 takes the mean change as it is. No momentum: option II forbids it."""

    server_lr: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.momentum:
            raise UserError("scaffold has no momentum: its control variates read the gradient off the distance moved")
        if not self.server_lr > 0:
            raise UserError(f"server_lr must be positive, not {self.server_lr}")

    def solver(self) -> Scaffold:
        return Scaffold(self.lr, self.batch_size, weight_decay=self.weight_decay)


@message(src="server", dst="client")
class Train(Message, frozen=True):
    """weights x and control c, both (d,), of the server."""

    round: int
    spec: bytes
    weights: Floats
    control: Floats


@message(src="client", dst="server")
class Change(Message, frozen=True):
    """y_i - x, of which the buffers (running statistics) are y_i's own, and c_i+ - c_i, 0 at buffers; both (d,)."""

    round: int
    spec: bytes
    weights: Floats
    control: Floats


class Client(Keeper, role="client"):
    """Keeps its control variate c_i across rounds."""

    class State(Kept):
        """control: c_i, (d,)."""

        control: Vector = zeros

    state: State
    config: ScaffoldConfig

    @on(Train, training_cost)
    def train(self, msg: Train, src: str) -> Work[Change]:
        """Algorithm 1, lines 7 to 13."""
        x, c = (check_model(self.spec, msg.spec, v) for v in (msg.weights, msg.control))
        keep(self, x)
        state = {"control": self.state.control, "server_control": c}
        fitted: Fitted = yield Fit(x, self.config.solver(), self.epochs, batch_seed(self, msg.round), state)
        change = fitted.state["control"] - self.state.control
        self.state.control = fitted.state["control"]
        moved = with_buffers(self.spec, fitted.weights - x, fitted.weights)
        return Change(msg.round, self.spec.digest, moved, change)


class Server(HandingOut, role="server"):
    """Holds the global model and control variate."""

    class State(msgspec.Struct):
        """weights x and control c, (d,) float32."""

        weights: Vector = initial
        control: Vector = zeros

    state: State
    config: ScaffoldConfig

    def round(self, r: int) -> Steps[Mapping[str, Any]]:
        """Algorithm 1, lines 16 and 17."""
        moved, turned = WeightedMean(self.spec.size), WeightedMean(self.spec.size)
        updates = Updates(self.spec, self.state.weights)

        def fold(name: str, change: Change) -> None:
            y, c = (updates.checked(name, change.spec, values) for values in (change.weights, change.control))
            moved.take(y, 1)
            turned.take(c, 1)
            updates.took(name, y, c)

        x, c = self.state.weights, self.state.control
        notes = yield from ask_round(self, r, Train(r, self.spec.digest, x, c), Change, fold)
        if moved.count:
            share, mean = moved.count / len(self.clients), moved.mean()  # |S| / N
            self.state.weights = updates.model(stepped(self.spec, x, mean, mean, self.config.server_lr))
            self.state.control = updates.model(c + share * turned.mean())
        return {**notes, **updates.notes()}


SYSTEM = System(
    name="scaffold",
    title="SCAFFOLD",
    citation="Karimireddy et al., SCAFFOLD: stochastic controlled averaging for federated learning, ICML 2020",
    config=ScaffoldConfig,
    parties=lambda config: {"server": Server, "client": Client},
    models=averaging.models,
    own_model=own_model,
    sees={
        "server": Sees((Change,), "every client's change of model and of control variate in every round, by name"),
        "client": Sees((Train,), "the global model and the server's control variate"),
    },
    releases=telling({Change: ("change of the model and of the control variate",)}),
    baseline=True,
    audit="coterie.privacy.audits.control:AUDIT",
)
