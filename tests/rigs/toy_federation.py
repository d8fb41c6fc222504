"""A small system that leaves much under way between rounds, to test that runs resume: no privacy is meant.

    hub --Train--> client --Update--> hub      taken when half are there; the others arrive in later rounds
                   client --Hint--> helper     sealed, relayed by the hub; refused if the client's secret has changed

COTERIE_TOY_SLEEP_S: real seconds that a round takes longer, so that a test can kill it in the middle.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from coterie.protocol.effects import Fit, Fitted
from coterie.protocol.errors import PeerError
from coterie.protocol.messages import Floats, Message, message
from coterie.protocol.party import Cost, Party, To, Work, on
from coterie.protocol.setup_info import Common, Own
from coterie.protocol.steps import Steps, post, take
from coterie.protocol.system import System
from coterie.protocols.local_training import LocalTraining, batch_seed


@dataclass(frozen=True)
class ToyConfig(LocalTraining):
    """mix: weight of an arriving model in the global one."""

    mix: float = 0.2


@message(src="hub", dst="client")
class Train(Message, frozen=True):
    round: int
    weights: Floats


@message(src="client", dst="hub")
class Update(Message, frozen=True):
    round: int
    weights: Floats


@message(src="client", dst="helper")
class Hint(Message, frozen=True):
    round: int
    digest: bytes


class Client(Party, role="client"):
    class State(msgspec.Struct):
        last: NDArray[Any] | None = None
        rounds: tuple[int, ...] = ()

    class Secret(msgspec.Struct):
        salt: bytes = b""

    def __init__(self, own: Own, common: Common, config: ToyConfig) -> None:
        super().__init__(own, common, config)
        self.state, self.secret = self.State(), self.Secret(self.secrets("salt").bytes(16))

    def cost(self, msg: Train) -> Cost:
        return Cost(samples=self.samples * self.epochs, flops_per_sample=1e9)

    @on(Train, cost, answers=(Update, Hint))
    def train(self, msg: Train, src: str) -> Work[tuple[To, ...]]:
        start = msg.weights if self.state.last is None else (msg.weights + self.state.last) / 2
        fitted: Fitted = yield Fit(
            start.astype(np.float32), self.config.solver(), self.epochs, batch_seed(self, msg.round)
        )
        self.state.last = fitted.weights
        self.state.rounds = (*self.state.rounds, msg.round)
        hint = Hint(msg.round, hashlib.sha256(self.secret.salt).digest())
        return To(src, Update(msg.round, fitted.weights)), To("helper", hint)


class Helper(Party, role="helper"):
    class State(msgspec.Struct):
        digests: dict[str, bytes] = msgspec.field(default_factory=dict)
        heard: int = 0

    def __init__(self, own: Own, common: Common, config: ToyConfig) -> None:
        super().__init__(own, common, config)
        self.state = self.State()

    @on(Hint, lambda self, msg: Cost(crypto_s=0.2))
    def hint(self, msg: Hint, src: str) -> None:
        if self.state.digests.setdefault(src, msg.digest) != msg.digest:
            raise PeerError("another secret than before")
        self.state.heard += 1


class Hub(Party, role="hub"):
    takes = (Update,)

    class State(msgspec.Struct):
        weights: NDArray[Any]

    def __init__(self, own: Own, common: Common, config: ToyConfig) -> None:
        super().__init__(own, common, config)
        self.state = self.State(common.initial)

    def setup(self) -> Steps[None]:
        yield from ()

    def round(self, r: int) -> Steps[Mapping[str, Any]]:
        asked = [c for i, c in enumerate(self.clients) if (i + r) % 3 != 0]
        yield from post(dict.fromkeys(asked, Train(r, self.state.weights)))
        stale: list[int] = []

        def fold(name: str, update: Update) -> None:
            stale.append(r - update.round)
            mixed = (1 - self.config.mix) * self.state.weights + self.config.mix * update.weights
            self.state.weights = mixed.astype(np.float32)

        time.sleep(float(os.environ.get("COTERIE_TOY_SLEEP_S", "0")))
        answers = yield from take(Update, fold, at_least=len(asked) // 2)
        return {"stale": stale, "from": answers.got}


SYSTEM = System(
    name="toy",
    title="Toy",
    citation="none",
    config=ToyConfig,
    parties=lambda config: {"hub": Hub, "helper": Helper, "client": Client},
    models=lambda f: {c.name: f.parties["hub"].state.weights for c in f.of_role("client")},
    learns={"hub": "all", "client": "all", "helper": "all"},
    modes=("paper", "hardened"),
    encrypted=True,
    observe=lambda f: {
        "heard": f.parties["helper"].state.heard,
        "rounds": [c.state.rounds for c in f.of_role("client")],
    },
)
