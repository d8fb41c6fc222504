"""The settings of FedCAPrivacy, and which of them work together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from coterie.clustering.schedule import parse_schedule
from coterie.clustering.signature import BOUND
from coterie.crypto.packing import Lanes
from coterie.protocol.errors import UserError
from coterie.protocol.setup_info import Common
from coterie.protocols.local_training import LocalTraining, refuse_unused, sample_size
from coterie.protocols.masked_sums import FEWEST

GUARD_BITS = 8
"""The least guard bits of a lane with the setting "auto", since a lane of 32 bits is packed fastest."""


Protection = Literal["none", "sketch", "rotation", "signature"]


@dataclass(frozen=True)
class FedCAPrivacyConfig(LocalTraining):
    """Settings of FedCAPrivacy; defaults are the paper's where it gives one (section VI-A).

    clusters: c, the number of clusters; or "auto": every round counts the clusters that stand out from noise
    (``clustering/number.py``). With "auto" clusters are also made anew when their number changes, and until a
    clustering moves no participant; the schedule is then a lower bound.
    gamma: scale of the affinity, eq. (8), or "median".  kernel: of the affinity, "laplacian" as printed, or "rbf".
    alpha: decay of the clustering frequency.  schedule: of the clusterings, "decay", "always" or "every:DELTA".
    key_bits: Paillier modulus, 2048 or 3072.  fraction_bits: bits after the point of a weight, rho of eq. (4).
    value_bits: bits of a weight in fixed point, with its sign; by default weights lie within +-128.
    guard_bits: bits more for each weight, for the carries of a sum: 2^guard_bits weights can be added. "auto" is 8, or
    as many as the sum over all clients that a round asks needs.
    kappa: by how many bits the mask of eq. (6) is larger than what it hides.
    max_age_s: oldest acceptable upload, in seconds.  min_participants: fewer uploads skip a round.
    descriptor: what clients are clustered by, in mode hardened: "model", every round's, or "signature", the
    label-residual signature of their data, once before round 1 (``clustering/signature.py``).
    hardening: "sketch" or "rotation", in mode hardened.  sketch_dim: numbers in a sketch.
    min_cluster: smallest cluster whose sum is released, in mode hardened. In a cluster of two, each member can compute
    the other's model.
    randomness: of Paillier, "short" exponents (``crypto/paillier.py`` states the assumption) or the plain "full" r^N.
    max_ahead_s: how far a participant's clock may be ahead of the hub's.
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
    descriptor: Literal["model", "signature"] = "model"
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
        if not self.max_age_s > 0 or not self.max_ahead_s >= 0:
            raise UserError(f"max_age_s must be positive, not {self.max_age_s}, and max_ahead_s not {self.max_ahead_s}")
        if self.gamma != "median" and not (isinstance(self.gamma, int | float) and 0 < self.gamma < math.inf):
            raise UserError(f"gamma must be a positive number or 'median', not {self.gamma!r}")

    def protection(self, mode: str) -> Protection:
        """What the service sees instead of models; "none" outside of mode hardened."""
        if mode != "hardened":
            return "none"
        return "signature" if self.descriptor == "signature" else self.hardening

    def lanes(self, clients: int) -> Lanes:
        """The fixed-point format of eq. (4). guard_bits "auto" hold a sum over all of ``clients`` that a round asks."""
        needed = (sample_size(clients, self.participation) - 1).bit_length()
        guard_bits = max(GUARD_BITS, needed) if self.guard_bits == "auto" else self.guard_bits
        return Lanes(self.fraction_bits, self.value_bits, guard_bits, self.kappa)


SUMS_ENCRYPTED = ("sketch", "signature")
"""The protections with which the service opens no models, so that the hub sums them up under encryption."""

UNUSED = {
    "paper": ("descriptor", "hardening", "sketch_dim", "min_cluster"),
    "literal": ("descriptor", "hardening", "sketch_dim", "min_cluster"),
    "hardened": (),
}
"""By mode, the settings that have no effect in it."""

WITHOUT_SIGNATURE = ("hardening", "sketch_dim", "gamma", "kernel", "alpha", "schedule")
"""The settings that have no effect where groups are found once, by signatures."""


def check(config: FedCAPrivacyConfig, common: Common) -> None:
    """Raises UserError for settings that do not fit these clients, or have no effect."""
    signature = common.mode == "hardened" and config.descriptor == "signature"
    refuse_unused(
        config,
        (
            *((name, f"mode {common.mode}", True) for name in UNUSED[common.mode]),
            ("sketch_dim", "hardening=rotation", config.hardening == "rotation"),
            *((name, "descriptor=signature", signature) for name in WITHOUT_SIGNATURE),
            ("alpha", f"schedule={config.schedule}", config.schedule != "decay"),
        ),
    )
    if config.clusters == "auto" and common.mode == "literal":
        raise UserError("clusters=auto is not in the paper: in mode literal give the number of clusters")
    asked = sample_size(len(common.clients), config.participation)
    if asked > (room := config.lanes(len(common.clients)).max_terms):
        raise UserError(
            f"a round asks {asked} clients, but lanes with guard_bits={config.guard_bits} sum up at most {room}: "
            "choose more guard_bits, or auto"
        )
    if signature and config.value_bits - 1 - config.fraction_bits < (bits := int(BOUND**2).bit_length()):
        raise UserError(
            f"descriptor=signature sends numbers up to {BOUND**2:g}: value_bits must be at least fraction_bits + "
            f"{1 + bits}, not {config.value_bits}"
        )
    if signature and len(common.clients) < FEWEST:
        raise UserError(f"descriptor=signature needs at least {FEWEST} clients, not {len(common.clients)}")
    smallest = config.min_cluster if common.mode == "hardened" else 1
    for name, needed in (("min_participants", config.min_participants), ("min_cluster", smallest)):
        if needed > asked:
            raise UserError(f"{name} is {needed}, but a round asks only {asked} of {len(common.clients)} clients")
