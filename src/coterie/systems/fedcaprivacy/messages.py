"""The messages of FedCAPrivacy's own; others are in ``protocols``."""

from __future__ import annotations

import hashlib

from coterie.protocol.arrays import Flags2D, Floats, Integers
from coterie.protocol.messages import OfRound, Signed, message

HUB = "business_server"
CSP = "csp"
PARTICIPANT = "participant"
GROUP = "group"  # the grant of the participants' common seed


def round_seed(group_seed: bytes, r: int) -> bytes:
    """Of the participants; no server knows it."""
    return hashlib.sha256(b"fedcaprivacy round" + group_seed + r.to_bytes(8, "big")).digest()


@message(src=HUB, dst=PARTICIPANT)
class Train(OfRound, frozen=True):
    """weights: (d,) omega_g^0 for a participant without a model; None: go on from your own."""

    spec: bytes
    weights: Floats | None


@message(src=PARTICIPANT, dst=HUB)
class Upload(Signed, frozen=True):
    """T_i and its signature zeta_i (section IV-B, step I).

    cipher: the model under the service's key (eq. 5).  sketch: its projection, in mode hardened, or empty.
    """

    pid: int
    timestamp_s: float
    cipher: bytes
    sketch: bytes


@message(src=HUB, dst=CSP)
class Cluster(OfRound, frozen=True):
    """All blinded vectors were sent. force: cluster whatever the coin says."""

    force: bool


@message(src=CSP, dst=HUB)
class Clustered(OfRound, frozen=True):
    """positions: (m,), those that hold a model.  membership: phi, (m, c), or None if nothing was clustered.
    why_fewer: than asked for, or empty.
    """

    positions: Integers
    membership: Flags2D | None
    why_fewer: str


@message(src=HUB, dst=CSP)
class Aggregate(OfRound, frozen=True):
    """Sum the vectors at these positions, (|C_k|,), for cluster k (eq. 9)."""

    cluster: int
    positions: Integers
