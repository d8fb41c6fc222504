"""The messages of MingledPie's rounds; enrolment has its own in ``protocols/key_centre.py``."""

from __future__ import annotations

from coterie.protocol.messages import Bundle, Doubles, Floats, Integers, OfRound, Signed, message

HUB = "server"
CLIENT = "client"
USER = "user"  # the key centre's grant: a key pair, whose secret half all clients hold

MODELS = "models"  # the joint key of keys=threshold


@message(src=HUB, dst=CLIENT)
class Parameters(Signed, frozen=True):
    """The server's parameters, for all clients at the start and when p changes, and later for newcomers.

    keys: ``ClusterKeys`` of eq. (1), empty if clients send no identities.  start: (k d,) theta_j^0, the same for all.
    """

    spec: bytes
    keys: bytes
    start: Floats


@message(src=CLIENT, dst=HUB)
class Noted(OfRound, frozen=True):
    """The parameters were verified and kept."""


@message(src=HUB, dst=CLIENT)
class Train(OfRound, frozen=True):
    """Find your cluster and train its model. basis: the round whose models to start from; 0 for theta_j^0."""

    basis: int


@message(src=CLIENT, dst=HUB)
class Update(Signed, frozen=True):
    """The update of algorithm 3, line 15.

    identities: CI_i, cluster numbers in ascending order; none in mode hardened.  ciphers: a bundle of ciphertext
    vectors, HE(theta_i) and HE(sigma_i) as ``layout.py`` lays them out.
    """

    basis: int
    identities: Integers
    ciphers: Bundle


@message(src=HUB, dst=CLIENT)
class Mingled(Signed, frozen=True):
    """The sums of eq. (5) and (6), still encrypted (algorithm 3, line 23).

    ciphers: a bundle as ``layout.py`` lays it out; an empty part is a sum of no updates.  sizes: (k,) |G_j|, or
    (0,) if clients send no identities.  participants: how many updates are in it.
    """

    spec: bytes
    sizes: Integers
    participants: int
    ciphers: Bundle


@message(src=HUB, dst=CLIENT)
class OpenedSums(Signed, frozen=True):
    """As ``Mingled``, with keys=threshold: opened sums.

    slots: the sums that are there, ascending.  values: of one after the other.
    """

    spec: bytes
    sizes: Integers
    participants: int
    slots: Integers
    values: Doubles


@message(src=CLIENT, dst=HUB)
class Received(OfRound, frozen=True):
    """The sums were verified and opened. rebuilt: whether they gave new models."""

    rebuilt: bool
