"""IFCA: Ghosh et al., "An efficient framework for clustered federated learning", NeurIPS 2020.

Each client trains the one of k models with the lowest loss on its training data; the server averages per cluster
(their algorithm 1, model averaging). The models start from different random weights by default.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

import coterie.method as fl


@fl.settings
class IfcaConfig(fl.ClusterModels):
    """clusters: k, the number of models; 3 in FedCAPrivacy's comparison (table I)."""

    clusters: int = 3


@fl.message(
    src="client", dst="server", tells=("choice of the cluster", fl.FromTraining("trained model and number of samples"))
)
class Update(fl.OfRound, frozen=True):
    """weights: (d,) the trained model of the chosen cluster.  samples: its weight in the cluster's mean."""

    spec: bytes
    cluster: int
    weights: fl.Floats
    samples: int


class Client(fl.Client):
    class State(fl.Client.State):
        cluster: int | None = None

    @property
    def held_model(self) -> int:
        return self.state.cluster or 0

    # k forward passes, a third of a training step each, and its epochs
    @fl.on(fl.Train, fl.trained_for(lambda client: client.epochs + client.config.clusters / 3), answers=Update)
    def train(self, msg: fl.Train, src: str) -> fl.Work[Update]:
        models = self.models(msg)
        self.state.cluster = best = yield from fl.best_model(models)
        fitted = yield self.fit(models[best], msg.round)
        return Update(msg.round, msg.spec, best, fitted.weights, fitted.samples)


class Server(fl.ServerOfSeveral):
    def round(self, r: int) -> fl.Steps[Mapping[str, Any]]:
        old, chosen = self.state.weights, dict[str, int]()
        gather = self.gather(means=len(old))

        def fold(name: str, update: Update) -> None:
            gather.take(name, update, into=update.cluster)
            chosen[name] = update.cluster

        notes = yield from self.ask(r, self.train(r), Update, fold)
        self.state.weights = np.stack([gather.moved(model, k) for k, model in enumerate(old)])
        seen = {"clustered": True, "membership": fl.membership(self.clients, chosen)}
        return {**notes, **seen, "clusters": {"sizes": [mean.count for mean in gather.means]}, **gather.notes()}


LEARNS = {"server": "every client's cluster and plain model in every round, by name", "client": "all cluster models"}
SYSTEM = fl.system("ifca", IfcaConfig, Server, Client, choice=lambda client: client.state.cluster, learns=LEARNS)
