"""Sums over clusters of clients, which the members of a cluster learn and no server does.

    hub     --Convert-->       helper                  a sum under the helper's key and a mask of the hub
    hub     <--ClusterSum--    helper                  the same sum under the users' key, still masked
    member  <--ClusterModel--  hub                     without the mask
    member  --Received-->      hub

Steps V to VII of FedCAPrivacy (Wei et al., "FedCAPrivacy", section IV-B). Keys (``pairs``): the helper's, and the
users', whose secret half all clients share. Assumes that hub and helper do not collude, and no client helps one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

import coterie.protocol.core as fl
from coterie.crypto import paillier
from coterie.crypto.packing import Lanes
from coterie.crypto.paillier import BlindedVector, CipherVector, SecretKey
from coterie.crypto.roster import check_signed, signed, signing_key, verify_key
from coterie.crypto.vector import Mask, sum_ciphers
from coterie.protocols.anonymous import SERVICE, KeyedParty
from coterie.protocols.key_centre import Pair
from coterie.protocols.local_training import LocalTraining, refuse_unused

USER = "user"
GUARD_BITS = 8
"""At least, of a lane with the setting "auto": 32 bits are packed fastest."""


class Convert(fl.FromHub, frozen=True):
    """Convert the hub's own masked sum of ``count`` vectors to the users' key."""

    cluster: int
    count: int
    cipher: bytes


class ClusterSum(fl.Signed, frozen=True):
    """count_signature: over round, cluster and count, for the clients, which never see this cipher."""

    ABOUT = ("round", "cluster", "count")
    cluster: int
    count: int
    cipher: bytes
    count_signature: bytes


@fl.message(src=fl.HUB)
class ClusterModel(fl.Signed, frozen=True):
    """The unmasked sum (eq. 10), under the users' key, and its number of vectors.

    count_signature: the helper's.
    """

    cluster: int
    count: int
    cipher: bytes
    count_signature: bytes


class Received(fl.OfRound, frozen=True):
    ABOUT = ("round", "cluster")
    cluster: int


@dataclass(frozen=True, eq=False)
class Masked:
    request: fl.Message
    count: int  # vectors in it
    mask: Mask
    times: int  # how often the mask is in it
    work: int  # vectors that the hub masks and unmasks for it


class Formed(fl.State):
    """A helper's sums of a round, in all attempts. counts: by cluster."""

    round: int = -1
    counts: dict[int, int] = fl.field(default_factory=dict)


def once(formed: Formed, r: int, cluster: int, count: int) -> None:
    """Note a sum. Raises PeerError if this round had one of another number of vectors."""
    if r != formed.round:
        formed.round, formed.counts = r, {}
    if formed.counts.setdefault(cluster, count) != count:  # also in a second attempt without one client
        raise fl.PeerError(
            f"a sum of {count} vectors of cluster {cluster} after one of {formed.counts[cluster]} in the same round: "
            "their difference would show some of them"
        )


@dataclass(frozen=True)
class EncryptedTraining(LocalTraining):
    """Settings of local training, and of the cipher of models. Equations are FedCAPrivacy's.

    cipher: "paillier", as in its paper, or "pads": one-time pads with sealed keys (``crypto/padded.py``), which show
    every party the same and are over ten times as fast; the default in mode hardened.
    key_bits: Paillier modulus, 2048 or 3072.  fraction_bits: bits after the point of a weight (eq. (4): rho).
    value_bits: bits of a weight in fixed point, with its sign; by default weights lie within +-128.
    kappa: by how many bits the mask of eq. (6) is larger than what it hides.
    randomness: of Paillier, "short" exponents (``crypto/paillier.py`` states the assumption) or the plain "full" r^N.
    """

    cipher: Literal["paillier", "pads"] = "paillier"
    key_bits: int = 2048
    fraction_bits: int = 16
    value_bits: int = 24
    kappa: int = 40
    randomness: Literal["short", "full"] = "short"

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_unused(self, "cipher=pads", self.cipher == "pads", "key_bits", "kappa", "randomness")
        self.lanes(1)  # checks its own settings

    def lanes(self, clients: int, guard_bits: int | Literal["auto"] = "auto") -> Lanes:
        """Eq. (4). guard_bits: "auto" hold a sum over all of ``clients``."""
        enough = max(GUARD_BITS, (clients - 1).bit_length())
        return Lanes(self.fraction_bits, self.value_bits, enough if guard_bits == "auto" else guard_bits, self.kappa)


def keygen(config: EncryptedTraining, clients: int) -> Callable[..., SecretKey]:
    if config.cipher == "pads":
        return partial(paillier.pads_keygen, config.lanes(clients))
    return partial(paillier.keygen, config.key_bits, config.lanes(clients), config.randomness)


def pairs(keygen: Callable[..., SecretKey], helper_role: str, client_role: str) -> tuple[Pair, Pair]:
    """One pair for all clients, one for the helper."""
    return Pair(USER, client_role, keygen), Pair(SERVICE, helper_role, keygen)


