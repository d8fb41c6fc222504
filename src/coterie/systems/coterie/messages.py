"""The roles of Coterie, and its own messages; those that it shares are in ``protocols``."""

from __future__ import annotations

from coterie.protocol.messages import OfRound, message

HUB, HELPER, CLIENT = "hub", "helper", "client"


@message(src=HUB, dst=CLIENT)
class Train(OfRound, frozen=True):
    """Train the model that you have."""


@message(src=HUB, dst=CLIENT)
class TrainWhole(OfRound, frozen=True):
    """Train the model that you have, and upload all of it: groups were made anew."""
