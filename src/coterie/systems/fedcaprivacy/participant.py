"""FedCAPrivacy's participant p_i: steps I and VII."""

from __future__ import annotations

import numpy as np

import coterie.method as fl
from coterie.aggregation.buffers import not_below_zero
from coterie.crypto.paillier import PublicKey, SecretKey
from coterie.crypto.sketch import project, rotate, unrotate
from coterie.protocols import signatures
from coterie.protocols.anonymous import SERVICE
from coterie.protocols.cluster_sums import ClusterModel, Received, opened_mean, receiving_cost
from coterie.protocols.key_centre import HeldKeys
from coterie.protocols.masked_sums import AskForTerm, Term, Total, opened_total
from coterie.protocols.signatures import Characterise, Characterised
from coterie.systems.fedcaprivacy import messages
from coterie.systems.fedcaprivacy.config import Protected, with_protection
from coterie.systems.fedcaprivacy.messages import CSP, GROUP, PARTICIPANT, round_seed

by_signature = with_protection("signature")


class Participant(Protected, role=PARTICIPANT):
    keys = HeldKeys(PublicKey, SecretKey)
    helper = CSP

    class State(fl.State):
        """weights: (d,) to go on from, None before round 1.  round: the last one that it trained for.

        clusters: opened models of ``round`` by cluster.  totals: opened masked sums (``signatures``).
        """

        weights: fl.Vector | None = None
        clusters: dict[int, fl.Vector] = fl.field(default_factory=dict)
        round: int = 0
        totals: dict[int, fl.Doubles] = fl.field(default_factory=dict)

    state: State

    def train_cost(self, msg: messages.Train) -> fl.Cost:
        key = self.keys.public(SERVICE)
        crypto_s = key.nominal_seconds_encrypt(self.spec.size)
        if self.protection == "sketch":
            crypto_s += key.nominal_seconds_encrypt(self.config.sketch_dim)
        return fl.Cost(self.samples * self.epochs, self.spec.flops_per_sample, crypto_s)

    @fl.on(messages.Train, train_cost, answers=messages.Upload)
    def train(self, msg: messages.Train, src: str) -> fl.Work[messages.Upload]:
        """Step I."""
        if msg.round <= self.state.round:
            raise fl.PeerError(f"asked to train for round {msg.round} after round {self.state.round}")
        start = self.model() if msg.weights is None else fl.check_model(self.spec, msg.spec, msg.weights)
        fitted: fl.Fitted = yield fl.fit(self, start, msg.round)  # eq. (3)
        seed = round_seed(self.keys.own_bytes(GROUP), msg.round)
        omega = rotate(fitted.weights, seed) if self.protection == "rotation" else fitted.weights
        key = self.keys.public(SERVICE)
        cipher = (yield fl.Encrypt(key, omega)).to_bytes()  # eq. (4), (5)
        sketch = b""
        if self.protection == "sketch":
            sketch = (yield fl.Encrypt(key, project(fitted.weights, self.config.sketch_dim, seed))).to_bytes()
        self.state.weights, self.state.clusters, self.state.round = fitted.weights, {}, msg.round
        upload = messages.Upload(msg.round, self.clients.index(self.name), self.now_s, cipher, sketch)
        return fl.signed(self.own, upload)  # zeta_i

    @fl.on(ClusterModel, lambda self, msg: receiving_cost(self, self.spec.size), answers=Received)
    def receive(self, msg: ClusterModel, src: str) -> fl.Work[Received]:
        """Step VII."""
        mean = yield from opened_mean(self, msg, self.state.round, self.spec.size)
        if self.protection == "rotation":
            mean = unrotate(mean, round_seed(self.keys.own_bytes(GROUP), msg.round))
            mean = not_below_zero(self.spec, mean)  # the rotation back spreads rounding errors over all coordinates
        self.state.clusters[msg.cluster] = mean.astype(np.float32)
        return Received(msg.round, msg.cluster)

    @fl.on(AskForTerm, signatures.term_cost, answers=Term, when=by_signature)
    def contribute(self, msg: AskForTerm, src: str) -> fl.Work[Term]:
        self.describes_data()
        return (yield from signatures.contributed(self, msg, self.state.totals))

    @fl.on(Total, signatures.total_cost, answers=Received, when=by_signature)
    def open_total(self, msg: Total, src: str) -> fl.Work[Received]:
        lengths = signatures.lengths(self.spec)
        total, answer = yield from opened_total(self, msg, 0, lengths, self.state.totals)
        self.state.totals[msg.cluster] = total
        return answer

    @fl.on(Characterise, signatures.signature_cost, answers=Characterised, when=by_signature)
    def characterise(self, msg: Characterise, src: str) -> fl.Work[Characterised]:
        self.describes_data()
        seed = round_seed(self.keys.own_bytes(GROUP), 0)
        return (yield from signatures.characterised(self, msg, self.state.totals, seed))

    def describes_data(self) -> None:
        if self.protection != "signature":
            raise fl.PeerError("nobody describes their data in this federation")

    def model(self) -> fl.Vector:
        """omega_{i,g}, eq. (11); its own weights before."""
        if self.state.clusters:
            opened = [self.state.clusters[k] for k in sorted(self.state.clusters)]
            mean: fl.Vector = np.stack(opened).mean(axis=0, dtype=np.float64).astype(np.float32)  # eq. (11)
            return opened[0] if len(opened) == 1 else mean
        return self.common.initial if self.state.weights is None else self.state.weights
