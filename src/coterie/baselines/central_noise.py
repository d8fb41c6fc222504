"""DP-FedAvg and DP-FTRL: client-level differential privacy with noise that a trusted server adds.

    server --Train--> client --Clipped--> server            (every round, to the round's cohort)

McMahan et al., "Learning differentially private recurrent language models", ICLR 2018: clients clip their change to an
L2 norm of C; the server divides the sum of changes by the number of clients that it asked (the fixed-denominator
estimator), and adds Gaussian noise. Kairouz et al., "Practical and private (deep) learning without sampling or
shuffling", ICML 2021 (algorithm 1): noise is that of a tree over the rounds (``dp/tree.py``), so a part of it is taken
back. DP-FedAvg is DP-FTRL with trees of one round. ``beta`` is the server's momentum.

Neighbours differ in all data of one client, against all that see only models. Whether a client answers is public, and
must not depend on its data.

Decided here: the server refuses a change longer than C. Cohorts are fixed: client i takes part in every
1/participation-th round, rounded up, and no amplification by sampling is claimed. Models with running statistics
(buffers) are refused, for no noise covers these.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import ceil, sqrt
from typing import Annotated, Any

import numpy as np

import coterie.method as fl
from coterie.dp.budget import Budgeted
from coterie.dp.gaussian import check_delta, clipped, noise_multiplier
from coterie.dp.ledger import Ledger, Neighbours
from coterie.dp.tree import charges, grown

CLIENT: Neighbours = "replace one client"
SUM = "noisy sum of changes"
OTHERS = "other clients", "public"
_ROOM = 2.0**-20
"""A client clips by so much more, since float32 rounds."""
_SLACK = 1e-7
"""Of a noise multiplier, for the rounding of sums over releases."""


@fl.settings
class CentralNoiseConfig(fl.Averaging, Budgeted):
    """clip: C, the largest L2 norm of a client's change.

    noise: standard deviation of the noise on a sum of changes (DP-FTRL: on each node), divided by 2 C, by which the sum
    moves if one client's data are replaced; None for the least that ``epsilon`` allows, or 1 without epsilon.
    epsilon: budget of every client, or None for no budget: a round beyond it asks nobody and is the last one.
    private_rounds: the rounds that fit into the budget, if it determines the noise.
    beta: in [0, 1), how much of the server's velocity is kept.
    """

    clip: fl.Positive = 1.0
    beta: Annotated[float, fl.Meta(ge=0, lt=1)] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_delta(self.dp_delta)
        fl.refuse_unused(self, "epsilon=None", self.epsilon is None, "private_rounds")
        fl.refuse_unused(self, "a noise of its own", self.noise is not None, "private_rounds")
        if not affords(self, (1,)):
            raise fl.UserError(
                f"epsilon={self.epsilon} allows no round: a single one with noise={self.noise} spends "
                f"{Ledger(tuple(releases(self, (1,)))).epsilon(self.dp_delta):,.3g}. Set a larger noise, or none"
            )

    @property
    def length(self) -> int:
        return 1

    @property
    def every(self) -> int:
        return ceil(1 / self.participation)

    @property
    def selects(self) -> bool:
        return True

    def cohort(self, clients: Sequence[str], r: int) -> Sequence[str]:
        return fl.joined(clients, self, r)[(r - 1) % self.every :: self.every]

    def taken_by(self, r: int) -> tuple[int, ...]:
        return tuple(range((r - 1) % self.every + 1, r + 1, self.every))


@fl.settings
class DPFTRLConfig(CentralNoiseConfig):
    """restart_every: rounds of one tree. Noise within a tree grows more slowly; but a client that takes part k times in
    a tree needs more noise than with k trees. So few parts a tree are best.
    """

    restart_every: fl.AtLeastOne = 10

    @property
    def length(self) -> int:
        return self.restart_every


@lru_cache(maxsize=256)
def multiplier(config: CentralNoiseConfig) -> float:
    """z, the noise on a sum or a node in units of 2 C."""
    if config.noise is not None or config.epsilon is None:
        return 1.0 if config.noise is None else config.noise
    last = range(max(1, config.private_rounds - config.every + 1), config.private_rounds + 1)  # one for each cohort
    most = max(sum(charges(config.taken_by(r), config.length)) for r in last)
    return noise_multiplier(config.epsilon, config.dp_delta) * sqrt(most) * (1 + _SLACK)


def releases(config: CentralNoiseConfig, rounds: Sequence[int]) -> list[fl.Release]:
    z, found = multiplier(config), []
    for r, charge in zip(rounds, charges(rounds, config.length), strict=True):
        moved = 2 * config.clip * sqrt(charge)
        noise: Mapping[str, Any] = {"mechanism": "gaussian", "noise_multiplier": z / sqrt(charge)} if z else {}
        found.append(fl.Release(SUM, sensitivity_l2=moved, neighbours=CLIENT, round=r, against=OTHERS, **noise))
    return found


@lru_cache(maxsize=4096)
def affords(config: CentralNoiseConfig, rounds: tuple[int, ...]) -> bool:
    budget = config.budget()
    return budget is None or budget.fits(Ledger(tuple(releases(config, rounds))))


@fl.message(src="client", dst="server")
class Clipped(fl.OfModel, frozen=True):
    """weights: (d,), y - x of a client's training, of L2 norm C at most."""


def rounds_of(trained: Iterable[tuple[int, bytes]]) -> tuple[int, ...]:
    return tuple(sorted({r for r, _ in trained}))


