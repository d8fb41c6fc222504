"""MingledPie: Zhang, Xu, Tan, An, Jin, "MingledPie: a cluster mingling approach for mitigating preference profiling in
CFL", NDSS 2025. Equation, algorithm and section numbers are that paper's.

                 Granted (signed, sealed)
    key_centre  - - - - - - - - - - - - - - ->  everybody              before round 1

    server  --Parameters-->  client  --Done------>  server             at the start, for newcomers, when p changes
    server  --Train------->  client  --Update---->  server             algorithm 3, lines 12 to 22
    server  --Mingled----->  client  --Received-->  server             line 23, and lines 7 to 11 of the next round

A client whose encrypted indicator is not one-hot spoils all models; the others notice most of these, but not whose it
was.

Departures from the text, each with its reason: docs/systems/mingledpie_appendix.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import coterie.method as fl
from coterie.crypto.ckks import keygen as ckks_keygen
from coterie.protocols.key_centre import KEY_CENTRE, KeyCentre, Pair
from coterie.systems.mingledpie.client import Client
from coterie.systems.mingledpie.config import MingledPieConfig, check, layout_of
from coterie.systems.mingledpie.messages import CLIENT, HUB, USER, Update
from coterie.systems.mingledpie.server import Server


def key_centre(own: fl.Own, common: fl.Common, config: MingledPieConfig) -> KeyCentre:
    parameters = layout_of(config, common.spec, common.mode).parameters
    return KeyCentre(own, common, [Pair(USER, CLIENT, partial(ckks_keygen, parameters.name))])


def parties(config: MingledPieConfig) -> Mapping[str, fl.PartyFactory | None]:
    return {HUB: Server, KEY_CENTRE: key_centre if config.keys == "shared" else None, CLIENT: Client}


def models(federation: fl.Federation) -> Mapping[str, fl.Vector]:
    """Clients of one cluster share the array, if they have no own buffers."""
    rows: dict[tuple[int, int], fl.Vector] = {}
    found = {}
    for client in federation.of_role(CLIENT):
        place = id(client.models()), client.cluster()
        shared = rows.setdefault(place, client.models()[client.cluster()])
        found[client.name] = client.with_own_buffers(shared)
    return found


def pool(federation: fl.Federation) -> Iterable[fl.Vector]:
    return (client.models() for client in federation.of_role(CLIENT))


def observe(federation: fl.Federation) -> Mapping[str, Any]:
    clients = list(federation.of_role(CLIENT))
    return {
        "membership": [[c.cluster()] if c.state.trained else [] for c in clients],
        "identity_sets_drawn": [c.secret.drawn for c in clients],
        "condition": [c.state.condition for c in clients],
        "ridge": [c.state.ridge for c in clients],
        "kept": [list(c.state.kept) for c in clients],
        "why_kept": sorted({c.state.why for c in clients if c.state.why}),
        "kept_by": sum(c.state.why != "" for c in clients),
    }


def learns(config: MingledPieConfig, mode: str) -> Mapping[str, str]:
    hub = (
        "by name, every client's set of cluster identities, one of which is its true cluster: with sizes as prior "
        "knowledge, or several sets of one client, far more than one in |CI|; models and indicators are ciphertexts"
    )
    sizes = "how many clients of each true cluster were mingled into each"
    if mode == "hardened":
        hub, sizes = "who takes part; all else is encrypted", "the sizes of the true clusters"
    if config.keys == "threshold":
        return {
            HUB: f"{hub}; and the sums, which it is told",
            CLIENT: "all cluster models, and how many clients of each true cluster are in each sum; with the server's "
            "help every client's model, if as many holders of shares join in as open a sum",
        }
    return {
        KEY_CENTRE: "when keys are wanted; it draws the clients' key pair and forgets it",
        HUB: hub,
        CLIENT: f"all cluster models, and {sizes}; with the server's help, every client's model, since all clients "
        "share one secret key",
    }


def assumes(config: MingledPieConfig, mode: str) -> str:
    keys = "no client helps the server, since all clients share one secret key; the key centre is honest at set-up"
    if config.keys == "threshold":
        keys = "fewer holders of shares than open a sum help the server"
    return f"{keys}; {fl.two_others('clients')}, and so in every difference of sums; all parties follow the protocol"


def releases(config: Any, mode: str) -> Mapping[type[fl.Message], Sequence[str]]:
    sums = fl.FromTraining("model, in sums"), "cluster, in sums"
    return {Update: sums if mode == "hardened" else (*sums, "set of cluster identities")}


SYSTEM = fl.System(
    name="mingledpie",
    title="MingledPie",
    citation="C. Zhang, Y. Xu, J. Tan, J. An, W. Jin, MingledPie: a cluster mingling approach for mitigating "
    "preference profiling in CFL, NDSS 2025",
    cold="the server hands out the first models, and only clients hold the last ones",
    config=MingledPieConfig,
    parties=parties,
    check=check,
    models=models,
    own_model=Client.model,
    uncounted="a list of the clients of a cluster would show the memberships that it hides",
    learns=learns,
    assumes=assumes,
    modes=("paper", "literal", "hardened"),
    encrypted=True,
    observe=observe,
    releases=releases,
    pool=pool,
)
