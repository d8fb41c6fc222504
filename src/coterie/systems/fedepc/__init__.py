"""FedEPC: Tang et al., "FedEPC: an efficient and privacy-enhancing clustering federated learning method for
sensing-computing fusion scenarios", CMC 85(2), 2025. Equation, algorithm and line numbers are that paper's.

    server --Describe--> device --Described--> server       algorithm 1, before round 1 and for devices that are new
    server                                                  algorithm 2: clusters
    server                                                  algorithm 3: some devices of every cluster, every round
    server --Train-----> device --Update-----> server       algorithm 4, l. 5 to 10
    server --Model-----> device --Done-------> server       algorithm 4, l. 19, at the end (or after every round)

Mode ``hardened`` (not in the paper), with a helper and a key centre:

    key_centre - - Granted (signed, sealed) - - ->  all     before round 1
    device --Concealed--> server --Relayed, Cluster--> helper --Clustered--> server        algorithms 1 and 2
    device --Sealed-----> server --Convert-----------> helper --ClusterSum-> server --ClusterModel--> device

Departures from the text, each with its reason: docs/systems/fedepc_appendix.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import coterie.method as fl
from coterie.protocols import cluster_sums
from coterie.protocols.key_centre import KEY_CENTRE, KeyCentre
from coterie.systems.fedepc.config import FedEPCConfig, check
from coterie.systems.fedepc.device import Describer, Device, HardenedDevice
from coterie.systems.fedepc.hardened import HardenedServer
from coterie.systems.fedepc.helper import Helper
from coterie.systems.fedepc.messages import DEVICE, HELPER, HUB
from coterie.systems.fedepc.server import Server


def key_centre(own: fl.Own, common: fl.Common, config: FedEPCConfig) -> KeyCentre:
    keygen = cluster_sums.keygen(config, len(common.clients))
    return KeyCentre(own, common, cluster_sums.pairs(keygen, HELPER, DEVICE))


def models(federation: fl.Federation) -> Mapping[str, fl.Vector]:
    """W^0 for a device that was in no cluster yet."""
    if federation.common.mode == "hardened":
        held = {device.name: device.state.weights for device in federation.of_role(DEVICE)}
        return {name: federation.common.initial if model is None else model for name, model in held.items()}
    hub = federation.look(federation.hub)
    of = {**hub.state.former, **hub.state.cluster_of}
    return {name: hub.weights(of.get(name)) for name in federation.common.clients}


def observe(federation: fl.Federation) -> Mapping[str, Any]:
    """Vectors (n, C) and floors (n,), NaN for devices without a description, and clusters."""
    said = {device.name: device.state.said for device in federation.of_role(DEVICE)}
    channels = next((len(one.vector) for one in said.values() if one is not None), 0)
    unknown = np.full(channels, np.nan)
    hub = federation.look(federation.hub)
    seen: dict[str, Any] = {"membership": hub.membership()}
    if channels:
        rows = [unknown if one is None else one.vector for one in said.values()]
        seen["features"] = np.stack(rows).astype(np.float64).round(4)
        seen["floors"] = np.array([np.nan if one is None else one.floor for one in said.values()]).round(6)
    return seen


LEARNS = {
    HUB: "by name: every device's sparsity vector, from which its label shares can be told, noise floor, processor, "
    "memory and number of samples; the plain models of chosen devices, and the losses that they and the panels measure",
    DEVICE: "the extractor, the models of its own cluster in rounds in which it is chosen or measures, and the last "
    "one",
}
LEARNS_HARDENED = {
    KEY_CENTRE: "when keys are wanted; it draws the encryption keys and forgets the secret ones",
    HUB: "by name: every device's cluster, processor, memory and number of samples, the losses that the chosen and the "
    "panels measure, and the norms of the changes of the chosen; vectors and models only as ciphertexts",
    HELPER: "every device's sparsity vector and noise floor under a place that stands for no name, but stays the same "
    "when the device describes new data; masked sums of models",
    DEVICE: "the extractor, and the mean model of its cluster after every round; with the hub's help, those of all "
    "clusters, since all devices share one secret key",
}


def assumes(config: FedEPCConfig, mode: str) -> str:
    if mode != "hardened":
        return ""
    return (
        "server and helper do not collude, and no device, all of which share one secret key, helps one; "
        f"{fl.two_others('devices')}; the key centre is honest at set-up; all parties follow the protocol"
    )


SYSTEM = fl.System(
    name="fedepc",
    title="FedEPC",
    citation="N. Tang, W. Luo, Y. Wang, B. Feng, S. Yang, J. Xu, D. Zhu, Z. Huang, W. Liang, FedEPC: an efficient and "
    "privacy-enhancing clustering federated learning method for sensing-computing fusion scenarios, "
    "Computers Materials & Continua 85(2), 2025",
    cold="clusters form anew from one common model, and it ends with one for each cluster",
    config=FedEPCConfig,
    parties=lambda _: {HUB: Server, DEVICE: Device},
    parties_in={
        "hardened": lambda _: {HUB: HardenedServer, KEY_CENTRE: key_centre, HELPER: Helper, DEVICE: HardenedDevice}
    },
    check=check,
    models=models,
    own_model=Describer.model,
    sent_next=True,
    uncounted="clusters of its hardened mode would show label counts that its noisy vectors hide",
    learns=lambda _, mode: LEARNS_HARDENED if mode == "hardened" else LEARNS,
    assumes=assumes,
    settings_in={"literal": {"fill": 0.0}, "hardened": {"distribute": "round", "cipher": "pads"}},
    modes=("paper", "literal", "hardened"),
    encrypted=True,
    plain=("paper", "literal"),
    observe=observe,
    public=0.05,
    ledger=fl.of_each(Describer.releases),
)
