"""MingledPie: Zhang, Xu, Tan, An, Jin, "MingledPie: a cluster mingling approach for mitigating preference profiling in
CFL", NDSS 2025. Equation, algorithm and section numbers are that paper's.

                 Granted (signed, sealed)
    key_centre  - - - - - - - - - - - - - - ->  everybody              before round 1

    server  --Parameters-->  client  --Noted----->  server             at the start, for newcomers, when p changes
    server  --Train------->  client  --Update---->  server             algorithm 3, lines 12 to 22
    server  --Mingled----->  client  --Received-->  server             line 23, and lines 7 to 11 of the next round

What each party sees: ``SEES``, and ``SEES_HARDENED`` for mode ``hardened``.

Assumes an honest-but-curious server with which no client colludes. All clients share one secret key, so the server and
one client together open everything, unless keys=threshold: then as many holders of shares as open a sum do, and the
server is told the sums. A client whose encrypted indicator is not one-hot spoils all models. The others
notice most such indicators and keep their models, but cannot tell which client it was.

Departures from the text, each with its reason in docs/systems/mingledpie.md:
- Eq. (3) compares the true cluster's key with cluster j's address.
- Eq. (7) and (8) take sums, not means.
- theta_i and sigma_i travel in one ciphertext vector.
- Line 14 trains the client's cluster model.
- H is checked, and solved with a ridge if it is ill-conditioned.
- Messages are signed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from coterie.crypto.ckks import keygen as ckks_keygen
from coterie.protocol.effects import Vector
from coterie.protocol.messages import Message
from coterie.protocol.setup_info import Common, Own
from coterie.protocol.system import Federation, PartyFactory, Sees, System
from coterie.protocols.key_centre import ENROLMENT, KEY_CENTRE, Deal, Granted, KeyCentre, Pair
from coterie.protocols.threshold_making import HOLDER_MESSAGES, HUB_MESSAGES
from coterie.systems.mingledpie.client import Client, JointClient
from coterie.systems.mingledpie.config import MingledPieConfig, check, layout_of
from coterie.systems.mingledpie.messages import (
    CLIENT,
    HUB,
    USER,
    Mingled,
    Noted,
    OpenedSums,
    Parameters,
    Received,
    Train,
    Update,
)
from coterie.systems.mingledpie.server import JointServer, Server


def key_centre(own: Own, common: Common, config: MingledPieConfig) -> KeyCentre:
    parameters = layout_of(config, common.spec, common.mode).parameters
    return KeyCentre(own, common, [Pair(USER, CLIENT, partial(ckks_keygen, parameters.name))])


def parties(config: MingledPieConfig) -> Mapping[str, PartyFactory]:
    """With keys=threshold clients make their key themselves, without a key centre."""
    if config.keys == "threshold":
        return {HUB: JointServer, CLIENT: JointClient}
    return {HUB: Server, KEY_CENTRE: key_centre, CLIENT: Client}


def models(federation: Federation) -> Mapping[str, Vector]:
    """The rebuilt model of each client's cluster; clients of one cluster share the array, if it has no own buffers."""
    rows: dict[tuple[int, int], Vector] = {}
    found = {}
    for client in federation.of_role(CLIENT):
        place = id(client.models()), client.cluster()
        shared = rows.setdefault(place, client.models()[client.cluster()])
        found[client.name] = client.with_own_buffers(shared)
    return found


def pool(federation: Federation) -> Iterable[Vector]:
    """All models that clients choose from. Each client has its own copy; most are equal."""
    return (client.models() for client in federation.of_role(CLIENT))


def observe(federation: Federation) -> Mapping[str, Any]:
    """True clusters (which only the client knows), and the results of the last rebuild."""
    clients = list(federation.of_role(CLIENT))
    return {
        "membership": [[c.cluster()] if c.state.trained else [] for c in clients],
        "identity_sets_drawn": [c.sets_drawn() for c in clients],
        "condition": [c.state.condition for c in clients],
        "ridge": [c.state.ridge for c in clients],
        "kept": [list(c.state.kept) for c in clients],
        "why_kept": sorted({c.state.why for c in clients if c.state.why}),
    }


OF_CLIENT = (Granted, Parameters, Train, Mingled)
SEES = {
    KEY_CENTRE: Sees((Deal,), "when keys are wanted; it draws the clients' key pair and forgets it"),
    HUB: Sees(
        (*ENROLMENT, Noted, Update, Received),
        "by name, every client's set of cluster identities, one of which is its true cluster: with sizes as prior "
        "knowledge, or several sets of one client, far more than one in |CI|; models and indicators are ciphertexts",
    ),
    CLIENT: Sees(
        OF_CLIENT,
        "all cluster models, and how many clients of each true cluster were mingled into each; with the server's help, "
        "every client's model, since all clients share one secret key",
    ),
}
SEES_HARDENED = {
    **SEES,
    HUB: Sees((*ENROLMENT, Noted, Update, Received), "who takes part; all else is encrypted"),
    CLIENT: Sees(
        OF_CLIENT,
        "all cluster models and the sizes of the true clusters; with the server's help, every client's model, since "
        "all clients share one secret key",
    ),
}


def releases(config: Any, mode: str) -> Mapping[type[Message], Sequence[str]]:
    """What a client's update tells, for the ledger. A set with false identities is no differential privacy."""
    sums = "model and cluster, in sums"
    return {Update: (sums,) if mode == "hardened" else (sums, "set of cluster identities")}


def sees_with(config: MingledPieConfig, mode: str) -> Mapping[str, Sees] | None:
    if config.keys != "threshold":
        return None
    before = SEES_HARDENED if mode == "hardened" else SEES
    return {
        HUB: Sees(
            (*HUB_MESSAGES, Noted, Update, Received),
            f"{before[HUB].learns}; and the sums, which it is told",
        ),
        CLIENT: Sees(
            (*HOLDER_MESSAGES, Parameters, Train, OpenedSums),
            "all cluster models, and how many clients of each true cluster are in each sum; with the server's help "
            "every client's model, if as many holders of shares join in as open a sum",
        ),
    }


SYSTEM = System(
    name="mingledpie",
    title="MingledPie",
    citation="Zhang, Xu, Tan, An, Jin, MingledPie: a cluster mingling approach for mitigating preference profiling in "
    "CFL, NDSS 2025",
    config=MingledPieConfig,
    parties=parties,
    check=check,
    models=models,
    own_model=Client.model,
    sees=SEES,
    sees_in={"hardened": SEES_HARDENED},
    sees_with=sees_with,
    more=(*HUB_MESSAGES, *HOLDER_MESSAGES, OpenedSums),
    modes=("paper", "literal", "hardened"),
    encrypted=True,
    observe=observe,
    releases=releases,
    pool=pool,
)
