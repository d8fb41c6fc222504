"""The settings of MingledPie, and which of them work together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal

import coterie.method as fl
from coterie.aggregation.mingled import MOST_CONDITION
from coterie.clustering.identities import MAX_BITS, MAX_EXPECTED_TRIES
from coterie.clustering.identity_law import IdentityLaw
from coterie.protocols.threshold import Joint
from coterie.systems.mingledpie import layout
from coterie.systems.mingledpie.layout import Layout, Rebuilding, Solving
from coterie.systems.mingledpie.messages import CLIENT, MODELS


@fl.settings
class MingledPieConfig(fl.ClusterModels):
    """Settings of MingledPie; defaults are the paper's (section VI-A).

    p: false positive rate of the identities, 2^-n for a whole n.  p_changes: later rates, "10:0.25,30:0.5" for .25
    from round 10 and .5 from round 30. A change brings new keys and new sets, which an observer can intersect with the
    old ones.
    keep_sets: keep the sets in spite of new keys, and with them the old p, while a client stays in its cluster.
    threshold: T, the least identities of a client.  threshold_counts: whether T counts "identities", as in the text, or
    "false_positives", which fits table II's numbers.
    rebuild: "counts" of algorithm 2, or for ablation (table V) "ideal", the matrix of eq. (11), or "none".
    max_condition: the largest condition of H (with columns of length 1). Above it H is solved with the smallest
    sufficient ridge around the models of the round before. In mode literal these models are kept instead.
    hardening: in mode hardened, exact sums by k-fold "uploads" or by "products" of ciphertexts.
    keys: "shared": all clients hold one secret key. "threshold": some clients make a key of which each holds a share,
    and open the sums together, for the server too.
    holders: how many clients hold a share; 0 for 7, or all if they are fewer.  openers: how many of them open a sum; 0
    for more than half.
    shared_layers: (beginnings of) names of layers that all clients share, separated by commas. The others belong to the
    clusters (section III-A).  min_participants: fewer updates skip a round.
    """

    p: float = 0.5
    p_changes: str = ""
    keep_sets: bool = False
    threshold: int = 2
    threshold_counts: Literal["identities", "false_positives"] = "identities"
    rebuild: Literal["counts", "ideal", "none"] = "counts"
    max_condition: Annotated[float, fl.Meta(gt=1, le=MOST_CONDITION)] = 30.0
    hardening: Literal["uploads", "products"] = "products"
    keys: Literal["shared", "threshold"] = "shared"
    holders: int = 0
    openers: int = 0
    shared_layers: str = ""
    min_participants: Annotated[int, fl.Meta(ge=1)] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        for p in self.rates().values():
            tries = self.law(p).expected_tries
            if p < 2.0**-MAX_BITS or tries > MAX_EXPECTED_TRIES:
                raise fl.UserError(
                    f"p={p:g} with threshold={self.threshold} takes {tries:.3g} tries a set: raise p (to at least "
                    f"2^-{MAX_BITS} in any case) or lower the threshold"
                )
        if self.rebuild == "ideal" and self.p_changes:
            raise fl.UserError("rebuild=ideal rests on one p: it can't go with p_changes")

    def committee(self, clients: Sequence[str]) -> tuple[str, ...]:
        """Holders of shares, with keys=threshold: the first clients in round 1."""
        return tuple(fl.joined(clients, self, 1)[: self.holders or MOST_HOLDERS])

    def joint(self, clients: Sequence[str]) -> Joint:
        """With keys=threshold. Raises UserError for too few holders or openers."""
        holders = len(self.committee(clients))
        openers = self.openers or holders // 2 + 1
        if self.holders > holders or not 2 <= openers <= holders:
            raise fl.UserError(
                f"keys=threshold: {openers} of {self.holders or holders} holders can't open sums, with {holders} "
                "clients in round 1: at least 2 openers, as many holders, and as many clients"
            )
        most = self.clusters + 1  # of mingled sums, and one of the layers that all share
        return Joint(MODELS, layout.JOINT, (CLIENT,), openers, openers, FEWEST, sums=most)

    def rates(self) -> dict[int, float]:
        rates = {0: self.p}
        for part in filter(None, (text.strip() for text in self.p_changes.split(","))):
            since, _, rate = part.partition(":")
            try:
                r, p = int(since), float(rate)
            except ValueError:
                raise fl.UserError(f"p_changes: {part!r} is not of the form ROUND:RATE, such as 10:0.25") from None
            if r < 1 or r in rates:
                raise fl.UserError(f"p_changes: {part!r} is before round 1, or its round stands there twice")
            rates[r] = p
        for p in rates.values():
            if not 0 < p < 1 or math.log2(p) % 1:
                raise fl.UserError(f"p must be 1/2, 1/4, 1/8, ... (2^-n of eq. 1), not {p}")
        return rates

    def rate(self, r: int) -> float:
        rates = self.rates()
        return rates[max(since for since in rates if since <= r)]

    def bits(self, r: int) -> int:
        return round(-math.log2(self.rate(r)))

    def law(self, p: float) -> IdentityLaw:
        """Raises UserError if there can be no sets."""
        return IdentityLaw(self.clusters, p, self.threshold, self.threshold_counts)

    def kind(self, mode: str) -> Literal["mingled", "uploads", "products"]:
        return self.hardening if mode == "hardened" else "mingled"

    def beyond_budget(self) -> Mapping[str, str]:
        found = dict(super().beyond_budget())
        if self.participation < 1:
            found["participation"] = "after every round the sums go to all clients, and not to this share alone"
        return found


MOST_HOLDERS = 7
"""Holders of shares by default."""
FEWEST = 3
"""With keys=threshold, updates in a sum that is opened."""
UNUSED = {
    "paper": ("hardening",),
    "literal": ("hardening", "rebuild"),
    "hardened": ("rebuild", "p", "p_changes", "keep_sets", "threshold", "threshold_counts", "max_condition"),
}
"""By mode, settings without effect."""


def check(config: MingledPieConfig, common: fl.Common) -> None:
    fl.refuse_unused(config, f"mode {common.mode}", True, *UNUSED[common.mode])
    fl.refuse_unused(config, "keys=shared", config.keys == "shared", "holders", "openers")
    if config.keys == "threshold":
        config.joint(common.clients)
        if config.kind(common.mode) == "products":
            raise fl.UserError(
                "keys=threshold has no room for products of vectors: with mode hardened take hardening=uploads"
            )
    founders = len(fl.joined(common.clients, config, 1))
    present = max(1, round(config.participation * founders))
    if config.min_participants > present:
        raise fl.UserError(
            f"min_participants is {config.min_participants}, but round 1 asks only {present} of {founders} clients"
        )
    if common.mode == "paper" and config.rebuild == "counts" and config.law(config.p).least == config.clusters:
        raise fl.UserError(
            f"threshold={config.threshold} puts every client into all {config.clusters} clusters, and nothing can be "
            "rebuilt: lower it, or take more clusters"
        )
    most = layout_of(config, common.spec, common.mode).parameters
    if len(common.clients) > most.max_terms:
        raise fl.UserError(f"{len(common.clients)} clients, but {most.name} sums up at most {most.max_terms}")


@lru_cache(maxsize=4)
def layout_of(config: MingledPieConfig, spec: fl.ModelSpec, mode: str) -> Layout:
    """Raises UserError if no layer is left for the clusters."""
    shared = tuple(filter(None, (name.strip() for name in config.shared_layers.split(","))))
    return Layout(config.kind(mode), config.clusters, spec, shared, config.keys == "threshold")


@lru_cache(maxsize=4)
def rebuilding_of(config: MingledPieConfig, spec: fl.ModelSpec, mode: str) -> Rebuilding:
    solving: Solving = "literal" if mode == "literal" else config.rebuild
    least = 1 if solving == "literal" else config.law(config.p).least
    return Rebuilding(layout_of(config, spec, mode), solving, config.p, config.max_condition, least)


def declared(party: Any) -> tuple[Joint, ...]:
    return (party.config.joint(party.clients),) if party.config.keys == "threshold" else ()


def with_keys(keys: str) -> fl.When:
    return lambda config, mode: config.keys == keys
