"""FedCAPrivacy: Wei et al., "FedCAPrivacy: privacy-preserving heterogeneous federated learning with anonymous adaptive
clustering". Equation and line numbers are that paper's.

                         Credentials (sealed)
    key_centre  - - - - - - - - - - - - - - - - - - - ->  everybody                     before round 1

    participant --Upload-->  business_server  --Blinded, Cluster-->  csp                steps I to III
                             business_server  <----Clustered-------  csp                step IV
                             business_server  ---Aggregate/Convert-> csp
                             business_server  <----ClusterSum------  csp                step V
                             business_server  --Forget/Forgotten-->  csp                at the end of every round
    participant <-ClusterModel- business_server                                         steps VI, VII

Sees (``paper``). key_centre: verify keys. business_server: who takes part and when, every client's clusters by name
(phi), cluster sizes; no model. csp: all models plus one common mask in shuffled order, so their exact differences, and
the clusters; no names. participant: its own clusters' mean models and sizes.
In ``hardened`` mode with sketches, csp sees differences of random projections instead and of masked sums nothing; with
rotation, differences of models under a secret rotation, so distances and nothing of single coordinates.
Assumes that the two servers do not collude, and no participant with either (all participants share one secret key).

Departures from the text, each with its reason in docs/systems/fedcaprivacy.md: sums and counts travel instead of means
(eq. 9, 10: no division in Z_N); the mask is one fresh random vector a round, drawn over the whole packed integer, never
wrapping; phi is kept by name and permuted anew each round, and new clusters keep the old ones' numbers as far as their
members are the same; algorithm 2 as mended in ``clustering/spectral.py``; a vector that is no model is left out;
signatures are Ed25519 and those that participants check are over the aggregates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from coterie.clustering.schedule import parse_schedule
from coterie.crypto.packing import Lanes
from coterie.crypto.paillier import keygen as paillier_keygen
from coterie.protocol.effects import Vector
from coterie.protocol.errors import UserError
from coterie.protocol.system import Federation, Sees, Setting, System
from coterie.protocols.idle import refuse_idle
from coterie.protocols.key_centre import KEY_CENTRE, Credentials, Enrol, Join, KeyCentre, Pair, Ready
from coterie.protocols.local_training import LocalTraining, sample_size
from coterie.systems.fedcaprivacy.messages import (
    CSP,
    HUB,
    PARTICIPANT,
    Aggregate,
    Blinded,
    Cluster,
    Clustered,
    ClusterModel,
    ClusterSum,
    Convert,
    Forget,
    Forgotten,
    Received,
    Train,
    Upload,
)

GUARD_BITS = 8
"""Of a lane at least, where the setting is "auto": a lane of 32 bits is packed fastest."""


@dataclass(frozen=True)
class FedCAPrivacyConfig(LocalTraining):
    """Settings of FedCAPrivacy; defaults are the paper's where it gives one (section VI-A).

    clusters: c, their number, or "auto": as many as stand out from noise (``clustering/number.py``), counted in every
    round; then the schedule is what happens at least, since clusters are also made anew when their number changes and
    until they move nobody.  gamma: scale of eq. (8), or "median".  kernel: "laplacian" as printed, or "rbf".
    alpha: decay of the clustering frequency.  schedule: "decay", "always" or "every:DELTA".
    key_bits: Paillier modulus, 2048 or 3072.  fraction_bits: rho of eq. (4).  value_bits, guard_bits, kappa: of a lane
    (``crypto/packing.py``); guard_bits "auto" is 8, or as many as the sum over all clients that a round asks needs.
    max_age_s: oldest acceptable upload, in seconds.  min_participants: fewer uploads skip a round.
    hardening: "sketch" or "rotation", in mode hardened.  sketch_dim: numbers in a sketch.
    min_cluster: smallest cluster whose sum is released, in mode hardened; of a cluster of two, each member can tell the
    other's model.  randomness: of Paillier, "short" exponents (``crypto/paillier.py`` states the assumption) or the
    plain "full" r^N.  max_ahead_s: how far a participant's clock may be ahead of the hub's.
    """

    clusters: int | Literal["auto"] = 5
    gamma: float | Literal["median"] = 0.5
    kernel: Literal["laplacian", "rbf"] = "laplacian"
    alpha: float = 0.1
    schedule: str = "decay"
    key_bits: int = 2048
    fraction_bits: int = 16
    value_bits: int = 24
    guard_bits: int | Literal["auto"] = "auto"
    kappa: int = 40
    max_age_s: float = 86_400.0
    min_participants: int = 2
    hardening: Literal["sketch", "rotation"] = "sketch"
    sketch_dim: int = 64
    min_cluster: int = 3
    randomness: Literal["short", "full"] = "short"
    max_ahead_s: float = 60.0

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_schedule(self.schedule, self.alpha)
        self.lanes(1)
        for name in ("clusters", "min_participants", "sketch_dim", "min_cluster"):
            if getattr(self, name) != "auto" and getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.hardening not in ("sketch", "rotation"):
            raise UserError(f"hardening must be 'sketch' or 'rotation', not {self.hardening!r}")
        if not self.max_age_s > 0 or not self.max_ahead_s >= 0:
            raise UserError(f"max_age_s must be positive, not {self.max_age_s}, and max_ahead_s not {self.max_ahead_s}")
        if self.gamma != "median" and not (isinstance(self.gamma, int | float) and 0 < self.gamma < math.inf):
            raise UserError(f"gamma must be a positive number or 'median', not {self.gamma!r}")

    def lanes(self, clients: int) -> Lanes:
        """The fixed-point format of eq. (4); guard_bits "auto" hold a sum over all that a round asks of ``clients``."""
        needed = (sample_size(clients, self.participation) - 1).bit_length()
        guard_bits = max(GUARD_BITS, needed) if self.guard_bits == "auto" else self.guard_bits
        return Lanes(self.fraction_bits, self.value_bits, guard_bits, self.kappa)


IDLE = {
    "paper": ("hardening", "sketch_dim", "min_cluster"),
    "literal": ("hardening", "sketch_dim", "min_cluster"),
    "hardened": (),
}
"""Settings that mean nothing in a mode."""


def _check(config: FedCAPrivacyConfig, setting: Setting) -> None:
    """Raises UserError for what can't work among these clients, or means nothing beside the other settings."""
    refuse_idle(
        config,
        (
            *((name, f"mode {setting.mode}", True) for name in IDLE[setting.mode]),
            ("sketch_dim", "hardening=rotation", config.hardening == "rotation"),
            ("alpha", f"schedule={config.schedule}", config.schedule != "decay"),
        ),
    )
    if config.clusters == "auto" and setting.mode == "literal":
        raise UserError("clusters=auto is no text of the paper: in mode literal give their number")
    asked = sample_size(len(setting.clients), config.participation)
    if asked > (room := config.lanes(len(setting.clients)).max_terms):
        raise UserError(
            f"a round asks {asked} clients, but lanes with guard_bits={config.guard_bits} sum up at most {room}: "
            "choose more guard_bits, or auto"
        )
    smallest = config.min_cluster if setting.mode == "hardened" else 1
    for name, needed in (("min_participants", config.min_participants), ("min_cluster", smallest)):
        if needed > asked:
            raise UserError(f"{name} is {needed}, but a round asks only {asked} of {len(setting.clients)} clients")


