"""FedEPC's device i: algorithm 1, and algorithm 4, l. 7 and 19."""

from __future__ import annotations

import hashlib

import numpy as np

import coterie.method as fl
from coterie.crypto.paillier import PublicKey, SecretKey
from coterie.devices.resources import resources
from coterie.dp.gaussian import mean_sensitivity
from coterie.protocols import cluster_sums
from coterie.protocols.anonymous import SERVICE
from coterie.protocols.cluster_sums import ClusterModel, Received
from coterie.protocols.key_centre import HeldKeys
from coterie.protocols.sparsity import Noise, describe
from coterie.systems.fedepc import messages
from coterie.systems.fedepc.config import CLIP, FedEPCConfig
from coterie.systems.fedepc.contexts import MOST_LOSS, gradient_norm
from coterie.systems.fedepc.messages import DEVICE, HELPER, Describe, Train

FORWARD = 1 / 3
"""The nominal cost of a sample's forward pass, over a training step."""


CHANNELS = 64
"""Of a description, for its nominal cost beforehand."""


@fl.local("data digest")
def digest(own: fl.OwnData) -> bytes:
    hashed = hashlib.blake2b(repr((own.x.shape, own.y.shape)).encode(), digest_size=16)
    hashed.update(own.x.tobytes())
    hashed.update(own.y.tobytes())
    return hashed.digest()


class Description(fl.State, frozen=True):
    """Vector (C,) float32 and h_i; in mode hardened under the helper's key. of: a digest of data and request."""

    of: bytes
    vector: fl.Vector
    floor: float
    cipher: bytes = b""


