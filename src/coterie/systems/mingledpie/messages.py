"""The messages of MingledPie's rounds; enrolment has its own in ``protocols/key_centre.py``."""

from __future__ import annotations

from coterie.protocol.messages import Bundle, Floats, Integers, Message, message

HUB = "server"
CLIENT = "client"
USER = "user"  # what the key centre grants: a key pair, whose secret half all clients hold


@message(src=HUB, dst=CLIENT)
class Parameters(Message, frozen=True):
    """What the server publishes: at the start to everybody, later to newcomers and when p changes.

    keys: ``ClusterKeys`` of eq. (1), empty where clients send no identities.  start: (k d,) theta_j^0, the same for
    all.  signature: the server's, over all of it.
    """

    round: int
    spec: bytes
    keys: bytes
    start: Floats
    signature: bytes


@message(src=CLIENT, dst=HUB)
class Noted(Message, frozen=True):
    """The parameters were verified and kept."""

    round: int


@message(src=HUB, dst=CLIENT)
class Train(Message, frozen=True):
    """Find your cluster, train its model. basis: the round whose models to start from; 0 for theta_j^0."""

    round: int
    basis: int


@message(src=CLIENT, dst=HUB)
class Update(Message, frozen=True):
    """What algorithm 3, line 15, sends.

    identities: CI_i, cluster numbers in ascending order; none in mode hardened.  ciphers: a bundle of ciphertext
    vectors, HE(theta_i) and HE(sigma_i) as ``layout.py`` lays them out.  signature: over all of it.
    """

    round: int
    basis: int
    identities: Integers
    ciphers: Bundle
    signature: bytes


@message(src=HUB, dst=CLIENT)
class Mingled(Message, frozen=True):
    """What algorithm 3, line 23, sends: the sums of eq. (5) and (6), still encrypted.

    ciphers: a bundle as ``layout.py`` lays it out; an empty part is a sum of no updates.  sizes: (k,) |G_j|, or
    (0,) where clients send no identities.  participants: how many updates are in it.
    """

    round: int
    spec: bytes
    sizes: Integers
    participants: int
    ciphers: Bundle
    signature: bytes


@message(src=CLIENT, dst=HUB)
class Received(Message, frozen=True):
    """The sums were verified and opened. rebuilt: whether new models came of them, or the old ones were kept."""

    round: int
    rebuilt: bool