def build(config: FedCAPrivacyConfig, setting: Setting) -> Federation:
    """Key centre, business server, cloud service provider and one participant for every client."""
    from coterie.systems.fedcaprivacy.business_server import BusinessServer
    from coterie.systems.fedcaprivacy.csp import ServiceProvider
    from coterie.systems.fedcaprivacy.participant import Participant

    _check(config, setting)
    members = {HUB: HUB, CSP: CSP, **dict.fromkeys(setting.clients, PARTICIPANT)}
    keygen = partial(paillier_keygen, config.key_bits, config.lanes(len(setting.clients)), config.randomness)
    key_centre = KeyCentre(
        setting.randomness,
        members,
        {HUB: (CSP, *setting.clients), CSP: (HUB,), PARTICIPANT: (HUB, CSP)},
        users=Pair(PARTICIPANT, keygen),
        service=Pair(CSP, keygen),
        shared_seed=True,
    )
    parties: list[Any] = [BusinessServer(setting, config), key_centre, ServiceProvider(setting, config)]
    parties += [Participant(pid, name, setting, config) for pid, name in enumerate(setting.clients)]
    return Federation({party.name: party for party in parties}, HUB)


def models(federation: Federation) -> Mapping[str, Vector]:
    """omega_{i,g} of eq. (11): the mean of the cluster models that each participant has."""
    return {participant.name: participant.model() for participant in federation.of_role(PARTICIPANT)}


def observe(federation: Federation) -> Mapping[str, Any]:
    """The last affinity matrix and phi, put back into the order of the clients (the observer may; no party can)."""
    (hub,), (csp,) = federation.of_role(HUB), federation.of_role(CSP)
    participants = [p.name for p in federation.of_role(PARTICIPANT)]
    seen: dict[str, Any] = {"membership": hub.membership(), "guard_bits": hub.config.lanes(len(hub.clients)).guard_bits}
    if csp.state.affinity is not None and csp.state.clustered == hub.state.clustered:
        place = {name: i for i, name in enumerate(participants)}
        at = [place[name] for name in hub.state.clustered_order]
        seen["affinity"] = np.full((len(participants),) * 2, np.nan)  # NaN: was not there when the clusters were made
        seen["affinity"][np.ix_(at, at)] = csp.state.affinity.round(4)
    return seen


ENROLMENT = (Join, Credentials)
SEES = {
    KEY_CENTRE: Sees(
        (Enrol,), "everybody's public verify key; it draws the encryption keys and forgets the secret ones"
    ),
    HUB: Sees(
        (Credentials, Ready, Upload, Clustered, ClusterSum, Forgotten, Received),
        "who takes part and when, and every client's clusters by name (phi), which is the similarity that the paper "
        "promises to hide; models only as ciphertexts",
    ),
    CSP: Sees(
        (*ENROLMENT, Blinded, Cluster, Aggregate, Forget),
        "all models of a round plus one common mask, in shuffled order: their exact differences, from which it can "
        "re-link clients across rounds and read label shares off the last layer; no names and no absolute weights",
    ),
    PARTICIPANT: Sees(
        (*ENROLMENT, Train, ClusterModel),
        "the mean models of its own clusters and their sizes; with a server's help, everybody's, since all "
        "participants share one secret key",
    ),
}
SEES_HARDENED = {
    **SEES,
    CSP: Sees(
        (*ENROLMENT, Blinded, Cluster, Aggregate, Convert, Forget),
        "with sketches: differences of short random projections in shuffled order and masked cluster sums, no "
        "coordinate of a model; with rotation: differences under a secret rotation, so all distances",
    ),
}

SYSTEM = System(
    name="fedcaprivacy",
    title="FedCAPrivacy",
    citation="Wei, Zhao, Zhao, Liu, Chen, Zhao, FedCAPrivacy: privacy-preserving heterogeneous federated learning with "
    "anonymous adaptive clustering",
    config=FedCAPrivacyConfig,
    build=build,
    models=models,
    sees=SEES,
    sees_in={"hardened": SEES_HARDENED},
    modes=("paper", "literal", "hardened"),
    encrypted=True,
    observe=observe,
)
