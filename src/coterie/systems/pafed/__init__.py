"""PAFed: Miao, Kuang, Li, Xu, Li, Choo, Deng, "Privacy-preserving asynchronous federated learning under non-IID
settings". Equation, algorithm and section numbers are that paper's.

                     Credentials (sealed)
    key_centre  - - - - - - - - - - - - - - ->  everybody                          before round 1

    aggregator  --Train-->  client  --Update-->  aggregator        algorithms 2 and 3; an update may come rounds later
    aggregator  --Compare, Invert-->  helper  --Compared, Inverted-->  aggregator  algorithm 4
    aggregator  --Refresh, Convert-->  helper  --Refreshed, Converted-->  aggregator   algorithm 5

Sees (``paper``). key_centre: verify keys; it draws all key pairs and forgets the secret halves. aggregator (S_0): who
takes part, when, how late, and how long an update was if the settings let lengths travel; ciphertexts under others'
keys. helper (S_1): masked cosines of late updates, shuffled among dummies, and four masked sums, so about how many of
them conflict (``signs=hidden``: cosines under random signs, and masked sums among decoys); the model under a uniform
mask. client: the global model of every round that asks it.
Sees (``literal``). helper: three masked sums, no cosines; the model under a mask of real numbers, which tells any two
models apart. The others as above.
Assumes that the two servers do not collude: together they open every update. A client learns nothing of another's key,
but the aggregator with a client learns the global model of every round that asks that client; and if the aggregator
deviates, it can have updates converted instead of models, or read sk_s off a forged ciphertext in a model's place, as
nobody sees what is under the mask: it is trusted to follow the protocol. The helper's messages are not signed.
And every client is trusted so, too, for secrecy and not only for a good model: one that signs a forged ciphertext as
its update reads sk_s off the next model that it is handed, alone, and sk_s opens every update
(``attacks/key_in_sum.py``).

Departures from the text, each with its reason in docs/systems/pafed.md. In both modes: the conflicting class is the one
of c_j < 0 (definition 1, eq. 13); n_1 and n_2 are inverted by the helper on masked numbers, as CKKS does not divide;
the helper does not decrypt with clients' keys (algorithm 5, line 9), which it does not have; clients get w^tau and not
w^0 (algorithm 3, line 4). In ``paper`` also: signs come from the helper instead of Min(); eq. (12) instead of (14); the
mask of algorithm 5 is uniform over the ciphertext ring; the model comes back freshly encrypted; w_i^{tau_r} of eq. (16)
is the model that the client has received; the server's step decays.
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
from coterie.protocol.model_spec import ModelSpec
from coterie.protocol.system import Federation, Sees, Setting, System
from coterie.protocols.idle import insist, refuse_idle
from coterie.protocols.key_centre import KEY_CENTRE, Credentials, Enrol, Join, KeyCentre, Pair, Ready
from coterie.protocols.late import DELTA, LateTraining
from coterie.protocols.local_training import sample_clients
from coterie.systems.pafed.layout import Layout
from coterie.systems.pafed.messages import (
    CLIENT,
    HELPER,
    HUB,
    MODEL_TERMS,
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
)
from coterie.training.solvers import Admm, Sgd

PARAMETERS = {"paper": "ckks-8192-deep", "literal": "ckks-32768-deep"}
PRINTED: Mapping[str, Any] = {"server_decay": 0.0, "project": "printed", "clip": 0.0, "local": "admm"}
"""What the text prints, where it prints one thing only: mode ``literal`` has no other values of these settings."""
MOST_MASK = 512.0
"""Weights and masks of real numbers together lie within 1024 in the ciphers."""
MOST_DUMMIES = 4096
"""The helper opens at most 2^16 scalars a request, four of a set of sums."""
MOST_ASKED = 256
"""Clients a round: n of them in time make scalars up to n^2, and n m with m late ones; there is room for 2^24."""


@dataclass(frozen=True)
class PAFedConfig(LateTraining):
    """Settings of PAFed; local training and the server's step as in ``protocols/late.py``, table III.

    rho: coefficient of the quadratic term of eq. (8).  local: "admm", or "sgd" to see what ADMM gives.
    agreeing, conflicting: alpha_1 and alpha_2 of eq. (17) as multiples of the server's step, which is alpha_0.
    project: "exact" by eq. (12), "printed" by eq. (14), or "none": late updates averaged as they come.
    clip: largest length of an update that travels along, so that steps are as long as the updates were on average; 0
    for steps of constant length, as printed.
    signs: of late updates' masked cosines. "shown": the helper sees them, among dummies. "hidden": each under a fair
    coin's sign, and the sums of both classes among decoys, so that it does not see whether any conflict (hiding.py).
    dummies: masked cosines of no consequence that the helper also sees; with signs=hidden, decoy sets of sums instead.
    iterations: of Min(), mode literal.  mask_bound: the mask of algorithm 5 is uniform in +-this, mode literal.
    """

    rho: float = 0.01
    local: Literal["admm", "sgd"] = "admm"
    agreeing: float = 1.0
    conflicting: float = 1.0
    project: Literal["exact", "printed", "none"] = "exact"
    clip: float = 0.0
    signs: Literal["shown", "hidden"] = "shown"
    dummies: int = 4
    iterations: int = 7
    mask_bound: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.rates(1)
        choices = ("local", ("admm", "sgd")), ("project", ("exact", "printed", "none")), ("signs", ("shown", "hidden"))
        for name, known in choices:
            if getattr(self, name) not in known:
                raise UserError(f"{name} must be one of {', '.join(known)}, not {getattr(self, name)!r}")
        if not 0 <= self.clip < math.inf:
            raise UserError(f"clip must be at least 0 and finite, not {self.clip}")
        if not 0 <= self.dummies <= MOST_DUMMIES or not 0 <= self.iterations <= 7:
            raise UserError(
                f"dummies ({self.dummies}) are 0 to {MOST_DUMMIES}, iterations ({self.iterations}) of Min() 0 to 7"
            )
        if not 0 < self.mask_bound <= MOST_MASK:
            raise UserError(f"mask_bound must lie above 0 and at most at {MOST_MASK:g}, not {self.mask_bound}")
        if self.founders:
            raise UserError("founders: clients that join later are not supported; leave it at 0")

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
    layout = layout_of(setting.spec, setting.mode)
    members = {HUB: HUB, HELPER: HELPER, **dict.fromkeys(setting.clients, CLIENT)}
    key_centre = KeyCentre(
        setting.randomness,
        members,
        {HUB: (HELPER, *setting.clients), HELPER: (HUB,), CLIENT: (HUB,)},
        users=Pair(CLIENT, partial(ckks_keygen, parameters, products=False), each=True),
        service=Pair(HELPER, partial(ckks_keygen, parameters), evaluation_for=HUB),
    )
    parties: list[Any] = [Aggregator(setting, config, layout), key_centre, Helper(setting, layout)]
    parties += [Client(name, setting, config, layout) for name in setting.clients]
    return Federation({party.name: party for party in parties}, HUB)


def layout_of(spec: ModelSpec, mode: str) -> Layout:
    """How a model and an update lie in the ciphertext vectors of a mode."""
    return Layout(spec, named(PARAMETERS[mode]).degree)


def _check(config: PAFedConfig, setting: Setting) -> None:
    """Raises UserError for what can't work among these clients, or means nothing beside the other settings."""
    from coterie.systems.pafed.correction import STEP_SHARES

    paper, literal = setting.mode == "paper", setting.mode == "literal"
    refuse_idle(
        config,
        (
            ("iterations", "mode paper", paper),
            ("mask_bound", "mode paper", paper),
            ("dummies", "mode literal", literal),
            ("signs", "mode literal", literal),
            ("signs", "project=none", config.project == "none"),
            ("rho", "local=sgd", config.local == "sgd"),
            ("conflicting", "project=none", config.project == "none"),
        ),
    )
    if literal:
        insist(config, PRINTED, "mode literal, which is the printed text")
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

    What doesn't open is refused by the clients, too, who then go on from the last model that they did open, or w^0.
    """
    hub: Any = federation.parties[HUB]
    helper: Any = federation.parties[HELPER]
    weights = np.asarray(hub.initial)
    for model in filter(None, (hub.state.model, hub.state.good)):
        key: Any = secret_key(helper.secret.service)
        try:
            weights = hub.layout.unpacked(key.decrypt(key.public.from_bytes(model)).astype(np.float32))
            break
        except PeerError:
            continue
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
        "masked cosines of late updates, shuffled among dummies, and four masked sums, so roughly how many of them "
        "conflict (with signs=hidden: cosines under random signs, and masked sums among decoys); who is asked in a "
        "round; the model only under a mask that is uniform over the ciphertext ring",
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
        "three masked sums over the late updates; the model under a mask of real numbers, which tells any two models "
        "apart (attack real-mask)",
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
    settings_in={"literal": PRINTED},
    modes=("paper", "literal"),
    encrypted=True,
    delta=DELTA,
)
