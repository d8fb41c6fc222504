"""PAFed's client C_i: algorithm 2, eq. (16), and its part of algorithm 3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import coterie.method as fl
from coterie.crypto.ckks import PublicKey, SecretKey
from coterie.protocols.committee import Seat
from coterie.protocols.key_centre import HeldKeys
from coterie.protocols.own_mean import OwnMean, averaged, taken
from coterie.protocols.pads import ClientPads
from coterie.systems.pafed.config import Laid, PAFedConfig, by_committee
from coterie.systems.pafed.messages import CLIENT, HUB, SERVICE, USER, Final, PaddedUpdate, Train, Update
from coterie.training.solvers import unit_change


def helps(client: Any) -> tuple[Sequence[str], int, int]:
    """The committee, how many members answer, and with how many scalars one helps in a round."""
    config: PAFedConfig = client.config
    most = config.most_cosines(config.most_late(len(client.clients))) + config.most_sums
    return *config.committee(client.clients), most


def predicting(federation: Any, w: fl.Vector) -> Mapping[str, fl.Vector]:
    """By client, (d,), were w the last global model."""
    return averaged(federation, dict.fromkeys(federation.common.clients, w))


class Client(Laid, role=CLIENT):
    keys, seat = HeldKeys(PublicKey, SecretKey), Seat(SERVICE, helps, by_committee)

    class State(fl.State):
        """dual: y_i, (d,) float32, None for zeros.  round: the last that it trained for.
        own: w_i, its last own model, in mode ``literal``; None for w^0.
        told: (d,) the last received global model, between machines.  mean: of those that it was sent, with ema.
        """

        dual: fl.Vector | None = None
        own: fl.Vector | None = None
        round: int = 0
        told: fl.Vector | None = None
        mean: OwnMean | None = None

    state: State

    def train_cost(self, msg: Train) -> fl.Cost:
        d = self.layout.size
        crypto_s = self.keys.public(SERVICE).nominal_seconds_encrypt(d)
        if msg.cipher:
            crypto_s += self.keys.own(USER).nominal_seconds_decrypt(d)
        return fl.Cost(self.samples * self.epochs, self.spec.flops_per_sample, crypto_s)

    @fl.on(Train, train_cost, answers=Update)
    def train(self, msg: Train, src: str) -> fl.Work[Update | PaddedUpdate]:
        """Algorithm 3, lines 6 to 10."""
        fl.check_signed(self.common, HUB, msg, self.name)
        if msg.round <= self.state.round:
            raise fl.PeerError(f"asked to train for round {msg.round} after round {self.state.round}")
        if msg.weights is None:
            w = yield from self._opened(msg)
        else:
            w = fl.check_model(self.spec, msg.spec, msg.weights)
        self._keep(w)
        trained, change = yield from self._trained(w, msg.round)
        length = 1.0
        if self.config.rule == "corrected":
            change, told = unit_change(self.spec, change, self.config.clip or None)  # l. 8
            length = told if self.config.clip else length
        update = self.layout.packed(np.where(self.spec.buffers, trained, change))
        sent = yield from self._sealed(msg.round, update, length)
        self.state.round = msg.round
        return fl.signed(self.own, sent)

    def _opened(self, msg: Train | Final) -> fl.Work[fl.Vector]:
        """Raises PeerError and CryptoError for anything but a model under this client's key."""
        opened = yield fl.Open(self.keys.own(USER), msg.cipher)
        return fl.check_model(self.spec, msg.spec, self.layout.unpacked(opened.astype(np.float32)))

    def _keep(self, w: fl.Vector) -> None:
        if self.common.deployed:
            self.state.told = w
        if self.config.ema:
            self.state.mean = taken(self.state.mean, w, self.config.ema)

    def model(self) -> fl.Vector:
        if self.state.mean is not None:
            return self.state.mean.mean
        return self.common.initial if self.state.told is None else self.state.told

    def last_cost(self, msg: Final) -> fl.Cost:
        return fl.Cost(crypto_s=self.keys.own(USER).nominal_seconds_decrypt(self.layout.size))

    @fl.on(Final, last_cost, when=fl.never)
    def take_last(self, msg: Final, src: str) -> fl.Work[None]:
        fl.check_signed(self.common, HUB, msg, self.name)
        self._keep((yield from self._opened(msg)))

    def _sealed(self, r: int, update: fl.Vector, length: float) -> fl.Work[Update | PaddedUpdate]:
        cipher = yield fl.Encrypt(self.keys.public(SERVICE), update)
        return Update(r, self.spec.digest, cipher.to_bytes(), length)

    def _trained(self, w: fl.Vector, r: int) -> fl.Work[tuple[fl.Vector, fl.Vector]]:
        """Its model after training, and nabla w_i before normalisation; (d,) each."""
        # Plain SGD has only the change. w_i^{tau_r} of eq. (16) is the received model; in literal the client's own last
        # model, as the text says.
        config, literal = self.config, self.literal
        if config.local == "sgd":
            fitted: fl.Fitted = yield fl.fit(self, w, r)
            return fitted.weights, fitted.weights - w
        y = np.zeros(self.spec.size, np.float32) if self.state.dual is None else self.state.dual
        start, state = w, {"dual": y}
        if literal:
            start, state = self.common.initial if self.state.own is None else self.state.own, {"dual": y, "anchor": w}
        fitted = yield fl.fit(self, start, r, state=state)  # eq. (9)
        self.state.dual = fitted.state["dual"]  # eq. (10)
        if literal:
            self.state.own = fitted.weights
        return fitted.weights, fl.augmented_change(fitted.weights - start, self.state.dual - y, config.rho)  # eq. (16)


class PaddedClient(Client, role=CLIENT):
    """Mode ``hardened``: it does not choose the c_1 of any ciphertext."""

    pads = ClientPads()

    @fl.on(Train, Client.train_cost, answers=PaddedUpdate)
    def train(self, msg: Train, src: str) -> fl.Work[Update | PaddedUpdate]:
        return (yield from super().train(msg, src))

    def _sealed(self, r: int, update: fl.Vector, length: float) -> fl.Work[Update | PaddedUpdate]:
        nonce, key = self.pads.take(self.keys.public(SERVICE), r)
        padded = yield fl.Encrypt(key, update)
        return PaddedUpdate(r, self.spec.digest, nonce, padded.to_bytes(), length)