class Client(fl.Client):
    class State(fl.Client.State):
        """trained: of each change sent, the round, and 16 bytes that name the model before."""

        trained: list[tuple[int, bytes]] = fl.field(default_factory=list)

    state: State
    config: CentralNoiseConfig
    LASTS = ("trained",)

    @fl.on(fl.Train, fl.training, answers=Clipped)
    def train(self, msg: fl.Train, src: str) -> fl.Work[Clipped]:
        start = self.model(msg)
        of = msg.round, hashlib.blake2b(start.tobytes(), digest_size=16).digest()
        trained = sorted({*self.state.trained, of})
        if not affords(self.config, rounds_of(trained)):
            raise fl.PeerError(f"asked to train in round {msg.round}, beyond the budget epsilon={self.config.epsilon}")
        fitted: fl.Fitted = yield self.fit(start, msg.round)
        change = fitted.weights.astype(np.float64) - start
        (short,) = clipped(change[None], self.config.clip * (1 - _ROOM))
        self.state.trained = trained
        return Clipped(msg.round, msg.spec, short.astype(np.float32))


class Server(fl.Server):
    """Trusted with every change, and with the noise."""

    class State(fl.Server.State):
        """v: (d,) float64, the velocity."""

        v: fl.Array = fl.zeros

    class Secret(fl.SecretStruct):
        """SECRET. grown: the last round of the tree.  estimates: (levels, d), its noise."""

        grown: int = 0
        estimates: fl.Doubles = fl.from_party(
            lambda party: np.zeros((party.config.length.bit_length(), party.spec.size))
        )

    state: State
    secret: Secret
    config: CentralNoiseConfig

    def round(self, r: int) -> fl.Steps[Mapping[str, Any]]:
        config, old = self.config, self.state.weights
        if not affords(config, config.taken_by(r)):
            why = f"round {r} is beyond the budget of epsilon={config.epsilon:g} at delta {config.dp_delta:g}"
            return {"participants": 0, "asked": 0, "stopped": why}
        gather, total = self.gather(means=0), fl.Sum(self.spec.size)

        def fold(name: str, answer: Clipped) -> None:
            values = gather.checked(name, answer.spec, answer.weights)
            length = float(np.linalg.norm(values.astype(np.float64)))
            if length > config.clip:
                raise fl.PeerError(f"{name}: a change of length {length:.6g}; at most {config.clip:g} is taken")
            total.take(values)

        asked = config.cohort(self.clients, r)
        answers = yield from fl.ask_each(self, asked, self.train(r), Clipped, fold)
        if total.count:
            noise = 2 * config.clip * multiplier(config) * self.noise(r, old.tobytes() + total.value().tobytes())
            self.state.v = config.beta * self.state.v + (total.value() + noise) / len(asked)
            self.state.weights = gather.model(old + config.server_step(r) * self.state.v)
        return {"participants": len(answers.got), "asked": len(asked)}

    def noise(self, r: int, of: bytes) -> fl.Doubles:
        """(d,) how the tree's noise changes until round r, each node's of variance 1. of: what it is added to.

        Rounds without a model are leaves of no change.
        """
        normal, secret = self.kept("noise", of, r).normal, self.secret
        first = r - (r - 1) % self.config.length  # of this tree
        before = secret.estimates if secret.grown >= first else np.zeros_like(secret.estimates)
        after = before
        for leaf in range(max(secret.grown + 1, first), r + 1):
            after = grown(after, leaf - first + 1, lambda: normal(self.spec.size))
        secret.grown, secret.estimates = r, after
        return np.asarray(after.sum(axis=0) - before.sum(axis=0))


def check(config: CentralNoiseConfig, common: fl.Common) -> None:
    """Raises UserError for a model with buffers, and if rounds would ask nobody."""
    if common.spec.buffers.any():
        raise fl.UserError(
            "dp_fedavg and dp_ftrl take no model with running statistics (buffers), which no noise covers: take one "
            "without batch normalisation"
        )
    if (first := len(fl.joined(common.clients, config, 1))) < config.every:
        raise fl.UserError(f"participation={config.participation} of {first} clients asks nobody in some rounds")


def ledger(federation: fl.Federation) -> Mapping[str, Sequence[fl.Release]]:
    """By client, each of its changes, which the server sees, and its part in each sum, which models show; with
    DP-SGD also the training's proof for a sample.
    """

    def of(client: Client) -> Iterator[fl.Release]:
        (alone,) = fl.told(client.config, client.samples, client.epochs, [fl.FromTraining("change of the model")], 0)
        training = None if client.config.sample_noise is None else alone
        for r, _ in client.state.trained:
            yield replace(alone, round=r, against=("server",), sample=training)
        for one in releases(client.config, rounds_of(client.state.trained)):
            yield replace(one, sample=training)

    return {client.name: tuple(of(client)) for client in federation.of_role("client")}


MCMAHAN = "McMahan et al., Learning differentially private recurrent language models, ICLR 2018"
KAIROUZ = "Kairouz et al., Practical and private (deep) learning without sampling or shuffling, ICML 2021"

SYSTEMS = {
    name: fl.system(
        name,
        config,
        Server,
        Client,
        title=title,
        citation=citation,
        learns={
            "server": "every client's clipped change in every round that it takes part in, by name",
            "client": "the noisy global model of every round that it takes part in",
        },
        assumes="the server adds its noise as it says, and shows nobody a client's change",
        check=check,
        ledger=ledger,
    )
    for name, title, citation, config in (
        ("dp_fedavg", "DP-FedAvg", MCMAHAN, CentralNoiseConfig),
        ("dp_ftrl", "DP-FTRL", KAIROUZ, DPFTRLConfig),
    )
}
