"""MingledPie's client C_i: algorithms 1 and 2, and its part of algorithm 3."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

import coterie.method as fl
from coterie.aggregation.mingled import Rebuilt, kept_all
from coterie.clustering.identities import ClusterKeys, identity_set
from coterie.crypto.ckks import PublicKey, SecretKey
from coterie.protocols.key_centre import HeldKeys
from coterie.protocols.threshold import JointKeys, KeyMaking, KeyOpening, vouched
from coterie.systems.mingledpie import messages
from coterie.systems.mingledpie.config import MingledPieConfig, declared, rebuilding_of, with_keys
from coterie.systems.mingledpie.layout import Layout, Rebuilding
from coterie.systems.mingledpie.messages import CLIENT, HUB, MODELS, USER

Sums = messages.Mingled | messages.OpenedSums


class Client(fl.Party, role=CLIENT):
    keys, joint = HeldKeys(PublicKey, SecretKey), JointKeys(declared)
    making, opening = KeyMaking(with_keys("threshold")), KeyOpening(with_keys("threshold"))

    class State(fl.State):
        """models: (k, d) float32 of ``round``, None before it has the parameters.  buffers: last trained (``layout``).

        trained, noted: the last rounds that it trained for, and had parameters of.  condition, ridge, kept, why: of the
        last rebuild; why is empty if all models are new.
        """

        models: fl.Vector | None = None
        buffers: fl.Vector | None = None
        round: int = 0
        trained: int = 0
        noted: int = -1
        keys: bytes = b""
        condition: float = 0.0
        ridge: float = 0.0
        kept: tuple[int, ...] = ()
        why: str = ""

    class Secret(fl.State):
        """cluster: its true one, 0 before the first.  sets: CI_i, (k,) bool, by true cluster.  drawn: their number."""

        cluster: int = 0
        sets: dict[int, fl.Flags] = fl.field(default_factory=dict)
        drawn: int = 0

    state: State
    secret: Secret
    config: MingledPieConfig

    @cached_property
    def rebuild(self) -> Rebuilding:
        return rebuilding_of(self.config, self.spec, self.common.mode)

    @property
    def kept_back(self) -> str:
        return self.state.why

    @property
    def layout(self) -> Layout:
        return self.rebuild.layout

    @fl.on(messages.Parameters, answers=fl.Done)
    def note(self, msg: messages.Parameters, src: str) -> fl.Work[fl.Done]:
        """With new keys, identities are drawn anew unless kept."""
        fl.check_signed(self.common, HUB, msg)
        if msg.round <= self.state.noted:
            raise fl.PeerError(f"parameters of round {msg.round} after those of round {self.state.noted}")
        if self.layout.kind == "mingled":
            keys = ClusterKeys(msg.keys)
            if keys.clusters != self.layout.clusters:
                raise fl.PeerError(f"keys of {keys.clusters} clusters instead of {self.layout.clusters}")
            bits = self.config.bits(msg.round)  # more would hide its true cluster among fewer others
            if keys.bits != bits:
                raise fl.PeerError(f"keys of {keys.bits} bits instead of {bits}, which p requires")
        if self.state.models is None:
            self.state.models = yield fl.Compute(_starts, (self.spec, self.layout.clusters, msg.spec, msg.start))
        if not self.config.keep_sets and msg.keys != self.state.keys:
            self.secret.sets = {}
        self.state.keys, self.state.noted = msg.keys, msg.round
        return fl.Done(msg.round)

    def sealing(self) -> PublicKey | SecretKey:
        return self.keys.public(MODELS) if self.config.keys == "threshold" else self.keys.own(USER)

    def train_cost(self, msg: messages.Train) -> fl.Cost:
        """k forward passes, a third of a training step each, its epochs, and the encryption."""
        key = self.sealing()
        crypto_s = sum(key.nominal_seconds_encrypt(length) for length in self.layout.lengths)
        samples = self.samples * (self.epochs + self.layout.clusters / 3)
        return fl.Cost(samples, self.spec.flops_per_sample, crypto_s)

    @fl.on(messages.Train, train_cost, answers=messages.Update)
    def train(self, msg: messages.Train, src: str) -> fl.Work[messages.Update]:
        """Algorithm 3, lines 12 to 15."""
        models, held = self.state.models, self.state.round
        if models is None or msg.basis != held:
            raise fl.PeerError(f"asked to train on models of round {msg.basis}, but it holds those of {held}")
        if msg.round <= self.state.trained:
            raise fl.PeerError(f"asked to train for round {msg.round} after round {self.state.trained}")
        cluster = yield from fl.best_model(map(self.with_own_buffers, models))  # eq. (2)
        identities = self._identities(cluster) if self.layout.kind == "mingled" else np.zeros(0, np.int64)
        start = self.with_own_buffers(models[cluster])
        fitted: fl.Fitted = yield fl.fit(self, start, msg.round)
        key = self.sealing()
        parts: list[bytes] = []
        for part, vector in enumerate(self.layout.vectors(fitted.weights, cluster)):
            cipher = yield fl.Encrypt(key, vector)
            joint = self.config.keys == "threshold"
            parts.append(vouched(self, MODELS, cipher, msg.round, part=part) if joint else cipher.to_bytes())
        sigma = self.layout.indicator(cluster)[: self.layout.scalars]
        ciphers = fl.bundle([parts[0], *(key.encrypt_scalar(float(x)).to_bytes() for x in sigma), *parts[1:]])
        self.secret.cluster, self.state.trained = cluster, msg.round
        if self.layout.local.any():
            self.state.buffers = fitted.weights[self.layout.local]
        return fl.signed(self.own, messages.Update(msg.round, msg.basis, identities, ciphers))

    def _identities(self, cluster: int) -> fl.Integers:
        """CI_i, drawn by algorithm 1 if missing."""
        if cluster not in self.secret.sets:
            draw = self.secrets("identities", self.secret.drawn).bytes
            keys, config, printed = ClusterKeys(self.state.keys), self.config, self.common.mode == "literal"
            self.secret.sets[cluster], _ = identity_set(
                keys, cluster, config.threshold, draw, counts=config.threshold_counts, printed=printed
            )
            self.secret.drawn += 1
        return np.flatnonzero(self.secret.sets[cluster]).astype(np.int64)

    def open_cost(self, msg: messages.Mingled) -> fl.Cost:
        if msg.round <= self.state.round:
            return fl.Cost()
        key = self.keys.own(USER)
        return fl.Cost(crypto_s=sum(key.nominal_seconds_decrypt(width) for width in self.layout.widths))

    @fl.on(messages.Mingled, open_cost, answers=messages.Received, when=with_keys("shared"))
    def receive(self, msg: messages.Mingled, src: str) -> fl.Work[messages.Received]:
        slots: Sequence[Any] = yield fl.Compute(_verified, (self.common, msg, self.layout.slots))
        return (yield from self._received(msg, slots))

    @fl.on(messages.OpenedSums, answers=messages.Received, when=with_keys("threshold"))
    def receive_opened(self, msg: messages.OpenedSums, src: str) -> fl.Work[messages.Received]:
        if self.config.keys != "threshold":
            raise fl.PeerError("opened sums, in a federation whose clients open them themselves")
        clusters = self.layout.clusters if self.layout.kind == "mingled" else 0
        slots: Sequence[Any] = yield fl.Compute(_split, (self.common, msg, self.layout.widths, clusters))
        return (yield from self._received(msg, slots))

    def _received(self, msg: Sums, slots: Sequence[Any]) -> fl.Work[messages.Received]:
        if self.state.models is None or msg.spec != self.spec.digest or msg.round < self.state.round:
            raise fl.PeerError(f"sums of round {msg.round} for models of round {self.state.round}, or of another shape")
        if msg.round > self.state.round:  # else the server asks again, because the answer was late or lost
            rebuilt = yield from self._rebuilt(msg, slots)
            self.state.models, self.state.round = rebuilt.models, msg.round
            self.state.condition, self.state.ridge, self.state.why = rebuilt.condition, rebuilt.ridge, rebuilt.why
            self.state.kept = tuple(np.flatnonzero(rebuilt.kept).tolist())
        return messages.Received(msg.round, len(self.state.kept) < self.layout.clusters)

    def _rebuilt(self, msg: Sums, slots: Sequence[Any]) -> fl.Work[Rebuilt]:
        """The models of these sums; or the old ones and why, if a broken update has made the sums unusable.

        slots: by slot a ciphertext (empty for a sum of no updates), or the opened values or None.
        """
        models, opened = self.state.models, list[Any]()
        try:
            for slot in slots:
                if isinstance(slot, bytes):
                    slot = (yield fl.Open(self.keys.own(USER), slot)) if slot else None
                opened.append(slot)
            sizes = tuple(map(int, msg.sizes))
            rebuilt: Rebuilt = yield fl.Compute(self.rebuild, (tuple(opened), models, sizes, msg.participants))
        except (fl.PeerError, fl.CryptoError) as error:
            rebuilt = yield fl.Compute(kept_all, (models, f"{error}, so all models were kept"))
        return rebuilt

    def with_own_buffers(self, model: fl.Vector) -> fl.Vector:
        if self.state.buffers is None:
            return model
        own = model.copy()
        own[self.layout.local] = self.state.buffers
        return own

    def models(self) -> fl.Vector:
        """(k, d) float32; theta_j^0 before it has models."""
        return self.common.starts if self.state.models is None else self.state.models

    def model(self) -> fl.Vector:
        return self.with_own_buffers(self.models()[self.cluster()])

    def cluster(self) -> int:
        """For the observer; 0 before its first round."""
        return self.secret.cluster


def _starts(spec: fl.ModelSpec, clusters: int, digest: bytes, start: fl.Vector) -> fl.Vector:
    if len(start) != clusters * spec.size:
        raise fl.PeerError(f"{len(start)} weights instead of {clusters} models of {spec.size}")
    return np.stack([fl.check_model(spec, digest, row) for row in start.reshape(clusters, spec.size)])


def _split(common: fl.Common, msg: messages.OpenedSums, widths: tuple[int, ...], clusters: int) -> tuple[Any, ...]:
    fl.check_signed(common, HUB, msg)
    slots = [int(slot) for slot in msg.slots]
    if slots != sorted(set(slots)) or not set(slots) <= set(range(len(widths))):
        raise fl.PeerError(f"{slots} is no ascending list of slots 0 to {len(widths) - 1}")
    if len(msg.sizes) != clusters or (msg.sizes < 0).any():
        raise fl.PeerError(f"{msg.sizes.tolist()} are no sizes of {clusters} clusters")
    ends = np.cumsum([widths[slot] for slot in slots])
    if len(msg.values) != (ends[-1] if slots else 0):
        raise fl.PeerError(f"{len(msg.values)} values for sums of {[widths[slot] for slot in slots]} numbers")
    there = dict(zip(slots, np.split(msg.values, ends[:-1]), strict=True)) if slots else {}
    return tuple(there.get(slot) for slot in range(len(widths)))


def _verified(common: fl.Common, msg: messages.Mingled, slots: int) -> list[bytes]:
    fl.check_signed(common, HUB, msg)
    return fl.unbundle(msg.ciphers, slots)
