"""PAFed's client C_i: algorithm 2, eq. (16), and its part of algorithm 3."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from coterie.crypto.ckks import PublicKey, SecretKey
from coterie.crypto.roster import check_signed, signed
from coterie.protocol.effects import Encrypt, Fit, Fitted, Open, Vector
from coterie.protocol.errors import PeerError
from coterie.protocol.party import Cost, Party, Work, on
from coterie.protocol.setup_info import Common, Own
from coterie.protocols.committee import Seat
from coterie.protocols.key_centre import HeldKeys
from coterie.protocols.local_training import batch_seed, check_model
from coterie.protocols.pads import ClientPads
from coterie.systems.pafed.config import PAFedConfig, layout_of
from coterie.systems.pafed.messages import CLIENT, HUB, SERVICE, USER, Final, PaddedUpdate, Train, Update
from coterie.training.solvers import augmented_change, unit_change


class Client(Party, role=CLIENT):
    """C_i: trains on the received model, keeps its dual variable, and sends its update encrypted."""

    keys = HeldKeys(PublicKey, SecretKey)

    class State(msgspec.Struct):
        """dual: y_i, (d,) float32, None for zeros.  round: the last round that it trained for.

        own: w_i, its last own model, in mode ``literal``; None for w^0.
        told: (d,) the last received global model, if parties are on separate machines; else None.
        """

        dual: Vector | None = None
        own: Vector | None = None
        round: int = 0
        told: Vector | None = None

    state: State
    config: PAFedConfig

    def __init__(self, own: Own, common: Common, config: PAFedConfig) -> None:
        super().__init__(own, common, config)
        self.mode, self.layout = common.mode, layout_of(common.spec, common.mode)

    def train_cost(self, msg: Train) -> Cost:
        d = self.layout.size
        crypto_s = self.keys.public(SERVICE).nominal_seconds_encrypt(d)
        if msg.cipher:
            crypto_s += self.keys.own(USER).nominal_seconds_decrypt(d)
        return Cost(self.samples * self.epochs, self.spec.flops_per_sample, crypto_s)

    @on(Train, train_cost)
    def train(self, msg: Train, src: str) -> Work[Update | PaddedUpdate]:
        """Algorithm 3, lines 6 to 10."""
        check_signed(self.common, HUB, msg, self.name)
        if msg.round <= self.state.round:
            raise PeerError(f"asked to train for round {msg.round} after round {self.state.round}")
        if msg.weights is None:
            w = yield from self._opened(msg)
        else:
            w = check_model(self.spec, msg.spec, msg.weights)
        if self.common.deployed:
            self.state.told = w
        trained, change = yield from self._trained(w, msg.round)
        change, length = unit_change(self.spec, change, self.config.clip or None)  # l. 8
        length = length if self.config.clip else 1.0
        update = self.layout.packed(np.where(self.spec.buffers, trained, change))
        sent = yield from self._sealed(msg.round, update, length)
        self.state.round = msg.round
        return signed(self.own, sent)

    def _opened(self, msg: Train | Final) -> Work[Vector]:
        """w, (d,). Raises PeerError and CryptoError for anything but a model under this client's key."""
        opened = yield Open(self.keys.own(USER), msg.cipher)
        return check_model(self.spec, msg.spec, self.layout.unpacked(opened.astype(np.float32)))

    def model(self) -> Vector:
        """(d,) the last global model that it knows; w^0 before."""
        return self.common.initial if self.state.told is None else self.state.told

    @on(Final, lambda self, msg: Cost(crypto_s=self.keys.own(USER).nominal_seconds_decrypt(self.layout.size)))
    def take_last(self, msg: Final, src: str) -> Work[None]:
        check_signed(self.common, HUB, msg, self.name)
        self.state.told = yield from self._opened(msg)

    def _sealed(self, r: int, update: Vector, length: float) -> Work[Update | PaddedUpdate]:
        """Algorithm 3, line 9: the update encrypted, and not signed yet."""
        cipher = yield Encrypt(self.keys.public(SERVICE), update)
        return Update(r, self.spec.digest, cipher.to_bytes(), length)

    def _trained(self, w: Vector, r: int) -> Work[tuple[Vector, Vector]]:
        """Its model after training, and nabla w_i before normalisation; (d,) each.

        ADMM is algorithm 2 and eq. (16); plain SGD has only the change. In ``literal`` w_i^{tau_r} is the client's own
        last
        model, as the text says: training starts from it (algorithm 2's input), and eq. (16) subtracts it. In ``paper``
        it is the received model.
        """
        config, literal = self.config, self.mode == "literal"
        if config.local == "sgd":
            fitted: Fitted = yield Fit(w, config.solver(), self.epochs, batch_seed(self, r))
            return fitted.weights, fitted.weights - w
        y = np.zeros(self.spec.size, np.float32) if self.state.dual is None else self.state.dual
        start, state = w, {"dual": y}
        if literal:
            start, state = self.common.initial if self.state.own is None else self.state.own, {"dual": y, "anchor": w}
        fitted = yield Fit(start, config.solver(), self.epochs, batch_seed(self, r), state)  # eq. (9)
        self.state.dual = fitted.state["dual"]  # eq. (10)
        if literal:
            self.state.own = fitted.weights
        return fitted.weights, augmented_change(fitted.weights - start, self.state.dual - y, config.rho)  # eq. (16)


def helps(client: Any) -> tuple[int, int]:
    """How many members of the committee answer, and with how many scalars a member helps in a round."""
    config: PAFedConfig = client.config
    most = config.most_cosines(config.most_late(len(client.clients))) + config.most_sums
    return config.committee(client.clients)[1], most


class CommitteeClient(Client, role=CLIENT):
    """C_i with keys=threshold, which may be on the committee."""

    seat = Seat(SERVICE, helps)


class PaddedClient(Client, role=CLIENT):
    """C_i of mode ``hardened``, which pads its update: it does not choose the c_1 of any ciphertext."""

    pads = ClientPads()

    def _sealed(self, r: int, update: Vector, length: float) -> Work[Update | PaddedUpdate]:
        nonce, key = self.pads.take(self.keys.public(SERVICE), r)
        padded = yield Encrypt(key, update)
        return PaddedUpdate(r, self.spec.digest, nonce, padded.to_bytes(), length)
