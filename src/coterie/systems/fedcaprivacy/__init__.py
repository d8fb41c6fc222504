"""FedCAPrivacy: Wei et al., "FedCAPrivacy: privacy-preserving heterogeneous federated learning with anonymous adaptive
clustering". Equation and line numbers are that paper's.

                     Granted (signed, sealed)
    key_centre  - - - - - - - - - - - - - - - - - - - ->  everybody                     before round 1

    participant --Upload-->  business_server  --Relayed, Cluster-->  csp                steps I to III
                             business_server  <----Clustered-------  csp                step IV
                             business_server  ---Aggregate/Convert-> csp
                             business_server  <----ClusterSum------  csp                step V
                             business_server  --Forget/Done-->       csp                at the end of every round
    participant <-ClusterModel- business_server                                         steps VI, VII

Departures from the text, each with its reason: docs/systems/fedcaprivacy_appendix.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import coterie.method as fl
from coterie.protocols.cluster_sums import keygen, pairs
from coterie.protocols.key_centre import KEY_CENTRE, KeyCentre, Seed
from coterie.protocols.masked_sums import Term
from coterie.protocols.signatures import Characterised
from coterie.systems.fedcaprivacy.business_server import BusinessServer
from coterie.systems.fedcaprivacy.config import FedCAPrivacyConfig, check
from coterie.systems.fedcaprivacy.csp import ServiceProvider
from coterie.systems.fedcaprivacy.messages import CSP, GROUP, HUB, PARTICIPANT, Upload
from coterie.systems.fedcaprivacy.participant import Participant


def key_centre(own: fl.Own, common: fl.Common, config: FedCAPrivacyConfig) -> KeyCentre:
    grants = *pairs(keygen(config, len(common.clients)), CSP, PARTICIPANT), Seed(GROUP, PARTICIPANT)
    return KeyCentre(own, common, grants)


def observe(federation: fl.Federation) -> Mapping[str, Any]:
    """The last affinity matrix, and phi, in the order of the clients."""
    (hub,), (csp,) = federation.of_role(HUB), federation.of_role(CSP)
    participants = [p.name for p in federation.of_role(PARTICIPANT)]
    seen: dict[str, Any] = {"membership": hub.membership(), "guard_bits": hub.config.lanes(len(hub.clients)).guard_bits}
    if csp.state.affinity is not None and csp.state.clustered == hub.state.clustered:
        place = {name: i for i, name in enumerate(participants)}
        there = [row for row, name in enumerate(hub.state.clustered_order) if name in place]  # of whom is looked at
        at = [place[hub.state.clustered_order[row]] for row in there]
        seen["affinity"] = np.full((len(participants),) * 2, np.nan)  # NaN: was not there when the clusters were made
        seen["affinity"][np.ix_(at, at)] = csp.state.affinity[np.ix_(there, there)].round(4)
    return seen


CSP_LEARNS = {
    "none": "all models of a round plus one common mask, in shuffled order: their exact differences, from which it can "
    "re-link clients across rounds and read label shares off the last layer; no names and no absolute weights",
    "sketch": "differences of short random projections in shuffled order and masked cluster sums, no coordinate of a "
    "model",
    "rotation": "differences of models under a secret rotation, so all distances",
    "signature": "differences of projected descriptors of the data, once, and nothing but masked sums of models",
}
OF_SIGNATURES = (
    "; of all participants together, the holders, shares and means of every label that three of them hold, and the "
    "second moments of the data"
)


def learns(config: FedCAPrivacyConfig, mode: str) -> Mapping[str, str]:
    protection = config.protection(mode)
    return {
        KEY_CENTRE: "when keys are wanted; it draws the encryption keys and forgets the secret ones",
        HUB: "who takes part and when, and every client's clusters by name (phi), which is the similarity that the "
        "paper promises to hide; models only as ciphertexts",
        CSP: CSP_LEARNS[protection],
        PARTICIPANT: "the mean models of its own clusters and their sizes; with a server's help, those of all "
        f"clusters, since all participants share one secret key{OF_SIGNATURES if protection == 'signature' else ''}",
    }


SUMMED = fl.FromTraining("model, in sums")
SHOWN = {
    "none": fl.FromTraining("model, in differences without a name"),
    "sketch": fl.FromTraining("sketch of the model, in differences without a name"),
    "rotation": fl.FromTraining("rotated model, in differences without a name"),
}


def releases(config: Any, mode: str) -> Mapping[type[fl.Message], Sequence[str]]:
    protection = config.protection(mode)
    if protection == "signature":
        term = ("label statistics, in a sum",)
        return {Upload: (SUMMED,), Term: term, Characterised: ("signature, in differences",)}
    return {Upload: (SHOWN[protection], SUMMED)}


SYSTEM = fl.System(
    name="fedcaprivacy",
    title="FedCAPrivacy",
    citation="Y. Wei, S. Zhao, C. Zhao, Z. Liu, Z. Chen, M. Zhao, FedCAPrivacy: privacy-preserving heterogeneous "
    "federated learning with anonymous adaptive clustering, arXiv:2503.23292 2025",
    cold="clusters form anew from one common model, and only participants hold the clusters' models",
    config=FedCAPrivacyConfig,
    parties=lambda _: {HUB: BusinessServer, KEY_CENTRE: key_centre, CSP: ServiceProvider, PARTICIPANT: Participant},
    check=check,
    models=fl.of_each(Participant.model),
    own_model=Participant.model,
    uncounted="its server would learn label counts by cluster, which its summed uploads do not show",
    learns=learns,
    assumes="business_server and csp do not collude, and no participant, all of which share one secret key, helps one; "
    f"{fl.two_others('participants')}; the key centre is honest at set-up; all parties follow the protocol",
    modes=("paper", "literal", "hardened"),
    settings_in={"hardened": {"descriptor": "signature", "clusters": "auto", "cipher": "pads"}},
    encrypted=True,
    observe=observe,
    releases=releases,
)
