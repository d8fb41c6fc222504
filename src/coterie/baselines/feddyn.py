"""FedDyn: Acar et al., "Federated learning based on dynamic regularization", ICLR 2021.

    client   w_i = argmin f_i(w) - <g_i, w> + alpha/2 |w - w_server|^2,   g_i <- g_i - alpha (w_i - w_server)   (eq. 1)
    server   h <- h - alpha/N sum_i (w_i - w_server),   w_server <- mean_i w_i - h / alpha              (algorithm 1)

Each client's regulariser changes so that all local optima agree with the global one. Decided here: -g_i is the dual
variable of the solver ``Admm``, whose rho is alpha. Running statistics (buffers) get their plain mean.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

import coterie.method as fl


@fl.settings
class FedDynConfig(fl.Averaging):
    """alpha: > 0, the weight of the regulariser."""

    alpha: float = 0.01

    @property
    def rho(self) -> float:
        return self.alpha

    def solver(self) -> fl.Sgd:
        return self.solver_of(fl.Admm)


class Client(fl.Client):
    class State(fl.Client.State):
        """dual: -g_i, (d,)."""

        dual: fl.Vector = fl.zeros

    @fl.on(fl.Train, fl.training, answers=fl.Update)
    def train(self, msg: fl.Train, src: str) -> fl.Work[fl.Update]:
        fitted: fl.Fitted = yield self.fit(self.model(msg), msg.round, state={"dual": self.state.dual})
        self.state.dual = fitted.state["dual"]
        return fl.Update(msg.round, msg.spec, fitted.weights, fitted.samples)


class Server(fl.Server):
    class State(fl.Server.State):
        """h: (d,) float64, 0 at buffers."""

        h: fl.Array = fl.zeros

    def round(self, r: int) -> fl.Steps[Mapping[str, Any]]:
        gather, models, old = self.gather(), fl.Mean(self.spec.size), self.state.weights

        def fold(name: str, update: fl.Update) -> None:
            models.take(gather.note(name, update), 1)

        notes = yield from self.ask(r, self.train(r), fl.Update, fold)
        if models.count:
            mean, share = models.mean(), models.count / len(self.clients)
            change = fl.with_buffers(self.spec, mean - old, np.zeros_like(mean))
            self.state.h = self.state.h - self.config.alpha * share * change
            self.state.weights = gather.model(mean - self.state.h / self.config.alpha)
        return {**notes, **gather.notes()}


SYSTEM = fl.system("feddyn", FedDynConfig, Server, Client)
