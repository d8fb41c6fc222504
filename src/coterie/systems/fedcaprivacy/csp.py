"""FedCAPrivacy's cloud service provider (CSP): steps III to V."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from coterie.clustering.affinity import pairwise_distances
from coterie.clustering.minimum import without_small_clusters
from coterie.clustering.number import SMALLEST, count_clusters
from coterie.clustering.schedule import parse_schedule
from coterie.clustering.spectral import soft_spectral
from coterie.crypto import paillier
from coterie.crypto.arrays import CiphertextError
from coterie.crypto.paillier import public_key, secret_key
from coterie.crypto.signing import SigningKey
from coterie.crypto.vector import sum_blinded
from coterie.protocol.effects import Open
from coterie.protocol.errors import PeerError
from coterie.protocol.party import Cost, Party, To, Work, on
from coterie.protocol.system import Setting
from coterie.protocols.key_centre import Credentials, Join, Ready, enrol
from coterie.systems.fedcaprivacy.messages import (
    CSP,
    HUB,
    Aggregate,
    Blinded,
    Cluster,
    Clustered,
    ClusterSum,
    Convert,
    Forget,
    Forgotten,
)

if TYPE_CHECKING:
    from coterie.systems.fedcaprivacy import FedCAPrivacyConfig


class ServiceProvider(Party, role=CSP):
    """The CSP: opens blinded vectors, clusters them, and puts their sums under the users' key."""

    class State(msgspec.Struct):
        """opened: blinded vectors of ``round`` by position, gone at its end.

        affinity: (m, m) of the clustering in round ``clustered``, for the observer.
        number: of clusters, as last asked for.  found: how many there were in the last round, where auto counts them.
        """

        opened: dict[int, Any] = msgspec.field(default_factory=dict)
        round: int = 0
        affinity: NDArray[Any] | None = None
        clustered: int = 0
        user_public: bytes = b""
        number: int = 1
        found: int = 1

    class Secret(msgspec.Struct):
        """Its signing key and sk_s."""

        signing: bytes = b""
        service: bytes = b""

    state: State
    secret: Secret

    def __init__(self, setting: Setting, config: FedCAPrivacyConfig) -> None:
        super().__init__(CSP, setting.randomness)
        self.spec, self.config, self.mode = setting.spec, config, setting.mode
        self.schedule = parse_schedule(config.schedule, config.alpha)
        self.sketches = setting.mode == "hardened" and config.hardening == "sketch"
        self.smallest = config.min_cluster if setting.mode == "hardened" else 1
        self.length = config.sketch_dim if self.sketches else setting.spec.size
        self.state, self.secret = self.State(), self.Secret()

    @on(Join)
    def join(self, msg: Join, src: str) -> tuple[To, ...]:
        """Make a signing key and enrol it, once."""
        if self.secret.signing:
            raise PeerError("already enrolled: a second signing key would make the first worthless")
        key, messages = enrol(self)
        self.secret.signing = key.to_bytes()
        return messages

    @on(Credentials)
    def provide(self, msg: Credentials, src: str) -> tuple[To, ...]:
        """Keep what the key centre gives, once."""
        if self.secret.service:
            raise PeerError("already provided with keys")
        if msg.secret_key is None:
            raise PeerError("credentials without the service's secret key")
        self.secret.service, self.state.user_public = msg.secret_key, msg.user_public
        return (To(HUB, Ready()),)

    def open_cost(self, msg: Blinded) -> Cost:
        """One decryption."""
        return Cost(crypto_s=secret_key(self.secret.service).nominal_seconds_decrypt(self.length))

    @on(Blinded, open_cost)
    def open(self, msg: Blinded, src: str) -> Work[None]:
        """Step III, eq. (7)."""
        if msg.round != self.state.round:
            self.state.round, self.state.opened = msg.round, {}
        blinded = yield Open(secret_key(self.secret.service), msg.cipher, blinded=True)  # eq. (7)
        if blinded.length != self.length:
            raise PeerError(f"{blinded.length} blinded numbers; expected {self.length}")
        self.state.opened[msg.position] = blinded

    @on(Cluster)
    def cluster(self, msg: Cluster, src: str) -> Clustered:
        """Step IV: the decaying coin, and algorithm 2 if it says so."""
        opened = self.state.opened if msg.round == self.state.round else {}
        positions, differences = comparable(opened)
        self.state.opened = {j: opened[j] for j in positions}
        where = np.array(positions, np.int64)
        coin = float(self.rng("clustering coin", msg.round).uniform())  # against 1 / (1 + alpha r)
        rows = differences * 2.0**-self.config.fraction_bits  # exact, and the mask is gone
        number = self.counted(msg.round, rows) if self.config.clusters == "auto" else self.config.clusters
        changed = self.config.clusters == "auto" and number != self.state.number
        if not (msg.force or changed or self.schedule.clusters_now(msg.round, coin)):
            return Clustered(msg.round, where, None, "")
        soft = soft_spectral(rows, number, self.config.gamma, self.config.kernel, literal=self.mode == "literal")
        self.state.affinity, self.state.clustered, self.state.number = soft.affinity, msg.round, number
        phi = without_small_clusters(soft, self.smallest)
        return Clustered(msg.round, where, phi, soft.fewer_because)

    def counted(self, r: int, rows: NDArray[Any]) -> int:
        """c of clusters=auto: the median of the number in use and of the counts of this round and the last.

        So it rises or falls only as far as two rounds in succession say. Counts are all that is compared across rounds,
        so no name is needed.
        """
        before, smallest = self.state.found, max(SMALLEST, self.smallest)
        self.state.found = count_clusters(
            pairwise_distances(rows), self.rng("clouds", r), self.config.gamma, self.config.kernel, smallest
        )
        return sorted((self.state.number, before, self.state.found))[1]

    def aggregate_cost(self, msg: Aggregate) -> Cost:
        """One encryption."""
        return Cost(crypto_s=public_key(self.state.user_public).nominal_seconds_encrypt(self.spec.size))

    @on(Aggregate, aggregate_cost)
    def aggregate(self, msg: Aggregate, src: str) -> ClusterSum:
        """Step V, eq. (9) without its division."""
        missing = [int(j) for j in msg.positions if int(j) not in self.state.opened]
        if msg.round != self.state.round or missing or self.sketches or not len(msg.positions):
            raise PeerError(f"no vectors at positions {missing} in round {msg.round}")
        total = sum_blinded(self.state.opened[int(j)] for j in msg.positions)  # eq. (9)
        return self.release(msg.round, msg.cluster, len(msg.positions), total)

    def convert_cost(self, msg: Convert) -> Cost:
        """One decryption and one encryption."""
        opening = secret_key(self.secret.service).nominal_seconds_decrypt(self.spec.size)
        return Cost(crypto_s=opening + public_key(self.state.user_public).nominal_seconds_encrypt(self.spec.size))

    @on(Convert, convert_cost)
    def convert(self, msg: Convert, src: str) -> Work[ClusterSum]:
        """Hardened step V: a masked sum from the service's key to the users'."""
        total = yield Open(secret_key(self.secret.service), msg.cipher, blinded=True)
        if total.terms != msg.count or total.length != self.spec.size:
            raise PeerError(f"a sum of {total.terms} vectors of {total.length}, announced as {msg.count}")
        return self.release(msg.round, msg.cluster, msg.count, total)

    @on(Forget)
    def forget(self, msg: Forget, src: str) -> Forgotten:
        """Keep no vector beyond its round."""
        self.state.opened = {}
        return Forgotten(msg.round)

    def release(self, r: int, k: int, count: int, total: Any) -> ClusterSum:
        """Encrypt under the users' key and sign."""
        cipher = public_key(self.state.user_public).encrypt_blinded(total).to_bytes()
        key = SigningKey.load(self.secret.signing)
        return ClusterSum(
            r, k, count, cipher, key.sign("cluster sum", r, k, count, cipher), key.sign("cluster count", r, k, count)
        )


def comparable(opened: Mapping[int, paillier.Blinded]) -> tuple[list[int], NDArray[np.int64]]:
    """Positions of the vectors that are models under one mask, and their exact differences from one of them, (m, d).

    Who encrypts what is no model (a lane overflows) would spoil every sum that it is in. Such a vector differs from
    models by too much, so it is told by the majority. Raises PeerError where there is none.
    """
    for one in opened.values():
        differences = {}
        for j, other in sorted(opened.items()):
            try:
                differences[j] = other.minus(one)
            except CiphertextError:
                continue
        if 2 * len(differences) > len(opened):
            return list(differences), np.stack(list(differences.values()))
    raise PeerError(f"of {len(opened)} vectors that could be opened, no majority are models under one mask")
