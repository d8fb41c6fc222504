"""FedEPC's helper, mode hardened: it clusters devices whose names it does not know, and converts masked sums."""

from __future__ import annotations

from functools import cached_property

import numpy as np

import coterie.method as fl
from coterie.clustering.divergence import calibrated, modified_divergence
from coterie.clustering.isomorphic import Aidc, Groups
from coterie.clustering.merging import mean_between
from coterie.crypto.paillier import PublicKey, SecretKey
from coterie.protocols import cluster_sums
from coterie.protocols.anonymous import SERVICE, Relayed, check_relayed
from coterie.protocols.cluster_sums import ClusterSum, Convert, Formed
from coterie.protocols.key_centre import HeldKeys
from coterie.systems.fedepc import messages
from coterie.systems.fedepc.config import FedEPCConfig
from coterie.systems.fedepc.contexts import check_vector, regrouped
from coterie.systems.fedepc.messages import HELPER


class Helper(fl.Party, role=HELPER):
    keys = HeldKeys(PublicKey, SecretKey)

    class State(fl.State):
        """groups: of AIDC, places as text.  come: vectors and floors of ``round``, by place."""

        groups: Groups | None = None
        round: int = -1
        come: dict[int, fl.Doubles] = fl.field(default_factory=dict)
        formed: Formed = fl.field(default_factory=Formed)

    state: State
    config: FedEPCConfig
    LASTS = ("formed",)

    @cached_property
    def aidc(self) -> Aidc:
        return self.config.clustering(self.common.mode)

    @fl.on(Relayed)
    def open(self, msg: Relayed, src: str) -> fl.Work[None]:
        check_relayed(self, msg)
        if msg.round != self.state.round:
            self.state.round, self.state.come = msg.round, {}
        numbers = yield fl.Open(self.keys.own(SERVICE), msg.cipher)
        groups, gamma = self.state.groups, self.config.gamma
        channels = None if groups is None else groups.features.shape[1]
        check_vector(f"place {msg.position}", numbers[:-1], float(numbers[-1]), gamma, channels)
        self.state.come[msg.position] = np.array(numbers)

    @fl.on(messages.Cluster, answers=messages.Clustered)
    def cluster(self, msg: messages.Cluster, src: str) -> messages.Clustered:
        """Algorithm 2."""
        come = self.state.come if msg.round == self.state.round else {}
        self.state.come = {}
        moved = {str(j): (row[:-1], float(row[-1])) for j, row in sorted(come.items())}
        groups, _ = regrouped(self.state.groups, moved, list(map(str, msg.left.tolist())), self.aidc)
        self.state.groups = groups
        positions = np.array([int(name) for name in groups.names], np.int64)
        labels = without_small(divergences(groups, self.aidc), groups.labels, self.config.min_cluster)
        return fl.signed(self.own, messages.Clustered(msg.round, positions, labels))

    @fl.on(Convert, lambda self, msg: cluster_sums.conversion_cost(self, self.spec.size), answers=ClusterSum)
    def convert(self, msg: Convert, src: str) -> fl.Work[ClusterSum]:
        if msg.count < self.config.min_cluster:
            raise fl.PeerError(f"a sum of {msg.count} models, where at least {self.config.min_cluster} are to be in it")
        return (yield from cluster_sums.convert(self, msg, self.spec.size, self.state.formed))


def divergences(groups: Groups, settings: Aidc) -> fl.Array:
    # calibrated, so that few samples make no device seem far away
    mjs = modified_divergence(groups.features, groups.gamma) if groups.mjs is None else groups.mjs
    return calibrated(mjs, groups.floors, per_scale=settings.floors_per_scale)[0]


def without_small(d: fl.Array, labels: fl.Integers, least: int) -> fl.Integers:
    """Merge clusters (n,) until all (but a single one of all) have so many devices: the smallest joins the nearest,
    by mean divergence, which keeps its number. d: (n, n) divergences.
    """
    labels = labels.copy()
    while True:
        numbers, sizes = np.unique(labels, return_counts=True)
        if len(numbers) == 1 or sizes.min() >= least:
            return labels
        small = numbers[sizes.argmin()]
        own = np.flatnonzero(labels == small)
        others = {int(k): np.flatnonzero(labels == k) for k in numbers if k != small}
        labels[own] = min(others, key=lambda k: mean_between(d, own, others[k]))
