"""PAFed's client C_i: algorithm 2, eq. (16), and its part of algorithm 3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from coterie.crypto.schemes import public_key, secret_key
from coterie.crypto.signing import SigningKey, VerifyKey
from coterie.protocol.effects import Encrypt, Fit, Fitted, Open, Vector
from coterie.protocol.errors import PeerError
from coterie.protocol.party import Cost, Party, To, Work, on
from coterie.protocol.system import Setting
from coterie.protocols.key_centre import Credentials, Join, Ready, enrol
from coterie.protocols.local_training import batch_seed, check_model
from coterie.systems.pafed.layout import Layout
from coterie.systems.pafed.messages import CLIENT, HUB, Train, Update
from coterie.training.solvers import augmented_change, unit_change

if TYPE_CHECKING:
    from coterie.systems.pafed import PAFedConfig


class Client(Party, role=CLIENT):
    """C_i: trains on the model that it was sent, keeps its dual variable, sends its update encrypted."""

    class State(msgspec.Struct):
        """dual: y_i, (d,) float32, None for zeros.  round: the last that it trained for.

        own: w_i, its last own model, in mode ``literal``; None for w^0.
        """

        dual: NDArray[Any] | None = None
        own: NDArray[Any] | None = None
        round: int = 0
        service_public: bytes = b""
        verify_keys: NDArray[Any] | None = None

    class Secret(msgspec.Struct):
        """Its signing key, and its own encryption key sk_i, which no other client has."""

        signing: bytes = b""
        own: bytes = b""

    state: State
    secret: Secret

    def __init__(self, name: str, setting: Setting, config: PAFedConfig, layout: Layout) -> None:
        super().__init__(name, setting.randomness)
        self.spec, self.config, self.layout = setting.spec, config, layout
        self.mode, self.initial = setting.mode, setting.initial
        self.samples, self.epochs = setting.samples[name], setting.epochs[name]
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
        if self.secret.own:
            raise PeerError("already provided with keys")
        if msg.secret_key is None:
            raise PeerError("credentials without a secret key")
        self.secret.own, self.state.service_public = msg.secret_key, msg.service_public
        self.state.verify_keys = msg.verify_keys
        return (To(HUB, Ready()),)

    def train_cost(self, msg: Train) -> Cost:
        """Opening the model, training, encrypting the update."""
        d = self.layout.size
        crypto_s = public_key(self.state.service_public).nominal_seconds_encrypt(d)
        if msg.cipher:
            crypto_s += secret_key(self.secret.own).nominal_seconds_decrypt(d)
        return Cost(self.samples * self.epochs, self.spec.flops_per_sample, crypto_s)

    @on(Train, train_cost)
    def train(self, msg: Train, src: str) -> Work[Update]:
        """Algorithm 3, lines 6 to 10."""
        if self.state.verify_keys is None:
            raise PeerError("not enrolled yet: there is no key to verify the aggregator with")
        plain = b"" if msg.weights is None else msg.weights.tobytes()
        hub_key = VerifyKey(bytes(self.state.verify_keys[0]))
        hub_key.verify(msg.signature, "train", self.name, msg.round, msg.spec, plain, msg.cipher)
        if msg.round <= self.state.round:
            raise PeerError(f"asked to train for round {msg.round} after round {self.state.round}")
        if msg.weights is None:
            opened = yield Open(secret_key(self.secret.own), msg.cipher)
            w = check_model(self.spec, msg.spec, self.layout.unpacked(opened.astype(np.float32)))
        else:
            w = check_model(self.spec, msg.spec, msg.weights)
        trained, change = yield from self._trained(w, msg.round)
        change, length = unit_change(self.spec, change, self.config.clip or None)  # l. 8
        length = length if self.config.clip else 1.0
        update = self.layout.packed(np.where(self.spec.buffers, trained, change))
        cipher = (yield Encrypt(public_key(self.state.service_public), update)).to_bytes()  # l. 9
        digest = self.spec.digest
        signing = SigningKey.load(self.secret.signing)
        signature = signing.sign("update", msg.round, digest, cipher, repr(length))
        self.state.round = msg.round
        return Update(msg.round, digest, cipher, length, signature)

    def _trained(self, w: Vector, r: int) -> Work[tuple[Vector, Vector]]:
        """Its model after training, and nabla w_i before that is normalised; (d,) each.

        ADMM is algorithm 2 and eq. (16); plain SGD has the change alone. In ``literal`` w_i^{tau_r} is what the text
        says, the client's own last model, from which it trains on (algorithm 2's input) and from which eq. (16)
        counts; else the model that it has received.
        """
        config, literal = self.config, self.mode == "literal"
        if config.local == "sgd":
            fitted: Fitted = yield Fit(w, config.solver(), self.epochs, batch_seed(self, r))
            return fitted.weights, fitted.weights - w
        y = np.zeros(self.spec.size, np.float32) if self.state.dual is None else self.state.dual
        start, state = w, {"dual": y}
        if literal:
            start, state = self.initial if self.state.own is None else self.state.own, {"dual": y, "anchor": w}
        fitted = yield Fit(start, config.solver(), self.epochs, batch_seed(self, r), state)  # eq. (9)
        self.state.dual = fitted.state["dual"]  # eq. (10)
        if literal:
            self.state.own = fitted.weights
        return fitted.weights, augmented_change(fitted.weights - start, self.state.dual - y, config.rho)  # eq. (16)
