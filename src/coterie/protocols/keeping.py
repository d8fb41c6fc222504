"""The model that a client predicts with, from its own state alone, where the method itself leaves it at the hub.

    hub --Last--> client         after the last round, with nothing to answer

In a simulation an observer reads everybody's model from the hub, and clients keep none. Between machines
(``Common.deployed``) a client keeps the model that it was told last, and the hub hands out its last ones. No round
depends on that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from coterie.protocol.effects import Vector
from coterie.protocol.messages import ANY, Floats, Message, message
from coterie.protocol.party import Party, from_hub, on
from coterie.protocol.steps import Steps, post
from coterie.protocols.local_training import check_model


@message(src=ANY, dst=ANY)
class Last(Message, frozen=True):
    """The run is over. Predict with this model from now on, (d,), or with these, (k d,), as the method says."""

    spec: bytes
    weights: Floats


class Kept(msgspec.Struct, kw_only=True):
    """Base of the state of a ``Keeper``. told: (k d,) float32 the model, or all models, that the client was told last.

    It is None in a simulation, and before the first.
    """

    told: Vector | None = None


class Keeper(Party):
    """A client that keeps what it is told, where parties are on machines of their own."""

    State: type[msgspec.Struct] = Kept
    state: Any

    @on(Last)
    def take_last(self, msg: Last, src: str) -> None:
        """Keep the last model. Raises PeerError for another shape, or from another party than the hub."""
        from_hub(self, msg, src)
        keep(self, check_model(self.spec, msg.spec, msg.weights, self.config.models))


def keep(client: Party, weights: Vector) -> None:
    """Keep this model (d,), or these (k d,), which were checked, if the client is on a machine of its own."""
    if client.common.deployed and isinstance(client.state, Kept):
        client.state.told = weights.reshape(-1)


def told(client: Keeper) -> Vector:
    """(k, d) float32, what a client was told last; what all begin with before that."""
    if client.state.told is None:
        return client.common.starts[: client.config.models]
    return np.asarray(client.state.told.reshape(-1, client.spec.size))


def own_model(client: Keeper) -> Vector:
    """(d,) float32, the one model of a ``Keeper``."""
    return np.asarray(told(client)[0])


class HandingOut(Party):
    """A hub that hands out its last models, where parties are on machines of their own."""

    def last(self) -> Mapping[str, Vector]:
        """By client, (d,), or (k, d) of which it chooses. By default all get the hub's ``weights``."""
        return dict.fromkeys(self.clients, self.state.weights)

    @property
    def finishes(self) -> bool:
        """Only where parties are on machines of their own, unless a subclass has other steps."""
        return self.common.deployed or type(self).finish is not HandingOut.finish

    def finish(self) -> Steps[None]:
        """The last models. Nobody answers: a client that is away gets its own later."""
        if not self.finishes:
            return
        made: dict[int, Last] = {}  # one message for all that get the same
        models = self.last()
        for weights in models.values():
            if id(weights) not in made:
                made[id(weights)] = Last(self.spec.digest, weights.reshape(-1))
        yield from post({name: made[id(weights)] for name, weights in models.items()})
