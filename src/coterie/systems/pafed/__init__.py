"""PAFed: Miao, Kuang, Li, Xu, Li, Choo, Deng, "Privacy-preserving asynchronous federated learning under non-IID
settings". Equation, algorithm and section numbers are that paper's.

                 Granted (signed, sealed)
    key_centre  - - - - - - - - - - - - - - ->  everybody                          before round 1

    aggregator  --Train-->  client  --Update-->  aggregator        algorithms 2 and 3; an update may come rounds later
    aggregator  --Compare, Invert-->  helper  --Compared, Inverted-->  aggregator  algorithm 4
    aggregator  --Refresh, Convert-->  helper  --Refreshed, Converted-->  aggregator   algorithm 5

What each party sees: ``SEES``, and ``SEES_LITERAL`` for mode ``literal``.

Assumes that the two servers do not collude: together they open every update. (With keys=threshold they also need
members of a committee of clients, ``protocols/committee.py``.) A client learns nothing of another's key. The aggregator
with a client learns the global model of every round that asks that client. The aggregator is trusted to follow the
protocol. If it deviates, it can have updates converted instead of models, or read sk_s off a forged ciphertext in a
model's place, since no other party sees what is under the mask. Every client is trusted to follow the protocol, too,
also for secrecy. One that signs a forged ciphertext as its update reads sk_s off the next model that it receives,
without help, and sk_s opens every update (``attacks/key_in_sum.py``). In mode ``hardened`` clients upload under
one-time pads, and such a client gets nothing (``protocols/pads.py``).

    aggregator  --Unpad-->  helper  --Unpadded-->  aggregator          mode ``hardened``, before algorithm 4
    aggregator  --Stand, Switch-->  client  --Standing, Turned-->  aggregator   keys=threshold, before the helper opens

Departures from the text, each with its reason in docs/systems/pafed.md. In both modes:
- The conflicting class is the one of c_j < 0 (definition 1, eq. 13).
- The helper inverts n_1 and n_2 on masked numbers, since CKKS does not divide.
- The helper does not decrypt with clients' keys (algorithm 5, line 9), which it does not have.
- Clients get w^tau and not w^0 (algorithm 3, line 4).
In ``paper`` also:
- Signs come from the helper instead of Min().
- Eq. (12) replaces eq. (14).
- The mask of algorithm 5 is uniform over the ciphertext ring, and the model comes back freshly encrypted.
- w_i^{tau_r} of eq. (16) is the model that the client has received.
- The server's step decays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from coterie.crypto.ckks import keygen as ckks_keygen
from coterie.crypto.split_key import joined
from coterie.protocol.effects import Vector
from coterie.protocol.errors import PeerError
from coterie.protocol.messages import Message
from coterie.protocol.setup_info import Common, Own
from coterie.protocol.system import Federation, PartyFactory, Sees, System
from coterie.protocols.committee import Committee, Stand, Standing, Switch, Turned
from coterie.protocols.key_centre import ENROLMENT, KEY_CENTRE, Deal, Grant, Granted, KeyCentre, Pair
from coterie.protocols.late import DELTA
from coterie.protocols.pads import PADS, Pads, Unpad, Unpadded
from coterie.systems.pafed import messages
from coterie.systems.pafed.aggregator import Aggregator, CommitteeAggregator, PaddedAggregator
from coterie.systems.pafed.client import Client, CommitteeClient, PaddedClient
from coterie.systems.pafed.config import PARAMETERS, PRINTED, PAFedConfig, check
from coterie.systems.pafed.helper import CommitteeHelper, Helper, PaddedHelper
from coterie.systems.pafed.messages import CLIENT, HELPER, HUB, SERVICE, USER


def key_centre(own: Own, common: Common, config: PAFedConfig) -> KeyCentre:
    """A key pair of the helper, whose ciphertexts the aggregator multiplies, and one for each client.

    With keys=threshold the helper has one summand of its key, and a committee of clients shares of the other. In mode
    ``hardened`` also the clients' ratchets for one-time pads, all of which the helper has.
    """
    parameters = PARAMETERS[common.mode]
    users = Pair(USER, CLIENT, partial(ckks_keygen, parameters, products=False), each=True)
    service: Grant = Pair(SERVICE, HELPER, partial(ckks_keygen, parameters), works=HUB)
    if config.keys == "threshold":
        members, needed = config.committee(common.clients)
        service = Committee(SERVICE, CLIENT, members, HELPER, needed, HUB, parameters)
    pads = [Pads(PADS, CLIENT, HELPER)] if common.mode == "hardened" else []
    return KeyCentre(own, common, [users, service, *pads])


def parties(config: PAFedConfig) -> Mapping[str, PartyFactory]:
    if config.keys == "threshold":
        return {
            HUB: CommitteeAggregator,
            KEY_CENTRE: key_centre,
            HELPER: CommitteeHelper,
            CLIENT: CommitteeClient,
        }
    return {HUB: Aggregator, KEY_CENTRE: key_centre, HELPER: Helper, CLIENT: Client}


def models(federation: Federation) -> Mapping[str, Vector]:
    """The global model for all clients, as the helper (and members, if needed) shows it to the observer. Otherwise only
    training clients have it unencrypted.

    Clients refuse a model that does not open, too. Then they go on from the last one that they opened, or w^0.
    """
    hub: Any = federation.look(HUB)
    helper: Any = federation.look(HELPER)
    weights, key = federation.common.initial, None
    if hub.config.keys == "threshold" and hub.state.model:
        members, needed = hub.config.committee(federation.common.clients)
        shares = [federation.look(name).seat.share() for name in members[:needed]]
        key = joined(hub.keys.public(SERVICE), helper.keys.own(SERVICE), shares)
    for model in filter(None, (hub.state.model, hub.state.good)):
        with suppress(PeerError):
            weights = helper.opened(model, key)
            break
    return dict.fromkeys(federation.common.clients, weights)


SEES = {
    KEY_CENTRE: Sees((Deal,), "when keys are wanted; it draws all encryption keys and forgets the secret ones"),
    HUB: Sees(
        (*ENROLMENT, messages.Update, messages.Compared, messages.Inverted, messages.Refreshed, messages.Converted),
        "who takes part, when, and how late, by name, and an update's length if the settings let it travel; updates "
        "and models only as ciphertexts under keys that it does not have",
    ),
    HELPER: Sees(
        (Granted, messages.Compare, messages.Invert, messages.Refresh, messages.Convert),
        "masked cosines of late updates, shuffled among dummies, and four masked sums, so roughly how many of them "
        "conflict (with signs=hidden: cosines under random signs, and masked sums among decoys); who is asked in a "
        "round; the model only under a mask that is uniform over the ciphertext ring",
    ),
    CLIENT: Sees(
        (Granted, messages.Train),
        "the global model of every round that asks it; no other's key, if it follows the protocol: one that forges an "
        "update reads the helper's key off a model, and that key opens every update",
    ),
}
SEES_HARDENED = {
    **SEES,
    HUB: Sees(
        (
            *ENROLMENT,
            messages.PaddedUpdate,
            Unpadded,
            messages.Compared,
            messages.Inverted,
            messages.Refreshed,
            messages.Converted,
        ),
        SEES[HUB].learns,
    ),
    HELPER: Sees(
        (*SEES[HELPER].receives, Unpad),
        f"{SEES[HELPER].learns}; whose updates are used in a round, and which of them are late, by name",
    ),
    CLIENT: Sees(
        SEES[CLIENT].receives, "the global model of every round that asks it; no other's key, even if it deviates"
    ),
}
SEES_LITERAL = {
    **SEES,
    HUB: Sees(
        (*ENROLMENT, messages.Update, messages.Inverted, messages.Refreshed, messages.Converted), SEES[HUB].learns
    ),
    HELPER: Sees(
        (Granted, messages.Invert, messages.Refresh, messages.Convert),
        "three masked sums over the late updates; the model under a mask of real numbers, which tells any two models "
        "apart (attack real-mask)",
    ),
}


def releases(config: Any, mode: str) -> Mapping[type[Message], Sequence[str]]:
    """What a client's update tells, for the ledger. Masks and dummies hide which update it was, without an epsilon."""
    told = ["update, in sums"]
    if mode != "literal" and config.project != "none":
        told.append("masked cosine among dummies, if it is late")
    if config.clip:
        told.append("length of the update")
    return {messages.Update: told}


SEES_THRESHOLD = {
    **SEES,
    HUB: Sees((*SEES[HUB].receives, Standing, Turned), SEES[HUB].learns),
    CLIENT: Sees((*SEES[CLIENT].receives, Stand, Switch), SEES[CLIENT].learns),
}

SYSTEM = System(
    name="pafed",
    title="PAFed",
    citation="Miao, Kuang, Li, Xu, Li, Choo, Deng, Privacy-preserving asynchronous federated learning under non-IID "
    "settings",
    config=PAFedConfig,
    parties=parties,
    parties_in={
        "hardened": lambda _: {
            HUB: PaddedAggregator,
            KEY_CENTRE: key_centre,
            HELPER: PaddedHelper,
            CLIENT: PaddedClient,
        }
    },
    check=check,
    models=models,
    own_model=Client.model,
    sees=SEES,
    sees_in={"literal": SEES_LITERAL, "hardened": SEES_HARDENED},
    sees_with=lambda config, mode: SEES_THRESHOLD if config.keys == "threshold" else None,
    more=(messages.Final, Standing, Turned, Stand, Switch),
    settings_in={"literal": PRINTED},
    modes=("paper", "literal", "hardened"),
    encrypted=True,
    delta=DELTA,
    releases=releases,
)
