"""HACCS: Wolfrath et al., "HACCS: Heterogeneity-aware clustered client selection for accelerated federated learning",
IPDPS 2022.

    server --Describe--> client --Described (noisy label histogram)--> server     (set-up, and when a client joins)
    server --Train--> client --Scored--> server                                   (every round, to selected clients)

The server clusters devices by the Hellinger distance of label histograms with Laplace noise. A round samples clusters
by rho (1 - latency / largest) + (1 - rho) loss / sum of losses, and takes the fastest free device of each, for one
global model.

Decided here: docs/systems/selection_baselines.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, nan, sqrt
from typing import Annotated, Any

import numpy as np

import coterie.method as fl
from coterie.clustering.histograms import Density, density_clusters, hellinger
from coterie.dp.laplace import private_counts
from coterie.protocols import selecting
from coterie.protocols.selecting import meet
from coterie.selection.clusters import cluster_weights, sample_fastest


@fl.settings
class HaccsConfig(selecting.Selecting):
    """epsilon: of each device's label histogram, for the replacement of one of its samples; inf adds no noise.

    rho: from 0 to 1, how much a cluster's latency counts against its loss.  density: ``dbscan``, or ``optics`` without
    a radius.  radius: the Hellinger distance at which two devices are in one cluster, with dbscan.
    """

    epsilon: Annotated[float, fl.Meta(gt=0)] = 1.0
    rho: fl.Share = 0.5
    density: Density = "dbscan"
    radius: fl.Positive = 0.35

    def beyond_budget(self) -> Mapping[str, str]:
        return {"epsilon": "the server gets a noisy label histogram of every device"}


@fl.message(src="server", dst="client")
class Describe(fl.OfRound, frozen=True):
    """Send your label histogram, and how long a round takes you."""


@fl.message(src="client", dst="server")
class Described(fl.OfRound, frozen=True):
    """counts: (classes,) at least 0, with noise.  seconds: of a round, by the device's own profile; 0 if unknown."""

    counts: fl.Integers
    seconds: float


class Client(fl.Client):
    class State(fl.Client.State):
        """counts: the noisy histogram that was sent in round ``described``: drawn anew, noise would cost epsilon again.
        trained: the rounds in which the client has sent a model.
        """

        trained: list[int] = fl.field(default_factory=list)
        counts: fl.Integers | None = None
        described: int = 0

    state: State
    config: HaccsConfig

    @fl.on(Describe, answers=Described)
    def describe(self, msg: Describe, src: str) -> fl.Work[Described]:
        if self.state.counts is None:
            counts: fl.Integers = yield fl.Local(fl.label_counts, (self.spec.outputs,))
            source = self.kept("label histogram", repr((self.config.epsilon, counts.tolist())).encode())
            self.state.counts = private_counts(counts, self.config.epsilon, source)
            self.state.described = msg.round
        seconds: float = yield fl.Local(selecting.round_seconds, selecting.own_work(self))
        return Described(msg.round, self.state.counts, seconds)

    @fl.on(fl.Train, fl.training, answers=selecting.Scored)
    def train(self, msg: fl.Train, src: str) -> fl.Work[selecting.Scored]:
        start = self.model(msg)
        fitted: fl.Fitted = yield self.fit(start, msg.round)
        self.state.trained.append(msg.round)
        return selecting.Scored(msg.round, msg.spec, fitted.weights, fitted.samples, fitted.loss)


