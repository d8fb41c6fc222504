"""Told loss: federated averaging whose clients also send their training losses; the server notes the mean."""

from collections.abc import Mapping
from math import inf
from statistics import fmean
from typing import Any

import coterie.method as fl

from .loss_audit import AUDIT


@fl.message(src="client", dst="server", tells=("trained model and number of samples", "training loss"))
class Told(fl.Update, frozen=True):
    loss: float  # the mean over the client's training


class Client(fl.Client):
    @fl.on(fl.Train, fl.training, answers=Told)
    def train(self, msg: fl.Train, src: str) -> fl.Work[Told]:
        fitted = yield self.fit(self.model(msg), msg.round)
        return Told(msg.round, msg.spec, fitted.weights, fitted.samples, fitted.loss)


class Server(fl.Server):
    def round(self, r: int) -> fl.Steps[Mapping[str, Any]]:
        losses, asked = list[float](), fl.asked_in(self.clients, self.config, self.randomness.seed, r)

        def learn(name: str, told: Told) -> None:
            if not 0 <= told.loss < inf:
                raise fl.PeerError(f"{name}: a loss of {told.loss}")
            losses.append(told.loss)

        notes, _ = yield from self.average(r, asked, Told, learn)
        return {**notes, "mean_loss": fmean(losses) if losses else None}


SYSTEM = fl.system(
    "told_loss",
    fl.Averaging,
    Server,
    Client,
    described_in=__name__,
    learns={"server": "every client's plain model, samples and loss in every round", "client": "the global model"},
    audit=AUDIT,
)
