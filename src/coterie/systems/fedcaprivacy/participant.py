"""FedCAPrivacy's participant p_i: steps I and VII."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.buffers import not_below_zero
from coterie.aggregation.sums import mean_of_clusters
from coterie.crypto.paillier import public_key, secret_key
from coterie.crypto.signing import SigningKey, VerifyKey
from coterie.crypto.sketch import project, rotate, unrotate
from coterie.protocol.effects import Encrypt, Fit, Fitted, Open, Vector
from coterie.protocol.errors import PeerError
from coterie.protocol.party import Cost, Party, To, Work, on
from coterie.protocol.system import Setting
from coterie.protocols.key_centre import Credentials, Join, Ready, enrol
from coterie.protocols.local_training import batch_seed, check_model
from coterie.systems.fedcaprivacy.messages import (
    HUB,
    PARTICIPANT,
    ClusterModel,
    Received,
    Train,
    Upload,
)

if TYPE_CHECKING:
    from coterie.systems.fedcaprivacy import FedCAPrivacyConfig


def round_seed(group_seed: bytes, r: int) -> bytes:
    """What the participants share in round r and no server knows."""
    return hashlib.sha256(b"fedcaprivacy round" + group_seed + r.to_bytes(8, "big")).digest()


class Participant(Party, role=PARTICIPANT):
    """p_i: trains, encrypts, and takes the mean of its clusters' models."""

    class State(msgspec.Struct):
        """weights: (d,) to go on from, None before round 1.  clusters: opened models of ``round`` by cluster.

        round: the last that it trained for.
        """

        weights: NDArray[Any] | None = None
        clusters: dict[int, NDArray[Any]] = msgspec.field(default_factory=dict)
        round: int = 0
        service_public: bytes = b""
        verify_keys: NDArray[Any] | None = None

    class Secret(msgspec.Struct):
        """Its own signing key, and what it shares with the other participants: sk_u and a seed."""

        signing: bytes = b""
        user: bytes = b""
        group_seed: bytes = b""

    state: State
    secret: Secret

    def __init__(self, pid: int, name: str, setting: Setting, config: FedCAPrivacyConfig) -> None:
        super().__init__(name, setting.randomness)
        self.pid, self.spec, self.initial, self.config = pid, setting.spec, setting.initial, config
        self.samples, self.epochs = setting.samples[name], setting.epochs[name]
        self.sketches = setting.mode == "hardened" and config.hardening == "sketch"
        self.rotates = setting.mode == "hardened" and config.hardening == "rotation"
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
        if self.secret.user:
            raise PeerError("already provided with keys")
        if msg.secret_key is None or msg.group_seed is None:
            raise PeerError("credentials without the users' secret key")
        self.secret.user, self.secret.group_seed = msg.secret_key, msg.group_seed
        self.state.service_public, self.state.verify_keys = msg.service_public, msg.verify_keys
        return (To(HUB, Ready()),)

    def train_cost(self, msg: Train) -> Cost:
        """Its samples, once per epoch, and one encryption."""
        key = public_key(self.state.service_public)
        crypto_s = key.nominal_seconds_encrypt(self.spec.size)
        if self.sketches:
            crypto_s += key.nominal_seconds_encrypt(self.config.sketch_dim)
        return Cost(self.samples * self.epochs, self.spec.flops_per_sample, crypto_s)

    @on(Train, train_cost)
    def train(self, msg: Train, src: str) -> Work[Upload]:
        """Step I: local training for E_i epochs, fixed point, encryption, signature."""
        if msg.round <= self.state.round:
            raise PeerError(f"asked to train for round {msg.round} after round {self.state.round}")
        start = self.model() if msg.weights is None else check_model(self.spec, msg.spec, msg.weights)
        fitted: Fitted = yield Fit(start, self.config.solver(), self.epochs, batch_seed(self, msg.round))  # eq. (3)
        seed = round_seed(self.secret.group_seed, msg.round)
        omega = rotate(fitted.weights, seed) if self.rotates else fitted.weights
        key = public_key(self.state.service_public)
        cipher = (yield Encrypt(key, omega)).to_bytes()  # eq. (4), (5)
        sketch = b""
        if self.sketches:
            sketch = (yield Encrypt(key, project(fitted.weights, self.config.sketch_dim, seed))).to_bytes()
        signing = SigningKey.load(self.secret.signing)
        signature = signing.sign("upload", msg.round, self.pid, repr(self.now_s), cipher, sketch)  # zeta_i
        self.state.weights, self.state.clusters, self.state.round = fitted.weights, {}, msg.round
        return Upload(msg.round, self.pid, self.now_s, cipher, sketch, signature)

    def open_cost(self, msg: ClusterModel) -> Cost:
        """One decryption."""
        return Cost(crypto_s=secret_key(self.secret.user).nominal_seconds_decrypt(self.spec.size))

    @on(ClusterModel, open_cost)
    def receive(self, msg: ClusterModel, src: str) -> Work[Received]:
        """Step VII: verify both servers' signatures, open, and divide by the count."""
        if self.state.verify_keys is None or msg.count < 1 or msg.round != self.state.round:
            raise PeerError(f"a mean of {msg.count} models of round {msg.round} for round {self.state.round}")
        hub_key, csp_key = (VerifyKey(bytes(row)) for row in self.state.verify_keys)
        hub_key.verify(msg.signature, "cluster model", msg.round, msg.cluster, msg.count, msg.cipher)
        csp_key.verify(msg.count_signature, "cluster count", msg.round, msg.cluster, msg.count)
        total = yield Open(secret_key(self.secret.user), msg.cipher)
        if len(total) != self.spec.size:
            raise PeerError(f"a cluster model of {len(total)} numbers; expected {self.spec.size}")
        mean = total / msg.count
        if self.rotates:
            mean = unrotate(mean, round_seed(self.secret.group_seed, msg.round))
            mean = not_below_zero(self.spec, mean)  # what fixed point has rounded lies anywhere once it is turned back
        self.state.clusters[msg.cluster] = mean.astype(np.float32)
        return Received(msg.round, msg.cluster)

    def model(self) -> Vector:
        """omega_{i,g}, eq. (11): the mean over its clusters, or what it has while there are none."""
        if self.state.clusters:
            opened = [self.state.clusters[k] for k in sorted(self.state.clusters)]
            return opened[0] if len(opened) == 1 else mean_of_clusters(opened).astype(np.float32)  # eq. (11)
        return self.initial if self.state.weights is None else self.state.weights
