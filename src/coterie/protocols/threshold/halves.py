"""Sums of vectors whose senders hold no shares, but have signed c_1: a hub that lies about such a sum is refused.

    sender --its system's own message (``vouched``)--> hub    a ciphertext, and the sender's signature over its c_1
    hub --Decrypt--> holder                                   c_1 and signature of each sender, and which sums to open

``taken`` gives the hub a ``SignedSum``, which is added up like a ciphertext. Each holder adds up c_1 itself
(``crypto/threshold_halves.py``), so it opens sums of signed vectors of the round and nothing else. A sender can still
choose its own c_1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import coterie.protocol.core as fl
from coterie.crypto.ckks import CipherVector
from coterie.crypto.roster import signing_key, verify_key
from coterie.crypto.signing import SIGNATURE_BYTES, Field
from coterie.crypto.threshold import Group
from coterie.crypto.threshold_halves import Half
from coterie.protocol.codec import content, weighs, weighted
from coterie.protocols.threshold.keys import HubKey, Joint, key_digest


@dataclass(frozen=True, eq=False)
class SignedSum:
    """addends: (``Half`` or sum, weight) of each signed vector in it."""

    cipher: CipherVector
    addends: tuple[tuple[Half | SignedSum, int], ...]

    @property
    def length(self) -> int:
        return self.cipher.length

    def __add__(self, other: SignedSum) -> SignedSum:
        return SignedSum(self.cipher + other.cipher, ((self, 1), (other, 1)))

    def scale(self, weight: int) -> SignedSum:
        return SignedSum(self.cipher.scale(weight), ((self, weight),))

    def terms(self) -> tuple[dict[str, Half], dict[str, int]]:
        """By sender. Raises CryptoError for two vectors of one sender."""
        halves, weights = dict[str, Half](), dict[str, int]()
        for half, weight in self._flat():
            if halves.setdefault(half.sender, half).name != half.name:
                raise fl.CryptoError(f"a sum of two vectors of {half.sender}")
            weights[half.sender] = weights.get(half.sender, 0) + weight
        return halves, weights

    def _flat(self) -> Iterator[tuple[Half, int]]:
        left: list[tuple[Half | SignedSum, int]] = [(self, 1)]
        while left:
            at, weight = left.pop()
            if isinstance(at, Half):
                yield at, weight
            else:
                left += [(one, weight * times) for one, times in at.addends]


Openable = SignedSum | CipherVector


def vouched(party: Any, name: str, cipher: CipherVector, r: int, *, part: int = 0) -> bytes:
    """A sender's fresh vector under the joint key, with its signature over c_1. part: its own for each vector of round
    r.
    """
    half, data = signed(party, name, Half.of(party.joint.group(name), cipher, party.name, part), r), cipher.to_bytes()
    return weighted(SIGNATURE_BYTES + weighs(data), half.signature, content(data))


def signed(party: Any, name: str, half: Half, r: int) -> Half:
    return replace(half, signature=signing_key(party.own).sign(*_signed(party, name, half, r)))


def taken(key: HubKey, sender: str, data: bytes, length: int, *, part: int = 0) -> SignedSum:
    """A sender's checked upload. Raises DecodeError, and PeerError (a SignatureError)."""
    signature, sealed = parted(data)
    cipher = key.public.from_bytes(sealed, length, terms=1, blinded=0, form=key.public.fresh)
    half = Half.of(key.group, cipher, sender, part, signature)
    check_vouched(key.hub, key.joint, half, key.round)
    return SignedSum(cipher, ((half, 1),))


def parted(data: bytes) -> tuple[bytes, bytes]:
    """Signature and ciphertext of ``vouched``. Raises DecodeError."""
    held = content(data)
    if len(held) < SIGNATURE_BYTES:
        raise fl.DecodeError(f"{len(held)} bytes are no signed ciphertext")
    return bytes(held[:SIGNATURE_BYTES]), weighted(weighs(data) - SIGNATURE_BYTES, held[SIGNATURE_BYTES:])


def check_vouched(party: Any, joint: Joint, half: Half, r: int) -> None:
    """Raises PeerError unless the sender may send, and has signed it for round r."""
    entry = party.common.roster.by_name.get(half.sender)
    if entry is None or entry.role not in joint.roles:
        raise fl.PeerError(f"{half.sender!r:.40} sends nothing under key {joint.name!r}")
    verify_key(party.common, half.sender).verify(half.signature, *_signed(party, joint.name, half, r))


def signed_halves(party: Any, joint: Joint, group: Group, data: bytes, r: int) -> dict[bytes, Half]:
    """By name. Raises PeerError unless the senders have signed them for round r."""
    found = dict[bytes, Half]()
    for part in fl.unbundle(data, int.from_bytes(data[:4], "little")):
        half = Half.read(group, part)
        check_vouched(party, joint, half, r)
        found[half.name] = half
    return found


def _signed(party: Any, name: str, half: Half, r: int) -> tuple[Field, ...]:
    public = key_digest(party.joint.terms(name).public)
    return "half of a vector", party.common.roster.session, name, public, r, half.part, half.length, half.name
