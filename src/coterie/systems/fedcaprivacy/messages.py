"""The messages of FedCAPrivacy's rounds; enrolment has its own in ``protocols/key_centre.py``."""

from __future__ import annotations

from coterie.protocol.messages import Flags2D, Floats, Integers, OfRound, Signed, message

HUB = "business_server"
CSP = "csp"
PARTICIPANT = "participant"
SERVICE, USER, GROUP = "service", "user", "group"  # grants of the key centre: two key pairs and a seed


@message(src=HUB, dst=PARTICIPANT)
class Train(OfRound, frozen=True):
    """Train for this round. weights: (d,) omega_g^0 for a participant without a model; None: go on from your own."""

    spec: bytes
    weights: Floats | None


@message(src=PARTICIPANT, dst=HUB)
class Upload(Signed, frozen=True):
    """T_i and its signature zeta_i (section IV-B, step I).

    cipher: the model under the service's key (eq. 5).  sketch: its projection under the same key, hardened mode only.
    pid, timestamp_s: as in the paper.
    """

    pid: int
    timestamp_s: float
    cipher: bytes
    sketch: bytes


@message(src=HUB, dst=CSP)
class Blinded(OfRound, frozen=True):
    """One blinded vector (eq. 6) at its shuffled position j = pi(i)."""

    position: int
    cipher: bytes


@message(src=HUB, dst=CSP)
class Cluster(OfRound, frozen=True):
    """All blinded vectors of the round have been sent. force: cluster in any case, e.g. for a new participant."""

    force: bool


@message(src=CSP, dst=HUB)
class Clustered(OfRound, frozen=True):
    """positions: (m,), those that hold a model.  membership: phi, (m, c), or None if the coin said not to cluster.

    why_fewer: why there are fewer clusters than asked for, or empty.
    """

    positions: Integers
    membership: Flags2D | None
    why_fewer: str


@message(src=HUB, dst=CSP)
class Aggregate(OfRound, frozen=True):
    """Sum the vectors at these positions, (|C_k|,), for cluster k (eq. 9)."""

    cluster: int
    positions: Integers


@message(src=HUB, dst=CSP)
class Convert(OfRound, frozen=True):
    """Hardened mode: convert the hub's own masked sum of ``count`` models of cluster k to the users' key."""

    cluster: int
    count: int
    cipher: bytes


@message(src=CSP, dst=HUB)
class ClusterSum(Signed, frozen=True):
    """The masked sum over cluster k under the users' key.

    count_signature: over round, cluster and count, for the participants, which never see this cipher.
    """

    cluster: int
    count: int
    cipher: bytes
    count_signature: bytes


@message(src=HUB, dst=CSP)
class Forget(OfRound, frozen=True):
    """The round is over, with or without success. Keep nothing of it."""


@message(src=CSP, dst=HUB)
class Forgotten(OfRound, frozen=True):
    """Done."""


@message(src=HUB, dst=PARTICIPANT)
class ClusterModel(Signed, frozen=True):
    """The sum over cluster k without its mask (eq. 10), under the users' key, and the number of models in it.

    count_signature: the service's, as above.
    """

    cluster: int
    count: int
    cipher: bytes
    count_signature: bytes


@message(src=PARTICIPANT, dst=HUB)
class Received(OfRound, frozen=True):
    """This cluster model was verified and opened."""

    cluster: int
