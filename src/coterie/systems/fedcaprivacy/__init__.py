"""FedCAPrivacy: Wei et al., "FedCAPrivacy: privacy-preserving heterogeneous federated learning with anonymous adaptive
clustering". Equation and line numbers are that paper's.

                     Granted (signed, sealed)
    key_centre  - - - - - - - - - - - - - - - - - - - ->  everybody                     before round 1

    participant --Upload-->  business_server  --Relayed, Cluster-->  csp                steps I to III
                             business_server  <----Clustered-------  csp                step IV
                             business_server  ---Aggregate/Convert-> csp
                             business_server  <----ClusterSum------  csp                step V
                             business_server  --Forget/Forgotten-->  csp                at the end of every round
    participant <-ClusterModel- business_server                                         steps VI, VII

What each party sees: ``SEES``, and ``SEES_HARDENED`` for mode ``hardened``.

Assumes that the two servers do not collude, and that no participant colludes with one of them (all participants share
one secret key).

Departures from the text, each with its reason in docs/systems/fedcaprivacy.md:
- Sums and counts travel instead of means (eq. 9, 10), since there is no division in Z_N.
- The mask is one fresh random vector a round. It is drawn over the whole packed integer and never wraps.
- phi is kept by name and permuted anew each round. New clusters keep the numbers of old ones with the same members.
- Algorithm 2 is corrected in ``clustering/spectral.py``.
- A vector that is no model is left out.
- Signatures are Ed25519, and participants check signatures over the aggregates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from coterie.crypto.paillier import keygen as paillier_keygen
from coterie.protocol.effects import Vector
from coterie.protocol.messages import Message
from coterie.protocol.setup_info import Common, Own
from coterie.protocol.system import Federation, Sees, System
from coterie.protocols.anonymous import Forget, Forgotten, Relayed
from coterie.protocols.cluster_sums import ClusterModel, ClusterSum, Convert, Received, pairs
from coterie.protocols.key_centre import ENROLMENT, KEY_CENTRE, Deal, Granted, KeyCentre, Seed
from coterie.protocols.masked_sums import AskForTerm, Term, Total
from coterie.protocols.signatures import Characterise, Characterised, Group, Grouped
from coterie.systems.fedcaprivacy import messages
from coterie.systems.fedcaprivacy.business_server import BusinessServer
from coterie.systems.fedcaprivacy.config import FedCAPrivacyConfig, check
from coterie.systems.fedcaprivacy.csp import ServiceProvider
from coterie.systems.fedcaprivacy.messages import CSP, GROUP, HUB, PARTICIPANT
from coterie.systems.fedcaprivacy.participant import Participant


def key_centre(own: Own, common: Common, config: FedCAPrivacyConfig) -> KeyCentre:
    """Two key pairs, and a seed that the participants share."""
    keygen = partial(paillier_keygen, config.key_bits, config.lanes(len(common.clients)), config.randomness)
    grants = *pairs(keygen, CSP, PARTICIPANT), Seed(GROUP, PARTICIPANT)
    return KeyCentre(own, common, grants)


def models(federation: Federation) -> Mapping[str, Vector]:
    """omega_{i,g} of eq. (11): the mean of each participant's cluster models."""
    return {participant.name: participant.model() for participant in federation.of_role(PARTICIPANT)}


def observe(federation: Federation) -> Mapping[str, Any]:
    """The last affinity matrix and phi in the order of the clients, which only the observer can restore."""
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


SEES = {
    KEY_CENTRE: Sees((Deal,), "when keys are wanted; it draws the encryption keys and forgets the secret ones"),
    HUB: Sees(
        (*ENROLMENT, messages.Upload, messages.Clustered, ClusterSum, Forgotten, Received),
        "who takes part and when, and every client's clusters by name (phi), which is the similarity that the paper "
        "promises to hide; models only as ciphertexts",
    ),
    CSP: Sees(
        (Granted, Relayed, messages.Cluster, messages.Aggregate, Forget),
        "all models of a round plus one common mask, in shuffled order: their exact differences, from which it can "
        "re-link clients across rounds and read label shares off the last layer; no names and no absolute weights",
    ),
    PARTICIPANT: Sees(
        (Granted, messages.Train, ClusterModel),
        "the mean models of its own clusters and their sizes; with a server's help, those of all clusters, since all "
        "participants share one secret key",
    ),
}
SEES_HARDENED = {
    HUB: Sees((*SEES[HUB].receives, Term, Characterised, Grouped), SEES[HUB].learns),
    KEY_CENTRE: SEES[KEY_CENTRE],
    CSP: Sees(
        (Granted, Relayed, messages.Cluster, messages.Aggregate, Convert, Forget, Group),
        "with sketches: differences of short random projections in shuffled order and masked cluster sums, no "
        "coordinate of a model; with rotation: differences under a secret rotation, so all distances; with signatures: "
        "differences of projected descriptors of the data, once, and nothing but masked sums of models",
    ),
    PARTICIPANT: Sees(
        (*SEES[PARTICIPANT].receives, AskForTerm, Total, Characterise),
        f"{SEES[PARTICIPANT].learns}; with signatures also, of all participants together, the holders, shares and "
        "means of every label that three of them hold, and the second moments of the data",
    ),
}

SHOWN = {
    "none": "model, in differences without a name",
    "sketch": "sketch of the model, in differences without a name",
    "rotation": "rotated model, in differences without a name",
}


def releases(config: Any, mode: str) -> Mapping[type[Message], Sequence[str]]:
    """What a participant's messages tell, for the ledger. Masks, shuffles and projections have no epsilon."""
    protection = config.protection(mode)
    if protection == "signature":
        upload, term = ("model, in sums",), ("label statistics, in a sum",)
        return {messages.Upload: upload, Term: term, Characterised: ("signature, in differences",)}
    return {messages.Upload: (SHOWN[protection], "model, in sums")}


SYSTEM = System(
    name="fedcaprivacy",
    title="FedCAPrivacy",
    citation="Wei, Zhao, Zhao, Liu, Chen, Zhao, FedCAPrivacy: privacy-preserving heterogeneous federated learning with "
    "anonymous adaptive clustering",
    config=FedCAPrivacyConfig,
    parties=lambda _: {HUB: BusinessServer, KEY_CENTRE: key_centre, CSP: ServiceProvider, PARTICIPANT: Participant},
    check=check,
    models=models,
    own_model=Participant.model,
    sees=SEES,
    sees_in={"hardened": SEES_HARDENED},
    modes=("paper", "literal", "hardened"),
    settings_in={"hardened": {"descriptor": "signature", "clusters": "auto"}},
    encrypted=True,
    observe=observe,
    releases=releases,
)
