"""OFL: Mao et al., "OFL: opportunistic federated learning for resource-heterogeneous and privacy-aware devices".
Equation, algorithm, line and section numbers are that paper's.

    server --Tell--------> client --StatusReport--> server    every T_rc rounds, and for newcomers; then algorithm 1
    server --HandOver----> leader --Inherited-----> leader    uploads that no model has counted, when leaders change
    server --Lead--------> leader --Work / Upload-> client    algorithm 2; uploads count as they come, late ones later
    server --Submit------> leader --Submitted-----> server    algorithm 4, l. 6 and 7: under a joint pad of the leaders
    server                                                    algorithm 3 and eq. (6) under encryption
    server <--> leaders                                       keys and openings: ``protocols/threshold/keys``
    server --Spread------> leader --Fresh / Kept--> client    the global model, stalest parameters first

Any client may lead. What passes between a leader and its members is sealed, and the server relays it.

Departures from the text, each with its reason: docs/systems/ofl_appendix.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import coterie.method as fl
from coterie.protocols.key_centre import KEY_CENTRE, KeyCentre
from coterie.protocols.threshold import JointGrant
from coterie.systems.ofl.config import LEAST_LEADERS, OFLConfig, check, joint_of
from coterie.systems.ofl.leader import Client
from coterie.systems.ofl.messages import CLIENT, HUB, LEADER, MODEL
from coterie.systems.ofl.server import Server


def key_centre(own: fl.Own, common: fl.Common, config: OFLConfig) -> KeyCentre:
    first = tuple(common.clients[: max(LEAST_LEADERS, config.threshold)])
    return KeyCentre(own, common, [JointGrant(MODEL, CLIENT, joint_of(config), first, works=HUB)])


def parties(config: OFLConfig) -> Mapping[str, fl.PartyFactory | None]:
    return {HUB: Server, KEY_CENTRE: key_centre if config.keys == "dealer" else None, CLIENT: Client}


def observe(federation: fl.Federation) -> Mapping[str, Any]:
    """Clusters, and (n, 2) gamma_up and gamma_down of each client's last round."""
    hub = federation.look(federation.hub)
    numbers = {} if hub.state.clusters is None else hub.state.clusters.numbers
    shares = [client.state.ratios for client in federation.of_role(CLIENT)]
    return {
        "membership": [[numbers[name]] if name in numbers else [] for name in federation.common.clients],
        "gammas": np.array(shares, np.float64),
    }


def learns(config: OFLConfig, mode: str) -> Mapping[str, str]:
    dealer = {KEY_CENTRE: "who leads; it draws the leaders' key and forgets it"} if config.keys == "dealer" else {}
    return {
        HUB: "by name: status reports (device, limits, a summary of the last released upload), whose uploads are in "
        "which leader's model and when; the global model; two or three numbers of each leader's model, with noise; "
        "these models only as ciphertexts; who exchanges sealed messages, and how long they are",
        **dealer,
        LEADER: "its members' noisy uploads and status reports, by name; the global model. With all other leaders and "
        "the server together: the model of every leader",
        CLIENT: "who leads its cluster, and the parameters of the global model that it asks for; the median number of "
        "samples of the clients (unless full_samples is set); as a leader also its share of the leaders' key",
    }


def assumes(config: OFLConfig, mode: str) -> str:
    few = f"fewer than {config.threshold} leaders collude with the server"
    said = [few if config.threshold else "the server does not collude with all leaders but one"]
    said += [fl.two_others("leaders"), "all parties follow the protocol"]
    if config.keys == "dealer":
        said.append("the key centre forgets the leaders' key")
    if config.mechanism == "distributed":
        said.append(f"at most {config.missing} of those that add noise collude")
    return "; ".join(said)


SYSTEM = fl.System(
    name="ofl",
    title="OFL",
    citation="Y. Mao, M. Niu, Z. Dang, C. Li, H. Xia, Y. Zhu, H. Bian, Y. Zhang, J. Hua, S. Zhong, OFL: opportunistic "
    "federated learning for resource-heterogeneous and privacy-aware devices, arXiv:2503.15015 2025",
    cold="clients that hold parts of the model begin with the public one, to which its changes are added",
    config=OFLConfig,
    parties=parties,
    check=check,
    leads_s=lambda config: {"leader_s": config.leader_s} if config.leader_s and config.deadline_s is None else {},
    also={CLIENT: (LEADER,)},
    models=fl.of_each(lambda client: client.model),
    own_model=lambda client: client.model,
    uncounted="its hub would learn label counts by cluster, which its noise does not cover",
    learns=learns,
    assumes=assumes,
    settings_in={"hardened": {"mechanism": "standard"}},
    modes=("paper", "literal", "hardened"),
    encrypted=True,
    clients=16,
    observe=observe,
    ledger=fl.of_each(Client.releases),
)
