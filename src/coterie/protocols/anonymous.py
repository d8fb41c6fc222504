"""Clients' vectors reach a helper through the hub, in an order that the helper cannot relate to names.

    client  --a vector under the helper's key-->  hub  --Relayed, shuffled (and blinded)-->  helper
                                                  hub  --Forget / Done-->                    helper

Steps I to III of FedCAPrivacy (Wei et al., "FedCAPrivacy", section IV-B). If the hub lays one mask over all vectors of
a round (``CipherVector.blind``), the helper learns only differences. Keys: the grant ``SERVICE``, whose secret half
only the helper holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import coterie.protocol.core as fl
from coterie.crypto.arrays import CiphertextError
from coterie.crypto.paillier import BlindedVector

SERVICE = "service"

KeyedParty = Any
"""A party with ``keys``, a ``Keys[PublicKey, SecretKey]``, and ``helper``, the helper's name."""


class Relayed(fl.FromHub, frozen=True):
    """One client's vector under the helper's key, at its shuffled position."""

    position: int
    cipher: bytes


class Forget(fl.FromHub, frozen=True):
    """The round is over: keep nothing of it."""


def relay(hub: KeyedParty, r: int, names: Sequence[str], cipher: Callable[[str], bytes]) -> fl.Steps[list[str]]:
    """The hub: send each client's vector to the helper, in a fresh secret order. Returns the names by position."""
    shuffled = [names[i] for i in hub.secrets("shuffle", r).permutation(len(names))]  # alg. 1, l. 16: pi
    for j, name in enumerate(shuffled):
        yield from fl.post({hub.helper: Relayed(r, j, cipher(name))})
    return shuffled


def forget(hub: KeyedParty, r: int) -> fl.Steps[None]:
    yield from fl.for_each({hub.helper: Forget(r)}, fl.Done)


def check_relayed(helper: fl.Party, msg: Relayed) -> None:
    """Raises PeerError for an impossible sender or position."""
    if not 0 <= msg.position < len(helper.clients):
        raise fl.PeerError(f"position {msg.position} of {len(helper.clients)}")


def opened(helper: KeyedParty, msg: Relayed, length: int, *, blinded: bool = True) -> fl.Work[Any]:
    """The helper: a ``BlindedVector``, or (length,) float64 if not blinded. Raises PeerError for any other."""
    check_relayed(helper, msg)
    vector = yield fl.Open(helper.keys.own(SERVICE), msg.cipher, blinded=blinded)  # eq. (7)
    if len(vector) != length:
        raise fl.PeerError(f"{len(vector)} {'blinded ' * blinded}numbers; expected {length}")
    return vector


def comparable(opened: Mapping[int, BlindedVector]) -> dict[int, fl.Integers]:
    """By position, exact differences (d,) of the vectors under one mask from one of them. Raises PeerError without a
    majority.
    """
    # Garbage (a lane overflows) would spoil every sum, and differs too much from the majority.
    for one in opened.values():
        differences = {}
        for j, other in sorted(opened.items()):
            try:
                differences[j] = other.minus(one)
            except CiphertextError:
                continue
        if 2 * len(differences) > len(opened):
            return differences
    raise fl.PeerError(f"{len(opened)} vectors could be opened, but no majority of them are models under one mask")
