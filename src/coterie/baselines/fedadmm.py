"""FedADMM: Gong, Li and Freris, "FedADMM: a robust federated deep learning framework with adaptivity to system
heterogeneity", ICDE 2022 (PAFed's [18], whose authors its text calls Kong et al.).

    client   w_i+ = argmin_v f_i(v) + <y_i, v - w> + rho/2 |v - w|^2                                PAFed eq. 8, 9
             y_i+ = y_i + rho (w_i+ - w)                                                            eq. 10
             sends (w_i+ - reference) + (y_i+ - y_i) / rho                                          eq. 16
    server   w <- w + step eta m,   m: mean of all that is received, late or not                    eq. 11

w is the model that the client has received. Its reference is its own last model w_i: then what it has sent so far
always adds up to where it is, however late, and with eta = |received| / N and a step of 1 the server's model follows
the mean of all N clients (Gong et al.; larger steps diverge). A smaller step leaves out what is never sent again, so
here, other than in the other baselines, the step is a constant 1 by default. With ``reference=received``, as in PAFed,
clients send twice their change; then eta is 1, and the step of the other baselines suits.

Departures: local training starts from w; buffers (running statistics), of which the paper has none, are sent as they
are and averaged. The protocol and who sees what: ``protocols/late.py``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from coterie.aggregation.buffers import with_buffers
from coterie.protocol.effects import Fit, Fitted, Vector
from coterie.protocol.party import Work, initial, on
from coterie.protocol.system import System, telling
from coterie.protocol.told import Common, Own
from coterie.protocols import late
from coterie.protocols.averaging import Train, Update, models
from coterie.protocols.keeping import Keeper, Kept, keep, own_model
from coterie.protocols.local_training import batch_seed, check_model, training_cost
from coterie.training.solvers import Admm, augmented_change


@dataclass(frozen=True)
class FedAdmmConfig(late.LateTraining):
    """rho: > 0, coefficient of the quadratic term (table III).  reference: what a client's change starts from."""

    server_lr: float = 1.0
    server_decay: float = 0.0
    rho: float = 0.01
    reference: Literal["own", "received"] = "own"

    def solver(self) -> Admm:
        return Admm(self.lr, self.batch_size, self.momentum, self.weight_decay, rho=self.rho)

    def own_budget(self) -> Mapping[str, str]:
        if self.reference == "received":
            return {}
        why = "its server follows the mean of all clients: a smaller step leaves out what is never sent again"
        return {"server_lr": why, "server_decay": why}


class Client(Keeper, role="client"):
    """Keeps its dual variable, and its own last model, across rounds."""

    class State(Kept):
        """own: w_i, (d,).  dual: y_i, (d,), zeros before the first training."""

        own: Vector = initial
        dual: Vector | None = None

    state: State
    config: FedAdmmConfig

    @on(Train, training_cost)
    def train(self, msg: Train, src: str) -> Work[Update]:
        """PAFed algorithm 2, then eq. 16."""
        w = check_model(self.spec, msg.spec, msg.weights)
        keep(self, w)
        y = np.zeros(self.spec.size, np.float32) if self.state.dual is None else self.state.dual
        fitted: Fitted = yield Fit(w, self.config.solver(), self.epochs, batch_seed(self, msg.round), {"dual": y})
        reference = self.state.own if self.config.reference == "own" else w
        change = augmented_change(fitted.weights - reference, fitted.state["dual"] - y, self.config.rho)
        values = with_buffers(self.spec, change, fitted.weights)
        self.state.dual = fitted.state["dual"]
        if self.config.reference == "own":
            self.state.own = fitted.weights
        return Update(msg.round, self.spec.digest, values, fitted.samples)


def _server(own: Own, common: Common, config: FedAdmmConfig) -> late.Server:
    """It adds up what clients send, over all N of them or over those received."""
    over = float(len(common.clients)) if config.reference == "own" else None
    mean = partial(late.Mean, of="change", weight=lambda staleness, samples: 1, over=over)
    return late.Server(own, common, config, mean)


SYSTEM = System(
    name="fedadmm",
    title="FedADMM",
    citation="Gong, Li and Freris, FedADMM: a robust federated deep learning framework, ICDE 2022",
    config=FedAdmmConfig,
    parties=lambda config: {"server": _server, "client": Client},
    models=models,
    own_model=own_model,
    sees=late.sees("change of the model plus that of its dual variable"),
    releases=telling({Update: ("change of the model and of the dual variable",)}),
    baseline=True,
    delta=late.DELTA,
)