def masked_sum(
    hub: KeyedParty,
    r: int,
    cluster: int,
    names: Sequence[str],
    cipher: Callable[[str], CipherVector],
    length: int,
    among: int = 0,
) -> Masked:
    """The hub: these clients' sum (length,) under the helper's key and a fresh secret mask.

    among: clients of all clusters, so that the sum hides the cluster's size.
    """
    mask = hub.keys.public(SERVICE).mask(length, hub.secrets(f"mask of cluster {cluster}", r).bytes)
    total = sum_ciphers(cipher(name) for name in names).blind(mask).among(among)
    return Masked(Convert(r, cluster, len(names), total.to_bytes()), len(names), mask, 1, 2)


def converted(
    hub: KeyedParty, r: int, sums: Mapping[int, Masked], kind: type[ClusterModel] = ClusterModel
) -> fl.Steps[tuple[dict[int, ClusterModel], dict[int, str]]]:
    """The hub: by cluster, the signed sum for its members, without mask, or why there is none."""
    users = hub.keys.public(USER)
    done: dict[int, ClusterModel] = {}

    def fold(k: int, reply: ClusterSum) -> None:
        one = sums[k]
        check_signed(hub.common, hub.helper, reply)
        verify_key(hub.common, hub.helper).verify(reply.count_signature, "cluster count", r, k, one.count)
        cipher = users.from_bytes(reply.cipher, one.mask.length, terms=one.count, blinded=one.times)
        data = cipher.unblind(one.mask, one.times).to_bytes()  # eq. (10) with sums and counts
        done[k] = signed(hub.own, kind(r, k, one.count, data, reply.count_signature))

    yield from fl.spend(
        fl.Cost(crypto_s=sum(one.work * users.nominal_seconds_encrypt(one.mask.length) for one in sums.values()))
    )
    answers = yield from fl.for_each({k: fl.To(hub.helper, one.request) for k, one in sums.items()}, ClusterSum, fold)
    return done, {k: f"{hub.helper}: {why}" for k, why in answers.missing.items()}


def distribute(
    hub: KeyedParty, models: Mapping[int, ClusterModel], members: Mapping[int, Sequence[str]]
) -> fl.Steps[fl.Answers]:
    """The hub: send each cluster's sum. Returns outcomes by (cluster, name)."""
    to_all = {(k, name): fl.To(name, models[k]) for k in sorted(models) for name in members[k]}
    return (yield from fl.for_each(to_all, Received, deadline_s=hub.config.deadline_s))


def convert(helper: KeyedParty, msg: Convert, length: int, formed: Formed) -> fl.Work[ClusterSum]:
    """The helper: a masked sum (length,) under its own key, encrypted under the users' key and signed.

    Raises PeerError for another sum than announced, and as ``once``.
    """
    total = yield fl.Open(helper.keys.own(SERVICE), msg.cipher, blinded=True)
    if total.terms != msg.count or total.length != length:
        raise fl.PeerError(f"a sum of {total.terms} vectors of {total.length}, announced as {msg.count}")
    once(formed, msg.round, msg.cluster, msg.count)
    return encrypted(helper, msg.round, msg.cluster, msg.count, total)


def conversion_cost(helper: KeyedParty, length: int) -> fl.Cost:
    opening = helper.keys.own(SERVICE).nominal_seconds_decrypt(length)
    return fl.Cost(crypto_s=opening + helper.keys.public(USER).nominal_seconds_encrypt(length))


def encrypted(helper: KeyedParty, r: int, cluster: int, count: int, total: BlindedVector) -> ClusterSum:
    cipher = helper.keys.public(USER).encrypt_blinded(total).to_bytes()
    count_signature = signing_key(helper.own).sign("cluster count", r, cluster, count)
    return signed(helper.own, ClusterSum(r, cluster, count, cipher, count_signature))


def opened_mean(member: KeyedParty, msg: ClusterModel, r: int, length: int) -> fl.Work[fl.Doubles]:
    """A member: the mean (length,) over the cluster. Raises PeerError for an impossible message, and SignatureError."""
    if msg.count < 1 or msg.round != r:
        raise fl.PeerError(f"a mean of {msg.count} models of round {msg.round} for round {r}")
    check_signed(member.common, member.common.roster.hub, msg)
    key = verify_key(member.common, member.helper)
    key.verify(msg.count_signature, "cluster count", msg.round, msg.cluster, msg.count)
    total: Any = yield fl.Open(member.keys.own(USER), msg.cipher)
    if len(total) != length:
        raise fl.PeerError(f"a cluster model of {len(total)} numbers; expected {length}")
    return np.asarray(total / msg.count)


def receiving_cost(member: KeyedParty, length: int) -> fl.Cost:
    return fl.Cost(crypto_s=member.keys.own(USER).nominal_seconds_decrypt(length))
