"""SCAFFOLD: Karimireddy et al., "SCAFFOLD: stochastic controlled averaging for federated learning", ICML 2020.

    server --Train (x, c)--> client --Change (dy, dc)--> server

Clients correct every local step by the difference of the server's control variate and their own (their algorithm 1,
option II).

Departure: changes are averaged unweighted, as printed, over the clients that answered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import coterie.method as fl


@fl.settings
class ScaffoldConfig(fl.LocalTraining):
    """server_lr: the global step size, eta_g; 1 takes the mean change as it is. No momentum: option II forbids it."""

    server_lr: fl.Positive = 1.0

    def __post_init__(self) -> None:
        if self.momentum:
            raise fl.UserError(
                "scaffold has no momentum: its control variates read the gradient off the distance moved"
            )
        super().__post_init__()

    def solver(self) -> fl.Sgd:
        return self.solver_of(fl.Scaffold)


@fl.message(src="server", dst="client")
class Train(fl.OfModel, frozen=True):
    """weights x and control c, both (d,), of the server."""

    control: fl.Floats


@fl.message(src="client", dst="server", tells=(fl.FromTraining("change of the model and of the control variate"),))
class Change(fl.OfModel, frozen=True):
    """y_i - x, of which the buffers (running statistics) are y_i's own, and c_i+ - c_i, 0 at buffers; both (d,)."""

    control: fl.Floats


class Client(fl.Client):
    class State(fl.Client.State):
        """control: c_i, (d,)."""

        control: fl.Vector = fl.zeros

    state: State
    config: ScaffoldConfig

    @fl.on(Train, fl.training, answers=Change)
    def train(self, msg: Train, src: str) -> fl.Work[Change]:
        x, c = self.model(msg), fl.check_model(self.spec, msg.spec, msg.control)
        state = {"control": self.state.control, "server_control": c}
        fitted: fl.Fitted = yield self.fit(x, msg.round, state=state)
        change = fitted.state["control"] - self.state.control
        self.state.control = fitted.state["control"]
        moved = fl.with_buffers(self.spec, fitted.weights - x, fitted.weights)
        return Change(msg.round, self.spec.digest, moved, change)


class Server(fl.Server):
    class State(fl.Server.State):
        control: fl.Vector = fl.zeros

    state: State
    config: ScaffoldConfig

    def round(self, r: int) -> fl.Steps[Mapping[str, Any]]:
        moved, turned = fl.Mean(self.spec.size), fl.Mean(self.spec.size)
        gather = self.gather(means=0)

        def fold(name: str, change: Change) -> None:
            y, c = (gather.checked(name, change.spec, values) for values in (change.weights, change.control))
            moved.take(y, 1)
            turned.take(c, 1)
            gather.took(name, y, c)

        x, c = self.state.weights, self.state.control
        notes = yield from self.ask(r, Train(r, self.spec.digest, x, c), Change, fold)
        if moved.count:
            share, mean = moved.count / len(self.clients), moved.mean()  # |S| / N
            self.state.weights = gather.model(fl.stepped(self.spec, x, mean, mean, self.config.server_lr))
            self.state.control = gather.model(c + share * turned.mean())
        return {**notes, **gather.notes()}


SYSTEM = fl.system(
    "scaffold",
    ScaffoldConfig,
    Server,
    Client,
    learns={
        "server": "every client's change of model and of control variate in every round, by name",
        "client": "the global model and the server's control variate",
    },
)
