"""MingledPie: Zhang, Xu, Tan, An, Jin, "MingledPie: a cluster mingling approach for mitigating preference profiling in
CFL", NDSS 2025. Equation, algorithm and section numbers are that paper's.

                     Credentials (sealed)
    key_centre  - - - - - - - - - - - - - - ->  everybody              before round 1

    server  --Parameters-->  client  --Noted----->  server             at the start, for newcomers, when p changes
    server  --Train------->  client  --Update---->  server             algorithm 3, lines 12 to 22
    server  --Mingled----->  client  --Received-->  server             line 23, and lines 7 to 11 of the next round

Sees (``paper``). key_centre: verify keys; it draws the clients' key pair and forgets it. server: every client's set of
cluster identities CI_i, by name, in every round, and ciphertexts; the true cluster is one of the set. client: all
cluster models, and H: how many clients of each cluster were mingled into each. In ``hardened`` mode there are no
identities: server sees who takes part, client the sizes of the true clusters.
Assumes an honest-but-curious server, and that no client shares the clients' one secret key with it: together they open
everything. A client whose encrypted indicator is not one-hot spoils everybody's models; the others notice most such
indicators and keep their models, but cannot tell whose it was.

Departures from the text, each with its reason in docs/systems/mingledpie.md: eq. (3) compares the true cluster's key
with cluster j's address; eq. (7) and (8) take sums, not means; theta_i and sigma_i travel in one ciphertext vector;
line 14 trains the client's cluster model; H is checked, and solved with a ridge where it is ill-conditioned; messages
are signed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from coterie.aggregation.mingled import MOST_CONDITION
from coterie.clustering.identities import MAX_BITS, MAX_EXPECTED_TRIES
from coterie.clustering.identity_law import IdentityLaw
from coterie.crypto.ckks import keygen as ckks_keygen
from coterie.protocol.effects import Vector
from coterie.protocol.errors import UserError
from coterie.protocol.system import Federation, Sees, Setting, System
from coterie.protocols.cluster_models import ClusterModels
from coterie.protocols.idle import refuse_idle
from coterie.protocols.key_centre import KEY_CENTRE, Credentials, Enrol, Join, KeyCentre, Pair, Ready
from coterie.protocols.local_training import joined
from coterie.systems.mingledpie.forms import Form, Rebuilding, Solving
from coterie.systems.mingledpie.messages import CLIENT, HUB, Mingled, Noted, Parameters, Received, Train, Update


@dataclass(frozen=True)
class MingledPieConfig(ClusterModels):
    """Settings of MingledPie; defaults are the paper's (section VI-A).

    p: false positive rate of the identities, 2^-n for a whole n.  p_changes: later rates, "10:0.25,30:0.5" for .25
    from round 10 and .5 from round 30; new keys mean new identity sets, which an observer can intersect.
    keep_sets: keep the sets in spite of new keys; then p stays what it was for whoever stays in its cluster.
    threshold: T, the least identities of a client.  threshold_counts: whether T counts "identities", as in the text, or
    "false_positives", which is what table II's numbers fit.
    rebuild: "counts" of algorithm 2, or for ablation (table V) "ideal", the matrix of eq. (11), or "none".
    max_condition: of H with columns of length 1. Above it H is solved with a ridge around the models of the round
    before, the smallest that brings the condition down to it; in mode literal these models are kept instead.
    hardening: in mode hardened, exact sums by k-fold "uploads" or by "products" of ciphertexts.
    shared_layers: names of layers that all clients share (or the beginnings of names), separated by commas; the others
    are personal to the clusters (section III-A).  min_participants: fewer updates skip a round.
    """

    clusters: int = 5
    p: float = 0.5
    p_changes: str = ""
    keep_sets: bool = False
    threshold: int = 2
    threshold_counts: Literal["identities", "false_positives"] = "identities"
    rebuild: Literal["counts", "ideal", "none"] = "counts"
    max_condition: float = 30.0
    hardening: Literal["uploads", "products"] = "products"
    shared_layers: str = ""
    min_participants: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        for p in self.rates().values():
            tries = self.law(p).expected_tries
            if p < 2.0**-MAX_BITS or tries > MAX_EXPECTED_TRIES:
                raise UserError(
                    f"p={p:g} with threshold={self.threshold} takes {tries:.3g} tries a set: raise p (to at least "
                    f"2^-{MAX_BITS} in any case) or lower the threshold"
                )
        choices = {"rebuild": ("counts", "ideal", "none"), "hardening": ("uploads", "products")}
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise UserError(f"{name} must be one of {', '.join(known)}, not {getattr(self, name)!r}")
        if self.min_participants < 1:
            raise UserError(f"min_participants must be at least 1, not {self.min_participants}")
        if not 1 < self.max_condition <= MOST_CONDITION:
            raise UserError(f"max_condition must be above 1 and at most {MOST_CONDITION:g}, not {self.max_condition}")
        if self.rebuild == "ideal" and self.p_changes:
            raise UserError("rebuild=ideal rests on one p: it can't go with p_changes")

    def rates(self) -> dict[int, float]:
        """p from round 0 on and from later rounds on, by round."""
        rates = {0: self.p}
        for part in filter(None, (text.strip() for text in self.p_changes.split(","))):
            since, _, rate = part.partition(":")
            try:
                r, p = int(since), float(rate)
            except ValueError:
                raise UserError(f"p_changes: {part!r} is no ROUND:RATE such as 10:0.25") from None
            if r < 1 or r in rates:
                raise UserError(f"p_changes: {part!r} comes before round 1, or says its round twice")
            rates[r] = p
        for p in rates.values():
            if not 0 < p < 1 or math.log2(p) % 1:
                raise UserError(f"p must be 1/2, 1/4, 1/8, ... (2^-n of eq. 1), not {p}")
        return rates

    def rate(self, r: int) -> float:
        """p in round r."""
        rates = self.rates()
        return rates[max(since for since in rates if since <= r)]

    def bits(self, r: int) -> int:
        """n in round r."""
        return round(-math.log2(self.rate(r)))

    def law(self, p: float) -> IdentityLaw:
        """How identity sets are distributed. Raises UserError where there can be none."""
        return IdentityLaw(self.clusters, p, self.threshold, self.threshold_counts)

    def kind(self, mode: str) -> Literal["mingled", "uploads", "products"]:
        """The form of ``forms.py``."""
        return self.hardening if mode == "hardened" else "mingled"

    def solving(self, mode: str) -> Solving:
        """How models are rebuilt."""
        return "literal" if mode == "literal" else self.rebuild


IDLE = {
    "paper": ("hardening",),
    "literal": ("hardening", "rebuild"),
    "hardened": ("rebuild", "p", "p_changes", "keep_sets", "threshold", "threshold_counts", "max_condition"),
}
"""Settings that mean nothing in a mode."""


def _check(config: MingledPieConfig, setting: Setting) -> None:
    """Raises UserError for what can't work among these clients, or means nothing beside the other settings."""
    refuse_idle(config, ((name, f"mode {setting.mode}", True) for name in IDLE[setting.mode]))
    founders = len(joined(setting.clients, config, 1))
    present = max(1, round(config.participation * founders))
    if config.min_participants > present:
        raise UserError(
            f"min_participants is {config.min_participants}, but round 1 asks only {present} of {founders} clients"
        )
    if setting.mode == "paper" and config.rebuild == "counts" and config.law(config.p).least == config.clusters:
        raise UserError(
            f"threshold={config.threshold} puts every client into all {config.clusters} clusters, and nothing can be "
            "rebuilt: lower it, or take more clusters"
        )


