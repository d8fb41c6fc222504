"""RFL-HA: Wang, Xu, Liu, Huang, Qiao and Zhao, "Resource-efficient federated learning with hierarchical aggregation in
edge computing", IEEE INFOCOM 2021. (OFL's table 3 calls it REFL, which is another paper's name.)

    server --Introduce--> client --Introduced (its speed)--> server              (set-up, and when a client joins)
    server --Belong (its head)--> client --Belonging--> server                   (when clusters are made)
    server --Lead (global model)--> head --Train--> member --Update--> head --Led (cluster model)--> server

Clients of like speed form balanced clusters. A cluster's head, its fastest client, waits for all its members and
averages their models. The server does not wait: it mixes each cluster's model into the global one as it arrives, with a
share that falls with the number of models that came before it.

Sees. server: the mean model of each cluster, and who is in it. head: its members' plain models, by name. client: the
global model. Decided here, as docs/systems/hierarchical_baselines.md explains: the number of clusters is a
setting, each cluster is asked once a round, and the mixing share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from coterie.aggregation.mixing import Mixed
from coterie.aggregation.sums import WeightedMean
from coterie.protocol.effects import Fit, Fitted, Vector
from coterie.protocol.errors import DecodeError, PeerError, UserError
from coterie.protocol.messages import Floats, Message, bundle, message, unbundle
from coterie.protocol.party import Work, initial, on
from coterie.protocol.steps import Steps, compute, for_each
from coterie.protocol.system import Federation, Sees, System, telling
from coterie.protocols import averaging
from coterie.protocols.averaging import Averaging, Updates
from coterie.protocols.keeping import HandingOut, Kept, keep, own_model
from coterie.protocols.local_training import ask_all, asked_in, at_least, batch_seed, check_model, training_cost
from coterie.protocols.selecting import Introduce, Introduced, Introducing, meet

HEAD = "head"


@dataclass(frozen=True)
class RflHaConfig(Averaging):
    """clusters: how many, of like speed.  server_lr: share of a cluster's model in the global one, where it is the
    first of its round; the s-th after it counts (1 + s)^-exponent of that.
    """

    clusters: int = 4
    exponent: float = 0.5
    server_lr: float = 0.6

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, clusters=1)
        if not 0 < self.server_lr <= 1:
            raise UserError(
                f"server_lr is the share of a cluster's model in a mixture: in (0, 1], not {self.server_lr}"
            )
        if not 0 <= self.exponent < 100:
            raise UserError(f"exponent must lie in [0, 100), not {self.exponent}")

    @property
    def head_s(self) -> float | None:
        """How long a head waits for its members: half of the deadline, so that its own answer is in time."""
        return None if self.deadline_s is None else self.deadline_s / 2

    def own_budget(self) -> Mapping[str, str]:
        return {"server_lr": "it is the share of one cluster's model, not a step towards the mean of all"}


@message(src="server", dst="client")
class Belong(Message, frozen=True):
    """head: the client that may give you tasks from now on.  members: of your cluster, a bundle of ``count`` names,
    if you are its head."""

    round: int
    head: str
    members: bytes
    count: int


@message(src="client", dst="server")
class Belonging(Message, frozen=True):
    """I know my head."""

    round: int


@message(src="server", dst=HEAD)
class Lead(Message, frozen=True):
    """Have your cluster train this model. asked: by member, whether it takes part, one byte each."""

    round: int
    spec: bytes
    weights: Floats
    asked: bytes


@message(src=HEAD, dst="client")
class Train(Message, frozen=True):
    """Train on your data."""

    round: int
    spec: bytes
    weights: Floats


@message(src="client", dst=HEAD)
class Update(Message, frozen=True):
    """The trained model, and of how many samples."""

    round: int
    spec: bytes
    weights: Floats
    samples: int


@message(src=HEAD, dst="server")
class Led(Message, frozen=True):
    """The mean model of a cluster. samples: of ``members`` clients together."""

    round: int
    spec: bytes
    weights: Floats
    samples: int
    members: int


class Client(Introducing, role="client", also=(HEAD,)):
    """Trains for its head, and coordinates its cluster where it is the head itself."""

    class State(Kept):
        """head: of its cluster.  members: of its cluster, where it is the head; itself among them."""

        head: str = ""
        members: list[str] = msgspec.field(default_factory=list)

    state: State
    config: RflHaConfig

    @on(Belong)
    def belong(self, msg: Belong, src: str) -> Belonging:
        """Know the head, and the members where it is this client."""
        try:
            members = [part.decode() for part in unbundle(msg.members, msg.count)]
        except UnicodeDecodeError as error:
            raise DecodeError(f"a member's name is none: {error}") from None
        if not {msg.head, *members} <= set(self.common.clients) or len(set(members)) < len(members):
            raise PeerError("a cluster of parties that are no clients, or of one twice")
        if (self.name in members) != (msg.head == self.name) or bool(members) != (msg.head == self.name):
            raise PeerError("a head is told its members, itself among them, and nobody else is")
        self.state.head, self.state.members = msg.head, members
        return Belonging(msg.round)

    @on(Train, training_cost)
    def train(self, msg: Train, src: str) -> Work[Update]:
        """E_i epochs, for its own head only."""
        if src != self.state.head:
            raise PeerError(f"{src} is not the head of this cluster")
        start = check_model(self.spec, msg.spec, msg.weights)
        keep(self, start)
        fitted: Fitted = yield self.fit(msg.round, start)
        return Update(msg.round, self.spec.digest, fitted.weights, fitted.samples)

    def fit(self, r: int, start: Vector) -> Fit:
        """This client's training in a round."""
        return Fit(start, self.config.solver(), self.epochs, batch_seed(self, r))

    @on(Lead)
    def lead(self, msg: Lead, src: str) -> Steps[Led]:
        """Synchronous aggregation in the cluster: wait for all members that are asked, and average."""
        start = check_model(self.spec, msg.spec, msg.weights)
        keep(self, start)
        if len(msg.asked) != len(self.state.members):
            raise PeerError(f"{len(msg.asked)} marks for a cluster of {len(self.state.members)}")
        asked = [name for name, mark in zip(self.state.members, msg.asked, strict=True) if mark]
        mean, updates, samples = WeightedMean(self.spec.size), Updates(self.spec, start), 0

        def fold(name: str, answer: Update) -> None:
            nonlocal samples
            if answer.round != msg.round:
                raise PeerError(f"{name}: an answer for round {answer.round} in round {msg.round}")
            mean.take(updates.checked(name, answer.spec, answer.weights, answer.samples), answer.samples)
            samples += answer.samples

        tasks = {name: Train(msg.round, msg.spec, start) for name in asked if name != self.name}
        answers = yield from for_each(tasks, Update, fold, deadline_s=self.config.head_s)
        if self.name in asked:
            fitted: Fitted = yield from compute(self.fit(msg.round, start))
            mean.take(fitted.weights, fitted.samples)
            samples += fitted.samples
        if not mean.count:
            raise PeerError("no member has trained")
        weights = updates.model(mean.mean())
        return Led(msg.round, self.spec.digest, weights, samples, len(answers.got) + (self.name in asked))