class Server(fl.Server):
    class State(fl.Server.State):
        """By client: its noisy histogram, the seconds of a round (claimed until observed), its last loss, its missed
        requests in a row, and its cluster.
        """

        counts: dict[str, fl.Integers] = fl.field(default_factory=dict)
        seconds: dict[str, float] = fl.field(default_factory=dict)
        losses: dict[str, float] = fl.field(default_factory=dict)
        missed: dict[str, int] = fl.field(default_factory=dict)
        clusters: dict[str, int] = fl.field(default_factory=dict)

    state: State
    config: HaccsConfig

    def setup(self) -> fl.Steps[None]:
        yield from self.meet(0)

    def meet(self, r: int) -> fl.Steps[None]:
        def learn(name: str, described: Described) -> None:
            counts, most = described.counts, fl.MOST_SAMPLES * len(described.counts)
            if len(counts) != self.spec.outputs or counts.min() < 0 or counts.max() > most:
                raise fl.PeerError(
                    f"{name}: a histogram of {len(counts)} counts, expected {self.spec.outputs}, 0 or more"
                )
            selecting.checked_seconds(name, described.seconds)
            self.state.counts[name] = counts

        yield from meet(self, r, Describe, Described, learn)

    def cluster(self) -> bool:
        names = [name for name in self.clients if name in self.state.counts]
        if len(names) == len(self.state.clusters):
            return False
        distances = hellinger(np.stack([self.state.counts[name] for name in names]))
        numbers = density_clusters(distances, self.config.density, self.config.radius)
        self.state.clusters = dict(zip(names, map(int, numbers), strict=True))
        return True

    def select(self, r: int) -> list[str]:
        state, names = self.state, list(self.state.clusters)
        if not names:
            return []
        clusters = np.array([state.clusters[name] for name in names])
        losses = [state.losses.get(name, nan) for name in names]
        weights = cluster_weights(clusters, losses, [state.seconds[name] for name in names], self.config.rho)
        order = sorted(range(len(names)), key=lambda i: (state.missed.get(names[i], 0), state.seconds[names[i]]))
        members = [[i for i in order if clusters[i] == k] for k in range(len(weights))]
        number = self.config.number(self.clients, r)
        return [names[i] for i in sorted(sample_fastest(weights, members, number, self.rng("selection", r)))]

    def round(self, r: int) -> fl.Steps[Mapping[str, Any]]:
        yield from self.meet(r)
        clustered, state = self.cluster(), self.state
        chosen = self.select(r)
        for name in chosen:
            state.missed[name] = state.missed.get(name, 0) + 1

        def learn(name: str, update: selecting.Scored, loss: float) -> None:
            state.losses[name], state.missed[name] = loss, 0

        notes, seconds = yield from selecting.selected_round(self, r, chosen, learn)
        state.seconds.update(seconds)
        sizes = np.bincount(list(state.clusters.values())).tolist() if state.clusters else []
        return {
            **notes,
            "clustered": clustered,
            "clusters": {"sizes": sizes},
            "membership": fl.membership(self.clients, state.clusters),
            "selected": {name: state.clusters[name] for name in chosen},
        }


def observe(federation: fl.Federation) -> Mapping[str, Any]:
    state = federation.look(federation.hub).state
    counts = {name: state.counts[name].tolist() for name in federation.common.clients if name in state.counts}
    return {"membership": fl.membership(federation.common.clients, state.clusters), "histograms": counts}


def ledger(federation: fl.Federation) -> Mapping[str, Sequence[fl.Release]]:
    epsilon, found = federation.look(federation.hub).config.epsilon, dict[str, Sequence[fl.Release]]()
    for client in federation.of_role("client"):
        state, releases = client.state, list[fl.Release]()
        if state.counts is not None:
            noise: Mapping[str, Any] = {"mechanism": "laplace", "pure_epsilon": epsilon} if epsilon < inf else {}
            releases.append(fl.Release("label histogram", sensitivity_l2=sqrt(2), round=state.described, **noise))
        for r in state.trained:
            releases += fl.told(client.config, client.samples, client.epochs, selecting.SCORED, r)
        found[client.name] = releases
    return found


SYSTEM = fl.system(
    "haccs",
    HaccsConfig,
    Server,
    Client,
    learns={
        "server": "every device's label histogram with Laplace noise of scale 2/epsilon, its speed, and of the "
        "selected ones the plain model, samples and loss of every round, by name",
        "client": "the global model of every round that it is selected in",
    },
    observe=observe,
    releases=None,
    ledger=ledger,
    needs_classes=True,
)
