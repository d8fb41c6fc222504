"""FedNova: Wang et al., "Tackling the objective inconsistency problem in heterogeneous federated optimization", NeurIPS
2020.

    w <- w + tau_eff sum_i p_i (w_i - w) / |a_i|,   tau_eff = sum_i p_i |a_i|,   p_i = n_i / n          (eq. 8, 11)

FedAvg favours clients with many local steps. Here each change is divided by |a_i|, the weight of its steps: their
number without momentum, and (tau - rho (1 - rho^tau) / (1 - rho)) / (1 - rho) with momentum rho. Decided here: running
statistics (buffers) get their plain mean.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

import coterie.method as fl
from coterie.training.solvers import pushed


@fl.message(src="client", dst="server", tells=(fl.FromTraining("trained model, number of samples and of steps"),))
class Normalised(fl.OfModel, frozen=True):
    """weights: (w_i - w) / |a_i|, with the trained buffers.  work: |a_i|, that of 1 to ``max_epochs`` epochs."""

    samples: int
    work: float


class Client(fl.Client):
    @fl.on(fl.Train, fl.training, answers=Normalised)
    def train(self, msg: fl.Train, src: str) -> fl.Work[Normalised]:
        start = self.model(msg)
        fitted: fl.Fitted = yield self.fit(start, msg.round)
        work = pushed(fitted.steps, self.config.momentum)
        change = fl.with_buffers(self.spec, (fitted.weights - start) / np.float32(work), fitted.weights)
        return Normalised(msg.round, msg.spec, change, fitted.samples, work)


class Server(fl.Server):
    def round(self, r: int) -> fl.Steps[Mapping[str, Any]]:
        gather, effective, samples = self.gather(), 0.0, 0

        def fold(name: str, sent: Normalised) -> None:
            nonlocal effective, samples
            weights = gather.checked(name, sent.spec, sent.weights, sent.samples)
            most = pushed(self.config.max_epochs * -(-sent.samples // self.config.batch_size), self.config.momentum)
            if not 1 <= sent.work <= most:
                raise fl.PeerError(f"{name}: work of {sent.work:g} steps; from 1 to {most:g} are taken")
            gather.add(name, weights, sent.samples)
            effective += sent.samples * sent.work
            samples += sent.samples

        notes = yield from self.ask(r, self.train(r), Normalised, fold)
        if samples:
            mean, tau = gather.means[0].mean(), effective / samples
            step = self.config.server_step(r) * tau
            moved = fl.stepped(self.spec, self.state.weights, mean, mean, step, share=1 / step)
            self.state.weights = gather.model(moved)
            notes["effective_steps"] = tau
        return {**notes, **gather.notes()}


SYSTEM = fl.system(
    "fednova",
    fl.Averaging,
    Server,
    Client,
    described_in=__name__,
    learns={
        "server": "every client's plain change of the model, number of samples and of steps in every round, by name",
        "client": "the global model of every round that it takes part in",
    },
)
