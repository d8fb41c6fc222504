"""The settings of FedCAPrivacy, and which of them work together."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Literal

import coterie.method as fl
from coterie.clustering.schedule import parse_schedule
from coterie.clustering.signature import BOUND
from coterie.crypto.packing import Lanes
from coterie.protocols.cluster_sums import EncryptedTraining
from coterie.protocols.masked_sums import FEWEST

Protection = Literal["none", "sketch", "rotation", "signature"]


@fl.settings
class FedCAPrivacyConfig(EncryptedTraining):
    """Settings of FedCAPrivacy; defaults are the paper's where it gives one (section VI-A).

    clusters: c, the number of clusters; or "auto": every round counts those that stand out from noise
    (``clustering/number.py``). Then clusters are also made anew when their number changes, and until a clustering moves
    no participant: the schedule is a lower bound.
    gamma: scale of the affinity, eq. (8), or "median".  kernel: of the affinity, "laplacian" as printed, or "rbf".
    alpha: decay of the clustering frequency.  schedule: of the clusterings, "decay", "always" or "every:DELTA".
    guard_bits: bits more for each weight: 2^guard_bits weights can be added. "auto" is 8, or as many as a round needs.
    max_age_s: oldest acceptable upload, in seconds.  min_participants: fewer uploads skip a round.
    descriptor: what clients are clustered by, in mode hardened: every round's "model", or a label-residual "signature"
    of their data, once before round 1 (``clustering/signature.py``).
    hardening: "sketch" or "rotation", in mode hardened.  sketch_dim: numbers in a sketch.
    min_cluster: smallest cluster whose sum is released, in mode hardened. Of two members, each can compute the other's
    model.
    max_ahead_s: how far a participant's clock may be ahead of the hub's.
    """

    clusters: Annotated[int | Literal["auto"], fl.Meta(ge=1)] = 5
    gamma: Annotated[float | Literal["median"], fl.Meta(gt=0, le=fl.LARGEST)] = 0.5
    kernel: Literal["laplacian", "rbf"] = "laplacian"
    alpha: float = 0.1
    schedule: str = "decay"
    guard_bits: int | Literal["auto"] = "auto"
    max_age_s: Annotated[float, fl.Meta(gt=0)] = 86_400.0
    min_participants: Annotated[int, fl.Meta(ge=1)] = 2
    descriptor: Literal["model", "signature"] = "model"
    hardening: Literal["sketch", "rotation"] = "sketch"
    sketch_dim: Annotated[int, fl.Meta(ge=1)] = 64
    min_cluster: Annotated[int, fl.Meta(ge=1)] = 3
    max_ahead_s: Annotated[float, fl.Meta(ge=0)] = 60.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.clusters_now(1, 0.0)

    def clusters_now(self, r: int, coin: float) -> bool:
        return parse_schedule(self.schedule, self.alpha).clusters_now(r, coin)

    def protection(self, mode: str) -> Protection:
        if mode != "hardened":
            return "none"
        return "signature" if self.descriptor == "signature" else self.hardening

    def smallest(self, mode: str) -> int:
        return self.min_cluster if mode == "hardened" else 1

    def lanes(self, clients: int, guard_bits: int | Literal["auto"] = "auto") -> Lanes:
        """That hold a sum over all of ``clients`` that a round asks."""
        return super().lanes(fl.sample_size(clients, self.participation), self.guard_bits)


SUMS_ENCRYPTED: tuple[Protection, ...] = ("sketch", "signature")
"""With which the service opens no models, so that the hub sums them up under encryption."""

HARDENED = ("descriptor", "hardening", "sketch_dim", "min_cluster")
"""Of mode hardened alone."""

WITHOUT_SIGNATURE = ("hardening", "sketch_dim", "gamma", "kernel", "alpha", "schedule")
"""Without effect where groups are found once, by signatures."""


def with_protection(*protections: Protection) -> fl.When:
    return lambda config, mode: config.protection(mode) in protections


class Protected(fl.Party):
    """A party of FedCAPrivacy."""

    config: FedCAPrivacyConfig

    @cached_property
    def protection(self) -> Protection:
        return self.config.protection(self.common.mode)


def check(config: FedCAPrivacyConfig, common: fl.Common) -> None:
    signature = config.protection(common.mode) == "signature"
    fl.refuse_unused(config, f"mode {common.mode}", common.mode != "hardened", *HARDENED)
    fl.refuse_unused(config, "hardening=rotation", config.hardening == "rotation", "sketch_dim")
    fl.refuse_unused(config, "descriptor=signature", signature, *WITHOUT_SIGNATURE)
    fl.refuse_unused(config, f"schedule={config.schedule}", config.schedule != "decay", "alpha")
    if config.clusters == "auto" and common.mode == "literal":
        raise fl.UserError("clusters=auto is not in the paper: in mode literal give the number of clusters")
    asked = fl.sample_size(len(common.clients), config.participation)
    if asked > (room := config.lanes(len(common.clients)).max_terms):
        raise fl.UserError(
            f"a round asks {asked} clients, but lanes with guard_bits={config.guard_bits} sum up at most {room}: "
            "choose more guard_bits, or auto"
        )
    if signature and config.value_bits - 1 - config.fraction_bits < (bits := int(BOUND**2).bit_length()):
        raise fl.UserError(
            f"descriptor=signature sends numbers up to {BOUND**2:g}: value_bits must be at least fraction_bits + "
            f"{1 + bits}, not {config.value_bits}"
        )
    if signature and len(common.clients) < FEWEST:
        raise fl.UserError(f"descriptor=signature needs at least {FEWEST} clients, not {len(common.clients)}")
    least = {"min_participants": config.min_participants, "min_cluster": config.smallest(common.mode)}
    for name, needed in least.items():
        if needed > asked:
            raise fl.UserError(f"{name} is {needed}, but a round asks only {asked} of {len(common.clients)} clients")
