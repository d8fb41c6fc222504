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

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from coterie.crypto.schemes import ckks_keygen, secret_key
from coterie.protocol.effects import Vector
from coterie.protocol.errors import PeerError
from coterie.protocol.system import Federation, Sees, Setting, System
from coterie.protocols.key_centre import KEY_CENTRE, Credentials, Enrol, Join, KeyCentre, Pair, Ready
from coterie.systems.pafed.config import PARAMETERS, PRINTED, PAFedConfig, check, layout_of
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
)


def build(config: PAFedConfig, setting: Setting) -> Federation:
    """Key centre, aggregator, helper and clients."""
    from coterie.systems.pafed.aggregator import Aggregator
    from coterie.systems.pafed.client import Client
    from coterie.systems.pafed.helper import Helper

    check(config, setting)
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
    delays = config.delays(setting)
    parties: list[Any] = [Aggregator(setting, config, layout), key_centre, Helper(setting, layout)]
    parties += [Client(name, setting, config, layout, delays) for name in setting.clients]
    return Federation({party.name: party for party in parties}, HUB)


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
    audit="coterie.systems.pafed.audit:AUDIT",
    reproductions=("coterie.reproduce.pafed:ITEMS",),
)
