"""The messages of OFL's rounds. Keys and the opening of sums have their own in ``protocols/threshold/keys.py``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

import coterie.method as fl
from coterie.protocol.messages import ArrayOf, Bundle, Floats, Integers, OfRound, Signed, bundle, message, unbundle

HUB = "server"
LEADER = "leader"
CLIENT = "client"

MODEL = "model"
"""The joint key of the leaders, under which they encrypt their models."""

MANDATE_BYTES = 64
"""Of one signature."""


def names(texts: Iterable[str]) -> bytes:
    return bundle([text.encode() for text in texts])


def named(data: bytes, count: int | None = None, *, once: bool = True) -> list[str]:
    """The names of a bundle, of so many if stated. Raises DecodeError, also for a repeated name if ``once``."""
    stated = int.from_bytes(data[:4], "little")
    try:
        found = [part.decode() for part in unbundle(data, stated if count is None else count)]
    except UnicodeDecodeError as error:
        raise fl.DecodeError(f"a name that is none: {error}") from None
    if once and len(set(found)) < len(found):
        raise fl.DecodeError("a name stands twice")
    return found


Places = Annotated[NDArray[np.int32], ArrayOf("<i4", 1)]
"""Indices into the model's flat vector, ascending."""


@message(src=HUB, dst=CLIENT)
class Tell(OfRound, frozen=True):
    """Report your status, for the clusters and elections of this round."""


@message(src=HUB, dst=LEADER)
class Mandate(Signed, frozen=True):
    """Names a member's cluster and leader in this round. The member is signed, too.

    It never travels alone: the leader gets the signatures of its members' mandates and shows each its own.
    usual: the median number of samples of the clients at the last clustering, 0 where ``full_samples`` is set.
    """

    cluster: int
    leader: str
    usual: float


@message(src=HUB, dst=LEADER)
class Lead(OfRound, frozen=True):
    """Aggregate the uploads of this cluster (algorithm 2).

    version: of the global model, its number of global aggregations.  weights: (d,) the model, None for a leader that
    has it.  members: the names of all |C|.  mandates: 64 bytes for each, the signature of its ``Mandate``.
    asked: a bit for each, whether it takes part in this round.  counted: for each, the round of its last upload that
    is in a model.  usual: as in ``Mandate``.
    """

    spec: bytes
    cluster: int
    version: int
    weights: Floats | None
    members: Bundle
    mandates: bytes
    asked: bytes
    counted: Integers
    usual: float


@message(src=LEADER, dst=CLIENT)
class Work(OfRound, frozen=True):
    """Train, and upload what you select. mandate: the hub's signature of ``Mandate(round, cluster, sender, usual)``."""

    cluster: int
    mandate: bytes
    usual: float


@message(src=CLIENT, dst=LEADER)
class Upload(Signed, frozen=True):
    """What a member selected (algorithm 2, l. 11 to 14), and what it wants to download. It may be handed over.

    round: the round that asked for it.  places: of the values, None if they are the public set of this upload.
    values: noisy parameters, or with ``mechanism=standard`` noisy changes of them.  wanted: one bit a parameter,
    the stalest ones.  report: its ``StatusReport``.
    """

    spec: bytes
    places: Places | None
    values: Floats
    wanted: bytes
    report: bytes


@message(src=LEADER, dst=HUB)
class Led(OfRound, frozen=True):
    """The leader's model is ready. It has these uploads, by member and round; some may be late ones.

    reports: one for each of these uploads.  up, down: mean gamma_up and gamma_down of these uploads.
    """

    cluster: int
    members: Bundle
    rounds: Integers
    reports: Bundle
    up: float
    down: float


@message(src=HUB, dst=LEADER)
class Submit(OfRound, frozen=True):
    """Encrypt the leader model (algorithm 4, l. 6). among: all leaders whose shares make the pads."""

    among: Bundle


@message(src=LEADER, dst=HUB)
class Submitted(OfRound, frozen=True):
    """[theta_i]: the parameters of the leader model, or of its change, under a joint pad of the leaders."""

    cipher: bytes


@message(src=HUB, dst=LEADER)
class Spread(OfRound, frozen=True):
    """The new global model, for the leader and for its members. version: as in ``Lead``."""

    spec: bytes
    version: int
    weights: Floats


@message(src=LEADER, dst=CLIENT)
class Fresh(OfRound, frozen=True):
    """Parameters of the global model. places: one bit a parameter, those that the member wanted, or fewer."""

    cluster: int
    mandate: bytes
    usual: float
    places: bytes
    values: Floats


@message(src=CLIENT, dst=LEADER)
class Kept(OfRound, frozen=True):
    pass


@message(src=LEADER, dst=HUB)
class Forwarded(OfRound, frozen=True):
    members: int


@message(src=HUB, dst=LEADER)
class HandOver(OfRound, frozen=True):
    """Send each upload that no model has counted to its member's new leader.

    members, leaders: names, one leader for each member.
    """

    members: Bundle
    leaders: Bundle


@message(src=LEADER, dst=LEADER)
class Inherited(OfRound, frozen=True):
    """Uploads that came too late for their leader, each signed by the member of this name.

    awaited: whether the hub waits for confirmation.
    """

    members: Bundle
    uploads: Bundle
    awaited: bool


@message(src=LEADER, dst=HUB)
class HandedOver(OfRound, frozen=True):
    """How many uploads were sent on, and to how many leaders."""

    uploads: int
    letters: int


@message(src=LEADER, dst=HUB)
class Received(OfRound, frozen=True):
    pass
