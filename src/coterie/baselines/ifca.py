"""IFCA: Ghosh et al., "An efficient framework for clustered federated learning", NeurIPS 2020.

    server --Train (k models)--> client --Update--> server

Each client tries all k models on its training data, trains the one with the lowest loss and returns it; the server
averages per cluster (their algorithm 1, model averaging). The models start from different random weights by default.

Sees. server: every client's cluster and plain model, by name. client: all k cluster models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.aggregation.sums import WeightedMean
from coterie.protocol.effects import Fit, Fitted, Vector
from coterie.protocol.errors import PeerError
from coterie.protocol.messages import Floats, Message, message
from coterie.protocol.party import Cost, Work, on
from coterie.protocol.steps import Steps
from coterie.protocol.system import Federation, Sees, System, telling
from coterie.protocols import averaging
from coterie.protocols.averaging import Train, Updates
from coterie.protocols.keeping import Keeper, Kept, keep, told
from coterie.protocols.local_training import ClusterModels, ask_round, batch_seed, best_model, check_model


@dataclass(frozen=True)
class IfcaConfig(ClusterModels):
    """clusters: k, the number of models; 3 in FedCAPrivacy's comparison (table I)."""

    clusters: int = 3


@message(src="client", dst="server")
class Update(Message, frozen=True):
    """The chosen cluster and its locally trained model (d,). samples: the weight in the cluster's mean."""

    round: int
    spec: bytes
    cluster: int
    weights: Floats
    samples: int


class Client(Keeper, role="client"):
    """Picks the model that fits its data best; remembers which, for whoever evaluates."""

    class State(Kept):
        """cluster: the last choice, -1 before the first."""

        cluster: int = -1

    state: State
    config: IfcaConfig

    def cost(self, msg: Train) -> Cost:
        """k forward passes, a third of a training step each, and its epochs."""
        samples = self.samples * (self.epochs + self.config.clusters / 3)
        return Cost(samples=samples, flops_per_sample=self.spec.flops_per_sample)

    @on(Train, cost)
    def train(self, msg: Train, src: str) -> Work[Update]:
        """Estimate the cluster by loss, then train its model."""
        k = self.config.clusters
        candidates = check_model(self.spec, msg.spec, msg.weights, k).reshape(k, -1)
        keep(self, candidates)
        self.state.cluster = best = yield from best_model(candidates)
        fitted: Fitted = yield Fit(candidates[best], self.config.solver(), self.epochs, batch_seed(self, msg.round))
        return Update(msg.round, self.spec.digest, best, fitted.weights, fitted.samples)


class Server(averaging.ServerOfSeveral, role="server"):
    """Holds the k models."""

    def round(self, r: int) -> Steps[Mapping[str, Any]]:
        """The mean of each cluster's answers; a cluster that nobody chose keeps its model."""
        means = [WeightedMean(self.spec.size) for _ in self.state.weights]
        updates, chosen = Updates(self.spec, self.state.weights), dict[str, int]()

        def fold(name: str, update: Update) -> None:
            if not 0 <= update.cluster < len(means):
                raise PeerError(f"{name}: an update for cluster {update.cluster} of {len(means)}")
            means[update.cluster].take(
                updates.checked(name, update.spec, update.weights, update.samples), update.samples
            )
            updates.took(name, update.weights, samples=update.samples)
            chosen[name] = update.cluster

        train = Train(r, self.spec.digest, self.state.weights.reshape(-1))
        notes = yield from ask_round(self, r, train, Update, fold)
        new = [mean.mean() if mean.count else old for mean, old in zip(means, self.state.weights, strict=True)]
        self.state.weights = updates.model(np.stack(new))
        return {
            **notes,
            "clustered": True,
            "clusters": {"sizes": [mean.count for mean in means]},
            "membership": [[chosen[name]] if name in chosen else [] for name in self.clients],
            **updates.notes(),
        }


def models(federation: Federation) -> Mapping[str, Vector]:
    """Each client uses the model of the cluster that it last chose (before its first choice, the first)."""
    weights = list(federation.look(federation.hub).state.weights)
    return {client.name: weights[max(client.state.cluster, 0)] for client in federation.of_role("client")}


def own_model(client: Client) -> Vector:
    """The model that a client last chose, as far as it knows it."""
    return np.asarray(told(client)[max(client.state.cluster, 0)])


def observe(federation: Federation) -> Mapping[str, Any]:
    """The cluster that each client last chose."""
    chosen = (client.state.cluster for client in federation.of_role("client"))
    return {"membership": [[] if cluster < 0 else [cluster] for cluster in chosen]}


SYSTEM = System(
    name="ifca",
    title="IFCA",
    citation="Ghosh et al., An efficient framework for clustered federated learning, NeurIPS 2020",
    config=IfcaConfig,
    parties=lambda config: {"server": Server, "client": Client},
    models=models,
    own_model=own_model,
    sees={
        "server": Sees((Update,), "every client's cluster and plain model in every round, by name"),
        "client": Sees((Train,), "all cluster models"),
    },
    pool=lambda federation: [federation.look(federation.hub).state.weights],
    observe=observe,
    releases=telling({Update: ("choice of the cluster", "trained model and number of samples")}),
    baseline=True,
)
