"""Ditto: Li et al., "Ditto: fair and robust federated learning through personalization", ICML 2021.

    client   w_i as in FedAvg;   v_i <- v_i - eta (grad f_i(v_i) + lam (v_i - w))              (algorithm 1, l. 6 and 7)

Beside FedAvg each client trains a model v_i, with which it predicts, pulled towards the global model that it was sent
(eq. 2: h_i(v) = f_i(v) + lam/2 |v - w|^2).

Decided here: v_i starts as the first global model and gets as many epochs as w_i, on the same batches.
"""

from collections.abc import Mapping

import numpy as np

import coterie.method as fl


@fl.settings
class DittoConfig(fl.Averaging):
    """lam: lambda, how strongly v_i is pulled; with 0 each client trains v_i alone."""

    lam: fl.NotNegative = 1.0

    @property
    def mu(self) -> float:
        return self.lam

    def beyond_budget(self) -> Mapping[str, str]:
        return {"lam": "its clients train a second model in every round"}


class Client(fl.Client):
    class State(fl.Client.State):
        """own: v_i, (d,)."""

        own: fl.Vector = fl.initial

    @fl.on(fl.Train, fl.trained_for(lambda client: 2 * client.epochs), answers=fl.Update)
    def train(self, msg: fl.Train, src: str) -> fl.Work[fl.Update]:
        w = self.model(msg)
        fitted: fl.Fitted = yield self.fit(w, msg.round)
        pulled = self.config.solver_of(fl.Proximal)
        own: fl.Fitted = yield fl.fit(self, self.state.own, msg.round, pulled, state={"anchor": w})
        self.state.own = own.weights
        return fl.Update(msg.round, msg.spec, fitted.weights, fitted.samples)

    def last_starts(self) -> fl.Vector:
        return np.asarray(self.state.own[None])


SYSTEM = fl.system("ditto", DittoConfig, fl.Server, Client, model=lambda client: client.state.own)
