"""PAFed: Miao, Kuang, Li, Xu, Li, Choo, Deng, "Privacy-preserving asynchronous federated learning under non-IID
settings". Equation, algorithm and section numbers are that paper's.

                     Credentials (sealed)
    key_centre  - - - - - - - - - - - - - - ->  everybody                          before round 1

    aggregator  --Train-->  client  --Update-->  aggregator        algorithms 2 and 3; an update may come rounds later
    aggregator  --Compare, Invert-->  helper  --Compared, Inverted-->  aggregator  algorithm 4
    aggregator  --Refresh, Convert-->  helper  --Refreshed, Converted-->  aggregator   algorithm 5

Sees (``paper``). key_centre: verify keys; it draws all key pairs and forgets the secret halves. aggregator (S_0): who
takes part, when, how late, and how long an update was if the settings let lengths travel; ciphertexts under others'
keys. helper (S_1): masked cosines of late updates, shuffled among dummies, so about how many of them conflict; four
masked sums; the model under a uniform mask. client: the global model of every round that asks it.
Assumes that the two servers do not collude: together they open every update. A client learns nothing of another's key,
but the aggregator with a client learns the global model of every round that asks that client; and if the aggregator
deviates, it can have updates converted instead of models, or read sk_s off a forged ciphertext in a model's place, as
nobody sees what is under the mask: it is trusted to follow the protocol. And so is every client, for secrecy and not
only for a good model: one that signs a forged ciphertext as its update reads sk_s off the next model that it is handed,
alone, and sk_s opens every update (``attacks/key_in_sum.py``).

Departures from the text, each with its reason in docs/systems/pafed.md: the conflicting class is the one of c_j < 0
(definition 1, eq. 13); a client's change is from the model that it received, not from its own last one (eq. 16); signs
come from the helper instead of Min() (``literal`` has Min()); eq. (12) instead of (14);
n_1, n_2 and |m|^2 are inverted by the helper on masked numbers; the mask of algorithm 5 is uniform over the ciphertext
ring; the helper does not decrypt with clients' keys (algorithm 5, line 9); the server's step decays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from coterie.aggregation.correction import Rates
from coterie.crypto.ckks_parameters import named
from coterie.crypto.schemes import ckks_keygen, secret_key
from coterie.protocol.effects import Vector
from coterie.protocol.errors import PeerError, UserError
from coterie.protocol.system import Federation, Sees, Setting, System
from coterie.protocols.idle import refuse_idle
from coterie.protocols.key_centre import KEY_CENTRE, Credentials, Enrol, Join, KeyCentre, Pair, Ready
from coterie.protocols.late import LateTraining
from coterie.protocols.local_training import sample_clients
from coterie.systems.pafed.messages import (
    CLIENT,
    HELPER,
    HUB,
    Compare,
    Compared,
    Convert,
    Converted,
    Invert,
    Inverted,
    Refresh,
    Refreshed,
    Train,
    Update,
    units,
)
from coterie.training.solvers import Admm, Sgd

PARAMETERS = {"paper": "ckks-8192-deep", "literal": "ckks-32768-deep"}
MOST_ASKED = 256
"""Clients a round: n of them in time make scalars up to n^2, and n m with m late ones; there is room for 2^24."""


@dataclass(frozen=True)
class PAFedConfig(LateTraining):
    """Settings of PAFed; local training, delays and the server's step as in ``protocols/late.py``, table III.

    rho: coefficient of the quadratic term of eq. (8).  local: "admm", or "sgd" to see what ADMM gives.
    agreeing, conflicting: alpha_1 and alpha_2 of eq. (17) as multiples of the server's step, which is alpha_0.
    project: "exact" by eq. (12), "printed" by eq. (14), or "none": late updates averaged as they come.
    clip: largest length of an update that travels along, so that steps are as long as the updates were on average; 0
    for steps of constant length, as printed.
    dummies: how many masked cosines of no consequence the helper also sees.  iterations: of Min(), mode literal.
    """

    rho: float = 0.01
    local: Literal["admm", "sgd"] = "admm"
    agreeing: float = 1.0
    conflicting: float = 1.0
    project: Literal["exact", "printed", "none"] = "exact"
    clip: float = 0.0
    dummies: int = 4
    iterations: int = 7

    def __post_init__(self) -> None:
        super().__post_init__()
        self.rates(1)
        for name, known in (("local", ("admm", "sgd")), ("project", ("exact", "printed", "none"))):
            if getattr(self, name) not in known:
                raise UserError(f"{name} must be one of {', '.join(known)}, not {getattr(self, name)!r}")
        if not 0 <= self.clip < math.inf:
            raise UserError(f"clip must be at least 0 and finite, not {self.clip}")
        if self.dummies < 0 or not 0 <= self.iterations <= 7:
            raise UserError(f"dummies ({self.dummies}) are at least 0, iterations ({self.iterations}) 0 to 7")
        if self.founders:
            raise UserError("founders: clients that join later are not supported with delays; leave it at 0")

    def solver(self) -> Sgd:
        """SGD on the augmented Lagrangian of eq. (8), or plain."""
        if self.local == "sgd":
            return Sgd(self.lr, self.batch_size, self.momentum, self.weight_decay)
        return Admm(self.lr, self.batch_size, self.momentum, self.weight_decay, rho=self.rho)

    def rates(self, r: int) -> Rates:
        """alpha_0, alpha_1, alpha_2 of round r."""
        return Rates(1.0, self.agreeing, self.conflicting).scaled(self.server_step(r))

    @property
    def largest_share(self) -> int:
        """A whole number that no coefficient of an update exceeds in magnitude."""
        return max(1, math.ceil(self.server_lr * max(1.0, self.agreeing, self.conflicting) * max(1.0, self.clip)))


def build(config: PAFedConfig, setting: Setting) -> Federation:
    """Key centre, aggregator, helper and clients."""
    from coterie.systems.pafed.aggregator import Aggregator
    from coterie.systems.pafed.client import Client
    from coterie.systems.pafed.helper import Helper

    _check(config, setting)
    parameters = PARAMETERS[setting.mode]
    members = {HUB: HUB, HELPER: HELPER, **dict.fromkeys(setting.clients, CLIENT)}
    key_centre = KeyCentre(
        setting.randomness,
        members,
        {HUB: (HELPER, *setting.clients), HELPER: (HUB,), CLIENT: (HUB,)},
        users=Pair(CLIENT, partial(ckks_keygen, parameters, products=False), each=True),
        service=Pair(HELPER, partial(ckks_keygen, parameters), evaluation_for=HUB),
    )
    delays = config.delays(setting)
    parties: list[Any] = [Aggregator(setting, config), key_centre, Helper(setting, config)]
    parties += [Client(name, setting, config, delays) for name in setting.clients]
    return Federation({party.name: party for party in parties}, HUB)


def _check(config: PAFedConfig, setting: Setting) -> None:
    """Raises UserError for what can't work among these clients, or means nothing beside the other settings."""
    from coterie.systems.pafed.aggregator import MODEL_TERMS
    from coterie.systems.pafed.correction import STEP_SHARES

    refuse_idle(
        config,
        (
            ("iterations", "mode paper", setting.mode == "paper"),
            ("dummies", "mode literal", setting.mode == "literal"),
            ("rho", "local=sgd", config.local == "sgd"),
            ("conflicting", "project=none", config.project == "none"),
        ),
    )
    asked = len(sample_clients(setting.clients, config.participation, setting.randomness.seed, 1))
    if asked > MOST_ASKED:
        raise UserError(f"{asked} clients a round, but CKKS has room for {MOST_ASKED}: lower participation")
    longest = (named(PARAMETERS[setting.mode]).max_terms - MODEL_TERMS) // STEP_SHARES
    if config.largest_share > longest:
        raise UserError(
            f"steps {config.largest_share} times as long as updates don't fit the ciphers, which have room for "
            f"{longest}: lower server_lr, clip, agreeing or conflicting"
        )


