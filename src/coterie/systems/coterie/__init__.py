"""Coterie: means of hidden groups, in shares of two servers. This project's own; docs/systems/coterie.md.

    client  --HiddenUpdate-->  hub  --Shares, SealRows-->  helper         one-hot shares, added by both servers
    hub     --Fetch-->   helper                                 half of an answer, sealed to the client
    client  <--GroupRow--     hub                                    the sum of its own group

What each party sees: the messages that its handlers take, and ``learns``; what must hold: ``assumes``. Groups:
``protocols/sealed_groups.py``; sums: ``protocols/hidden_sums.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import coterie.method as fl
from coterie.protocols.key_centre import KEY_CENTRE, KeyCentre, Seed
from coterie.protocols.sealed_groups import ENTRY, SharedRow
from coterie.protocols.setup_sums import CLIENTS, Summand
from coterie.protocols.shared_groups import CORRELATIONS, Correlations, sizes_of
from coterie.systems.coterie.client import Client
from coterie.systems.coterie.config import CoterieConfig, check
from coterie.systems.coterie.helper import Helper
from coterie.systems.coterie.hub import Hub
from coterie.systems.coterie.messages import CLIENT, HELPER, HUB


def key_centre(own: fl.Own, common: fl.Common, config: CoterieConfig) -> KeyCentre:
    sizes, sealing = sizes_of(config, len(common.clients), common.spec), common.roster.by_name[HUB].sealing_key
    correlations = Correlations(CORRELATIONS, HELPER, HUB, sealing, sizes, config.foundings)
    return KeyCentre(own, common, [Seed(CLIENTS, CLIENT), Seed(ENTRY, CLIENT, also=(HELPER,)), correlations])


def observe(federation: fl.Federation) -> Mapping[str, Any]:
    clients = list(federation.of_role(CLIENT))
    return {
        "membership": [[client.row.secret.group] if client.row.secret.group >= 0 else [] for client in clients],
        "why_kept": sorted({client.state.why for client in clients if client.state.why}),
        "kept_by": sum(client.state.why != "" for client in clients),
    }


def releases(config: Any, mode: str) -> Mapping[type[fl.Message], Sequence[str]]:
    # For the ledger. With one group of all nothing but numbers of samples is sent.
    if config.clusters == 1:
        return {}
    return {Summand: ("label statistics, in a sum",), SharedRow: ("which group, without a name",)}


def cold(config: CoterieConfig, mode: str) -> str:
    return "" if config.foundings > 1 else "no client ever sends a whole model with foundings=1: set foundings=2"


MORE = {
    HUB: "; with a member of a group, its label counts, too",
    HELPER: "; with any client all groups' label counts, too",
    CLIENT: "; once, the label counts of its group",
}
"""With ``label_counts``."""


def learns(config: CoterieConfig, mode: str) -> Mapping[str, str]:
    known = LEARNS | (ONE_GROUP if config.clusters == 1 else {})
    return {role: words + (MORE.get(role, "") if config.label_counts else "") for role, words in known.items()}


def assumes(config: CoterieConfig, mode: str) -> str:
    # with one group of all no rows are compared, so a server that deviates at the founding reads none
    servers = "hub and helper do not collude, and no client helps one of them; the key centre is honest at set-up"
    grouping = "" if config.clusters == 1 else "; both servers follow the protocol while groups are made"
    return f"{servers}; {fl.two_others('members of a group')}{grouping}"


LEARNS = {
    KEY_CENTRE: "when keys are wanted; it draws the clients' seeds and forgets them",
    HUB: "who takes part, when and how late, and how many groups of what sizes there are; no model, no sum, and no "
    "name's group. With a member of a group, that group's sums by name, and in time who is in it",
    HELPER: "the same; at the grouping, which positions without names are in one group. With any client all groups' "
    "sums",
    CLIENT: "its group's mean model of every round and the group's weight, and how much of that was there when groups "
    "were made anew; of all together, how many hold each label, "
    "the labels' shares and means, the second moments of the data, how far residuals scatter, and how many clients "
    "have how many samples",
}

ONE_GROUP = {
    HUB: "who takes part, when and how late; no model and no sum. With a client, all sums by name",
    HELPER: "the same; with any client, all sums",
    CLIENT: "the mean model of every round, and the weight of all, and how much of that was there when a run began "
    "with models (of one other alone, its model); how many clients have how many samples",
}
"""With ``clusters=1``."""

SYSTEM = fl.System(
    name="coterie",
    title="Coterie",
    citation="Means of hidden groups, in shares of two servers (this project's own, docs/systems/coterie.md)",
    config=CoterieConfig,
    parties=lambda _: {HUB: Hub, KEY_CENTRE: key_centre, HELPER: Helper, CLIENT: Client},
    check=check,
    cold=cold,
    models=fl.of_each(lambda client: client.state.weights),
    own_model=lambda client: client.state.weights,
    counts=lambda client: client.counts.secret.total,
    learns=learns,
    assumes=assumes,
    encrypted=True,
    observe=observe,
    ledger=fl.of_each(Client.releases),
    releases=releases,
)