class Server(HandingOut, role="server"):
    """Makes balanced clusters, and mixes their models into the global one."""

    class State(msgspec.Struct):
        """weights: (d,) the global model.  seconds: of a round, as each client says.  clusters: their members, the head
        first.  failed: heads that gave no model in the last round.
        """

        weights: Vector = initial
        seconds: dict[str, float] = msgspec.field(default_factory=dict)
        clusters: list[list[str]] = msgspec.field(default_factory=list)
        failed: list[str] = msgspec.field(default_factory=list)

    state: State
    config: RflHaConfig

    def setup(self) -> Steps[None]:
        """Get to know the clients' speeds, and make clusters."""
        yield from self.regroup(0)

    def regroup(self, r: int) -> Steps[bool]:
        """Clusters are made anew when clients have joined; a head that failed hands over to the next fastest."""
        state = self.state
        if (yield from meet(self, r)):
            state.clusters = balanced(state.seconds, self.clients, self.config.clusters)
        elif state.failed:
            state.clusters = [own[1:] + own[:1] if own[0] in state.failed else own for own in state.clusters]
        else:
            return False
        state.failed = []
        told = {
            name: Belong(r, own[0], bundle([one.encode() for one in of]), len(of))
            for own in state.clusters
            for name in own
            for of in [own if name == own[0] else []]
        }
        yield from ask_all(self, r, told, Belonging, lambda name, _: None)
        return True

    def round(self, r: int) -> Steps[Mapping[str, Any]]:
        """Every cluster trains once; the server mixes in their models in the order of arrival."""
        clustered = yield from self.regroup(r)
        state, participants, mixed, order = self.state, 0, Mixed(self.spec.size), list[str]()
        asked = set(asked_in(self.clients, self.config, self.randomness.seed, r))
        sizes = {own[0]: len(own) for own in state.clusters}
        updates = Updates(self.spec, state.weights)

        def fold(name: str, led: Led) -> None:
            nonlocal participants
            if not 1 <= led.members <= sizes[name]:
                raise PeerError(f"{name}: a mean of {led.members} members of a cluster of {sizes[name]}")
            weights = updates.checked(name, led.spec, led.weights)
            mixed.take(weights, self.config.server_step(r) * float(1 + len(order)) ** -self.config.exponent)
            updates.took(name, weights)
            order.append(name)
            participants += led.members

        requests = {
            own[0]: Lead(r, self.spec.digest, state.weights, bytes(name in asked for name in own))
            for own in state.clusters
            if asked.intersection(own)
        }
        yield from ask_all(self, r, requests, Led, fold)
        state.failed = [head for head in requests if head not in order]
        if order:
            state.weights = updates.model(mixed(state.weights.astype(np.float64)))
        return {
            "participants": participants,
            "asked": len(asked),
            "clustered": clustered,
            "leaders": {str(k): own[0] for k, own in enumerate(state.clusters)},
            "clusters": {"sizes": [len(own) for own in state.clusters]},
            "arrived": order,
            **updates.notes(),
        }


