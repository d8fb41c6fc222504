"""The messages of OFL's rounds; others are in ``protocols/threshold/keys.py``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

import coterie.method as fl
from coterie.protocol.arrays import ArrayOf

HUB = "server"
LEADER = "leader"
CLIENT = "client"

MODEL = "model"

MANDATE_BYTES = 64


def names(texts: Iterable[str]) -> bytes:
    return fl.bundle([text.encode() for text in texts])


def named(data: bytes, count: int | None = None, *, once: bool = True) -> list[str]:
    """Raises DecodeError, also for a repeated name if ``once``."""
    stated = int.from_bytes(data[:4], "little")
    try:
        found = [part.decode() for part in fl.unbundle(data, stated if count is None else count)]
    except UnicodeDecodeError as error:
        raise fl.DecodeError(f"a name that is none: {error}") from None
    if once and len(set(found)) < len(found):
        raise fl.DecodeError("a name stands twice")
    return found


Places = Annotated[NDArray[np.int32], ArrayOf("<i4", 1)]
"""Indices into the model's flat vector, ascending."""


class ToLeader(fl.OfRound, frozen=True):
    SRC, DST = HUB, LEADER


class FromLeader(fl.OfRound, frozen=True):
    SRC, DST = LEADER, HUB


@fl.message(src=HUB, dst=CLIENT)
class Tell(fl.OfRound, frozen=True):
    """Report your status."""


@fl.message(src=HUB, dst=LEADER)
class Mandate(fl.Signed, frozen=True):
    """A member's cluster and leader in this round; the member is signed, too. It travels as its signature.

    usual: the median number of samples at the last clustering, 0 where ``full_samples`` is set.
    """

    cluster: int
    leader: str
    usual: float


class Lead(ToLeader, frozen=True):
    """Algorithm 2. version: global aggregations of the model.  weights: (d,), None for a leader that has it.
    members: names of all |C|.  mandates: 64 bytes for each, the signature of its ``Mandate``.
    asked: a bit for each, whether it takes part.  counted: for each, the round of its last upload that is in a model.
    """

    spec: bytes
    cluster: int
    version: int
    weights: fl.Floats | None
    members: fl.Bundle
    mandates: bytes
    asked: bytes
    counted: fl.Integers
    usual: float


class ToMember(fl.OfRound, frozen=True):
    """mandate: the hub's signature of ``Mandate(round, cluster, sender, usual)``."""

    SRC, DST = LEADER, CLIENT

    cluster: int
    mandate: bytes
    usual: float


class Work(ToMember, frozen=True):
    """Train and upload."""


@fl.message(src=CLIENT, dst=LEADER)
class Upload(fl.Signed, frozen=True):
    """Algorithm 2, l. 11 to 14, and what a member wants to download. round: that asked for it.

    places: of the values, None if they are the public set of this upload.  values: noisy parameters, or with
    ``mechanism=standard`` noisy changes.  wanted: one bit a parameter, the stalest ones.  report: its ``StatusReport``.
    """

    spec: bytes
    places: Places | None
    values: fl.Floats
    wanted: bytes
    report: bytes


class Led(FromLeader, frozen=True):
    """The uploads in the leader's model, by member and round, each with its report. up, down: mean gamma_up and
    gamma_down.
    """

    cluster: int
    members: fl.Bundle
    rounds: fl.Integers
    reports: fl.Bundle
    up: float
    down: float


class Submit(ToLeader, frozen=True):
    """Algorithm 4, l. 6. among: leaders whose shares make the pads."""

    among: fl.Bundle


class Submitted(FromLeader, frozen=True):
    """[theta_i]: the leader model's parameters, or their change, under a joint pad."""

    cipher: bytes


class Spread(ToLeader, frozen=True):
    """The new global model. version: as in ``Lead``."""

    spec: bytes
    version: int
    weights: fl.Floats


class Fresh(ToMember, frozen=True):
    """Parameters of the global model. places: one bit each, those that the member wanted, or fewer."""

    places: bytes
    values: fl.Floats


@fl.message(src=CLIENT, dst=LEADER)
class Kept(fl.OfRound, frozen=True):
    pass


class Forwarded(FromLeader, frozen=True):
    members: int


class HandOver(ToLeader, frozen=True):
    """Send uncounted uploads to their members' new leaders, one for each member."""

    members: fl.Bundle
    leaders: fl.Bundle


@fl.message(src=LEADER, dst=LEADER)
class Inherited(fl.OfRound, frozen=True):
    """Late uploads, each signed by its member. awaited: whether the hub waits for confirmation."""

    members: fl.Bundle
    uploads: fl.Bundle
    awaited: bool


class HandedOver(FromLeader, frozen=True):
    uploads: int
    letters: int


class Received(FromLeader, frozen=True):
    pass