def build(config: MingledPieConfig, setting: Setting) -> Federation:
    """Key centre, server and clients."""
    from coterie.systems.mingledpie.client import Client
    from coterie.systems.mingledpie.server import Server

    _check(config, setting)
    shared = tuple(filter(None, (name.strip() for name in config.shared_layers.split(","))))
    form = Form(config.kind(setting.mode), config.clusters, setting.spec, shared)
    if len(setting.clients) > form.parameters.max_terms:
        raise UserError(
            f"{len(setting.clients)} clients, but {form.parameters.name} sums up at most {form.parameters.max_terms}"
        )
    least = config.law(config.p).least if setting.mode != "literal" else 1
    rebuild = Rebuilding(form, config.solving(setting.mode), config.p, config.max_condition, least)
    members = {HUB: HUB, **dict.fromkeys(setting.clients, CLIENT)}
    key_centre = KeyCentre(
        setting.randomness,
        members,
        {HUB: setting.clients, CLIENT: (HUB,)},
        users=Pair(CLIENT, partial(ckks_keygen, form.parameters.name)),
    )
    starts = config.starts(setting)
    parties: list[Any] = [Server(setting, config, form, starts), key_centre]
    parties += [Client(name, setting, config, rebuild, starts) for name in setting.clients]
    return Federation({party.name: party for party in parties}, HUB)


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
    """All models that clients choose from: each client has its own copy, and most clients the same."""
    return (client.models() for client in federation.of_role(CLIENT))


def observe(federation: Federation) -> Mapping[str, Any]:
    """True clusters (which no party but the client knows), and how the last rebuild went."""
    clients = federation.of_role(CLIENT)
    return {
        "membership": [[] if c.secret.cluster < 0 else [c.secret.cluster] for c in clients],
        "identity_sets_drawn": [c.secret.drawn for c in clients],
        "condition": [c.state.condition for c in clients],
        "ridge": [c.state.ridge for c in clients],
        "kept": [list(c.state.kept) for c in clients],
        "why_kept": sorted({c.state.why for c in clients if c.state.why}),
    }


ENROLMENT = (Join, Credentials)
OF_CLIENT = (*ENROLMENT, Parameters, Train, Mingled)
SEES = {
    KEY_CENTRE: Sees((Enrol,), "everybody's public verify key; it draws the clients' key pair and forgets it"),
    HUB: Sees(
        (Credentials, Ready, Noted, Update, Received),
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
    HUB: Sees((Credentials, Ready, Noted, Update, Received), "who takes part; all else is encrypted"),
    CLIENT: Sees(
        OF_CLIENT,
        "all cluster models and the sizes of the true clusters; with the server's help, every client's model, since "
        "all clients share one secret key",
    ),
}

SYSTEM = System(
    name="mingledpie",
    title="MingledPie",
    citation="Zhang, Xu, Tan, An, Jin, MingledPie: a cluster mingling approach for mitigating preference profiling in "
    "CFL, NDSS 2025",
    config=MingledPieConfig,
    build=build,
    models=models,
    sees=SEES,
    sees_in={"hardened": SEES_HARDENED},
    modes=("paper", "literal", "hardened"),
    encrypted=True,
    observe=observe,
    pool=pool,
)
