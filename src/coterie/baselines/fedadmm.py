"""FedADMM: Gong, Li and Freris, "FedADMM: a robust federated deep learning framework with adaptivity to system
heterogeneity", ICDE 2022 (PAFed's [18], whose authors its text calls Kong et al.).

    client   w_i+ = argmin_v f_i(v) + <y_i, v - w> + rho/2 |v - w|^2                                PAFed eq. 8, 9
             y_i+ = y_i + rho (w_i+ - w)                                                            eq. 10
             sends (w_i+ - reference) + (y_i+ - y_i) / rho                                          eq. 16
    server   w <- w + step eta m,   m: mean of all that is received, late or not                    eq. 11

w is the model that the client has received. The reference is the client's own last model w_i, so all that it has sent
adds up to its position, however late; eta = |received| / N. ``reference=received`` is PAFed's: clients send twice their
change, and eta is 1.

Departures: local training starts from w; buffers (running statistics) are sent as they are and averaged. The protocol:
``protocols/late.py``.
"""

from collections.abc import Mapping
from typing import Literal

import numpy as np

import coterie.method as fl
from coterie.protocols import late


@fl.settings
class FedAdmmConfig(late.LateTraining):
    """rho: > 0, coefficient of the quadratic term (table III).  reference: what a client's change starts from."""

    server_lr: float = 1.0
    server_decay: float = 0.0
    rho: float = 0.01
    reference: Literal["own", "received"] = "own"

    def solver(self) -> fl.Sgd:
        return self.solver_of(fl.Admm)

    def own_budget(self) -> Mapping[str, str]:
        if self.reference == "received":
            return {}
        why = "its server follows the mean of all clients: a smaller step leaves out what is never sent again"
        return dict.fromkeys(("server_lr", "server_decay", "server_rounds"), why)


class Client(fl.Client):
    class State(fl.Client.State):
        """own: w_i, (d,).  dual: y_i, (d,), zeros before the first training."""

        own: fl.Vector = fl.initial
        dual: fl.Vector | None = None

    state: State
    config: FedAdmmConfig

    @fl.on(fl.Train, fl.training, answers=fl.Update)
    def train(self, msg: fl.Train, src: str) -> fl.Work[fl.Update]:
        w = self.model(msg)
        y = np.zeros(self.spec.size, np.float32) if self.state.dual is None else self.state.dual
        fitted: fl.Fitted = yield self.fit(w, msg.round, state={"dual": y})
        reference = self.state.own if self.config.reference == "own" else w
        change = fl.augmented_change(fitted.weights - reference, fitted.state["dual"] - y, self.config.rho)
        values = fl.with_buffers(self.spec, change, fitted.weights)
        self.state.dual = fitted.state["dual"]
        if self.config.reference == "own":
            self.state.own = fitted.weights
        return fl.Update(msg.round, self.spec.digest, values, fitted.samples)


class Server(late.LateServer):
    config: FedAdmmConfig

    def aggregate(self, step: float) -> late.Aggregate:
        over = float(len(self.clients)) if self.config.reference == "own" else None
        return late.Mean(self.spec, self.state.weights, step, of="change", weight=lambda *_: 1, over=over)


SYSTEM = fl.system(
    "fedadmm",
    FedAdmmConfig,
    Server,
    Client,
    learns=late.learns("change of the model plus that of its dual variable"),
    delta=late.DELTA,
    title="FedADMM",
    citation="Gong, Li and Freris, FedADMM: a robust federated deep learning framework, ICDE 2022",
    releases=fl.telling({fl.Update: (fl.FromTraining("change of the model and of the dual variable"),)}),
)
