"""MingledPie's client C_i: algorithms 1 and 2, and its part of algorithm 3."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.mingled import Rebuilt, kept_all
from coterie.clustering.identities import ClusterKeys, identity_set
from coterie.crypto.ckks import PublicKey, SecretKey
from coterie.crypto.roster import check_signed, signed
from coterie.protocol.effects import Compute, Encrypt, Fit, Fitted, Open, Vector
from coterie.protocol.errors import CryptoError, PeerError
from coterie.protocol.messages import bundle, unbundle
from coterie.protocol.model_spec import ModelSpec
from coterie.protocol.party import Cost, Party, Work, on
from coterie.protocol.setup_info import Common, Own
from coterie.protocols.key_centre import HeldKeys
from coterie.protocols.local_training import batch_seed, best_model, check_model
from coterie.protocols.threshold_holder import KeyMaking
from coterie.protocols.threshold_keys import JointKeys
from coterie.protocols.threshold_opening import KeyOpening
from coterie.systems.mingledpie.config import MingledPieConfig, declared, rebuilding_of
from coterie.systems.mingledpie.messages import (
    CLIENT,
    HUB,
    MODELS,
    USER,
    Mingled,
    Noted,
    OpenedSums,
    Parameters,
    Received,
    Train,
    Update,
)


class Client(Party, role=CLIENT):
    """C_i: finds its cluster, mingles its identity, trains, encrypts, and rebuilds the cluster models."""

    keys = HeldKeys(PublicKey, SecretKey)

    class State(msgspec.Struct):
        """models: (k, d) float32 of ``round``, None before it has the parameters.

        buffers: the last trained ones (``layout.local``), None before the first training.
        trained, noted: the last rounds that it trained for, and had parameters of.  condition, ridge, kept, why: of the
        last rebuild; why is empty if all models are new.
        """

        models: Vector | None = None
        buffers: Vector | None = None
        round: int = 0
        trained: int = 0
        noted: int = -1
        keys: bytes = b""
        condition: float = 0.0
        ridge: float = 0.0
        kept: tuple[int, ...] = ()
        why: str = ""

    class Secret(msgspec.Struct):
        """cluster: its true one, 0 before the first.  sets: CI_i, (k,) bool, by true cluster.  drawn: so many sets."""

        cluster: int = 0
        sets: dict[int, NDArray[np.bool_]] = msgspec.field(default_factory=dict)
        drawn: int = 0

    state: State
    secret: Secret

    config: MingledPieConfig

    def __init__(self, own: Own, common: Common, config: MingledPieConfig) -> None:
        super().__init__(own, common, config)
        self.rebuild = rebuilding_of(config, common.spec, common.mode)
        self.layout, self.printed = self.rebuild.layout, common.mode == "literal"

    @on(Parameters)
    def note(self, msg: Parameters, src: str) -> Work[Noted]:
        """Keep the initial models and the identities' keys. With new keys, identities are drawn anew unless kept."""
        check_signed(self.common, HUB, msg)
        if msg.round <= self.state.noted:
            raise PeerError(f"parameters of round {msg.round} after those of round {self.state.noted}")
        if self.layout.kind == "mingled":
            keys = ClusterKeys(msg.keys)
            if keys.clusters != self.layout.clusters:
                raise PeerError(f"keys of {keys.clusters} clusters instead of {self.layout.clusters}")
            if keys.bits != self.config.bits(msg.round):  # more bits would hide its true cluster among fewer others
                raise PeerError(f"keys of {keys.bits} bits instead of {self.config.bits(msg.round)}, which p requires")
        if self.state.models is None:
            self.state.models = yield Compute(_starts, (self.spec, self.layout.clusters, msg.spec, msg.start))
        if not self.config.keep_sets and msg.keys != self.state.keys:
            self.secret.sets = {}
        self.state.keys, self.state.noted = msg.keys, msg.round
        return Noted(msg.round)

    def sealing(self) -> PublicKey | SecretKey:
        return self.keys.own(USER)

    def train_cost(self, msg: Train) -> Cost:
        """k forward passes, a third of a training step each, its epochs, and one encryption of all vectors."""
        key = self.sealing()
        crypto_s = sum(key.nominal_seconds_encrypt(length) for length in self.layout.lengths)
        samples = self.samples * (self.epochs + self.layout.clusters / 3)
        return Cost(samples, self.spec.flops_per_sample, crypto_s)

    @on(Train, train_cost)
    def train(self, msg: Train, src: str) -> Work[Update]:
        """Algorithm 3, lines 12 to 15."""
        models = self.state.models
        if models is None or msg.basis != self.state.round:
            raise PeerError(f"asked to train on models of round {msg.basis}, but it holds those of {self.state.round}")
        if msg.round <= self.state.trained:
            raise PeerError(f"asked to train for round {msg.round} after round {self.state.trained}")
        cluster = yield from best_model(map(self.with_own_buffers, models))  # eq. (2)
        identities = self._identities(cluster) if self.layout.kind == "mingled" else np.zeros(0, np.int64)
        start = self.with_own_buffers(models[cluster])
        fitted: Fitted = yield Fit(start, self.config.solver(), self.epochs, batch_seed(self, msg.round))
        key = self.sealing()
        parts: list[bytes] = []
        for vector in self.layout.vectors(fitted.weights, cluster):
            parts.append((yield Encrypt(key, vector)).to_bytes())
        sigma = self.layout.indicator(cluster)[: self.layout.scalars]
        ciphers = bundle([parts[0], *(key.encrypt_scalar(float(x)).to_bytes() for x in sigma), *parts[1:]])
        self.secret.cluster, self.state.trained = cluster, msg.round
        if self.layout.local.any():
            self.state.buffers = fitted.weights[self.layout.local]
        return signed(self.own, Update(msg.round, msg.basis, identities, ciphers))

    def _identities(self, cluster: int) -> NDArray[np.int64]:
        """CI_i: the set of this true cluster, drawn by algorithm 1 if missing."""
        if cluster not in self.secret.sets:
            draw = self.secrets("identities", self.secret.drawn).bytes
            keys, config = ClusterKeys(self.state.keys), self.config
            self.secret.sets[cluster], _ = identity_set(
                keys, cluster, config.threshold, draw, counts=config.threshold_counts, printed=self.printed
            )
            self.secret.drawn += 1
        return np.flatnonzero(self.secret.sets[cluster]).astype(np.int64)

    def open_cost(self, msg: Mingled) -> Cost:
        if msg.round <= self.state.round:
            return Cost()
        key = self.keys.own(USER)
        return Cost(crypto_s=sum(key.nominal_seconds_decrypt(width) for width in self.layout.widths))

    @on(Mingled, open_cost)
    def receive(self, msg: Mingled, src: str) -> Work[Received]:
        """Algorithm 2: verify, open and rebuild. If that is impossible, keep the models and say so.

        An absent client's models may be stale. The next sums with a contribution of that cluster correct them.
        """
        parts: list[bytes] = yield Compute(_verified, (self.common, msg, self.layout.slots))
        return (yield from self._received(msg, self._opened(parts)))

    def _opened(self, parts: list[bytes]) -> Work[tuple[Any, ...]]:
        """The values of each slot, None for a sum of no updates. Raises PeerError or CryptoError."""
        key, opened = self.keys.own(USER), list[Any]()
        for part in parts:
            opened.append((yield Open(key, part)) if part else None)
        return tuple(opened)

    def _received(self, msg: Mingled | OpenedSums, opening: Work[tuple[Any, ...]]) -> Work[Received]:
        if self.state.models is None or msg.spec != self.spec.digest or msg.round < self.state.round:
            raise PeerError(f"sums of round {msg.round} for models of round {self.state.round}, or of another shape")
        if msg.round > self.state.round:  # else the server asks again, because the answer was late or lost
            rebuilt = yield from self._rebuilt(msg, opening)
            self.state.models, self.state.round = rebuilt.models, msg.round
            self.state.condition, self.state.ridge, self.state.why = rebuilt.condition, rebuilt.ridge, rebuilt.why
            self.state.kept = tuple(np.flatnonzero(rebuilt.kept).tolist())
        return Received(msg.round, len(self.state.kept) < self.layout.clusters)

    def _rebuilt(self, msg: Mingled | OpenedSums, opening: Work[tuple[Any, ...]]) -> Work[Rebuilt]:
        """The models of these sums; or the old ones and the reason, if a broken update has made the sums unusable."""
        models = self.state.models
        try:
            opened = yield from opening
            sizes = tuple(map(int, msg.sizes))
            rebuilt: Rebuilt = yield Compute(self.rebuild, (opened, models, sizes, msg.participants))
        except (PeerError, CryptoError) as error:
            rebuilt = yield Compute(kept_all, (models, f"{error}, so all models were kept"))
        return rebuilt

    def with_own_buffers(self, model: Vector) -> Vector:
        """A cluster's model (d,), with this client's own buffers, if any."""
        if self.state.buffers is None:
            return model
        own = model.copy()
        own[self.layout.local] = self.state.buffers
        return own

    def models(self) -> Vector:
        """(k, d) float32, for the observer; theta_j^0 before it has models."""
        return self.common.starts if self.state.models is None else self.state.models

    def model(self) -> Vector:
        """(d,) that of its own cluster, with its own buffers."""
        return self.with_own_buffers(self.models()[self.cluster()])

    def cluster(self) -> int:
        """Its true cluster, for the observer; 0 before its first round."""
        return self.secret.cluster

    def sets_drawn(self) -> int:
        return self.secret.drawn


