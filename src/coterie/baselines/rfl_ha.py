"""RFL-HA: Wang, Xu, Liu, Huang, Qiao and Zhao, "Resource-efficient federated learning with hierarchical aggregation in
edge computing", IEEE INFOCOM 2021. (OFL's table 3 calls it REFL, which is another paper's name.)

    server --Introduce--> client --Introduced (its speed)--> server              (set-up, and when a client joins)
    server --Belong (its head)--> client --Done--> server                        (when clusters are made)
    server --Lead (global model)--> head --Train--> member --Update--> head --Led (cluster model)--> server

Clients of like speed form balanced clusters, whose fastest client averages its members' models. The server mixes each
cluster's model into the global one on arrival, with a share that falls with each earlier arrival.

Decided here: docs/systems/hierarchical_baselines.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np

import coterie.method as fl
from coterie.aggregation.sums import RunningMix
from coterie.protocols.selecting import Introducing, meet

HEAD = "head"


@fl.settings
class RflHaConfig(fl.Averaging):
    """clusters: how many, of like speed.  server_lr: share of a cluster's model in the global one, where it is the
    first of its round; the s-th after it counts (1 + s)^-exponent of that.
    """

    clusters: fl.AtLeastOne = 4
    exponent: Annotated[float, fl.Meta(ge=0, lt=100)] = 0.5
    server_lr: Annotated[float, fl.Meta(gt=0, le=1)] = 0.6

    @property
    def head_s(self) -> float | None:
        """Half the deadline."""
        # so the head's own answer is in time
        return None if self.deadline_s is None else self.deadline_s / 2

    def own_budget(self) -> Mapping[str, str]:
        return {"server_lr": "it is the share of one cluster's model, not a step towards the mean of all"}


@fl.message(src="server", dst="client")
class Belong(fl.OfRound, frozen=True):
    """head: who may give you tasks from now on.  members: a bundle of ``count`` names, if you are the head."""

    head: str
    members: bytes
    count: int


@fl.message(src="server", dst=HEAD)
class Lead(fl.OfModel, frozen=True):
    """asked: by member, whether it takes part, one byte each."""

    asked: bytes


@fl.message(src=HEAD, dst="client")
class Train(fl.OfModel, frozen=True):
    pass


@fl.message(src="client", dst=HEAD, tells=fl.Update.TELLS)
class Update(fl.Update, frozen=True):
    pass


@fl.message(src=HEAD, dst="server", tells=(fl.FromTraining("mean model of a cluster"),))
class Led(fl.OfModel, frozen=True):
    """The mean model of a cluster. samples: of ``members`` clients together."""

    samples: int
    members: int


class Client(Introducing, role="client", also=(HEAD,)):
    class State(fl.Client.State):
        """head: of its cluster.  members: of its cluster, itself included, if it is the head."""

        head: str = ""
        members: list[str] = fl.field(default_factory=list)

    state: State
    config: RflHaConfig

    @fl.on(Belong, answers=fl.Done)
    def belong(self, msg: Belong, src: str) -> fl.Done:
        try:
            members = [part.decode() for part in fl.unbundle(msg.members, msg.count)]
        except UnicodeDecodeError as error:
            raise fl.DecodeError(f"a member's name is none: {error}") from None
        if not {msg.head, *members} <= set(self.common.clients) or len(set(members)) < len(members):
            raise fl.PeerError("a cluster of parties that are no clients, or of one twice")
        if (self.name in members) != (msg.head == self.name) or bool(members) != (msg.head == self.name):
            raise fl.PeerError("a head is told its members, itself among them, and nobody else is")
        self.state.head, self.state.members = msg.head, members
        return fl.Done(msg.round)

    @fl.on(Train, fl.training, answers=Update)
    def train(self, msg: Train, src: str) -> fl.Work[Update]:
        if src != self.state.head:
            raise fl.PeerError(f"{src} is not the head of this cluster")
        start = self.model(msg)
        fitted: fl.Fitted = yield self.fit(start, msg.round)
        return Update(msg.round, msg.spec, fitted.weights, fitted.samples)

    @fl.on(Lead, answers=Led)
    def lead(self, msg: Lead, src: str) -> fl.Steps[Led]:
        start = self.model(msg)
        if len(msg.asked) != len(self.state.members):
            raise fl.PeerError(f"{len(msg.asked)} marks for a cluster of {len(self.state.members)}")
        asked = [name for name, mark in zip(self.state.members, msg.asked, strict=True) if mark]
        gather, samples = fl.Gather(self.spec, start), 0

        def fold(name: str, answer: Update) -> None:
            nonlocal samples
            gather.take(name, answer)
            samples += answer.samples

        tasks = {name: Train(msg.round, msg.spec, start) for name in asked if name != self.name}
        answers = yield from fl.for_each(tasks, Update, fold, deadline_s=self.config.head_s)
        if self.name in asked:
            fitted: fl.Fitted = yield from fl.compute(self.fit(start, msg.round))
            gather.add(self.name, fitted.weights, fitted.samples)
            samples += fitted.samples
        if not gather.means[0].count:
            raise fl.PeerError("no member has trained")
        weights = gather.moved(start)
        return Led(msg.round, self.spec.digest, weights, samples, len(answers.got) + (self.name in asked))


class Server(fl.Server):
    class State(fl.Server.State):
        """seconds: of a round, as each client says.  clusters: members, the head first.  failed: heads without a
        model in the last round.
        """

        seconds: dict[str, float] = fl.field(default_factory=dict)
        clusters: list[list[str]] = fl.field(default_factory=list)
        failed: list[str] = fl.field(default_factory=list)

    state: State
    config: RflHaConfig

    def setup(self) -> fl.Steps[None]:
        yield from self.regroup(0)

    def regroup(self, r: int) -> fl.Steps[bool]:
        state = self.state
        if (yield from meet(self, r)):
            state.clusters = balanced(state.seconds, self.clients, self.config.clusters)
        elif state.failed:
            state.clusters = [own[1:] + own[:1] if own[0] in state.failed else own for own in state.clusters]
        else:
            return False
        state.failed = []
        told = {
            name: Belong(r, own[0], fl.bundle([one.encode() for one in of]), len(of))
            for own in state.clusters
            for name in own
            for of in [own if name == own[0] else []]
        }
        yield from fl.ask_all(self, told, fl.Done)
        return True

    def round(self, r: int) -> fl.Steps[Mapping[str, Any]]:
        clustered = yield from self.regroup(r)
        state, participants, mixed, order = self.state, 0, RunningMix(self.spec.size), list[str]()
        asked = set(fl.asked_in(self.clients, self.config, self.randomness.seed, r))
        sizes = {own[0]: len(own) for own in state.clusters}
        gather = self.gather(means=0)

        def fold(name: str, led: Led) -> None:
            nonlocal participants
            if not 1 <= led.members <= sizes[name]:
                raise fl.PeerError(f"{name}: a mean of {led.members} members of a cluster of {sizes[name]}")
            weights = gather.checked(name, led.spec, led.weights)
            mixed.take(weights, self.config.server_step(r) * float(1 + len(order)) ** -self.config.exponent)
            gather.took(name, weights)
            order.append(name)
            participants += led.members

        requests = {
            own[0]: Lead(r, self.spec.digest, state.weights, bytes(name in asked for name in own))
            for own in state.clusters
            if asked.intersection(own)
        }
        yield from fl.ask_all(self, requests, Led, fold)
        state.failed = [head for head in requests if head not in order]
        if order:
            state.weights = gather.model(mixed(state.weights.astype(np.float64)))
        return {
            "participants": participants,
            "asked": len(asked),
            "clustered": clustered,
            "leaders": {str(k): own[0] for k, own in enumerate(state.clusters)},
            "clusters": {"sizes": [len(own) for own in state.clusters]},
            "arrived": order,
            **gather.notes(),
        }


def balanced(seconds: Mapping[str, float], clients: Sequence[str], k: int) -> list[list[str]]:
    """Of like speed and near equal size, the fastest client first."""
    known = sorted((name for name in clients if name in seconds), key=lambda name: seconds[name])
    return [list(part) for part in np.array_split(np.array(known, object), min(k, len(known)))] if known else []


def observe(federation: fl.Federation) -> Mapping[str, Any]:
    return {"clusters": federation.look(federation.hub).state.clusters}


SYSTEM = fl.system(
    "rfl_ha",
    RflHaConfig,
    Server,
    Client,
    learns={
        "server": "every client's speed, and the plain mean model of each cluster",
        HEAD: "the global model, and its members' plain models and numbers of samples, by name",
        "client": "the global model, and which client is the head of its cluster",
    },
    also={"client": (HEAD,)},
    observe=observe,
    title="RFL-HA",
    citation="Wang et al., Resource-efficient federated learning with hierarchical aggregation, INFOCOM 2021",
)
