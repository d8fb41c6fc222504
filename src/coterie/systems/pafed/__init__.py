"""PAFed: Miao, Kuang, Li, Xu, Li, Choo, Deng, "Privacy-preserving asynchronous federated learning under non-IID
settings". Equation, algorithm and section numbers are that paper's.

                 Granted (signed, sealed)
    key_centre  - - - - - - - - - - - - - - ->  everybody                          before round 1

    aggregator  --Train-->  client  --Update-->  aggregator        algorithms 2 and 3; an update may come rounds later
    aggregator  --Compare, Invert-->  helper  --Compared, Inverted-->  aggregator  algorithm 4
    aggregator  --Refresh, Convert-->  helper  --Refreshed, Converted-->  aggregator   algorithm 5

Mode ``hardened``: clients upload under one-time pads (``protocols/pads.py``). With keys=threshold servers that collude
also need members of a committee of clients (``protocols/committee.py``).

    aggregator  --Unpad-->  helper  --Unpadded-->  aggregator          mode ``hardened``, before algorithm 4
    aggregator  --Stand, Switch-->  client  --Done, Turned-->  aggregator   keys=threshold, before the helper opens

Departures from the text, each with its reason: docs/systems/pafed_appendix.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import coterie.method as fl
from coterie.crypto.ckks import keygen as ckks_keygen
from coterie.crypto.split_key import joined
from coterie.protocols.committee import Committee
from coterie.protocols.key_centre import KEY_CENTRE, Grant, KeyCentre, Pair
from coterie.protocols.late import DELTA
from coterie.protocols.pads import PADS, Pads
from coterie.systems.pafed.aggregator import Aggregator, PaddedAggregator
from coterie.systems.pafed.client import Client, PaddedClient, predicting
from coterie.systems.pafed.config import PARAMETERS, PRINTED, PAFedConfig, check, compares
from coterie.systems.pafed.helper import Helper, PaddedHelper
from coterie.systems.pafed.messages import CLIENT, HELPER, HUB, SERVICE, USER, PaddedUpdate, Update


def key_centre(own: fl.Own, common: fl.Common, config: PAFedConfig) -> KeyCentre:
    """A key pair of the helper, whose ciphertexts the aggregator multiplies, and one for each client; by settings, a
    committee's shares and ratchets for one-time pads.
    """
    parameters = PARAMETERS[common.mode]
    users = Pair(USER, CLIENT, partial(ckks_keygen, parameters, products=False), each=True)
    service: Grant = Pair(SERVICE, HELPER, partial(ckks_keygen, parameters), works=HUB)
    if config.keys == "threshold":
        members, needed = config.committee(common.clients)
        service = Committee(SERVICE, CLIENT, members, HELPER, needed, HUB, parameters)
    pads = [Pads(PADS, CLIENT, HELPER)] if common.mode == "hardened" else []
    return KeyCentre(own, common, [users, service, *pads])


def parties(config: PAFedConfig) -> Mapping[str, fl.PartyFactory]:
    return {HUB: Aggregator, KEY_CENTRE: key_centre, HELPER: Helper, CLIENT: Client}


def padded(config: PAFedConfig) -> Mapping[str, fl.PartyFactory]:
    return {HUB: PaddedAggregator, KEY_CENTRE: key_centre, HELPER: PaddedHelper, CLIENT: PaddedClient}


def models(federation: fl.Federation) -> Mapping[str, fl.Vector]:
    """The global model, as the helper (and members) shows it to the observer; or the last one that opens, or w^0. With
    ema each client's average.
    """
    hub: Any = federation.look(HUB)
    helper: Any = federation.look(HELPER)
    weights, key = federation.common.initial, None
    if hub.config.keys == "threshold" and hub.state.model:
        members, needed = hub.config.committee(federation.common.clients)
        shares = [federation.look(name).seat.share() for name in members[:needed]]
        key = joined(hub.keys.public(SERVICE), helper.keys.own(SERVICE), shares)
    for model in filter(None, (hub.state.model, hub.state.good)):
        with suppress(fl.PeerError):
            weights = helper.opened(model, key)
            break
    return predicting(federation, weights)


def learns(config: PAFedConfig, mode: str) -> Mapping[str, str]:
    helper = (
        "masked cosines of late updates, shuffled among dummies, and four masked sums, so roughly how many of them "
        "conflict (with signs=hidden: cosines under random signs, and masked sums among decoys); who is asked in a "
        "round; the model only under a mask that is uniform over the ciphertext ring"
    )
    key = "if it follows the protocol: one that forges an update reads the helper's key off a model, and that key "
    key += "opens every update"
    if mode == "literal":
        helper = (
            "three masked sums over the late updates; the model under a mask of real numbers, which tells any two "
            "models apart (attack real-mask)"
        )
    elif mode == "hardened":
        helper += "; whose updates are used in a round, and which of them are late, by name"
        key = "even if it deviates"
    return {
        KEY_CENTRE: "when keys are wanted; it draws all encryption keys and forgets the secret ones",
        HUB: "who takes part, when, and how late, by name, and an update's length if the settings let it travel; "
        "updates and models only as ciphertexts under keys that it does not have",
        HELPER: helper,
        CLIENT: f"the global model of every round that asks it; no other's key, {key}",
    }


def assumes(config: PAFedConfig, mode: str) -> str:
    pooled = "aggregator and helper do not collude, which would open every update"
    if config.keys == "threshold":
        pooled = "aggregator and helper do not collude: together they open models and cosines, and with as many of the "
        pooled += "committee as open, updates"
    helps = "no client helps the aggregator, which would see the models that this client is sent"
    follow = "both servers follow" if mode == "hardened" else "servers and clients follow"
    return f"{pooled}; {helps}; {fl.two_others('clients')}; the key centre is honest at set-up; {follow} the protocol"


def releases(config: Any, mode: str) -> Mapping[type[fl.Message], Sequence[str]]:
    told = ["update, in sums"]
    if compares(config, mode):
        told.append("masked cosine among dummies, if it is late")
    if config.clip:
        told.append("length of the update")
    return {PaddedUpdate if mode == "hardened" else Update: list(map(fl.FromTraining, told))}


SYSTEM = fl.System(
    name="pafed",
    title="PAFed",
    citation="Y. Miao, D. Kuang, X. Li, S. Xu, H. Li, K.-K. R. Choo, R. H. Deng, Privacy-preserving asynchronous "
    "federated learning under non-IID settings, IEEE Transactions on Information Forensics and Security 2024",
    cold="the last model is encrypted under keys that a run makes anew",
    config=PAFedConfig,
    parties=parties,
    parties_in={"hardened": padded},
    check=check,
    models=models,
    own_model=Client.model,
    sent_next=True,
    uncounted="its server would learn the label counts of all clients together, and it sees no sum of theirs",
    learns=learns,
    assumes=assumes,
    settings_in={"literal": PRINTED},
    modes=("paper", "literal", "hardened"),
    encrypted=True,
    delta=DELTA,
    releases=releases,
)