def _starts(spec: ModelSpec, clusters: int, digest: bytes, start: Vector) -> Vector:
    """theta_j^0 (k, d) of the published weights (k d,). Raises PeerError for another model's."""
    if len(start) != clusters * spec.size:
        raise PeerError(f"{len(start)} weights instead of {clusters} models of {spec.size}")
    return np.stack([check_model(spec, digest, row) for row in start.reshape(clusters, spec.size)])


class JointClient(Client, role=CLIENT):
    """C_i with keys=threshold: it may hold a share of the key, and receives opened sums."""

    joint, making, opening = JointKeys(declared), KeyMaking(), KeyOpening()

    def sealing(self) -> PublicKey | SecretKey:
        return self.keys.public(MODELS)

    @on(OpenedSums)
    def receive_opened(self, msg: OpenedSums, src: str) -> Work[Received]:
        """Algorithm 2, on opened sums."""
        clusters = self.layout.clusters if self.layout.kind == "mingled" else 0
        rows: tuple[Any, ...] = yield Compute(_split, (self.common, msg, self.layout.widths, clusters))
        return (yield from self._received(msg, _given(rows)))


def _given(rows: tuple[Any, ...]) -> Work[tuple[Any, ...]]:
    yield from ()
    return rows


def _split(common: Common, msg: OpenedSums, widths: tuple[int, ...], clusters: int) -> tuple[Any, ...]:
    """The values of each slot of a message that the server signed, or None. Raises PeerError for any other."""
    check_signed(common, HUB, msg)
    slots = [int(slot) for slot in msg.slots]
    if slots != sorted(set(slots)) or not set(slots) <= set(range(len(widths))):
        raise PeerError(f"{slots} is no ascending list of slots 0 to {len(widths) - 1}")
    if len(msg.sizes) != clusters or (msg.sizes < 0).any():
        raise PeerError(f"{msg.sizes.tolist()} are no sizes of {clusters} clusters")
    ends = np.cumsum([widths[slot] for slot in slots])
    if len(msg.values) != (ends[-1] if slots else 0):
        raise PeerError(f"{len(msg.values)} values for sums of {[widths[slot] for slot in slots]} numbers")
    there = dict(zip(slots, np.split(msg.values, ends[:-1]), strict=True)) if slots else {}
    return tuple(there.get(slot) for slot in range(len(widths)))


def _verified(common: Common, msg: Mingled, slots: int) -> list[bytes]:
    """The ciphertexts of a message that the server signed. Raises PeerError for any other."""
    check_signed(common, HUB, msg)
    return unbundle(msg.ciphers, slots)
