"""The messages of MingledPie's rounds; enrolment has its own in ``protocols/key_centre.py``."""

from __future__ import annotations

import coterie.method as fl

HUB = "server"
CLIENT = "client"
USER = "user"  # the key centre's grant: a key pair, whose secret half all clients hold

MODELS = "models"  # the joint key of keys=threshold


@fl.message(src=HUB, dst=CLIENT)
class Parameters(fl.Signed, frozen=True):
    """keys: ``ClusterKeys`` of eq. (1), empty if clients send no identities.  start: (k d,) theta_j^0."""

    spec: bytes
    keys: bytes
    start: fl.Floats


@fl.message(src=HUB, dst=CLIENT)
class Train(fl.OfRound, frozen=True):
    """Find your cluster and train its model. basis: the round whose models to start from; 0 for theta_j^0."""

    basis: int


@fl.message(src=CLIENT, dst=HUB)
class Update(fl.Signed, frozen=True):
    """Algorithm 3, line 15. identities: CI_i, ascending; none in mode hardened.  ciphers: HE(theta_i) and
    HE(sigma_i) as in ``layout.py``.
    """

    basis: int
    identities: fl.Integers
    ciphers: fl.Bundle


@fl.message(src=HUB, dst=CLIENT)
class Mingled(fl.Signed, frozen=True):
    """The encrypted sums of eq. (5) and (6) (algorithm 3, line 23).

    ciphers: as in ``layout.py``; empty for a sum of no updates.  sizes: (k,) |G_j|, or (0,) if clients send no
    identities.  participants: updates in it.
    """

    spec: bytes
    sizes: fl.Integers
    participants: int
    ciphers: fl.Bundle


@fl.message(src=HUB, dst=CLIENT)
class OpenedSums(fl.Signed, frozen=True):
    """As ``Mingled``, opened. slots: the sums that are there, ascending.  values: of one after the other."""

    spec: bytes
    sizes: fl.Integers
    participants: int
    slots: fl.Integers
    values: fl.Doubles


@fl.message(src=CLIENT, dst=HUB)
class Received(fl.OfRound, frozen=True):
    rebuilt: bool