def balanced(seconds: Mapping[str, float], clients: Sequence[str], k: int) -> list[list[str]]:
    """Clusters of like speed, as even as can be, each with its fastest client first; no more than there are clients."""
    known = sorted((name for name in clients if name in seconds), key=lambda name: seconds[name])
    return [list(part) for part in np.array_split(np.array(known, object), min(k, len(known)))] if known else []


def observe(federation: Federation) -> Mapping[str, Any]:
    """The clusters, the head first."""
    return {"clusters": federation.look(federation.hub).state.clusters}


SYSTEM = System(
    name="rfl_ha",
    title="RFL-HA",
    citation="Wang et al., Resource-efficient federated learning with hierarchical aggregation, INFOCOM 2021",
    config=RflHaConfig,
    parties=lambda config: {"server": Server, "client": Client},
    also={"client": (HEAD,)},
    models=averaging.models,
    own_model=own_model,
    sees={
        "server": Sees((Introduced, Belonging, Led), "every client's speed, and the plain mean model of each cluster"),
        HEAD: Sees((Lead, Update), "the global model, and its members' plain models and numbers of samples, by name"),
        "client": Sees((Introduce, Belong, Train), "the global model, and which client is the head of its cluster"),
    },
    observe=observe,
    releases=telling({Update: ("trained model and number of samples",), Led: ("mean model of a cluster",)}),
    baseline=True,
)
