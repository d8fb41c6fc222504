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

import coterie.method as fl


@dataclass(frozen=True)
class ToyConfig(fl.LocalTraining):
    """mix: weight of an arriving model in the global one."""

    mix: float = 0.2


@fl.message(src="hub", dst="client")
class Train(fl.Message, frozen=True):
    round: int
    weights: fl.Floats


@fl.message(src="client", dst="hub")
class Update(fl.Message, frozen=True):
    round: int
    weights: fl.Floats


@fl.message(src="client", dst="helper")
class Hint(fl.Message, frozen=True):
    round: int
    digest: bytes


class Client(fl.Party, role="client"):
    class State(msgspec.Struct):
        last: NDArray[Any] | None = None
        rounds: tuple[int, ...] = ()

    class Secret(msgspec.Struct):
        salt: bytes = b""

    def __init__(self, own: fl.Own, common: fl.Common, config: ToyConfig) -> None:
        super().__init__(own, common, config)
        self.state, self.secret = self.State(), self.Secret(self.secrets("salt").bytes(16))

    def cost(self, msg: Train) -> fl.Cost:
        return fl.Cost(samples=self.samples * self.epochs, flops_per_sample=1e9)

    @fl.on(Train, cost, answers=(Update, Hint))
    def train(self, msg: Train, src: str) -> fl.Work[tuple[fl.To, ...]]:
        start = msg.weights if self.state.last is None else (msg.weights + self.state.last) / 2
        fitted: fl.Fitted = yield fl.Fit(
            start.astype(np.float32), self.config.solver(), self.epochs, fl.batch_seed(self, msg.round)
        )
        self.state.last = fitted.weights
        self.state.rounds = (*self.state.rounds, msg.round)
        hint = Hint(msg.round, hashlib.sha256(self.secret.salt).digest())
        return fl.To(src, Update(msg.round, fitted.weights)), fl.To("helper", hint)


class Helper(fl.Party, role="helper"):
    class State(msgspec.Struct):
        digests: dict[str, bytes] = msgspec.field(default_factory=dict)
        heard: int = 0

    def __init__(self, own: fl.Own, common: fl.Common, config: ToyConfig) -> None:
        super().__init__(own, common, config)
        self.state = self.State()

    @fl.on(Hint, lambda self, msg: fl.Cost(crypto_s=0.2))
    def hint(self, msg: Hint, src: str) -> None:
        if self.state.digests.setdefault(src, msg.digest) != msg.digest:
            raise fl.PeerError("another secret than before")
        self.state.heard += 1


class Hub(fl.Party, role="hub"):
    takes = (Update,)

    class State(msgspec.Struct):
        weights: NDArray[Any]

    def __init__(self, own: fl.Own, common: fl.Common, config: ToyConfig) -> None:
        super().__init__(own, common, config)
        self.state = self.State(common.initial)

    def setup(self) -> fl.Steps[None]:
        yield from ()

    def round(self, r: int) -> fl.Steps[Mapping[str, Any]]:
        asked = [c for i, c in enumerate(self.clients) if (i + r) % 3 != 0]
        yield from fl.post(dict.fromkeys(asked, Train(r, self.state.weights)))
        stale: list[int] = []

        def fold(name: str, update: Update) -> None:
            stale.append(r - update.round)
            mixed = (1 - self.config.mix) * self.state.weights + self.config.mix * update.weights
            self.state.weights = mixed.astype(np.float32)

        time.sleep(float(os.environ.get("COTERIE_TOY_SLEEP_S", "0")))
        answers = yield from fl.take(Update, fold, at_least=len(asked) // 2)
        return {"stale": stale, "from": answers.got}


SYSTEM = fl.System(
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
