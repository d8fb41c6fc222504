"""Federated averaging of a part of the model.

    server --Train (shared parts)--> client --Update (shared parts)--> server            (every round)

``own_parts(spec)`` names the parts that are each client's own, ``OWN`` says what they are, and ``FITS``, if there is
one, names a model with parts of both kinds.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

import coterie.protocol.core as fl
from coterie.protocols import local_training
from coterie.protocols.averaging import ModelClient, Server, Train, Update


@lru_cache(maxsize=8)
def divided(spec: fl.ModelSpec, own: tuple[str, ...]) -> tuple[fl.ModelSpec, fl.Flags]:
    """The shared parts, laid out alone, and their coordinates in the model, (d,) bool."""
    shared = ~spec.of(own)
    shared.setflags(write=False)
    return spec.without(own), shared


def check_parts(config: Any, common: fl.Common) -> None:
    """Raises UserError unless there are parts of both kinds."""
    own = config.own_parts(common.spec)
    if not own or len(own) == len(common.spec.parts):
        what = "has no such part" if not own else "has no other part that could be shared"
        fits = f", such as {config.FITS}" if hasattr(config, "FITS") else ""
        raise fl.UserError(
            f"each client keeps {config.OWN} to itself, and this model {what} (it has {', '.join(common.spec.names)}): "
            f"choose another model{fits}"
        )


class PartClient(ModelClient, role="client"):
    """A client with parts of its own, which join the server's to a whole model, (d,)."""

    class State(ModelClient.State):
        own: fl.Vector = fl.from_party(lambda client: client.starts[0][~client.is_shared])

    state: Any

    @property
    def is_shared(self) -> fl.Flags:
        return divided(self.spec, self.config.own_parts(self.spec))[1]

    @property
    def shared_spec(self) -> fl.ModelSpec:
        return divided(self.spec, self.config.own_parts(self.spec))[0]

    def models(self, msg: Any) -> fl.Vector:
        return self.model(msg)[None]

    def model(self, msg: Any) -> fl.Vector:
        return self.whole(self.keep(local_training.check_model(self.shared_spec, msg.spec, msg.weights)))

    def whole(self, shared: fl.Vector) -> fl.Vector:
        found = np.empty(self.spec.size, np.float32)
        found[self.is_shared], found[~self.is_shared] = shared, self.state.own
        return found

    def divide(self, weights: fl.Vector) -> fl.Vector:
        """Keep the own parts of this model (d,). Returns the shared ones."""
        self.state.own = weights[~self.is_shared]
        return weights[self.is_shared]

    @fl.on(Train, local_training.training_cost, answers=Update)
    def train(self, msg: Train, src: str) -> fl.Work[Update]:
        fitted: fl.Fitted = yield self.fit(self.model(msg), msg.round)
        return Update(msg.round, msg.spec, self.divide(fitted.weights), fitted.samples)

    def last_models(self) -> fl.Vector:
        last = self.starts[0][self.is_shared] if self.state.last is None else self.state.last
        return self.whole(last)[None]


class PartServer(Server, role="server"):
    """Its ``spec`` is that of the shared parts."""

    class State(Server.State):
        weights: fl.Vector = fl.from_party(lambda server: server.starts[0][server.is_shared])

    def __init__(self, own: fl.Own, common: fl.Common, config: Any) -> None:
        _, self.is_shared = divided(common.spec, config.own_parts(common.spec))
        super().__init__(own, common, config)
        self.spec, _ = divided(common.spec, config.own_parts(common.spec))

    def last_starts(self) -> fl.Vector:
        start = self.starts[0].copy()
        start[self.is_shared] = self.state.weights
        return np.asarray(start[None])


def whole_models(federation: fl.Federation) -> Mapping[str, fl.Vector]:
    shared = federation.look(federation.hub).state.weights
    return {client.name: client.whole(shared) for client in federation.of_role("client")}
