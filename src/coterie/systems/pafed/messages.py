"""The messages of PAFed's rounds."""

from __future__ import annotations

from typing import Any

import coterie.method as fl

HUB = "aggregator"
HELPER = "helper"
CLIENT = "client"
SERVICE, USER = "service", "user"  # grants of the key centre: the helper's key pair, and one for each client

LARGEST = 1 << 11
"""The largest reciprocal that the helper returns. A masked sum below 1 / LARGEST counts as zero."""
MODEL_TERMS = 256
"""Weights lie within so many times a vector's reach; the rest is room for updates."""
STEP_SHARES = 4
"""Summands of a step, each at most a share long: the mean, the means of agreeing and of conflicting late updates,
and the latter's correction.
"""


def wide(key: Any, numbers: fl.Array) -> Any:
    """At level 0, of numbers ``MODEL_TERMS`` times as large as an update's."""
    return key.encrypt(numbers / MODEL_TERMS, 0).scale(MODEL_TERMS)


@fl.message(src=HUB, dst=CLIENT)
class Train(fl.Signed, frozen=True):
    """weights: (d,) w^0 in round 1, else None.  cipher: [w^tau] under pk_i as in ``layout.py``, or empty. The recipient
    is signed, too.
    """

    spec: bytes
    weights: fl.Floats | None
    cipher: bytes


@fl.message(src=HUB, dst=CLIENT)
class Final(fl.Signed, frozen=True):
    """The run's model, [w] under pk_i. The recipient is signed, too."""

    spec: bytes
    cipher: bytes


@fl.message(src=CLIENT, dst=HUB)
class Update(fl.Signed, frozen=True):
    """[nabla w_i] under pk_s (algorithm 3, lines 5 to 10), with the values of the client's buffers.

    round: that asked for it.  length: the divisor of the update, at most the clip, if the settings let it travel; else
    1.
    """

    spec: bytes
    cipher: bytes
    length: float


@fl.message(src=CLIENT, dst=HUB)
class PaddedUpdate(fl.Signed, frozen=True):
    """As ``Update``, in mode ``hardened``: one polynomial for each ciphertext, under a one-time pad.

    nonce: 16 fresh bytes (``protocols/pads.py``).  padded: of ``crypto/pads.py``.
    """

    spec: bytes
    nonce: bytes
    padded: bytes
    length: float


class ToHelper(fl.OfRound, frozen=True):
    SRC, DST = HUB, HELPER


class FromHelper(fl.OfRound, frozen=True):
    SRC, DST = HELPER, HUB


class Compare(ToHelper, frozen=True):
    """Masked cosines rho_j c_j of late updates, shuffled among dummies: ``count`` scalars."""

    count: int
    ciphers: fl.Bundle


class Compared(FromHelper, frozen=True):
    """max(x, 0) of every scalar, freshly encrypted."""

    ciphers: fl.Bundle


class Invert(ToHelper, frozen=True):
    """[rho_1 n_1], [rho_2 n_2], [rho_3 |m|^2], [rho_4 sum_j w_j c_j] of every set.

    count: of sets, all but one decoys (``classification.py``).
    """

    count: int
    ciphers: fl.Bundle


class Inverted(FromHelper, frozen=True):
    """[1/x_1], [1/x_2] and [x_4 / (x_2 x_3)] of every set; zero for a class that is left out."""

    ciphers: fl.Bundle


class Refresh(ToHelper, frozen=True):
    """[w + r] under pk_s, to open and keep for this round."""

    cipher: bytes


class Refreshed(FromHelper, frozen=True):
    """[w + r], freshly encrypted under pk_s; empty in ``literal``."""

    cipher: bytes


class Convert(ToHelper, frozen=True):
    """Algorithm 5, lines 8 to 12."""

    client: str


class Converted(FromHelper, frozen=True):
    client: str
    cipher: bytes