def models(federation: Federation) -> Mapping[str, Vector]:
    """The global model for everybody, opened by the observer (no party holds it in the plain but clients who train).

    What doesn't open is refused by the clients, too, who then go on from the model before.
    """
    hub: Any = federation.parties[HUB]
    helper: Any = federation.parties[HELPER]

    def opened(model: bytes) -> Vector:
        if not model:
            return np.asarray(hub.initial)
        key: Any = secret_key(helper.secret.service)
        return np.asarray(key.decrypt(key.public.from_bytes(model)).astype(np.float32) * units(hub.spec))

    try:
        weights = opened(hub.state.model)
    except PeerError:
        weights = opened(hub.state.previous)
    return {client.name: weights for client in federation.of_role(CLIENT)}


ENROLMENT = (Join, Credentials)
SEES = {
    KEY_CENTRE: Sees(
        (Enrol,), "everybody's public verify key; it draws all encryption keys and forgets the secret ones"
    ),
    HUB: Sees(
        (Credentials, Ready, Update, Compared, Inverted, Refreshed, Converted),
        "who takes part, when, and how late, by name, and an update's length if the settings let it travel; updates "
        "and models only as ciphertexts under keys that it does not have",
    ),
    HELPER: Sees(
        (*ENROLMENT, Compare, Invert, Refresh, Convert),
        "masked cosines of late updates, shuffled among dummies, so roughly how many of them conflict; four masked "
        "sums; who is asked in a round; the model only under a mask that is uniform over the ciphertext ring",
    ),
    CLIENT: Sees(
        (*ENROLMENT, Train),
        "the global model of every round that asks it; no other's key, if it follows the protocol: one that forges an "
        "update reads the helper's key off a model, and that key opens every update",
    ),
}
SEES_LITERAL = {
    **SEES,
    HUB: Sees((Credentials, Ready, Update, Inverted, Refreshed, Converted), SEES[HUB].learns),
    HELPER: Sees(
        (*ENROLMENT, Invert, Refresh, Convert),
        "three masked sums over the late updates; who is asked in a round; the model only under a mask that is uniform "
        "over the ciphertext ring",
    ),
}

SYSTEM = System(
    name="pafed",
    title="PAFed",
    citation="Miao, Kuang, Li, Xu, Li, Choo, Deng, Privacy-preserving asynchronous federated learning under non-IID "
    "settings",
    config=PAFedConfig,
    build=build,
    models=models,
    sees=SEES,
    sees_in={"literal": SEES_LITERAL},
    modes=("paper", "literal"),
    encrypted=True,
)
