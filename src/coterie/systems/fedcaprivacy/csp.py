"""FedCAPrivacy's cloud service provider (CSP): steps III to V."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

import coterie.method as fl
from coterie.clustering.affinity import pairwise_distances
from coterie.clustering.number import SMALLEST, count_clusters
from coterie.clustering.spectral import soft_spectral, without_small_clusters
from coterie.crypto import paillier
from coterie.crypto.paillier import PublicKey, SecretKey
from coterie.crypto.vector import StoredVector, sum_ciphers
from coterie.protocols.anonymous import SERVICE, Forget, Relayed, comparable, opened
from coterie.protocols.cluster_sums import USER, ClusterSum, Convert, Formed, conversion_cost, convert, encrypted, once
from coterie.protocols.key_centre import HeldKeys
from coterie.protocols.signatures import DIMENSION, Group, Grouped, GroupingState, group, lengths
from coterie.systems.fedcaprivacy import messages
from coterie.systems.fedcaprivacy.config import SUMS_ENCRYPTED, Protected, with_protection
from coterie.systems.fedcaprivacy.messages import CSP


class ServiceProvider(Protected, role=CSP):
    keys = HeldKeys(PublicKey, SecretKey)

    class State(fl.State):
        """opened: blinded vectors of ``round`` by position.  affinity: (m, m) of the clustering in round ``clustered``,
        for the observer.

        number: of clusters, as last made.  found: the count of the last round, with clusters=auto.
        signatures: the groups, with descriptor=signature.  summed: sums formed for them.
        """

        opened: dict[int, StoredVector] = fl.field(default_factory=dict)
        round: int = 0
        affinity: fl.Doubles | None = None
        clustered: int = 0
        number: int = 1
        found: int = 1
        signatures: GroupingState = fl.field(default_factory=GroupingState)
        summed: frozenset[int] = frozenset()
        formed: Formed = fl.field(default_factory=Formed)

    state: State
    LASTS = ("formed",)

    @property
    def length(self) -> int:
        lengths = {"sketch": self.config.sketch_dim, "signature": 2 * DIMENSION}
        return lengths.get(self.protection, self.spec.size)

    def open_cost(self, msg: Relayed) -> fl.Cost:
        return fl.Cost(crypto_s=self.keys.own(SERVICE).nominal_seconds_decrypt(self.length))

    @fl.on(Relayed, open_cost)
    def open(self, msg: Relayed, src: str) -> fl.Work[None]:
        blinded = yield from opened(self, msg, self.length)
        if msg.round != self.state.round:
            self.state.round, self.state.opened = msg.round, {}
        self.state.opened[msg.position] = blinded.stored()

    @fl.on(messages.Cluster, answers=messages.Clustered, when=with_protection("none", "sketch", "rotation"))
    def cluster(self, msg: messages.Cluster, src: str) -> messages.Clustered:
        """Step IV: the decaying coin, and algorithm 2 if it says so."""
        held = self.state.opened if msg.round == self.state.round else {}
        differences = comparable(self.blinded(held))
        self.state.opened = {j: held[j] for j in differences}
        where = np.array(list(differences), np.int64)
        unchanged = messages.Clustered(msg.round, where, None, "")
        coin = float(self.rng("clustering coin", msg.round).uniform())  # against 1 / (1 + alpha r)
        due = msg.force or self.config.clusters_now(msg.round, coin)
        if not due and self.config.clusters != "auto":
            return unchanged
        scale = 2.0**-self.config.fraction_bits
        rows = np.stack([one * scale for one in differences.values()])  # exact, and the mask is gone
        number = self.counted(msg.round, rows) if self.config.clusters == "auto" else self.config.clusters
        if not due and number == self.state.number:
            return unchanged
        soft = soft_spectral(rows, number, self.config.gamma, self.config.kernel, literal=self.common.mode == "literal")
        self.state.affinity, self.state.clustered, self.state.number = soft.affinity, msg.round, number
        phi = without_small_clusters(soft, self.config.smallest(self.common.mode))
        return messages.Clustered(msg.round, where, phi, soft.fewer_because)

    def blinded(self, stored: Mapping[int, StoredVector]) -> dict[int, paillier.BlindedVector]:
        key = self.keys.own(SERVICE).public
        return {j: key.blinded(one) for j, one in stored.items()}

    def counted(self, r: int, rows: fl.Array) -> int:
        """The median of the clusters in use, and those found now and last."""
        before, smallest = self.state.found, max(SMALLEST, self.config.smallest(self.common.mode))
        self.state.found = count_clusters(
            pairwise_distances(rows), self.rng("clouds", r), self.config.gamma, self.config.kernel, smallest
        )
        return sorted((self.state.number, before, self.state.found))[1]

    def aggregate_cost(self, msg: messages.Aggregate) -> fl.Cost:
        return fl.Cost(crypto_s=self.keys.public(USER).nominal_seconds_encrypt(self.spec.size))

    @fl.on(messages.Aggregate, aggregate_cost, answers=ClusterSum, when=with_protection("none", "rotation"))
    def aggregate(self, msg: messages.Aggregate, src: str) -> ClusterSum:
        """Step V, eq. (9) without its division."""
        missing = [int(j) for j in msg.positions if int(j) not in self.state.opened]
        if msg.round != self.state.round or missing or self.protection in SUMS_ENCRYPTED or not len(msg.positions):
            raise fl.PeerError(f"no vectors at positions {missing} in round {msg.round}")
        if len(np.unique(msg.positions)) < len(msg.positions):  # each counts once in the sum, and so in the count
            raise fl.PeerError(f"positions {msg.positions.tolist()} name a vector twice")
        once(self.state.formed, msg.round, msg.cluster, len(msg.positions))
        blinded = self.blinded({int(j): self.state.opened[int(j)] for j in msg.positions})
        return encrypted(self, msg.round, msg.cluster, len(msg.positions), sum_ciphers(blinded.values()))  # eq. (9)

    def convert_cost(self, msg: Convert) -> fl.Cost:
        return conversion_cost(self, self.summed(msg))

    @fl.on(Convert, convert_cost, answers=ClusterSum, when=with_protection(*SUMS_ENCRYPTED))
    def convert(self, msg: Convert, src: str) -> fl.Work[ClusterSum]:
        answer = yield from convert(self, msg, self.summed(msg), self.state.formed)
        if not msg.round:
            self.state.summed |= {msg.cluster}
        return answer

    def summed(self, msg: Convert) -> int:
        """Of a sum's vectors; before round 1 no models. Raises PeerError for no such sum."""
        if msg.round:
            return self.spec.size
        if self.protection != "signature" or msg.cluster not in (known := lengths(self.spec)):
            raise fl.PeerError(f"no sum {msg.cluster} is formed before round 1")
        if msg.cluster in self.state.summed:  # two sums over different clients would show the difference
            raise fl.PeerError(f"sum {msg.cluster} was formed already")
        return known[msg.cluster]

    @fl.on(Group, answers=Grouped, when=with_protection("signature"))
    def group(self, msg: Group, src: str) -> Grouped:
        held = self.state.opened if msg.round == self.state.round else {}
        self.state.signatures, answer = group(self, msg, self.blinded(held), self.state.signatures)
        return answer

    @fl.on(Forget, answers=fl.Done)
    def forget(self, msg: Forget, src: str) -> fl.Done:
        self.state.opened = {}
        return fl.Done(msg.round)