class Describer(fl.Party):
    class State(fl.State):
        """extractor: (d,) W_ext.  said: its last description.  weights: (d,) its cluster's model, if it has one.
        released: of each description of new data its round, L2 sensitivity and a digest of all that it follows from.
        measured: the rounds in which it has measured a model.  trained: those in which it trained.
        """

        extractor: fl.Vector | None = None
        said: Description | None = None
        weights: fl.Vector | None = None
        released: list[tuple[int, float, bytes]] = fl.field(default_factory=list)
        measured: list[int] = fl.field(default_factory=list)
        trained: list[int] = fl.field(default_factory=list)

    state: State
    config: FedEPCConfig
    LASTS = ("released",)  # a repeated round repeats a description, which releases nothing more

    def model(self) -> fl.Vector:
        """W^0 where it knows no other."""
        return self.common.initial if self.state.weights is None else self.state.weights

    def noise(self, msg: Describe) -> Noise | None:
        if self.config.send == "clear":
            return None
        along = 0 if msg.basis is None else len(msg.basis)
        if (along > 0) != (self.config.noise_along == "classes"):
            raise fl.PeerError(f"noise along {along} directions, where the setting is {self.config.noise_along}")
        if msg.centre is None or not CLIP[0] <= msg.clip <= CLIP[1]:
            raise fl.PeerError(f"a description with noise needs a public mean and a clip within {CLIP}, not {msg.clip}")
        return Noise(msg.clip, self.config.multiplier(), msg.centre, msg.basis)

    def described(self, msg: Describe) -> fl.Work[tuple[Description, bool]]:
        """Its description, and whether it is the last one."""
        # unchanged data are never described twice, so their privacy is spent once
        if msg.layer != self.config.layer:
            raise fl.PeerError(f"asked to describe layer {msg.layer!r}; the settings say {self.config.layer!r}")
        if msg.weights is not None:
            extractor = fl.check_model(self.spec, msg.spec, msg.weights)
            known = self.common.initial if self.config.extractor == "random" else self.state.extractor
            if known is not None and not np.array_equal(extractor, known):
                raise fl.PeerError("asked for a description by another extractor than that of this run")
            self.state.extractor = extractor
        if self.state.extractor is None:
            raise fl.PeerError("asked for a description without an extractor")
        data: bytes = yield fl.Local(digest)
        asked = hashlib.blake2b(data + self.state.extractor.tobytes() + msg.layer.encode(), digest_size=16).digest()
        if self.state.said is not None and self.state.said.of == asked:
            return self.state.said, True
        noise = self.noise(msg)
        vector, floor = yield from describe(
            self, self.state.extractor, msg.layer, gamma=self.config.gamma, round=msg.round, noise=noise
        )
        self.state.said = Description(asked, vector.astype(np.float32), float(floor))
        sensitivity = mean_sensitivity(msg.clip, max(1, self.samples // 2)) if noise else 0.0
        settings = (None if part is None else part.tobytes() for part in (msg.centre, msg.basis))
        of = hashlib.blake2b(asked + repr((msg.clip, *settings)).encode(), digest_size=16).digest()
        if (one := (msg.round, sensitivity, of)) not in self.state.released:
            self.state.released.append(one)
        return self.state.said, False

    def describing_cost(self, msg: Describe) -> fl.Cost:
        return fl.Cost(FORWARD * self.samples, self.spec.flops_per_sample)

    def training_cost(self, msg: Train) -> fl.Cost:
        return fl.Cost((FORWARD + self.epochs * msg.chosen) * self.samples, self.spec.flops_per_sample)

    def trained(self, msg: Train, start: fl.Vector) -> fl.Work[tuple[fl.Vector | None, float]]:
        """The loss of W_k on its training data; and W_i of eq. (13), (14), if chosen."""
        if self.state.measured and msg.round <= self.state.measured[-1]:
            raise fl.PeerError(f"asked to train for round {msg.round} after round {self.state.measured[-1]}")
        seen: fl.Evaluated = yield fl.Evaluate(start, "train")
        loss = MOST_LOSS if np.isnan(seen.loss) else min(float(seen.loss), MOST_LOSS)
        self.state.measured.append(msg.round)
        if not msg.chosen:
            return None, loss
        fitted: fl.Fitted = yield fl.fit(self, start, msg.round)
        self.state.trained.append(msg.round)
        return fitted.weights, loss

    def releases(self) -> list[fl.Release]:
        said = "sparsity vector and noise floor"
        if self.config.send == "clear":
            found = [fl.Release(said, round=r) for r, *_ in self.state.released]
        else:
            z = self.config.multiplier()
            found = [fl.Release(said, "gaussian", z, sensitivity, round=r) for r, sensitivity, _ in self.state.released]
        hardened = self.common.mode == "hardened"
        trained = list(map(fl.FromTraining, ("sum of models", "gradient norm") if hardened else ("model",)))
        found += [fl.Release("loss", round=r) for r in self.state.measured]
        for r in self.state.trained:
            found += fl.told(self.config, self.samples, self.epochs, trained, r)
        return found


class Device(Describer, role=DEVICE):
    @fl.on(Describe, Describer.describing_cost, answers=messages.Described)
    def describe(self, msg: Describe, src: str) -> fl.Work[messages.Described]:
        """Algorithm 1."""
        said, old = yield from self.described(msg)
        cpu_ghz, memory_gib = yield fl.Local(resources)
        vector = None if old and msg.weights is None else said.vector
        return messages.Described(msg.round, self.samples, cpu_ghz, memory_gib, vector, said.floor)

    @fl.on(Train, Describer.training_cost, answers=messages.Update)
    def train(self, msg: Train, src: str) -> fl.Work[messages.Update]:
        if msg.weights is None:
            raise fl.PeerError("asked to train without a model")
        start = fl.check_model(self.spec, msg.spec, msg.weights)
        if self.common.deployed:  # where nobody else can tell what it would predict with
            self.state.weights = start
        weights, loss = yield from self.trained(msg, start)
        return messages.Update(msg.round, self.spec.digest, weights, self.samples, loss)

    @fl.on(messages.Model, answers=fl.Done)
    def keep(self, msg: messages.Model, src: str) -> fl.Done:
        self.state.weights = fl.check_model(self.spec, msg.spec, msg.weights)
        return fl.Done(msg.round)


class HardenedDevice(Describer, role=DEVICE):
    """The hub sees none of its vectors and models."""

    keys = HeldKeys(PublicKey, SecretKey)
    helper = HELPER

    State = Describer.State

    def concealing_cost(self, msg: Describe) -> fl.Cost:
        crypto_s = self.keys.public(SERVICE).nominal_seconds_encrypt(CHANNELS + 1)
        return fl.Cost(FORWARD * self.samples, self.spec.flops_per_sample, crypto_s)

    @fl.on(Describe, concealing_cost, answers=messages.Concealed)
    def conceal(self, msg: Describe, src: str) -> fl.Work[messages.Concealed]:
        said, old = yield from self.described(msg)
        if not old:
            cipher = yield fl.Encrypt(self.keys.public(SERVICE), np.append(said.vector, said.floor))
            said = self.state.said = fl.changed(said, cipher=cipher.to_bytes())
        cpu_ghz, memory_gib = yield fl.Local(resources)
        data = b"" if old and msg.weights is None else said.cipher
        return fl.signed(self.own, messages.Concealed(msg.round, self.samples, cpu_ghz, memory_gib, data))

    def sealing_cost(self, msg: Train) -> fl.Cost:
        plain, encryption = self.training_cost(msg), self.keys.public(SERVICE).nominal_seconds_encrypt(self.spec.size)
        return fl.Cost(plain.samples, plain.flops_per_sample, msg.chosen * encryption)

    @fl.on(Train, sealing_cost, answers=messages.Sealed)
    def train(self, msg: Train, src: str) -> fl.Work[messages.Sealed]:
        start = self.state.weights if msg.weights is None else fl.check_model(self.spec, msg.spec, msg.weights)
        if start is None:
            raise fl.PeerError("asked to train its cluster's model, but it has none")
        weights, loss = yield from self.trained(msg, start)
        if weights is None:
            return fl.signed(self.own, messages.Sealed(msg.round, b"", self.samples, loss, 0.0))
        cipher = (yield fl.Encrypt(self.keys.public(SERVICE), weights)).to_bytes()
        norm = gradient_norm(self.spec, start, weights, self.config.lr)
        return fl.signed(self.own, messages.Sealed(msg.round, cipher, self.samples, loss, norm))

    @fl.on(ClusterModel, lambda self, msg: cluster_sums.receiving_cost(self, self.spec.size), answers=Received)
    def receive(self, msg: ClusterModel, src: str) -> fl.Work[Received]:
        """Eq. (15)."""
        mean = yield from cluster_sums.opened_mean(self, msg, msg.round, self.spec.size)
        if msg.count < self.config.min_cluster:
            raise fl.PeerError(f"a sum of {msg.count} models, where at least {self.config.min_cluster} are to be in it")
        self.state.weights = mean.astype(np.float32)
        return Received(msg.round, msg.cluster)
